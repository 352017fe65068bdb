# SPDX-License-Identifier: Apache-2.0
"""413: bodies over --max-body, however their size is sent. demo_server accepts 1 MiB."""

import requests

from compare import assert_problem
from http1 import Connection

JSON = {"Content-Type": "application/json"}
LIMIT = 1048576
HEAD = "POST /v1/attention HTTP/1.1\r\nHost: attnd\r\nContent-Type: application/json\r\n"
SMALL_TEXT = b'{"model":"journey","queries":[[0.1,0.2,0.3]]}'


def padded_to(size):
    return SMALL_TEXT + b" " * (size - len(SMALL_TEXT))


def assert_too_large(reply):
    assert (reply.status, reply.json()["title"]) == (413, "Body too large"), reply
    assert reply.headers["content-type"] == "application/problem+json"
    assert str(LIMIT) in reply.json()["detail"], reply


def test_body_of_exactly_the_limit_is_accepted(demo_server):
    response = requests.post(demo_server.url + "/v1/attention", data=padded_to(LIMIT),
                             headers=JSON, timeout=60)
    assert response.status_code == 200, response.text


def test_body_one_byte_over_the_limit_is_refused(demo_server):
    response = requests.post(demo_server.url + "/v1/attention", data=padded_to(LIMIT + 1),
                             headers=JSON, timeout=60)
    problem = assert_problem(response, 413, "Body too large")
    for remedy in ("fewer sequences", "safetensors or binary data instead of JSON", "--max-body"):
        assert remedy in problem["detail"], problem


def test_much_too_large_content_length_is_refused_before_the_body(demo_server):
    """A body that is only a little too large is read first, because its sender would not read a
    reply before it has sent everything."""
    for length in (LIMIT + 9 * 1024 * 1024, 2**31, 2**40, 10**17):
        with Connection(demo_server.port) as connection:
            connection.send(f"{HEAD}Content-Length: {length}\r\n\r\n".encode())
            assert_too_large(connection.read_reply())
            assert connection.read_to_end() == b""
    assert demo_server.is_alive()


def test_endless_body_is_cut_off(demo_server):
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with Connection(demo_server.port) as connection:
        connection.send(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        connection.send(chunk * 200)
        connection.read_to_end()
    assert demo_server.is_alive()


def test_expect_continue_is_refused_when_the_body_is_too_large(demo_server):
    with Connection(demo_server.port) as connection:
        connection.send(f"{HEAD}Content-Length: {LIMIT + 1}\r\n"
                        "Expect: 100-continue\r\n\r\n".encode())
        assert_too_large(connection.read_reply())


def test_expect_continue_is_continued_when_the_body_fits(demo_server):
    with Connection(demo_server.port) as connection:
        connection.send(f"{HEAD}Content-Length: {len(SMALL_TEXT)}\r\n"
                        "Expect: 100-continue\r\n\r\n".encode())
        assert connection.read_reply().status == 100
        connection.send(SMALL_TEXT)
        assert connection.read_reply().status == 200


def test_chunked_body_over_the_limit_is_refused(demo_server):
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with Connection(demo_server.port) as connection:
        connection.send(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        connection.send(chunk * 17 + b"0\r\n\r\n")
        assert_too_large(connection.read_reply())
    assert demo_server.is_alive()


def test_chunked_body_is_accepted_in_chunks_of_one_byte(demo_server):
    with Connection(demo_server.port) as connection:
        connection.send(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        connection.send(b"".join(b"1\r\n%c\r\n" % byte for byte in SMALL_TEXT) + b"0\r\n\r\n")
        assert connection.read_reply().status == 200
