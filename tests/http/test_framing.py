# SPDX-License-Identifier: Apache-2.0
"""Ambiguous or malformed HTTP. A message that two programs could read differently is refused and
the connection closed, so that no request can be smuggled past a proxy in front of attnd."""

import ctypes
import random
import re
import time
from pathlib import Path

import pytest

from http1 import Connection, get_bytes, post_bytes

SMALL = b'{"model":"journey","queries":[[0.1,0.2,0.3]]}'
SMUGGLED = get_bytes("/v2/health/live")
POST = "POST /v1/attention HTTP/1.1\r\nHost: attnd\r\nContent-Type: application/json\r\n"
LENGTH = f"Content-Length: {len(SMALL)}\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
IN_CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SMALL), SMALL)

# What a client sends, and the header that attnd's problem names: none where the name is at fault.
AMBIGUOUS = {
    "chunked with a length": (POST + CHUNKED + LENGTH, "Content-Length"),
    "a length with chunked": (POST + LENGTH + CHUNKED, "Content-Length"),
    "unknown transfer coding": (POST + "Transfer-Encoding: xchunked\r\n", "Transfer-Encoding"),
    "two transfer codings": (POST + "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding"),
    "two headers of transfer coding": (POST + CHUNKED + "Transfer-Encoding: identity\r\n",
                                       "Transfer-Encoding"),
    "two different lengths": (POST + LENGTH + "Content-Length: 3\r\n", "Content-Length"),
    "space before the colon": (POST + LENGTH.replace(":", " :"), None),
    "tab before the colon": (POST + LENGTH.replace(":", "\t:"), None),
    "space inside a header's name": (POST + LENGTH + "X Y: 1\r\n", None),
    "two hosts": (POST + "Host: other\r\n" + LENGTH, "Host"),
    "two keys": (POST + LENGTH + "Authorization: Bearer a\r\nauthorization: Bearer b\r\n", "Authorization"),
    "host with a user": (POST.replace("attnd", "user@attnd") + LENGTH, "Host"),
    "host with a path": (POST.replace("attnd", "attnd/path") + LENGTH, "Host"),
    "two hosts in one header": (POST.replace("attnd", "attnd other") + LENGTH, "Host"),
    "no host": (POST.replace("Host", "X") + LENGTH, "Host"),
    "folded length": (POST + "Content-Length:\r\n " + LENGTH.split()[1] + "\r\n", None),
    "folded name of chunked": (POST + "Transfer-: chunked\r\n Encoding\r\n", None),
    "folded value": (POST + LENGTH + "X: a\r\n b\r\n", None),
    "folded value, twice": (POST + LENGTH + "X: a\r\n\tb\r\n c\r\n", None),
    "NUL in a value": (POST + LENGTH + "X: a\0b\r\n", None),
    "two NULs in a value": (POST + LENGTH + "X: a\0\0b\r\n", None),
    "NUL and a header in a value": (POST + LENGTH + "X: a\0\0Y: b\r\n", None),
    "NUL at the end of a value": (POST + "X: a\0\r\n" + LENGTH, None),
    "NUL at the end of the last value": (POST + LENGTH + "X: a\0\r\n", None),
    "NUL before a value": (POST + LENGTH + "X: \0a\r\n", None),
    "bare LF after a value": (POST + "X: a\n" + LENGTH, None),
    "bare LF after the last value": (POST + LENGTH + "X: a\n", None),
    "bare LF after the request line": (POST.replace("\r\n", "\n", 1) + LENGTH, None),
    "bare LF everywhere": ((POST + LENGTH).replace("\r\n", "\n"), None),
    "bare CR in a value": (POST + LENGTH + "X: a\rb\r\n", "X"),
    "control character in a value": (POST + LENGTH + "X: a\x01b\r\n", "X"),
    "DEL in a value": (POST + LENGTH + "X: a\x7fb\r\n", "X"),
    "NUL in the path": (POST.replace(" HTTP", "\0/../x HTTP") + LENGTH, None),
    "NUL at the end of the path": (POST.replace(" HTTP", "\0 HTTP") + LENGTH, None),
    "NUL before a version in the path": (POST.replace(" HTTP", "\0HTTP/1.1\0 HTTP") + LENGTH, None),
    "NUL in the query": (POST.replace(" HTTP", "?a\0b HTTP") + LENGTH, None),
    "NUL instead of a query": (POST.replace(" HTTP", "\0a=b HTTP") + LENGTH, None),
    "control character in the path": (POST.replace(" HTTP", "\x01 HTTP") + LENGTH, None),
    "path that is not ASCII": (POST.replace(" HTTP", "\xe4 HTTP") + LENGTH, None),
    "two spaces before the path": (POST.replace(" /", "  /") + LENGTH, None),
}
# Messages that libmicrohttpd refuses in its own words before attnd sees them, by its version. A
# version that is not listed may refuse any of them.
REFUSED_BY_LIBRARY = {
    "0.9.75": set(),
    "1.0.1": {"chunked with a length", "a length with chunked", "unknown transfer coding",
              "two transfer codings", "space before the colon", "tab before the colon",
              "space inside a header's name", "two spaces before the path", "no host",
              *(what for what in AMBIGUOUS if re.match("folded|NUL|two NULs|bare", what))},
}
# Messages whose connection a version of libmicrohttpd closes without a reply.
CLOSED_BY_LIBRARY = {
    "1.0.1": {what for what in AMBIGUOUS if re.match("NUL .*(path|query)", what)},
}
# Every version of libmicrohttpd refuses these itself; 0.9.75 sends the head of some replies twice.
MALFORMED = {
    "negative length": (POST + "Content-Length: -1\r\n", {400}),
    "length with a sign": (POST + LENGTH.replace(": ", ": +"), {400}),
    "length that is not a number": (POST + "Content-Length: 0x2d\r\n", {400}),
    "length over 64 bits": (POST + "Content-Length: 99999999999999999999\r\n", {400, 413}),
    "HTTP/2.0": ("GET /v2/health/live HTTP/2.0\r\nHost: attnd\r\n", {505}),
    "100 kB header": (POST + LENGTH + "X: " + "x" * 100000 + "\r\n", {431, 413}),
    "100 kB path": (f"GET /{'x' * 100000} HTTP/1.1\r\nHost: attnd\r\n", {414, 431}),
}


