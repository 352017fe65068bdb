# SPDX-License-Identifier: Apache-2.0
"""Every allocation fails in turn: while attnd starts, on each path of a request, while it stops."""

import itertools
import json
import signal
from collections import Counter

import numpy as np
import pytest

from all_requests import SAFETENSORS, make_requests, post_as
from fault import (ALLOCATIONS, LONG, exchange, faulty_server, num_fds, settled,
                   wait_until, why_not)
from http1 import Connection, get_bytes, post_bytes
from safetensors_file import make_safetensors
from scrape import wait_for_value
from starts import control, run_start, start_arguments  # noqa: F401 (fixtures)
from stored import Layer, head_bytes, make_file

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

OPTIONS = ("--demo", "--workers", 1, "--http-threads", 1, "--idle-timeout", 5, "--max-body", 1048576)
HEALTH = b"GET /v2/health/live HTTP/1.1\r\nHost: attnd\r\n\r\n"


def describe(sites):
    objects = Counter(site.split("+")[0] for site in sites)
    counts = ", ".join(f"{count} in {name}" for name, count in sorted(objects.items()))
    return f"{len(sites)} places ({counts})"


def fail_each(server, control, data, status):
    """Sends `data` with the 1st, 2nd, ... allocation failing until none fails. Each time there is
    a reply that says so, or none. Returns how many failed, and where they are in the code."""
    sites, replies = set(), {}
    for nth in itertools.count(1):
        control.arm(ALLOCATIONS, nth)
        reply = exchange(server.port, data)
        failed = control.disarm()
        if not failed:
            assert reply is not None and reply.status == status
            return nth - 1, sites, replies
        sites.add(control.site)
        got = reply and reply.status
        replies[got] = replies.get(got, 0) + 1
        assert got in (None, status, 503), (nth, control.site, reply and (got, reply.body))
        assert reply is None or "server" in reply.headers, (nth, control.site, reply)
        healthy = exchange(server.port, HEALTH)
        assert healthy is not None and healthy.status == 200, (nth, control.site)


def test_every_failing_allocation_of_a_request_is_survived():
    """Afterwards as many blocks and descriptors are in use as before."""
    requests, sites, count, replies = make_requests(), set(), 0, {}
    with faulty_server(*OPTIONS) as (server, control):
        for data, status in requests.values():  # what is allocated once and kept
            for _ in range(3):
                reply = exchange(server.port, data)
                assert reply is not None and reply.status == status, (data[:200], reply)
        for name, (data, status) in requests.items():
            exchange(server.port, HEALTH)
            live, fds = settled(lambda: (control.live, num_fds(server)))
            failed, found, got = fail_each(server, control, data, status)
            print(f"{name}: {failed} allocations failed in turn, replies {got}")
            wait_until(lambda: control.live <= live and num_fds(server) <= fds, 10,
                       f"{name}: {control.live - live} blocks and {num_fds(server) - fds} "
                       "descriptors are not released")
            sites |= found
            count += failed
        print(f"{count} allocations of {len(requests)} requests failed at {describe(sites)}")
    assert len(sites) >= 15


def make_capture():
    """Returns a file with all that layers may have, and questions about it."""
    rng = np.random.default_rng(2)
    layer = Layer({"queries": rng.normal(size=(3, 2, 4)), "keys": rng.normal(size=(5, 1, 4)),
                   "values": rng.normal(size=(5, 1, 4)), "bias": rng.normal(size=(3, 5)), "sinks": rng.normal(size=2),
                   "positions": np.arange(2, 5)}, {"queries": "BF16", "keys": "F16"}, {"causal": True, "scale": 0.5})
    plain = Layer({"queries": rng.normal(size=(5, 2, 4)), "keys": rng.normal(size=(5, 1, 4))}, {"keys": "BF16"})
    file = make_file({"0": layer, "encoder.1": layer, "2": plain}, ["a"] * 5, token_ids=np.arange(5),
                     targets=np.array([[0, 1]] * 5), hidden_states=rng.normal(size=(5, 2, 6)))
    question = {"layer": "encoder.1", "query_rows": [1, 3], "need": ["heads", "weights", "lse"]}
    masked = {"layer": "0", "attn_mask": [[True] * 4 + [False]] * 3, "prefix_lens": 4}
    binary = make_safetensors({"weights_heads": np.array([1])}, "I64", {"layer": "0", "need": "top", "top_k": "2"})
    path = "/v1/captures/text/attention"
    return file, [post_bytes(json.dumps(question).encode(), path=path),
                  post_bytes(json.dumps(masked).encode(), path=path), post_as(SAFETENSORS, binary, path=path),
                  post_bytes(b'{"layer":2}', path="/v1/captures/text/heads"),
                  get_bytes("/v1/captures"), get_bytes("/v1/captures/text")]


