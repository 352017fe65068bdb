# SPDX-License-Identifier: Apache-2.0
"""attnd as a process: what it does when its outputs, descriptors or memory run out."""

import re
import resource
import subprocess
import time

import pytest
import requests

from server import BINARY, GOLDEN, clean_environment, is_sanitized


def wait_for(condition, timeout=60):
    """Waits until condition() is true, and returns its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s"
        time.sleep(0.02)
    return value


# --- standard output ---

@pytest.mark.parametrize("arguments", [
    ["--help"], ["--man"], ["--version"], ["--demo", "--check-config"],
    ["inspect", "--model", f"a={GOLDEN}/additive_scoring.safetensors,num_heads=4"], ["bench", "--shape", "1,8,64,1"]],
    ids=lambda arguments: arguments[0].strip("-"))
def test_output_that_cannot_be_written_exits_1(arguments):
    with open("/dev/full", "w") as full:
        result = subprocess.run([BINARY, *arguments], stdout=full, stderr=subprocess.PIPE,
                                text=True, timeout=60, env=clean_environment())
    assert result.returncode == 1, result
    assert "standard output" in result.stderr.splitlines()[-1]


def test_full_standard_output_does_not_stop_the_server(tmp_path):
    log_path = tmp_path / "log"
    with open("/dev/full", "w") as full, open(log_path, "w") as log:
        process = subprocess.Popen([BINARY, "--demo", "--listen", "127.0.0.1:0"], stdout=full,
                                   stderr=log, env=clean_environment())
        url = wait_for(lambda: re.search(r"url=(http://\S+)", log_path.read_text()))[1]
        assert requests.get(url + "/v2/health/live", timeout=60).status_code == 200
        process.terminate()
        assert process.wait(60) == 0


# --- descriptors ---

@pytest.mark.skipif(is_sanitized(), reason="sanitizers open files of their own at start")
@pytest.mark.parametrize("limit", [4, 5, 6])
def test_lack_of_file_descriptors_at_start_is_named(limit):
    result = subprocess.run(
        [BINARY, "--demo", "--listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
        env=clean_environment())
    assert result.returncode == 1, result
    assert "ulimit -n" in result.stderr.splitlines()[-1], result.stderr
