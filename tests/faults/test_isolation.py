# SPDX-License-Identifier: Apache-2.0
"""The bytes of a reply do not depend on what else attnd serves."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

from all_requests import make_repeatable
from fault import LONG, exchange

CLIENTS = 8


def test_replies_are_the_same_alone_and_among_others(start_server):
    """Every request, valid or refused, on many connections at a time."""
    requests = make_repeatable()
    server = start_server("--demo", "--max-body", 1048576, "--workers", 2, "--http-threads", 2)
    alone = {name: exchange(server.port, data) for name, data in requests.items()}
    end = time.monotonic() + (60 if LONG else 2)

    def client(number):
        names = itertools.islice(itertools.cycle(requests), number * 3, None)
        for count, name in enumerate(names, 1):
            reply = exchange(server.port, requests[name])
            assert (reply.status, reply.body) == (alone[name].status, alone[name].body), name
            if time.monotonic() > end and count >= len(requests):
                return count

    with ThreadPoolExecutor(CLIENTS) as clients:
        count = sum(clients.map(client, range(CLIENTS)))
    print(f"isolation: {count} replies had the bytes that they have alone")