def assert_refused_and_closed(server, data, statuses, may_be_silent=False):
    """Sends `data` and a second request after it, which must get no reply. Returns the reply
    to `data`; None if there is none, which `may_be_silent` allows."""
    with Connection(server.port) as connection:
        connection.send(data + SMUGGLED)
        reply = connection.read_reply()
        if reply is None:
            assert may_be_silent, "closed without a reply"
        else:
            assert reply.status in statuses, reply
            rest = connection.read_to_end()
            assert b"live" not in reply.body + rest and b" 200 " not in rest, rest
    assert server.is_alive()
    return reply


def library_version(server):
    """The version of the libmicrohttpd that the daemon has loaded, e.g. "1.0.1"."""
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    path = re.search(r"/\S*/libmicrohttpd\.so\S*", maps)[0]
    get_version = ctypes.CDLL(path).MHD_get_version
    get_version.restype = ctypes.c_char_p
    return get_version().decode()


@pytest.mark.parametrize("what", AMBIGUOUS)
def test_ambiguous_message_is_refused_with_its_header_and_closed(demo_server, what):
    head, field = AMBIGUOUS[what]
    body = IN_CHUNKS if "chunked" in head else SMALL
    silent = what in CLOSED_BY_LIBRARY.get(library_version(demo_server), ())
    reply = assert_refused_and_closed(demo_server, head.encode("latin-1") + b"\r\n" + body, {400},
                                      silent)
    if reply is None:
        return
    is_problem = reply.headers.get("content-type") == "application/problem+json"
    version = library_version(demo_server)
    if version in REFUSED_BY_LIBRARY:
        assert is_problem == (what not in REFUSED_BY_LIBRARY[version]), (version, reply)

    if is_problem:
        problem = reply.json()
        assert (problem["status"], problem["title"]) == (400, "Bad request")
        assert problem.get("field") == field, problem
    else:
        assert "server" not in reply.headers, f"attnd replied in HTML: {reply}"


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_message_is_refused_and_closed(demo_server, what):
    head, statuses = MALFORMED[what]
    assert_refused_and_closed(demo_server, head.encode() + b"\r\n" + SMALL, statuses)


@pytest.mark.parametrize("body", [b"zz\r\n", b"-1\r\nx\r\n", b"ffffffffffffffffff\r\nx\r\n"])
def test_malformed_chunk_is_refused_and_closed(demo_server, body):
    head = (POST + CHUNKED).encode() + b"\r\n"
    assert_refused_and_closed(demo_server, head + body, {400, 413})


