# SPDX-License-Identifier: Apache-2.0
"""Who changes what is logged, and how much of it clients cause."""

import json
import os
import re
import signal
import subprocess
import time

import pytest
import requests

from oip import assert_error
from server import BINARY, Server, clean_environment


def wait_for_lines(server, text, count):
    deadline = time.monotonic() + 60
    while server.read_log().count(text) < count:
        assert time.monotonic() < deadline, server.read_log()
        time.sleep(0.01)


def test_no_client_changes_what_is_logged(demo_server):
    for method in ("GET", "POST"):
        reply = requests.request(method, demo_server.url + "/v2/logging", data='{"log_info":false}', timeout=60)
        assert_error(reply, 404, "Unknown route")
    assert "logging" not in demo_server.get("/v2").json()["extensions"]


def start_with_stream(tmp_path, *options, same=True):
    """Runs a start whose standard error is a file that JOURNAL_STREAM names, unless not `same`."""
    with (tmp_path / "stream").open("w") as stream:
        file = os.fstat(stream.fileno())
        subprocess.run([BINARY, *options], stderr=stream, stdout=subprocess.DEVNULL, timeout=60, env=clean_environment(
            JOURNAL_STREAM=f"{file.st_dev}:{file.st_ino + (not same)}"))
    return (tmp_path / "stream").read_text().splitlines()


def test_journal_gets_levels_and_no_second_time(tmp_path):
    (tmp_path / "folder").mkdir()
    info, *_ = start_with_stream(tmp_path, "--demo", "--check-config")
    warned, *_ = start_with_stream(tmp_path, "--model-dir", tmp_path / "folder", "--check-config")
    failed, = start_with_stream(tmp_path, "--listen", "x")
    assert [info[:19], warned[:20], failed[:18]] == [
        "<6>info model name=", "<4>warn no model yet", "<3>attnd: --listen"]
    info, *_ = start_with_stream(tmp_path, "--demo", "--check-config", "--log-format", "json")
    assert info.startswith("<6>{") and json.loads(info[3:])["time"], info


def test_other_streams_get_times_and_no_marks(tmp_path):
    for line in start_with_stream(tmp_path, "--demo", "--check-config", same=False):
        assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z info ", line), line
    assert start_with_stream(tmp_path, "--listen", "x", same=False)[-1].startswith("attnd: --listen")


@pytest.mark.alone
@pytest.mark.parametrize("level", ["info", "error"])
def test_sigusr1_changes_to_debug_and_back(start_server, level):
    server = start_server("--demo", "--log-level", level)
    for round in (1, 2):
        server.process.send_signal(signal.SIGUSR1)
        wait_for_lines(server, "info log level changed level=debug cause=SIGUSR1", round)
        server.get("/v2/health/live")
        wait_for_lines(server, "debug request", round)
        server.process.send_signal(signal.SIGUSR1)
        wait_for_lines(server, f"info log level changed level={level} cause=SIGUSR1", round)
        server.get("/v2/health/live")
    assert server.read_log().count("debug request") == 2


def count_during_storm(server, text, storm):
    """Runs storm() some times; returns how many lines have the text, and how many seconds began."""
    begun = time.monotonic()
    for _ in range(300):
        storm()
    seconds = time.monotonic() - begun
    return server.read_log().count(text), seconds + 1


@pytest.mark.parametrize("number, text", [(signal.SIGUSR1, "log level changed"), (signal.SIGHUP, "models reloaded")])
def test_storm_of_signals_makes_ten_lines_a_second(start_server, number, text):
    server = start_server("--demo")

    def storm():
        server.process.send_signal(number)
        time.sleep(0.003)
    count, seconds = count_during_storm(server, text, storm)
    assert 1 <= count <= 10 * seconds


def test_storm_of_loads_makes_one_line_a_second_and_all_are_counted(start_server):
    server = start_server("--demo", "--model-control", "explicit")

    def storm():
        for verb in ("unload", "load"):
            reply = requests.post(f"{server.url}/v2/repository/models/d2l/{verb}", timeout=60)
            assert reply.status_code == 200, reply.text
    before = server.read_log().count("loaded model=d2l")
    count, seconds = count_during_storm(server, "loaded model=d2l", storm)
    assert 1 <= count - before <= seconds

    def told():
        counts = [line.rsplit("count=")[1] for line in server.read_log().splitlines()
                  if "info more models were loaded or unloaded count=" in line]
        return sum(map(int, counts)) + server.read_log().count("loaded model=d2l") - before
    deadline = time.monotonic() + 60
    while told() < 600:
        assert time.monotonic() < deadline, server.read_log()
        time.sleep(0.05)
    assert told() == 600
