# SPDX-License-Identifier: Apache-2.0
"""Overload: a full queue, too little memory, many clients."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests

from checkpoints import read_layer, slow_request, write_layer, write_slow_layer
from compare import assert_close, assert_problem
from http1 import Connection, post_bytes
from reference import attend


@pytest.mark.alone
def test_full_queue_is_reported_with_503_and_recovers(start_server, tmp_path):
    path = tmp_path / "slow.safetensors"
    write_slow_layer(path)
    layer = read_layer(path)
    server = start_server("--model", f"slow={path}", "--workers", 1, "--queue", 1)
    with ThreadPoolExecutor(12) as clients:
        replies = list(clients.map(lambda seed: server.attention(slow_request(seed)), range(12)))
    statuses = [reply.status_code for reply in replies]
    assert set(statuses) == {200, 503}, statuses
    for seed, reply in enumerate(replies):
        if reply.status_code == 503:
            assert_problem(reply, 503, "Queue full")
            assert int(reply.headers["Retry-After"]) >= 1
        else:
            rows = slow_request(seed)["queries"]
            some, _ = attend(layer, rows[:20], rows, rows)  # all of them take seconds
            assert_close(reply.json()["outputs"][:20], some, "outputs")
    assert server.attention(slow_request()).status_code == 200


def test_health_gets_a_reply_while_every_worker_is_busy(start_server, tmp_path):
    path = tmp_path / "slow.safetensors"
    write_slow_layer(path)
    server = start_server("--model", f"slow={path}", "--workers", 1, "--max-queue-delay", 3600000)
    with ThreadPoolExecutor(4) as clients:
        slow = [clients.submit(server.attention, slow_request(seed, 1600)) for seed in range(4)]
        assert [server.get("/v2/health/live").status_code for _ in range(5)] == [200] * 5
        assert not all(future.done() for future in slow), "the slow requests are too fast"
        assert [future.result().status_code for future in slow] == [200] * 4


def test_request_that_can_never_fit_is_refused_with_its_size_and_the_limit(start_server, tmp_path):
    path = tmp_path / "x.safetensors"
    write_layer(path, num_heads=4, head_size=2, query_size=2)
    limit = 50_000_000
    server = start_server("--model", f"x={path}", "--max-memory", limit, "--workers", 2)
    request = slow_request(tokens=2000)
    # 4 heads x 2000 x 2000 float32 are 64 MB before a digit of the reply is written.
    problem = assert_problem(server.attention(request | {"need_weights": True}),
                             413, "Request too large")
    numbers = [int(number) for number in re.findall(r"\d+", problem["detail"])]
    # An eighth of the limit is for what idle workers keep, a quarter of the rest for connections.
    left = limit * 7 // 8 * 3 // 4
    assert any(left <= number <= left + 70_000 for number in numbers), problem
    assert any(number >= 64_000_000 for number in numbers), problem
    reply = server.attention(request)
    assert reply.status_code == 200, reply.text


def test_memory_is_released_after_each_request(start_server, tmp_path):
    """A request needs 1.8 MB (a refusal reports it), so ten of them only fit one by one."""
    path = tmp_path / "x.safetensors"
    write_layer(path, num_heads=1, head_size=2, query_size=2)
    server = start_server("--model", f"x={path}", "--max-memory", 6_000_000)
    request = slow_request(tokens=500) | {"need_weights": True}
    for _ in range(10):
        assert server.attention(request).status_code == 200
        assert server.attention({"queries": [[1, 2], [3, "x"]]}).status_code == 400


@pytest.mark.alone
def test_lack_of_memory_is_reported_with_503(start_server, tmp_path):
    """There are four workers, and memory for one request of 1.8 MB at a time. Each of the 8 clients
    keeps its connection, since this memory holds 11, and one more takes the place of another."""
    path = tmp_path / "x.safetensors"
    write_layer(path, num_heads=1, head_size=2, query_size=2)
    server = start_server("--model", f"x={path}", "--max-memory", 3_000_000, "--workers", 4)
    request = slow_request(tokens=500) | {"need_weights": True}

    def client(_):
        with requests.Session() as session:
            return [session.post(server.url + "/v1/attention", json=request, timeout=120)
                    for _ in range(3)]

    with ThreadPoolExecutor(8) as clients:
        replies = sum(clients.map(client, range(8)), [])
    assert {reply.status_code for reply in replies} == {200, 503}
    for reply in replies:
        if reply.status_code == 503:
            assert_problem(reply, 503, "Out of memory")
            assert int(reply.headers["Retry-After"]) >= 1
    assert server.attention(request).status_code == 200


def test_chunked_body_counts_against_the_memory_limit(start_server):
    """Its size is not known in advance, so its memory is reserved as it arrives."""
    server = start_server("--demo", "--max-body", 20_000_000, "--max-memory", 4_000_000)
    with Connection(server.port) as connection:
        connection.send(b"POST /v1/attention HTTP/1.1\r\nHost: attnd\r\n"
                        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.send(b"100000\r\n%s\r\n" % (b" " * 0x100000) * 12 + b"0\r\n\r\n")
        reply = connection.read_reply()
        assert (reply.status, reply.json()["title"]) == (413, "Request too large"), reply
    assert server.is_alive()


@pytest.mark.parametrize("admin", [[], ["--admin-listen", "127.0.0.1:0"]])
def test_body_that_can_never_fit_gets_413(start_server, admin):
    """Also when the connections of the admin address have reserved what it needs."""
    server = start_server("--demo", "--max-memory", 4 << 20, "--workers", 1, *admin)
    body = b'{"model":"journey","queries":[[1,2,3]]}'
    statuses = []
    for size in range(2_200_000, 3_000_000, 20_000):
        reply = requests.post(server.url + "/v1/attention", data=body.ljust(size), timeout=60,
                              headers={"Content-Type": "application/json"})
        statuses.append(reply.status_code)
    assert statuses[0] == 200 and statuses[-1] == 413 and set(statuses) == {200, 413}, statuses


@pytest.mark.alone
def test_bodies_that_are_dropped_while_they_arrive_get_503(start_server):
    """Any thread drops them: ThreadSanitizer sees what the thread that receives them reads meanwhile.

    Each thread has places for all clients twice: they come again before it sees that they left.
    """
    server = start_server("--demo", "--max-memory", 16 << 20, "--workers", 2, "--http-threads", 2)
    body = b'{"model":"journey","queries":[[1,2,3]]}' + b" " * 3_000_000
    statuses = []

    def upload(number):
        for _ in range(15):
            with Connection(server.port, timeout=60, source=f"127.0.0.{2 + number}") as connection:
                head, data = post_bytes(body).split(b"\r\n\r\n", 1)
                connection.send(head + b"\r\n\r\n")
                for at in range(0, len(data), 100_000):
                    connection.send(data[at:at + 100_000])
                reply = connection.read_reply()
                statuses.append(reply.status if reply else None)
    threads = [threading.Thread(target=upload, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(statuses) == 180 and set(statuses) == {200, 503}, statuses


def test_other_requests_do_not_change_a_reply(demo_server):
    """A reply has the same bytes whether its request is alone or among others."""
    rng = np.random.default_rng(1)
    requests = [{"model": "d2l", "queries": rng.normal(size=(tokens, 100)).tolist(),
                 "need_weights": True} for tokens in (1, 3, 17, 40)]
    alone = [demo_server.attention(request).content for request in requests]
    wrong = []

    def client(number):
        for i in range(20):
            at = (number + i) % len(requests)
            if demo_server.attention(requests[at]).content != alone[at]:
                wrong.append(json.dumps(requests[at])[:80])

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