@pytest.mark.parametrize("line", ["GET\r\n", "\x00\x01\x02\r\n", "GET / HTTP/9\r\n", "\xff" * 100])
def test_bytes_that_are_not_http_do_no_harm(demo_server, line):
    with Connection(demo_server.port) as connection:
        connection.send(line.encode("latin-1") + b"\r\n\r\n")
        connection.socket.settimeout(2)
        try:
            reply = connection.read_reply()
            assert reply is None or reply.status >= 400, reply
        except TimeoutError:
            pass  # it may wait for more bytes
    assert demo_server.is_alive()


@pytest.mark.parametrize("size, status", [(1 << 16, 200), ((1 << 16) + 1, 413)])
@pytest.mark.parametrize("chunked", (False, True))
def test_body_of_the_index_has_a_limit_of_its_own(demo_server, size, status, chunked):
    """An HTTP thread reads it, so it may not take long."""
    path, body = "/v2/repository/index", b'{"ready":true}'.ljust(size)
    data = post_bytes(body, path=path)
    if chunked:
        data = POST.replace("/v1/attention", path).encode() + CHUNKED.encode() + b"\r\n"
        data += b"%x\r\n%s\r\n0\r\n\r\n" % (size, body)
    with Connection(demo_server.port) as connection:
        for _ in range(2):
            connection.send(data)
            reply = connection.read_reply()
            assert reply.status == status
            assert status == 200 or f"this route's limit of {1 << 16}" in reply.json()["error"]


def test_unknown_expectation_is_417(demo_server):
    with Connection(demo_server.port) as connection:
        connection.send((POST + LENGTH + "Expect: 200-maybe\r\n").encode() + b"\r\n" + SMALL)
        reply = connection.read_reply()
        assert (reply.status, reply.json()["title"]) == (417, "Expectation failed")


@pytest.mark.parametrize("head, status", [("GET /v2/health/live", 200), ("HEAD /metrics", 200), ("GET /nothing", 404),
                                          ("DELETE /v1/captures/x", 404), ("POST /v1/attention", 400)])
@pytest.mark.parametrize("length", ["", "Content-Length: 0\r\n"])
@pytest.mark.parametrize("behind", [b"", SMUGGLED])
def test_expectation_without_a_body_gets_its_reply(demo_server, head, status, length, behind):
    """There is nothing to wait for. libmicrohttpd may close the connection afterwards, and says so."""
    with Connection(demo_server.port) as connection:
        connection.send(f"{head} HTTP/1.1\r\nHost: attnd\r\nContent-Type: application/json\r\n{length}"
                        "Expect: 100-continue\r\n\r\n".encode() + behind)
        reply = connection.read_reply(head_only=head.startswith("HEAD"))
        if reply.status == 100:  # 1.0.1 may still send it
            reply = connection.read_reply(head_only=head.startswith("HEAD"))
        assert reply.status == status
        if reply.headers.get("connection") == "close":
            assert connection.read_reply() is None
        elif behind:
            assert connection.read_reply().status == 200


@pytest.mark.parametrize("path", ["/v2/health/live%00", "/v2/health/live%00/x", "/%00",
                                  "/v1/models/d2l%00", "/v1/models/d2l%00b"])
def test_nul_in_the_path_is_refused(demo_server, path):
    assert demo_server.get(path).status_code in (400, 404)


@pytest.mark.parametrize("path", ["/v1/models/..", "/v1/models/%2e%2e", "/v1/../v1/models",
                                  "/v1/models/../models/d2l", "/v1/models/%2e%2e%2fmodels",
                                  "/v1/models/d2l%2f..", "/../../etc/passwd"])
def test_path_with_dots_is_404(demo_server, path):
    """Sends bytes, because a client library would remove the dots."""
    with Connection(demo_server.port) as connection:
        connection.send(get_bytes(path))
        assert connection.read_reply().status == 404


def read_two_replies(server, data):
    """Sends `data` and a second request. Returns the replies to both."""
    with Connection(server.port) as connection:
        connection.send(data + SMUGGLED)
        return connection.read_reply(), connection.read_reply()


def test_request_whose_empty_line_ends_in_lf_alone_is_refused(demo_server):
    reply = assert_refused_and_closed(demo_server, (POST + LENGTH).encode() + b"\n" + SMALL, {400})
    assert reply.status == 400


@pytest.mark.parametrize("target", ["http://attnd/v2/health/live", "HTTP://attnd:80/v2/health/live?a=b",
                                    "https://attnd/v2/health/live"])
def test_whole_url_as_a_target_means_its_path(demo_server, target):
    reply, _ = read_two_replies(demo_server, get_bytes(target))
    assert (reply.status, reply.json()) == (200, {"live": True})


