# SPDX-License-Identifier: Apache-2.0
"""413: bodies over --max-body, however their size is sent. demo_server accepts 1 MiB."""

import numpy as np
import requests

from checkpoints import write_layer
from compare import assert_problem
from http1 import Connection
from safetensors_file import make_safetensors

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


# --- round sizes, which the defaults have room for ---

def post_tensors(server, queries, **metadata):
    return requests.post(server.url + "/v1/attention", timeout=300,
                         data=make_safetensors({"queries": queries}, metadata=metadata),
                         headers={"Content-Type": "application/vnd.safetensors"})


def test_hidden_states_of_4096_rows_and_columns_are_accepted(start_server, tmp_path):
    path = tmp_path / "layer.safetensors"
    write_layer(path, num_heads=1, head_size=1, query_size=4096)
    server = start_server("--model", f"m={path}")
    rows = np.zeros((4096, 4096), np.float32)
    reply = post_tensors(server, rows)
    assert reply.status_code == 200, reply.text
    problem = assert_problem(post_tensors(server, np.zeros((4100, 4096), np.float32)), 413, "Body too large")
    assert f"more than --max-body {2**26 + 2**16}; " in problem["detail"]


def test_one_head_of_16384_tokens_is_not_over_the_limit_of_replies(start_server, tmp_path):
    """1 GiB of weights is not computed here: their memory is refused, which is looked at later."""
    path = tmp_path / "layer.safetensors"
    write_layer(path, num_heads=1, head_size=1, query_size=1)
    server = start_server("--model", f"m={path}", "--max-memory", "64MiB")
    reply = post_tensors(server, np.zeros((16384, 1)), need="weights")
    problem = assert_problem(reply, 413, "Request too large")
    assert "--max-memory" in problem["detail"]
    problem = assert_problem(post_tensors(server, np.zeros((16385, 1)), need="weights"), 413, "Reply too large")
    assert f"more than --max-reply {2**30 + 2**16}; " in problem["detail"]
    assert "or start attnd with a larger --max-reply" in problem["detail"]
