# SPDX-License-Identifier: Apache-2.0
"""Runs the soak of tests/load for SOAK_SECONDS (2), its wrk scripts and its generator."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from checkpoints import write_slow_layer
from http1 import post_bytes
from server import ROOT, Server

LOAD = ROOT / "tests/load"
SECONDS = float(os.environ.get("SOAK_SECONDS", 2))

sys.path.insert(0, str(LOAD))


@pytest.mark.alone
@pytest.mark.timeout(SECONDS + 180)
def test_soak_gets_only_right_replies_and_leaks_nothing(capfd):
    import soak
    report = soak.run(SECONDS)
    with capfd.disabled():  # a process of pytest-xdist has no standard output
        print(f"\n{report}", file=sys.stderr)
    soak.check(report)


@pytest.fixture(scope="module")
def wide_server(tmp_path_factory):
    path = tmp_path_factory.mktemp("wide") / "wide.safetensors"
    subprocess.run([sys.executable, LOAD / "make_wide.py", path], check=True, timeout=60)
    # A sanitizer may take a second for one request, and four wait.
    with Server("--demo", "--model", f"wide={path}", "--max-queue-delay", 60_000) as server:
        yield server


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
@pytest.mark.parametrize("script", sorted(path.name for path in LOAD.glob("*.lua")))
def test_wrk_script_gets_replies_without_errors(wide_server, script):
    """One second suffices, except on a slow machine, which gets more."""
    for seconds in (1, 3, 9, 27):
        result = subprocess.run(
            ["wrk", "-t1", "-c4", f"-d{seconds}s", "--timeout", "60s", "-s", LOAD / script,
             wide_server.url], capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result
        if int(re.search(r"(\d+) requests in", result.stdout)[1]) > 0:
            break
    else:
        raise AssertionError(result.stdout)
    assert "Non-2xx" not in result.stdout and "Socket errors" not in result.stdout, result.stdout


@pytest.fixture(scope="module")
def measure():
    """The module of that name, and the removal of what it writes."""
    import measure
    yield measure
    shutil.rmtree(measure.WORK)


def test_closed_loop_of_the_generator_gets_every_reply(measure, wide_server):
    requests = [measure.d2l_request(), measure.binary_request("wide", 1, 2, 768)]
    samples = measure.run_load(wide_server.port, requests, 1, connections=4)
    assert samples.share() == 1, samples.outcomes()
    assert samples.count(kind=0) and samples.count(kind=1)


def test_open_loop_of_the_generator_sends_at_its_rate_and_counts_refusals(measure, wide_server):
    good = measure.d2l_request()
    requests = [good, good.replace(b"/v1/attention", b"/v1/nowhere", 1)]
    samples = measure.run_load(wide_server.port, requests, 1, rate=200, connections=200, fresh=True)
    assert 190 <= samples.count() <= 200
    assert samples.count([200, 404]) == samples.count(), samples.outcomes()
    assert samples.count(200, kind=0) and samples.count(404, kind=1)


def test_client_of_the_generator_gives_up(measure):
    """The listener accepts nothing, so its kernel does, and nobody replies."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        samples = measure.run_load(listener.getsockname()[1], [measure.d2l_request()], 1,
                                   connections=1, give_up=1.5)
    assert samples.count() == samples.count(measure.GAVE_UP) == 1


@pytest.mark.alone
def test_jobs_of_every_kind_are_served_at_one_time(measure, tmp_path):
    """Jobs that are joined, cheap ones inside large ones, expired and abandoned ones meet each
    other. What a sanitizer finds there fails the stop of the server."""
    slow = tmp_path / "slow.safetensors"
    write_slow_layer(slow)

    def post(model, tokens, width, **fields):
        body = {"model": model, "queries": [[0.5] * width] * tokens} | fields
        return post_bytes(json.dumps(body).encode())

    small = [post("wide", tokens, 512, **fields) for tokens in (1, 2, 3)
             for fields in ({}, {"causal": True}, {"need_weights": True}, {"timeout_ms": 20})]
    large = [post("slow", tokens, 2, **fields)
             for tokens, fields in ((400, {}), (800, {"timeout_ms": 400}), (2, {"scale": 1}))]
    with Server("--demo", "--model", f"slow={slow}", "--model", measure.wide_model(512, 8),
                "--engine", "native", "--workers", 3, "--http-threads", 2,
                "--max-queue-delay", 3600000) as server:
        loads = [measure.Load(server.port, requests, 2, connections=connections, fresh=fresh,
                              give_up=give_up)
                 for requests, connections, fresh, give_up in (
                     (small, 12, False, 60), (large, 4, False, 60),
                     (small, 6, True, 0.02), (large, 4, True, 0.1))]
        samples = [load.wait() for load in loads]
        assert server.is_alive()
    for kept in samples[:2]:
        assert kept.count(200) and kept.count([200, 400, 504]) == kept.count(), kept.outcomes()
    for abandoned in samples[2:]:
        assert abandoned.count(measure.FAILED) == 0, abandoned.outcomes()