@pytest.mark.parametrize("target", ["http://attnd", "http://"])
def test_whole_url_without_a_path_means_the_page(demo_server, target):
    reply, second = read_two_replies(demo_server, get_bytes(target))
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert second.status == 200


@pytest.mark.parametrize("target", ["http:/v2/health/live", "*", "attnd:80"])
def test_target_without_a_path_of_a_route_is_404(demo_server, target):
    reply, second = read_two_replies(demo_server, get_bytes(target))
    assert (reply.status, second.status) == (404, 200)


def test_chunked_request_of_http_1_0_is_the_last_of_its_connection(demo_server):
    head = (POST + CHUNKED + "Connection: keep-alive\r\n").replace("HTTP/1.1", "HTTP/1.0")
    reply, second = read_two_replies(demo_server, head.encode() + b"\r\n" + IN_CHUNKS)
    assert (reply.status, reply.headers["connection"].lower(), second) == (200, "close", None)


@pytest.mark.parametrize("count", [1, 100, 1000, 5000])
def test_arguments_of_a_query_are_ignored(demo_server, count):
    arguments = "&".join(f"a{i}=b" for i in range(count))
    reply, second = read_two_replies(demo_server, get_bytes(f"/v2/health/live?{arguments}"))
    if library_version(demo_server) == "0.9.75" or reply.status == 200:
        assert (reply.status, second.status) == (200, 200)
    else:
        assert reply.status in (414, 431), reply


@pytest.mark.parametrize("form", ["a{}=b", "a=b", "a", "abcdefgh{}=12345678"])
def test_cookies_get_a_reply(demo_server, form):
    """However many they are; 100 are no problem."""
    for count in [1, 100, *range(600, 1000, 10), *range(1000, 12001, 250)]:
        cookies = "; ".join(form.format(i) for i in range(count))
        with Connection(demo_server.port) as connection:
            connection.send(get_bytes("/v2/health/live", f"Cookie: {cookies}"))
            reply = connection.read_reply()
        assert reply is not None, f"{count} cookies"
        assert reply.status in ({200} if count <= 100 else {200, 431})


@pytest.mark.parametrize("path", ["/v2/health/live", "/v1/models"])
@pytest.mark.parametrize("size", [70_000, 10**17])
def test_body_that_no_route_needs_is_refused_by_its_size(demo_server, path, size):
    """No byte of it needs to be sent."""
    with Connection(demo_server.port, timeout=60) as connection:
        connection.send(get_bytes(path, f"Content-Length: {size}"))
        reply = connection.read_reply()
        assert reply.status == 413
        assert f"the body has {size} bytes, more than this route's limit of 65536" in reply.body.decode()
        assert connection.read_to_end() == b""


def test_headers_of_every_size_are_accepted_however_they_arrive(demo_server):
    """The library moves and extends its buffer while headers arrive."""
    rng = random.Random(1)
    with Connection(demo_server.port) as connection:
        for case in range(60):
            headers = [f"X-{i}:{' ' * rng.randrange(3)}{'v' * rng.choice((0, 1, 7, 100, 3000))}"
                       for i in range(rng.randrange(14))]
            data = post_bytes(SMALL, *headers) + get_bytes("/v2/health/live?x", *headers[:3])
            pieces = sorted(rng.randrange(len(data)) for _ in range(rng.randrange(12)))
            for start, end in zip([0, *pieces], [*pieces, len(data)]):
                connection.send(data[start:end])
                time.sleep(0.001)
            replies = connection.read_reply(), connection.read_reply()
            assert [reply.status for reply in replies] == [200, 200], (case, replies, headers)


@pytest.mark.parametrize("value", ["", "a", " a\t", "a b\tc", "\xe4\xff", "a,;=()"])
def test_values_of_headers_may_have_spaces_tabs_and_other_alphabets(demo_server, value):
    data = get_bytes("/v2/health/live").decode()
    data = data.replace("Host", f"X: {value}\r\nHost").encode("latin-1")
    reply, second = read_two_replies(demo_server, data)
    assert (reply.status, second.status) == (200, 200)


@pytest.mark.parametrize("host", ["", "attnd:80", "[::1]:80", "xn--attnd-1.example_x", "attnd \t"])
def test_host_may_be_a_name_or_an_address(demo_server, host):
    data = get_bytes("/v2/health/live").decode()
    data = re.sub("Host: .*\r", f"Host: {host}\r", data).encode()
    reply, second = read_two_replies(demo_server, data)
    assert (reply.status, second.status) == (200, 200)
