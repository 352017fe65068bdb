# SPDX-License-Identifier: Apache-2.0
"""Who changes what is logged, and how much of it clients cause."""

import signal
import time

import pytest
import requests

from oip import assert_error
from server import Server


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
    before = server.read_log().count("name=d2l")
    count, seconds = count_during_storm(server, "name=d2l", storm)
    assert 1 <= count - before <= seconds

    def told():
        counts = [line.rsplit("count=")[1] for line in server.read_log().splitlines()
                  if "info more models were loaded or unloaded count=" in line]
        return sum(map(int, counts)) + server.read_log().count("name=d2l") - before
    deadline = time.monotonic() + 60
    while told() < 600:
        assert time.monotonic() < deadline, server.read_log()
        time.sleep(0.05)
    assert told() == 600
