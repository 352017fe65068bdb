# SPDX-License-Identifier: Apache-2.0
"""Every allocation fails in turn while models are reloaded, loaded and unloaded."""

import itertools
import json

import pytest

from checkpoints import write_layer
from fault import ALLOCATIONS, LONG, exchange, faulty_server, why_not
from http1 import post_bytes
from reload import reload, replace, wait_until

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

OPTIONS = ("--workers", 1, "--http-threads", 1, "--model-control", "explicit")


def ask(server, model):
    body = json.dumps({"model": model, "queries": [[1, 2, 3]]}).encode()
    return exchange(server.port, post_bytes(body))


def post(server, path):
    return exchange(server.port, f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())


def num_reloads(server):
    return server.read_log().count("models reloaded") + server.read_log().count("models not reloaded")


def write(folder, seed):
    for name in "ab":
        replace(folder / f"{name}.safetensors", lambda path: write_layer(path, 1, 4, 3, seed=seed))


def test_every_failing_allocation_of_a_reload_leaves_what_is_served(tmp_path):
    """A model is new or as before, and the other one of the two as well. A reload ends with a line of the log, of
    which there are ten a second: in the short form one allocation of each stack of callers fails, in the long form
    all."""
    write(tmp_path, 0)
    with faulty_server("--model-dir", tmp_path, *OPTIONS) as (server, control):
        def reload_with(nth, seed):
            write(tmp_path, seed)
            count = num_reloads(server)
            control.arm(ALLOCATIONS, nth)
            reload(server)
            wait_until(lambda: num_reloads(server) > count, "the end of a reload")
            return control.disarm()

        answers, failed = {ask(server, "a").json()["outputs"][0][0]}, 0
        control.write(record=1)
        reload_with(0, 1)
        total, stacks = control.counted, control.first_of_each_stack()
        control.write(record=0)
        for seed, nth in enumerate(range(1, total + 1) if LONG else stacks):
            failed += reload_with(nth, seed % 2)
            for name in "ab":
                reply = ask(server, name)
                assert reply is not None and reply.status == 200, (nth, control.site, reply)
                answers.add(reply.json()["outputs"][0][0])
        reload_with(0, 1)
        print(f"{failed} of {total} allocations of a reload failed ({len(stacks)} stacks of callers)")
        assert failed >= 60 and len(answers) == 2
        assert ask(server, "a").json()["outputs"] == ask(server, "b").json()["outputs"]


@pytest.mark.parametrize("verb, undo", [("load", "unload"), ("unload", "load")])
def test_every_failing_allocation_of_a_change_is_said_and_changes_nothing(tmp_path, verb, undo):
    write(tmp_path, 0)
    with faulty_server("--model-dir", tmp_path, *OPTIONS) as (server, control):
        failed = 0
        for nth in itertools.count(1):
            assert post(server, f"/v2/repository/models/a/{undo}").status == 200
            before = ask(server, "a").status
            control.arm(ALLOCATIONS, nth)
            reply = post(server, f"/v2/repository/models/a/{verb}")
            if not control.disarm():
                assert reply.status == 200
                break
            failed += 1
            # One that is not needed may fail, or one after the change, such as that of the reply.
            assert reply is None or reply.status in (200, 409, 503), (nth, control.site, reply)
            if reply is not None and reply.status == 409:
                assert ask(server, "a").status == before, (nth, control.site)
            assert ask(server, "b").status == 200
        print(f"{failed} allocations of {verb} failed")
        assert failed >= (100 if verb == "load" else 10)
        assert ask(server, "a").status == (200 if verb == "load" else 404)
