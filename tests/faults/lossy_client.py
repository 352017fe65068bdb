# SPDX-License-Identifier: Apache-2.0
"""Serves and sends every request in the network namespace that it is started in, and compares the
replies: `lossy_client.py TIMES`. They must be the same each time, since a lost packet is sent again.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from all_requests import make_repeatable
from fault import exchange
from server import Server

times, count, began = int(sys.argv[1]), 0, time.monotonic()
with Server("--demo", "--max-body", 1048576) as server:
    first = {}
    for _ in range(times + 1):
        for name, data in make_repeatable().items():
            reply = exchange(server.port, data, timeout=120)
            first.setdefault(name, reply)
            assert reply is not None and reply.body == first[name].body, (name, reply, first[name])
            count += 1
print(f"{count} requests had identical replies, in {time.monotonic() - began:.1f} s")
