# SPDX-License-Identifier: Apache-2.0
"""Large replies are sent while they are printed, in bounded memory."""

import json
import re
import signal
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from checkpoints import read_layer, slow_request, write_layer
from compare import assert_close, assert_problem
from http1 import Connection, post_bytes
from reference import attend
from server import is_sanitized

# With 4 heads: 5.8 million weights, 23 MB as float32, some 77 MB as text. A quarter of that under a
# sanitizer, which is still more than socket buffers hold.
TOKENS = 600 if is_sanitized() else 1200
MEMORY_FOR_ONE = 30 * TOKENS * TOKENS  # bytes: enough for one large request, not for two


@pytest.fixture
def layer_path(tmp_path):
    path = tmp_path / "x.safetensors"
    write_layer(path, num_heads=4, head_size=2, query_size=2)
    return path


def large_request(tokens=TOKENS):
    return slow_request(tokens=tokens) | {"need_weights": True}


def as_bytes(request, **options):
    return post_bytes(json.dumps(request).encode(), **options)


def resident_bytes(server, peak=False):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        name = "VmHWM" if peak else "VmRSS"
        return int(re.search(name + r":\s+(\d+) kB", status.read())[1]) * 1024


def status_of(server, request):
    """Returns the status of the reply, which is not read to its end."""
    with Connection(server.port, timeout=120) as connection:
        connection.send(as_bytes(request))
        assert connection.receive()
        return int(connection.unread.split()[1])


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"the condition did not become true within {seconds} s"
        time.sleep(0.05)


def test_large_reply_is_chunked_and_right(start_server, tmp_path):
    path = tmp_path / "x.safetensors"
    write_layer(path, num_heads=4, head_size=2, query_size=2)
    server = start_server("--model", f"x={path}")
    request = large_request(tokens=300)
    reply = server.attention(request)
    assert reply.headers["Transfer-Encoding"] == "chunked"
    assert reply.headers["Content-Type"] == "application/json"
    outputs, weights = attend(read_layer(path), *[request["queries"]] * 3)
    assert_close(reply.json()["outputs"], outputs, "outputs")
    assert_close(reply.json()["attention_weights"], weights, "weights")
    small = server.attention(large_request(tokens=3))
    assert int(small.headers["Content-Length"]) == len(small.content)


def test_ragged_large_reply_is_that_of_its_sequences(start_server, layer_path):
    server = start_server("--model", f"x={layer_path}", "--engine", "native")  # OpenBLAS's bits depend on the other rows
    rows = [slow_request(seed, tokens)["queries"] for seed, tokens in
            enumerate([1, 150, 2, 130, 40])]
    together = server.attention({"queries": rows, "need_weights": True})
    assert together.headers["Transfer-Encoding"] == "chunked"
    for b, sequence in enumerate(rows):
        alone = server.attention({"queries": sequence, "need_weights": True}).json()
        for key in ("outputs", "attention_weights"):
            assert together.json()[key][b] == alone[key]


def test_connection_is_kept_after_a_large_reply(start_server, layer_path):
    server = start_server("--model", f"x={layer_path}")
    data = as_bytes(large_request(tokens=200))
    with Connection(server.port) as connection:
        connection.send(data * 3)
        replies = [connection.read_reply() for _ in range(3)]
        assert [reply.status for reply in replies] == [200] * 3
        assert replies[0].body == replies[1].body == replies[2].body


