# SPDX-License-Identifier: Apache-2.0
"""JSON as RFC 8259 has it: what must be read, what must be refused, and what may be either, as
members of a native request. tests/data/invalid has what is refused for its meaning."""

import pytest

from fault import exchange
from http1 import post_bytes
from server import Server

MUST_READ, MUST_REFUSE = "read", "refused"

NUMBERS = {
    MUST_READ: ["0", "-0", "0.0", "-0.5", "1E2", "1e2", "1e+2", "1e-2", "1.5E-3", "0e0", "0e+1", "0E-7",
                "123456789012345678901234567890", "0.000000000000000000000000000000000001", "1e-400",
                "-1e-99999", "1.0000000000000000000000000000000000000001", "20e00", "-123.456e-1"],
    MUST_REFUSE: ["01", "-01", "00", "+1", ".5", "-.5", "1.", "-1.", "1.e1", "0.e1", "1e", "1e+", "1E-",
                  "1eE2", "1e1.5", "1ee2", "0x1", "0X1F", "0b1", "1_000", "1 000", "-", "--1", "- 1", "+-1",
                  "1.2.3", "1+2", "1-", "NaN", "-NaN", "nan", "Infinity", "-Infinity", "inf", "1f",
                  "1.0d", "1L", "0o7", "\uff11", "\u0661", "1e\u2070", "$1", "1%", "1/2", "(1)", "1,,1",
                  ",1", "1,", "true", "null", "\"1\"", "'1'", "{}", "[1]", "", "\u00a01", "\u20281",
                  "1\u200b", "\ufeff1", "\\u0031", "1e400", "-1e400", "3.5e38"],
}
STRINGS = {
    MUST_READ: [r'""', r'"a"', r'"\u0061"', r'"\u00e9"', r'"\uD83D\uDE00"', r'"\"\\\/\b\f\n\r\t"', '"é"',
                '"\U0001f600"', '"\u2028\u2029"', '"\ufeff"', '"\x7f"', r'"\u2060"', '"a/b"', r'"\\u0000"',
                r'"\uFFFF"', '"\ufdd0"', r'"\u0022"', '" "'],
    MUST_REFUSE: ['"', 'a', "'a'", r'"\x41"', r'"\a"', r'"\v"', r'"\0"', r'"\u"', r'"\u0"', r'"\u00"', r'"\u00A"',
                  r'"\u00G0"', r'"\U0061"', r'"\u{61}"', '"\\', '"\\"', '"a', '"a\nb"', '"a\tb"', '"a\x00b"',
                  '"\x1f"', r'"\uD800"', r'"\uDC00"', r'"\uDC00\uD800"', r'"\uD800\n"', r'"\uD800a"',
                  r'"\uD800\u0061"', r'"\u0000"', '"a"b', '"a""b"', '"a" "b"', '\\"a"', '"\\ a"', '"\\\n"',
                  b'"\xff"', b'"\x80"', b'"\xc3"', b'"\xc0\xaf"', b'"\xe2\x82"', b'"\xed\xa0\x80"',
                  b'"\xf4\x90\x80\x80"', b'"\xf8\x88\x80\x80\x80"', b'"\xe0\x80\xaf"'],
}
QUERIES = '"queries":[[1,2,3]]'
TEXTS = {
    MUST_READ: ['{"model":"journey",%s}', ' {"model":"journey",%s} ', '\n{\t"model"\r\n: "journey" , %s\n}\n',
                '{"model":"journey",%s}\r\n\r\n', '{%s,"model":"journey"}', '{"m\\u006fdel":"journey",%s}',
                '{"model":"journey",%s,"causal":null}', '{"model":"journey",%s,"causal":true}',
                '{"model":"journey",%s,"need_weights":false}'],
    MUST_REFUSE: ["", " ", "{", "}", "[", "]", "[]", "null", "true", "1", '"a"', "{%s", "%s}", "%s", "{,%s}",
                  "{%s,}", "{%s,,}", "{%s}}", "{%s}]", "{%s]", "[%s}", "{%s}{}", "{%s};", "{%s} x",
                  "{%s}//", "{%s}/**/", "/**/{%s}", "{/**/%s}", "#\n{%s}", "{%s,\"causal\"}",
                  "{%s,\"causal\":}", "{%s,\"causal\" true}", "{%s,causal:true}", "{%s,'causal':true}",
                  "{%s,\"causal\"::true}", "{%s,\"causal\":true:}", "{%s;\"causal\":true}",
                  "{%s \"causal\":true}", "{%s,1:true}", "{%s,null:true}", "{%s,\"causal\":True}",
                  "{%s,\"causal\":tru}", "{%s,\"causal\":truee}", "{%s,\"causal\":nul}",
                  "{%s,\"causal\":undefined}", "\ufeff{%s}", "\x0c{%s}", "\xa0{%s}", "\u2060{%s}", "{%s}\x00",
                  "\x00{%s}", "{%s}\x1a", "{%s,\"causal\":true,\"causal\":true}", "{%s,%s}",
                  "{\"queries\":[[1,2,3]}", "{\"queries\":[1,2,3]]}", "{\"queries\":[[1,2,3]],]}",
                  "{\"queries\":" + "[" * 100000 + "}", "{\"queries\":" + "[" * 5000 + "]" * 5000 + "}",
                  "{" * 100000, "{\"a\":" * 100000, "[" * 100000, "\"" * 100001, "\\" * 100000],
}


@pytest.fixture(scope="module")
def server():
    with Server("--demo") as started:
        yield started


def send_text(server, text):
    return exchange(server.port, post_bytes(text.encode() if isinstance(text, str) else text))


def cases(table):
    return [pytest.param(text, expected, id=f"{expected}-{text!r:.40}")
            for expected, texts in table.items() for text in texts]


@pytest.mark.parametrize("number, expected", cases(NUMBERS))
def test_number(server, number, expected):
    reply = send_text(server, '{"model":"journey","queries":[[1,%s,3]]}' % number)
    assert reply.status == (200 if expected == MUST_READ else 400), reply.body
    assert reply.status == 200 or reply.json()["detail"]


@pytest.mark.parametrize("string, expected", cases(STRINGS))
def test_string(server, string, expected):
    """As the name of a model, which does not exist; an empty one is of the wrong kind."""
    string = string if isinstance(string, bytes) else string.encode()
    reply = send_text(server, b'{"model":%b,%b}' % (string, QUERIES.encode()))
    assert reply.status == (404 if expected == MUST_READ else 400), reply.body
    assert reply.json()["detail"]


@pytest.mark.parametrize("text, expected", cases(TEXTS))
def test_text(server, text, expected):
    reply = send_text(server, text.replace("%s", QUERIES))
    assert reply.status == (200 if expected == MUST_READ else 400), reply.body
    assert reply.status == 200 or reply.json()["detail"]
