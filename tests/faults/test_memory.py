# SPDX-License-Identifier: Apache-2.0
"""The worst bodies, in a memory cgroup of the budget and 64 MiB: the kernel never kills attnd."""

import contextlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from all_requests import INFER, SAFETENSORS, chunked, native, post_as
from cgroup import memory_cgroup
from fault import LONG, exchange, is_healthy
from http1 import Connection, post_bytes
from safetensors_file import make_raw, make_safetensors
from server import is_sanitized

MIB = 1 << 20
BUDGET = 96 * MIB
LIMIT = BUDGET + 64 * MIB
CLIENTS = 16


def worst_bodies():
    """What needs most memory for its bytes: to parse, to decode, to compute or to answer."""
    size = 8 * MIB
    rows = np.ones((400, 100), np.float32)
    # The weights of 5 heads of 700 queries: 10 MB as numbers, more as text.
    many = make_safetensors({"queries": np.ones((700, 100), np.float32)}, "F32",
                            {"model": "d2l", "need_weights": "true"})
    header = b'{"__metadata__":{' + b",".join(b'"k%d":""' % i for i in range(60000)) + b"}}"
    return {
        "lists": post_bytes(b'{"queries":' + b"[]," * (size // 3)),
        "objects": post_bytes(b'{"model":[' + b"{}," * (size // 3)),
        "numbers": post_bytes(b'{"queries":[' + b"1," * (size // 2)),
        "blanks": post_bytes(b" " * size),
        "index": post_bytes(b'{"ready":[' + b"{}," * (size // 3), path="/v2/repository/index"),
        "OIP lists": post_bytes(b'{"inputs":[' + b"{}," * (size // 3), path=INFER),
        "chunks of one byte": chunked(native(rows.tolist(), "d2l"), 1),
        "header": post_as(SAFETENSORS, make_raw(header, b"")),
        "weights": post_as(SAFETENSORS, many),
        "weights as JSON": post_as(SAFETENSORS, many, "Accept: application/json"),
    }


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer needs memory of its own")
def test_worst_bodies_never_need_more_than_the_budget(start_server):
    """16 clients post them at the same time, and keep half of an upload and a reply open beside."""
    bodies = worst_bodies()
    with memory_cgroup(LIMIT) as cgroup:
        if not cgroup:
            pytest.skip("no memory cgroup can be made here")
        with cgroup.holds_new_servers():
            server = start_server("--demo", "--max-memory", f"{BUDGET // MIB}MiB", "--workers", 4,
                                  "--http-threads", 2)

        def client(number):
            names = [*bodies][number % len(bodies):] + [*bodies][:number % len(bodies)]
            statuses = Counter()
            for name in names * (20 if LONG else 1):
                try:
                    reply = exchange(server.port, bodies[name], timeout=120)
                except ConnectionError:  # while it sends: a refusal is lost so
                    reply = None
                statuses[name, reply and reply.status] += 1
            return statuses

        with contextlib.ExitStack() as stack, ThreadPoolExecutor(CLIENTS) as clients:
            for data in (bodies["blanks"], bodies["weights"]):
                held = stack.enter_context(Connection(server.port))
                held.send(data[:len(data) // 2] if data is bodies["blanks"] else data)
            statuses = sum(clients.map(client, range(CLIENTS)), Counter())
        killed, peak = cgroup.num_killed, cgroup.peak
        assert killed == 0 and server.process.poll() is None, (killed, statuses)
        assert is_healthy(server)
        server.stop()
    print(f"memory cgroup of {LIMIT // MIB} MiB: peak {peak // MIB} MiB, 0 killed,",
          dict(statuses))
    assert statuses["weights", 200] > 0
    assert {status for _, status in statuses} <= {200, 400, 413, 422, 503, None}