def test_client_of_http_1_0_gets_a_large_reply_without_chunks(start_server, layer_path):
    server = start_server("--model", f"x={layer_path}")
    request = large_request(tokens=200)
    with Connection(server.port) as connection:
        connection.send(as_bytes(request).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        head, body = connection.read_to_end().split(b"\r\n\r\n", 1)
    assert b"200" in head.split(b"\r\n")[0] and b"chunked" not in head.lower()
    assert body == server.attention(request).content


def test_memory_of_a_reply_that_is_read_slowly_is_that_of_its_numbers(start_server, layer_path):
    """The text is far larger than the numbers, and is never in memory as a whole."""
    server = start_server("--model", f"x={layer_path}", "--workers", 2)
    before = resident_bytes(server)
    with Connection(server.port) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.send(as_bytes(large_request()))
        held = []
        for _ in range(20):
            time.sleep(0.02)
            connection.receive()
            held.append(resident_bytes(server) - before)
        size = len(connection.read_reply().body)
    numbers = 4 * 4 * TOKENS * TOKENS
    assert size > 2 * numbers
    assert server.is_alive()
    peak = resident_bytes(server, peak=True) - before
    print(f"\ntext {size}, numbers {numbers}, held at most {max(held)}, peak {peak}")
    if not is_sanitized():
        # Half of the text is more than threads and the C library may take beside the numbers.
        assert peak < numbers + size / 2


def test_clients_that_do_not_read_do_not_block_a_worker(start_server, layer_path):
    """Four clients do not read, and there is one worker."""
    server = start_server("--model", f"x={layer_path}", "--workers", 1, "--idle-timeout", 1000)
    data = as_bytes(large_request(tokens=400))
    lazy = [Connection(server.port) for _ in range(4)]
    try:
        for connection in lazy:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            connection.send(data)
        assert server.attention(slow_request(tokens=2)).status_code == 200
        bodies = {connection.read_reply().body for connection in lazy}
        assert len(bodies) == 1
    finally:
        for connection in lazy:
            connection.socket.close()


def test_memory_of_a_client_that_does_not_read_is_released_at_the_idle_timeout(
        start_server, layer_path):
    """There is memory for one request. While the first client reads slowly, a second request is
    refused. When the first client stops reading, the second request gets its reply."""
    server = start_server("--model", f"x={layer_path}", "--max-memory", 40_000_000,
                          "--idle-timeout", 2)
    request = large_request(tokens=1200)
    with Connection(server.port) as lazy, ThreadPoolExecutor(1) as clients:
        lazy.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        lazy.send(as_bytes(request))
        assert lazy.receive()  # the reply has begun
        refused = clients.submit(server.attention, request)
        while not refused.done():
            assert lazy.receive()
            time.sleep(0.02)  # so that 77 MB last for 20 s
        assert_problem(refused.result(), 503, "Out of memory")
        wait_until(lambda: status_of(server, request) == 200)


@pytest.mark.parametrize("abort", [False, True], ids=["close", "reset"])
def test_memory_of_clients_that_leave_in_the_middle_is_released(start_server, layer_path, abort):
    """There is memory for one request, so each client must have released all of its memory."""
    server = start_server("--model", f"x={layer_path}", "--max-memory", MEMORY_FOR_ONE)
    data = as_bytes(large_request())
    for i in range(12):
        with Connection(server.port) as connection:
            if abort:
                connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                             struct.pack("ii", 1, 0))
            connection.send(data)
            connection.receive()
            time.sleep(0.003 * i)
    wait_until(lambda: status_of(server, large_request()) == 200)


def test_simultaneous_large_replies_are_correct(start_server, layer_path):
    server = start_server("--model", f"x={layer_path}", "--workers", 4, "--http-threads", 2)
    requests = [large_request(tokens=tokens) for tokens in (90, 110, 130, 150)]
    alone = [server.attention(request).content for request in requests]
    with ThreadPoolExecutor(12) as clients:
        replies = list(clients.map(lambda i: server.attention(requests[i % 4]).content,
                                   range(60)))
    assert all(reply == alone[i % 4] for i, reply in enumerate(replies))


def test_health_gets_a_reply_while_large_replies_are_sent(start_server, layer_path):
    """Two clients read their replies. A third reads on only after health got a reply."""
    server = start_server("--model", f"x={layer_path}", "--workers", 2, "--idle-timeout", 1000)
    request = large_request(tokens=400)
    with ThreadPoolExecutor(2) as clients, Connection(server.port) as held:
        held.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        held.send(as_bytes(request))
        assert held.receive()
        large = [clients.submit(server.attention, request) for _ in range(2)]
        for _ in range(3):
            assert server.get("/v2/health/live").status_code == 200
        while not all(future.done() for future in large):
            assert server.get("/v2/health/live").status_code == 200
        body = held.read_reply().body
        assert all(future.result().content == body for future in large)


def test_stop_waits_for_a_large_reply(start_server, layer_path):
    server = start_server("--model", f"x={layer_path}", "--grace", 100)
    with Connection(server.port) as connection:
        connection.send(as_bytes(large_request(tokens=600)))
        assert connection.receive()
        server.process.send_signal(signal.SIGTERM)
        reply = connection.read_reply()
    assert reply.status == 200
    assert len(reply.json()["attention_weights"]) == 4
    server.wait()


