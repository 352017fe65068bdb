# SPDX-License-Identifier: Apache-2.0
"""Runs the soak of tests/load for SOAK_SECONDS (20), and its wrk scripts."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from server import ROOT, Server

LOAD = ROOT / "tests/load"
SECONDS = float(os.environ.get("SOAK_SECONDS", 20))

sys.path.insert(0, str(LOAD))


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
    with Server("--demo", "--model", f"wide={path}") as server:
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
