# SPDX-License-Identifier: Apache-2.0
"""Ambiguous or malformed HTTP. A message that two programs could read differently is refused and
the connection closed, so that no request can be smuggled past a proxy in front of attnd."""

import ctypes
import re
from pathlib import Path

import pytest

from http1 import Connection, get_bytes

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
}
# Messages that libmicrohttpd refuses in its own words before attnd sees them, by its version. A
# version that is not listed may refuse any of them.
REFUSED_BY_LIBRARY = {
    "0.9.75": set(),
    "1.0.1": {"chunked with a length", "a length with chunked", "unknown transfer coding",
              "two transfer codings", "space before the colon", "tab before the colon",
              "space inside a header's name"},
}
# Every version of libmicrohttpd refuses these itself; 0.9.75 sends the head of some replies twice.
MALFORMED = {
    "negative length": (POST + "Content-Length: -1\r\n", {400}),
    "length with a sign": (POST + LENGTH.replace(": ", ": +"), {400}),
    "length that is not a number": (POST + "Content-Length: 0x2d\r\n", {400}),
    "length over 64 bits": (POST + "Content-Length: 99999999999999999999\r\n", {400, 413}),
    "no host": ("POST /v1/attention HTTP/1.1\r\n" + LENGTH, {400}),
    "HTTP/2.0": ("GET /v2/health/live HTTP/2.0\r\nHost: attnd\r\n", {505}),
    "100 kB header": (POST + LENGTH + "X: " + "x" * 100000 + "\r\n", {431, 413}),
    "100 kB path": (f"GET /{'x' * 100000} HTTP/1.1\r\nHost: attnd\r\n", {414, 431}),
}


def assert_refused_and_closed(server, data, statuses):
    """Sends `data` and a second request after it, which must get no reply. Returns the reply
    to `data`."""
    with Connection(server.port) as connection:
        connection.send(data + SMUGGLED)
        reply = connection.read_reply()
        assert reply is not None and reply.status in statuses, reply
        rest = connection.read_to_end()
        assert b"live" not in reply.body + rest and b" 200 " not in rest, rest
    assert server.is_alive()
    return reply


def refuse_ambiguous(server, what):
    head, _ = AMBIGUOUS[what]
    body = IN_CHUNKS if "chunked" in head else SMALL
    return assert_refused_and_closed(server, head.encode() + b"\r\n" + body, {400})


def library_version(server):
    """The version of the libmicrohttpd that the daemon has loaded, e.g. "1.0.1"."""
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    path = re.search(r"/\S*/libmicrohttpd\.so\S*", maps)[0]
    get_version = ctypes.CDLL(path).MHD_get_version
    get_version.restype = ctypes.c_char_p
    return get_version().decode()


@pytest.mark.parametrize("what", AMBIGUOUS)
def test_ambiguous_message_is_refused_and_closed(demo_server, what):
    refuse_ambiguous(demo_server, what)


@pytest.mark.parametrize("what", AMBIGUOUS)
def test_problem_of_an_ambiguous_message_names_the_header(demo_server, what):
    reply = refuse_ambiguous(demo_server, what)
    is_problem = reply.headers.get("content-type") == "application/problem+json"
    version = library_version(demo_server)
    if version in REFUSED_BY_LIBRARY:
        assert is_problem == (what not in REFUSED_BY_LIBRARY[version]), (version, reply)

    if is_problem:
        problem = reply.json()
        assert (problem["status"], problem["title"]) == (400, "Bad request")
        assert problem.get("field") == AMBIGUOUS[what][1], problem
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


def test_endless_chunk_extension_ends_at_the_idle_timeout(start_server):
    server = start_server("--demo", "--idle-timeout", 1)
    with Connection(server.port) as connection:
        connection.send((POST + CHUNKED).encode() + b"\r\n1;" + b"x" * 100000)
        assert server.is_alive()
        connection.read_to_end()
    assert server.is_alive()


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


def test_unknown_expectation_is_417(demo_server):
    with Connection(demo_server.port) as connection:
        connection.send((POST + LENGTH + "Expect: 200-maybe\r\n").encode() + b"\r\n" + SMALL)
        reply = connection.read_reply()
        assert (reply.status, reply.json()["title"]) == (417, "Expectation failed")


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