def test_every_failing_allocation_of_a_capture_is_survived():
    """Nothing is half stored: after a PUT that failed there is no capture, or all of it where only the reply
    found no memory. Without it, no byte counts."""
    file, questions = make_capture()
    put = head_bytes("PUT", "/v1/captures/text", len(file)) + file
    drop, count, sites = head_bytes("DELETE", "/v1/captures/text", None), 0, set()
    with faulty_server("--capture-memory", "1MiB", *OPTIONS) as (server, control):
        def come_and_go():
            assert exchange(server.port, put).status == 201 and exchange(server.port, drop).status == 204
            assert exchange(server.port, get_bytes("/v1/captures")).json()["captures"] == []
            wait_for_value(server, 0, "attnd_capture_bytes")

        for _ in range(3):
            come_and_go()
        live = settled(lambda: control.live)
        for nth in itertools.count(1):
            control.arm(ALLOCATIONS, nth)
            reply = exchange(server.port, put)
            failed = control.disarm()
            assert (reply and reply.status) in (None, 201, 503), (nth, control.site, reply)
            kept = exchange(server.port, get_bytes("/v1/captures")).json()["captures"]
            assert len(kept) == 1 if reply and reply.status == 201 else len(kept) <= 1, (nth, control.site)
            if kept:
                assert exchange(server.port, drop).status == 204
            if not failed:
                break
            sites.add(control.site)
        come_and_go()  # a client is kept that is ahead of its share
        wait_until(lambda: control.live <= live, 10, f"{control.live - live} blocks are not released")
        assert nth > 10 and len(sites) > 10, sites

        assert exchange(server.port, put).status == 201
        for question in questions:
            for _ in range(3):
                assert exchange(server.port, question).status == 200
            count += fail_each(server, control, question, 200)[0]
    print(f"{nth - 1} allocations of a PUT failed at {describe(sites)}, and {count} of questions")
    assert count > 10


def count_allocations(server, control, request):
    """Returns how many a request needs, at least, and how long its reply is."""
    counts = []
    for _ in range(5):
        control.arm(ALLOCATIONS, 0)
        reply = exchange(server.port, request)
        control.disarm()
        assert reply.status == 200
        counts.append(control.counted)
    return min(counts), int(reply.headers["content-length"])


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_description_of_many_layers_is_not_printed_again(method):
    """It needs no more allocations than a short one, which a text that grows does."""
    layer = Layer({"keys": np.ones((1, 1, 1))})
    with faulty_server("--capture-memory", "64MiB", "--demo") as (server, control):
        found = {}
        for count in (1, 4000):
            file = make_file({f"{i}": layer for i in range(count)})
            path = f"/v1/captures/{count}"
            assert exchange(server.port, head_bytes("PUT", path, len(file)) + file).status == 201
            found[count] = count_allocations(server, control, head_bytes(method, path, None))
    assert found[4000][1] > 500_000 > found[1][1], found
    assert found[4000][0] <= found[1][0], found


def test_server_works_again_after_no_allocation_worked_for_a_while():
    requests = make_requests()
    with faulty_server(*OPTIONS) as (server, control):
        for nth in range(1, 30):
            control.arm(ALLOCATIONS, nth, count=1 << 40)
            for data, status in itertools.islice(requests.values(), nth % 4, None, 4):
                reply = exchange(server.port, data)
                assert reply is None or reply.status in (status, 503), (nth, reply)
            assert control.disarm() > 0
            for data, status in itertools.islice(requests.values(), nth % 8, None, 8):
                assert exchange(server.port, data).status == status


def test_every_failing_allocation_of_a_start_is_survived(control, start_arguments):
    """In the short form, one allocation of each stack of callers fails; in the long form, all."""
    sites, started = set(), 0
    control.arm(ALLOCATIONS, 0)
    control.write(record=1)
    assert run_start(start_arguments, control)
    total, stacks = control.counted, control.first_of_each_stack()
    numbers = range(1, total + 1) if LONG else stacks
    control.write(record=0)
    for nth in numbers:
        control.write(in_main=0)
        control.arm(ALLOCATIONS, nth)
        started += run_start(start_arguments, control)
        if control.failed:
            sites.add(control.site)
    print(f"start: {len(numbers)} of {total} allocations failed in turn ({len(stacks)} stacks of "
          f"callers) at {describe(sites)}; {started} times attnd started all the same")
    assert total > 50 and len(sites) > 10


def test_every_failing_allocation_of_a_stop_is_survived():
    """The server stops while a request is being computed; faulty_server() checks how it ends."""
    data, _ = make_requests()["streamed reply"]
    for nth in itertools.count(1):
        with faulty_server(*OPTIONS) as (server, control), Connection(server.port) as connection:
            connection.send(data[:-1])
            assert exchange(server.port, HEALTH).status == 200  # so the connection was accepted, too
            control.arm(ALLOCATIONS, nth)
            connection.send(data[-1:])
            server.process.send_signal(signal.SIGTERM)
            server.process.wait(60)
            failed = control.disarm()
        if not failed:
            break
    print(f"stop: {nth - 1} allocations failed in turn")
    assert nth > 1
