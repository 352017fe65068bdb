# SPDX-License-Identifier: Apache-2.0
"""Ten times the capacity, in an open loop, from clients that give up after five seconds."""

import time

from http1 import Connection
from measure import (GAVE_UP, REFUSALS, Load, Result, memory_mib, run_load, serve,
                     serve_behind_proxy, slow_json, slow_model)

PATIENCE = 5  # seconds, after which a client gives up
TOKENS = 280  # some 10 ms of one core
BUDGET_MIB = 512
NUM_CLIENTS = 4  # enough to keep two workers busy


def find_peak(port, request, offered, seconds):
    """Returns the greatest rate of replies, measured beside a generator that is refused: it sends
    as much to a route that does not exist. Both generators take CPU time from attnd."""
    nowhere = request.replace(b"/v1/attention", b"/v1/nowhere", 1)
    noise = Load(port, [nowhere], seconds, rate=offered, connections=1000, give_up=PATIENCE)
    peak = run_load(port, [request], seconds, connections=NUM_CLIENTS).rate()
    noise.wait()
    return peak


def time_one(port, request):
    """Returns the seconds until a request gets 200, infinity if it does not."""
    began = time.monotonic()
    try:
        with Connection(port, 30) as connection:
            connection.send(request)
            reply = connection.read_reply()
    except (OSError, AssertionError):
        return float("inf")
    return time.monotonic() - began if reply and reply.status == 200 else float("inf")


def measure(name, port, seconds):
    request = slow_json(TOKENS)
    offered = 10 * run_load(port, [request], 5, connections=NUM_CLIENTS).rate()
    peak = find_peak(port, request, offered, 5)
    load = Load(port, [request], seconds, rate=offered, connections=8000, give_up=PATIENCE)
    time.sleep(seconds + 0.1)
    following = time_one(port, request)
    samples = load.wait()
    # Once more, because the machine may have become slower or faster meanwhile.
    peak = (peak + find_peak(port, request, offered, 5)) / 2

    goodput = samples.rate() / peak
    print(f"  {name}: peak {peak:.0f}/s, {offered:.0f}/s offered: {samples.outcomes()}")
    yield Result(f"{name}: goodput at 10x", "≥ 90 % of peak", f"{goodput:.0%}", goodput >= 0.9)
    # Those that gave up were accepted, too.
    accepted, refused = samples.p99_ms((200, GAVE_UP)), samples.p99_ms(REFUSALS)
    yield Result(f"{name}: p99 of accepted", "≤ 1 s", f"{accepted / 1e3:.2f} s", accepted <= 1000)
    yield Result(f"{name}: p99 of refusals", "≤ 50 ms", f"{refused:.0f} ms", refused <= 50)
    yield Result(f"{name}: the next request", "≤ 1 s",
                 "none in 30 s" if following > 30 else f"{following:.2f} s", following <= 1)


def overload(long):
    arguments = ("--model", slow_model(), "--max-memory", f"{BUDGET_MIB}MiB")
    with serve(*arguments) as server:
        yield from measure("overload", server.port, 300 if long else 20)
        peak = memory_mib(server.process.pid, "VmHWM")
        yield Result("overload: resident memory", f"≤ {BUDGET_MIB + 64} MiB", f"{peak:.0f} MiB",
                     peak <= BUDGET_MIB + 64)


def overload_proxy(long):
    with serve_behind_proxy("--model", slow_model()) as port:
        yield from measure("overload, HAProxy", port, 60 if long else 20)
