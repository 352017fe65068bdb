# SPDX-License-Identifier: Apache-2.0
"""What one client gets of a worker beside others that ask for more, when it keeps its connection and
when it opens one for each request."""

from abandoner import slow_post
from measure import Load, Result, serve, slow_model

TOKENS = 400  # some 30 ms
SECONDS = 20
OTHERS = 8


def serve_beside_others(port, fresh):
    """Returns the requests a second of one client that were served, and those of each of the others."""
    def start(number, connections, fresh=False):
        return Load(port, [slow_post(TOKENS)], SECONDS, connections=connections, fresh=fresh,
                    source=f"127.0.0.{number}")

    others = [start(3 + number, 3) for number in range(OTHERS)]
    one = start(2, 1, fresh)
    return one.wait().rate(), sum(other.wait().rate() for other in others) / OTHERS


def shares(long):
    del long
    kept = None
    for what, asked, fresh in (("kept", "-", False), ("anew for each request", "≤ 1.2x kept", True)):
        with serve("--model", slow_model(), "--workers", "1", "--max-queue-delay",
                   "60000") as server:
            one, mean = serve_beside_others(server.port, fresh)
        ratio = one / mean
        yield Result(f"one connection beside {OTHERS} x 3, {what}", asked,
                     f"{ratio:.2f}x the others: {one:.2f}/s, each of these {mean:.2f}/s",
                     None if kept is None else ratio <= 1.2 * kept)
        kept = ratio
