# SPDX-License-Identifier: Apache-2.0
"""The end of attnd: SIGKILL at any moment, and SIGTERM under load."""

import json
import random
import signal
import threading
import time

import numpy as np

from all_requests import ROWS, native
from fault import LONG, is_healthy
from http1 import Connection, post_bytes
from server import has_sanitizer

SMALL = post_bytes(native(ROWS))
LARGE = post_bytes(native(np.ones((200, 100)).tolist(), "d2l", need_weights="mean"))


def post_until_closed(port, data, replies, cut):
    """Posts on one connection until the server ends it. Counts complete replies by their status, and
    those that were cut in the middle."""
    try:
        with Connection(port, timeout=60) as connection:
            while True:
                connection.send(data)
                reply = connection.read_reply()
                if reply is None:
                    return
                replies.append(reply.status)
                if reply.headers.get("connection") == "close":
                    return
    except AssertionError:
        cut.append(port)
    except ConnectionError:
        pass


def start_load(server, count):
    replies, cut = [], []
    threads = [threading.Thread(target=post_until_closed,
                                args=(server.port, LARGE if i % 4 == 0 else SMALL, replies, cut))
               for i in range(count)]
    for thread in threads:
        thread.start()
    return threads, replies, cut


def test_start_after_sigkill_serves_at_once(start_server):
    """On the port of the killed one. Nothing of it is left that could be in the way."""
    listen = "127.0.0.1:0"
    for _ in range(100 if LONG else 5):
        server = start_server("--demo", listen=listen)
        assert is_healthy(server)
        listen = f"127.0.0.1:{server.port}"
        threads, *_ = start_load(server, 8)
        time.sleep(random.uniform(0, 0.05))
        server.process.kill()
        server.process.communicate()
        for thread in threads:
            thread.join()


def test_nothing_accepted_is_lost_when_sigterm_arrives_under_load(start_server):
    """The log has a line for each request: how many were computed, and whether their reply was sent.
    The clients must have received as many. attnd itself exits with 1 when one is lost."""
    served, times = 0, 200 if LONG else 10
    for _ in range(times):
        server = start_server("--demo", "--workers", 2, "--log-level", "debug", "--log-format",
                              "json", "--grace", 60)
        threads, replies, cut = start_load(server, 12)
        time.sleep(random.uniform(0.05, 0.3))
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert server.process.wait(60) == 0, server.read_log()
        lines = [json.loads(line) for line in server.read_log().splitlines()]
        done = [line for line in lines if line["message"] == "request"]
        assert not cut and all(line["sent"] == "yes" for line in done), (cut, done)
        assert sorted(line["status"] for line in done) == sorted(replies)
        assert set(replies) <= {200, 503} and 200 in replies
        served += replies.count(200)
    print(f"SIGTERM under load, {times} times: {served} requests served, 0 lost")
