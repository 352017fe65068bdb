# SPDX-License-Identifier: Apache-2.0
"""Clients of a service (engine.py) that know the right replies."""

import contextlib
import json
import os
import threading
import time

from engine import ROOT

GOLDEN = os.path.join(ROOT, "tests", "data", "golden", "llms_from_scratch_split.json")


def numbers_in(tensor):
    return [x for part in tensor for x in numbers_in(part)] if isinstance(tensor, list) else [tensor]


def shape_of(tensor):
    return [len(tensor), *shape_of(tensor[0])] if isinstance(tensor, list) else []


def assert_close(name, got, expected):
    """Asserts that `got` is within 1e-5 of the largest expected number."""
    assert shape_of(got) == shape_of(expected), f"{name}: shape {shape_of(got)}"
    pairs = list(zip(numbers_in(got), numbers_in(expected), strict=True))
    bound = 1e-5 * max(abs(e) for _, e in pairs)
    worst = max(abs(g - e) for g, e in pairs)
    assert worst <= bound, f"{name}: off by {worst:g}, over {bound:g}"


class Golden:
    def __init__(self):
        with open(GOLDEN, encoding="utf-8") as file:
            case = json.load(file)
        self.request = {"model": "journey", **case["request"]}
        self.expected = case["expected"]

    def check(self, stack):
        status, _, reply = stack.post("/v1/attention", self.request)
        assert status == 200, f"{status}: {reply}"
        for name in ("outputs", "attention_weights"):
            assert_close(name, reply[name], self.expected[name])


GOLDEN_CASE = Golden()

# The longest that a client may wait when a replica ends. The proxy goes to another one after `timeout
# connect`, 5 s; the rest allows for a busy machine.
LONGEST_WAIT_SECONDS = 8


@contextlib.contextmanager
def clients_that_expect_right_replies(stack, count=4, a_replica_dies=False):
    """Posts without a pause while the body runs. Then asserts that no reply was wrong, missing or
    late. When a replica dies, replies that it was sending are lost. The proxy cannot repeat these
    requests, so each client may receive one 502."""
    failures, waits, stop = [], [], threading.Event()

    def client():
        while not stop.is_set():
            began = time.monotonic()
            try:
                GOLDEN_CASE.check(stack)
                waits.append(time.monotonic() - began)
            except Exception as error:  # every kind of failure counts
                failures.append(str(error))

    threads = [threading.Thread(target=client) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    lost = [text for text in failures if text.startswith("502: ") and "Replica lost" in text]
    if a_replica_dies and len(lost) <= count:
        failures = [text for text in failures if text not in lost]
        print(f"     {len(lost)} replies were lost with the replica")
    assert not failures, f"{len(failures)} of {len(failures) + len(waits)}: {failures[0]}"
    assert waits, "no client got a reply"
    print(f"     {len(waits)} replies meanwhile, the slowest in {max(waits):.2f} s")
    assert max(waits) < LONGEST_WAIT_SECONDS, f"a client waited {max(waits):.2f} s"
