# SPDX-License-Identifier: Apache-2.0
"""The end of attnd: SIGKILL at any moment, and SIGTERM under load."""

import json
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from all_requests import ROWS, native
from fault import LONG, is_healthy
from http1 import Connection, post_bytes
from server import steady_address

NUM_CLIENTS = 12
SMALL = post_bytes(native(ROWS))
LARGE = post_bytes(native(np.ones((200, 100)).tolist(), "d2l", need_weights="mean"))


def post_until_closed(port, data):
    """Posts on one connection until the server ends it. Returns the statuses of complete replies,
    and whether one was cut in the middle."""
    statuses = []
    try:
        with Connection(port, timeout=60) as connection:
            is_open = True
            while is_open:
                connection.send(data)
                reply = connection.read_reply()
                is_open = reply is not None and reply.headers.get("connection") != "close"
                statuses += [reply.status] if reply else []
    except AssertionError:
        return statuses, True
    except ConnectionError:
        pass
    return statuses, False


def start_load(clients, server):
    return [clients.submit(post_until_closed, server.port, SMALL if i % 4 else LARGE)
            for i in range(NUM_CLIENTS)]


def test_start_after_sigkill_serves_at_once(start_server):
    """On the port of the killed one. Nothing of it is left that could be in the way."""
    listen = steady_address()
    server = start_server("--demo", listen=listen)
    for _ in range(100 if LONG else 5):
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            load = start_load(clients, server)
            time.sleep(random.uniform(0, 0.05))
            server.process.kill()
            server.process.communicate()
        for client in load:
            client.result()
        server = start_server("--demo", listen=listen)
        assert is_healthy(server)


def test_nothing_accepted_is_lost_when_sigterm_arrives_under_load(start_server):
    """The log has a line for each request: how many were computed, and whether their reply was sent.
    The clients must have received as many. attnd itself exits with 1 when one is lost."""
    served, times = 0, 200 if LONG else 10
    for _ in range(times):
        server = start_server("--demo", "--workers", 2, "--log-level", "debug", "--log-format",
                              "json", "--grace", 60)
        with ThreadPoolExecutor(NUM_CLIENTS) as clients:
            load = start_load(clients, server)
            time.sleep(random.uniform(0.05, 0.3))
            server.process.send_signal(signal.SIGTERM)
        received = [client.result() for client in load]
        replies = [status for statuses, _ in received for status in statuses]
        assert server.process.wait(60) == 0, server.read_log()
        lines = [json.loads(line) for line in server.read_log().splitlines()]
        done = [line for line in lines if line["message"] == "request"]
        assert not any(was_cut for _, was_cut in received)
        assert all(line["end"] == "replied" for line in done), done
        assert sorted(line["status"] for line in done) == sorted(replies)
        assert set(replies) <= {200, 503} and 200 in replies
        served += replies.count(200)
    print(f"SIGTERM under load, {times} times: {served} requests served, 0 lost")