def test_stop_cuts_replies_that_are_not_read_and_exits_1(start_server, layer_path):
    server = start_server("--model", f"x={layer_path}", "--grace", 1)
    data = as_bytes(large_request(tokens=600))
    lazy = [Connection(server.port) for _ in range(4)]
    try:
        for connection in lazy:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.send(data)
            wait_until(connection.receive)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 1, server.read_log()
    finally:
        for connection in lazy:
            connection.socket.close()


def test_stop_cuts_replies_that_are_still_being_read(start_server, layer_path):
    """Their readers never stop, and are far from the end half a second after the grace."""
    server = start_server("--model", f"x={layer_path}", "--grace", 0, "--workers", 2)
    data = as_bytes(large_request(tokens=1200))

    begun = Barrier(5, timeout=60)  # the readers and the test

    def read_steadily(_):
        """Returns whether the reply was complete."""
        with Connection(server.port) as connection:
            connection.send(data)
            assert connection.receive()
            begun.wait()
            while connection.receive():
                connection.unread = connection.unread[-5:]
                time.sleep(0.005)  # at most 13 MB/s: 77 MB last for 6 s
            return connection.unread == b"0\r\n\r\n"

    with ThreadPoolExecutor(4) as clients:
        ended = clients.map(read_steadily, range(4))
        begun.wait()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 1, server.read_log()
        assert not any(ended)


def test_number_that_is_not_finite_is_reported_before_the_reply_begins(start_server, layer_path):
    server = start_server("--model", f"x={layer_path}")
    request = large_request(tokens=300)
    request["queries"][299] = [3e38, 3e38]
    assert_problem(server.attention(request), 422, "Result not finite")


def test_reply_over_the_limit_is_refused_with_remedies(start_server, layer_path):
    limit = 200_000
    server = start_server("--model", f"x={layer_path}", "--max-reply", limit)
    request = large_request(tokens=200)
    problem = assert_problem(server.attention(request), 413, "Reply too large")
    numbers = [int(number) for number in re.findall(r"\d+", problem["detail"])]
    assert limit in numbers and any(number > 4 * 200 * 200 * 8 for number in numbers), problem
    for remedy in ('"need_weights": "mean"', "weights_heads", "weights_queries",
                   "or start attnd with a larger --max-reply"):
        assert remedy in problem["detail"], problem
    for smaller in ({"need_weights": False}, {"weights_queries": [0, 199]},
                    {"weights_heads": [2], "weights_queries": list(range(40))}):
        reply = server.attention(request | smaller)
        assert reply.status_code == 200 and len(reply.content) <= limit, reply.text[:300]


def test_selected_weights_equal_those_of_the_whole_reply(start_server, layer_path):
    server = start_server("--model", f"x={layer_path}")
    rng = np.random.default_rng(5)
    for tokens in (6, 150):  # the whole reply at once, and streamed
        request = slow_request(tokens=tokens) | {"need_weights": True}
        whole = server.attention(request).json()
        weights = np.array(whole["attention_weights"])
        heads = rng.permutation(4)[:3].tolist()
        queries = rng.permutation(tokens)[:tokens // 2].tolist()
        some = server.attention(request | {"weights_heads": heads, "weights_queries": queries})
        assert some.json()["outputs"] == whole["outputs"]
        assert np.array_equal(some.json()["attention_weights"], weights[heads][:, queries])
        mean = server.attention(request | {"need_weights": "mean"}).json()["attention_weights"]
        some = server.attention(request | {"need_weights": "mean", "weights_queries": queries})
        assert np.array_equal(some.json()["attention_weights"], np.array(mean)[queries])
        batch = request | {"queries": [request["queries"], request["queries"][:4]],
                           "weights_heads": [3], "weights_queries": [3, 0]}
        some = server.attention(batch).json()["attention_weights"]
        assert np.array_equal(some[0], weights[[3]][:, [3, 0]])
        assert np.array(some[1]).shape == (1, 2, 4)


def test_weights_that_are_not_selected_take_no_memory(start_server, layer_path):
    """All weights of 4 heads would be 4096 * 4096 * 4 * 4 bytes, 256 MiB."""
    server = start_server("--model", f"x={layer_path}", "--max-memory", "64MiB")
    request = slow_request(tokens=4096) | {"need_weights": True}
    assert server.attention(request).status_code == 413
    reply = server.attention(request | {"weights_heads": [1], "weights_queries": [4095]})
    assert reply.status_code == 200, reply.text[:300]
    weights = np.array(reply.json()["attention_weights"])
    assert weights.shape == (1, 1, 4096) and abs(weights.sum() - 1) < 1e-3
