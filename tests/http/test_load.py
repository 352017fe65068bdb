# SPDX-License-Identifier: Apache-2.0
"""Runs the soak of tests/load for SOAK_SECONDS (20), its wrk scripts and its generator."""

import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from server import ROOT, Server

LOAD = ROOT / "tests/load"
SECONDS = float(os.environ.get("SOAK_SECONDS", 20))

sys.path.insert(0, str(LOAD))


@pytest.mark.alone
@pytest.mark.timeout(SECONDS + 180)
def test_soak_gets_only_right_replies_and_leaks_nothing(capfd):
    import soak
    report = soak.run(SECONDS)
    with capfd.disabled():
        print(f"\n{report}")
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
        samples = measure.run_load(listener.getsockname()[1], [measure.d2l_request()], 0.2,
                                   connections=1, give_up=0.5)
    assert samples.count() == samples.count(measure.GAVE_UP) == 1
