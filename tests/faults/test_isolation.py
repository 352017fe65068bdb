# SPDX-License-Identifier: Apache-2.0
"""The bytes of a reply do not depend on what else attnd serves."""

import itertools
import threading
import time

from all_requests import make_requests
from fault import LONG, exchange

CLIENTS = 8


def test_replies_are_the_same_alone_and_among_others(start_server):
    """Every request, valid or refused, on many connections at a time. Only numbers of the statistics
    differ."""
    requests = {name: data for name, (data, _) in make_requests().items()
                if not name.endswith("/stats")}
    server = start_server("--demo", "--max-body", 1048576, "--workers", 2, "--http-threads", 2)
    alone = {name: exchange(server.port, data) for name, data in requests.items()}
    end = time.monotonic() + (60 if LONG else 3)
    wrong, counts = [], [0] * CLIENTS

    def client(number):
        names = itertools.cycle(requests)
        for name in itertools.islice(names, number * 3, None):
            reply = exchange(server.port, requests[name])
            if (reply.status, reply.body) != (alone[name].status, alone[name].body):
                wrong.append((name, reply.status, reply.body[:200]))
            counts[number] += 1
            if time.monotonic() > end and counts[number] >= len(requests):
                return

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
    print(f"isolation: {sum(counts)} replies had the bytes that they have alone")
