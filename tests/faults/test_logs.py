# SPDX-License-Identifier: Apache-2.0
"""Logs that cannot be written do not disturb the service."""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess

import pytest

from all_requests import make_requests
from fault import exchange, why_not
from server import BINARY, clean_environment, run_attnd
from starts import control, start_arguments  # noqa: F401 (fixtures)

MOUNT = ("unshare", "--mount", "sh", "-c")


@contextlib.contextmanager
def logging_to(stderr, *command):
    """Starts attnd at debug level with standard error `stderr`; yields its port. At the end SIGTERM
    must stop it."""
    command = [*command, BINARY, "--demo", "--log-level", "debug", "--listen", "127.0.0.1:0",
               "--max-body", "1048576"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True,
                               env=clean_environment())
    try:
        match = re.match(r"listening on http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert match, "attnd did not start"
        yield int(match[1])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def serve_all(port, times):
    """Every request gets its reply; at debug level each writes a line."""
    for _ in range(times):
        for data, status in make_requests().values():
            assert exchange(port, data).status == status


def test_log_on_a_full_device_does_not_disturb():
    with open("/dev/full", "w") as full, logging_to(full) as port:
        serve_all(port, 3)


def test_log_on_a_full_disk_does_not_disturb(tmp_path):
    """A tmpfs of 1 MiB, in a namespace of its own, which is nearly full at the start."""
    folder = tmp_path
    script = (f"mount -t tmpfs -o size=1m none {folder} && head -c 1044480 /dev/zero > {folder}/data;"
              f" exec \"$@\" 2> {folder}/log")
    if subprocess.run([*MOUNT, f"mount -t tmpfs -o size=1m none {folder}"],
                      capture_output=True).returncode != 0:
        pytest.skip("a tmpfs needs root and a mount namespace")
    with logging_to(None, *MOUNT, script, "sh") as port:
        serve_all(port, 3)


def test_closed_standard_error_does_not_disturb():
    with logging_to(None, "sh", "-c", 'exec "$@" 2>&-', "sh") as port:
        serve_all(port, 3)


def test_reader_of_the_log_that_ends_does_not_disturb():
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe, logging_to(pipe) as port:
        serve_all(port, 1)
        os.close(reading)
        serve_all(port, 2)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("kind", ["open", "read"])
def test_every_line_of_a_failed_start_is_json(control, start_arguments, kind):
    """--log-format comes first: what the configuration file says is not known when it cannot be
    read."""
    failures = 0
    for nth in itertools.count(1):
        control.write(in_main=0)
        control.arm([kind], nth, "EIO")
        result = run_attnd("--log-format", "json", *start_arguments, "--check-config",
                           **control.environment())
        events = [json.loads(line) for line in result.stderr.splitlines()]
        assert all(isinstance(event, dict) for event in events), result
        if not control.failed:
            break
        failures += result.returncode != 0
        assert (result.returncode == 0) != (events[-1]["message"] == "failed"), result
    assert failures > 0
