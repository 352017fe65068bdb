# SPDX-License-Identifier: Apache-2.0
"""The level of the log, changed at run time by SIGUSR1 and by POST /v2/logging."""

import json
import signal
import time

import pytest
import requests
import tritonclient.http as triton

from oip import assert_error
from server import Server

INFO = {"log_file": "", "log_info": True, "log_warning": True, "log_error": True, "log_verbose_level": 0,
        "log_format": "text"}
DEBUG = INFO | {"log_verbose_level": 1}
WARN = INFO | {"log_info": False}
ERROR = WARN | {"log_warning": False}


@pytest.fixture(scope="module")
def log_server():
    with Server("--demo") as server:
        yield server


def change(server, settings):
    return requests.post(server.url + "/v2/logging", data=json.dumps(settings), timeout=60)


def wait_for_lines(server, text, count):
    deadline = time.monotonic() + 60
    while server.read_log().count(text) < count:
        assert time.monotonic() < deadline, server.read_log()
        time.sleep(0.01)


@pytest.mark.parametrize("before, settings, after", [
    (INFO, {"log_verbose_level": 1}, DEBUG), (DEBUG, {"log_verbose_level": 0}, INFO),
    (ERROR, {"log_verbose_level": 2**32 - 1}, DEBUG), (DEBUG, {"log_info": False}, WARN),
    (WARN, {"log_info": True}, INFO), (DEBUG, {"log_info": True}, DEBUG),
    (INFO, {"log_warning": False}, ERROR), (ERROR, {"log_warning": True}, WARN),
    (DEBUG, {"log_error": True}, DEBUG), (WARN, {}, WARN), (WARN, {"log_info": None}, WARN),
    (INFO, ERROR, ERROR), (ERROR, DEBUG, DEBUG)], ids=str)
def test_settings_change_the_level(log_server, before, settings, after):
    assert change(log_server, before).json() == before
    reply = change(log_server, settings)
    assert reply.status_code == 200 and reply.json() == after, reply.text
    assert log_server.get("/v2/logging").json() == after


@pytest.mark.parametrize("body, error", [
    ('{"log_error":false}', "Fixed setting: log_error"),
    ('{"log_info":true,"log_warning":false}', "Fixed setting: log_warning"),
    ('{"log_verbose_level":1,"log_info":false}', "Fixed setting: log_info"),
    ('{"log_file":"/tmp/attnd.log"}', "Fixed setting: log_file"),
    ('{"log_format":"ISO8601"}', "Fixed setting: log_format"), ('{"log_infos":true}', "Unknown key: 'log_infos'"),
    ('{"log_info":1}', "Wrong type"), ('{"log_file":false}', "Wrong type"),
    ('{"log_verbose_level":true}', "Wrong type"), ('{"log_verbose_level":0.5}', "Wrong type"),
    ('{"log_verbose_level":-1}', "Out of range"), ('{"log_verbose_level":4294967296}', "Out of range"),
    ("[]", "Wrong type"), ("", "Malformed JSON"), ('{"log_info":false', "Malformed JSON")], ids=str)
def test_what_the_log_cannot_be_is_refused_by_name(log_server, body, error):
    change(log_server, INFO)
    assert_error(requests.post(log_server.url + "/v2/logging", data=body, timeout=60), 400, error)
    assert log_server.get("/v2/logging").json() == INFO


def test_other_methods_and_types_are_refused(log_server):
    reply = requests.delete(log_server.url + "/v2/logging", timeout=60)
    assert (reply.status_code, reply.headers["Allow"]) == (405, "GET, HEAD, POST")
    text = {"Content-Type": "text/plain"}
    assert requests.post(log_server.url + "/v2/logging", data="{}", headers=text, timeout=60).status_code == 415
    assert requests.post(log_server.url + "/v2/logging", data=b" " * 70000, timeout=60).status_code == 413
    assert log_server.get("/v2/logging", headers=text).status_code == 200
    assert requests.head(log_server.url + "/v2/logging", timeout=60).status_code == 200


def test_tritonclient_reads_and_changes_the_settings(log_server):
    change(log_server, INFO)
    with triton.InferenceServerClient(f"127.0.0.1:{log_server.port}") as client:
        assert client.get_log_settings() == INFO
        assert client.update_log_settings({"log_verbose_level": 1, "log_info": None}) == DEBUG
        assert client.update_log_settings(client.get_log_settings() | WARN) == WARN
        assert client.get_log_settings() == WARN


@pytest.mark.alone
def test_level_decides_what_is_logged_and_each_change_is(start_server):
    server = start_server("--demo", "--log-level", "error")
    server.get("/v2/health/live")
    change(server, {"log_verbose_level": 3})
    change(server, {"log_verbose_level": 3})  # changes nothing
    server.get("/v2/models/nobody")
    change(server, {"log_warning": False})
    server.get("/v2/health/live")
    events = [line.split(" ", 1)[1] for line in server.read_log().splitlines()]
    assert [event for event in events if " log level changed " in event] == [
        'info log level changed level=debug cause="POST /v2/logging"',
        'info log level changed level=error cause="POST /v2/logging"']
    assert server.read_log().count("debug request") == 3
    assert events[-1].startswith("info log level changed level=error")


@pytest.mark.alone
@pytest.mark.parametrize("level", ["info", "error"])
def test_sigusr1_changes_to_debug_and_back(start_server, level):
    server = start_server("--demo", "--log-level", level)
    for round in (1, 2):
        server.process.send_signal(signal.SIGUSR1)
        wait_for_lines(server, "info log level changed level=debug cause=SIGUSR1", round)
        assert server.get("/v2/logging").json() == DEBUG
        server.process.send_signal(signal.SIGUSR1)
        wait_for_lines(server, f"info log level changed level={level} cause=SIGUSR1", round)
        assert server.get("/v2/logging").json() == {"info": INFO, "error": ERROR}[level]


def test_format_of_the_log_is_told(start_server):
    server = start_server("--demo", "--log-format", "json")
    assert server.get("/v2/logging").json() == INFO | {"log_format": "json"}
    assert change(server, {"log_format": "json", "log_verbose_level": 1}).status_code == 200
    for line in server.read_log().splitlines():
        assert isinstance(json.loads(line), dict)
