# SPDX-License-Identifier: Apache-2.0
"""Large requests beside a client that starts long ones and abandons them. Its next request is ready
when it abandons one."""

import contextlib
import random
import time

from abandoner import Abandoner, get_status, slow_post, summing_post
from measure import Result, serve, slow_model

TOKENS = 1000  # some 0.25 s
SUMS = {"received": {"need": "received"}, "blocks": {"need": "blocks", "block": "4096"}}


def serve_large_ones(port, seconds):
    """One large request at a random moment of each second. Returns the times of those that got
    200, and how many were sent."""
    request, times, chosen = slow_post(TOKENS), [], random.Random(1)
    for _ in range(seconds):
        moment = chosen.random()
        time.sleep(moment)
        began = time.monotonic()
        if get_status(port, request) == 200:
            times.append(time.monotonic() - began)
        time.sleep(max(1 - moment - (time.monotonic() - began), 0))
    return sorted(times), seconds


def abandoned(long):
    seconds = 60 if long else 18
    for workers in (1, 2):
        rivals = [("an honest client", None, None)] + [(f"abandoned after {pause} s", pause, None)
                                                       for pause in (0.5, 1, 2)]
        rivals += [(f"{need} of one head, abandoned after 0.5 s", 0.5, summing_post(options))
                   for need, options in SUMS.items()]
        for name, pause, request in rivals:
            with contextlib.ExitStack() as stack:
                server = stack.enter_context(serve("--model", slow_model(), "--workers",
                                                   str(workers)))
                for _ in range(workers):
                    stack.enter_context(Abandoner(server.port, pause or 3600, request))
                time.sleep(3)
                times, count = serve_large_ones(server.port, seconds)
            median = times[len(times) // 2] if times else float("inf")
            yield Result(f"large requests beside long ones, {name}, {workers} worker(s)",
                         "≥ 95 % served", f"{len(times)} of {count}, median {median:.1f} s",
                         len(times) >= 0.95 * count)
