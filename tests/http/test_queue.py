# SPDX-License-Identifier: Apache-2.0
"""The queue: what waits for what, and what is refused. No test asserts a time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from checkpoints import slow_request, write_slow_layer
from compare import assert_problem

CHEAP = {"model": "d2l", "queries": [[1.0] * 100], "keys": [[1.0] * 100] * 2}


@pytest.fixture
def slow_model(tmp_path):
    path = tmp_path / "slow.safetensors"
    write_slow_layer(path)
    return f"slow={path}"


def wait_until_a_worker_has_begun():
    time.sleep(0.3)


def test_cheap_requests_are_served_while_a_large_one_runs(start_server, slow_model):
    server = start_server("--demo", "--model", slow_model, "--workers", 1)
    large = slow_request(tokens=3000) | {"model": "slow"}
    with ThreadPoolExecutor(1) as client:
        running = client.submit(server.attention, large)
        wait_until_a_worker_has_begun()
        for _ in range(5):
            assert server.attention(CHEAP).status_code == 200
        assert not running.done(), "the large request has ended before the cheap ones"
        assert running.result().status_code == 200


def test_large_requests_do_not_wait_behind_endless_cheap_ones(start_server, slow_model):
    server = start_server("--demo", "--model", slow_model, "--workers", 1)
    stop = threading.Event()

    def send_cheap_ones():
        while not stop.is_set():
            assert server.attention(CHEAP).status_code == 200

    with ThreadPoolExecutor(8) as clients:
        cheap = [clients.submit(send_cheap_ones) for _ in range(8)]
        try:
            large = slow_request() | {"model": "slow"}
            assert server.attention(large).status_code == 200
        finally:
            stop.set()
        for client in cheap:
            client.result()


def test_what_would_wait_too_long_is_refused_but_nothing_for_its_own_length(start_server,
                                                                            slow_model):
    server = start_server("--model", slow_model, "--workers", 1, "--max-queue-delay", 100)
    large = slow_request(tokens=2500)
    with ThreadPoolExecutor(6) as clients:
        running = clients.submit(server.attention, large)
        wait_until_a_worker_has_begun()
        waiting = [clients.submit(server.attention, large) for _ in range(5)]
        replies = [future.result() for future in waiting]
        assert running.result().status_code == 200
    refused = [reply for reply in replies if reply.status_code != 200]
    assert refused
    for reply in refused:
        assert_problem(reply, 503, "Queue full")
        assert int(reply.headers["Retry-After"]) >= 1
    assert server.attention(large).status_code == 200
