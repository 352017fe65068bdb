# SPDX-License-Identifier: Apache-2.0
"""Names and times of requests: X-Request-Id, traceparent, Server-Timing and the access log."""

import json
import re
import threading
import time

import pytest
import requests

import oip
from http1 import Connection, get_bytes, post_bytes
from server import Server

APP = "https://app.example"
BODY = json.dumps({"model": "journey", "queries": [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66]]}).encode()
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
MADE = re.compile(r"[0-9a-f]{32}")
STAGES = ("queue", "decode", "compute", "encode")


@pytest.fixture(scope="module")
def logged():
    """A server whose access log is read; its log is JSON."""
    with Server("--demo", "--access-log", "--log-format", "json", "--http-threads", 2, "--cors-origin",
                APP, "--max-body", 1048576, "--trusted-proxy", "127.0.0.1") as server:
        yield server


def send(server, data, head_only=False):
    with Connection(server.port) as connection:
        connection.send(data)
        return connection.read_reply(head_only)


def events_of(server, **fields):
    """Waits for requests in the log that have these fields. The reply may come before its line."""
    deadline = time.monotonic() + 30
    while True:
        events = map(json.loads, filter(None, server.read_log().split("\n")[:-1]))
        found = [event for event in events
                 if event["message"] == "request" and fields.items() <= event.items()]
        if found:
            return found
        assert time.monotonic() < deadline, (fields, server.read_log())
        time.sleep(0.01)


def event_of(server, **fields):
    event, = events_of(server, **fields)
    return event


# --- X-Request-Id ---

ID_HEADER = "X-Request-Id: mine"
INFER = oip.pack([oip.tensor("queries", [[[1.0] * 3]])])[0]
LARGE = json.dumps({"model": "d2l", "queries": [[0.5] * 100] * 300, "need_weights": True}).encode()
REPLIES = {
    "native": (post_bytes(BODY, ID_HEADER), 200),
    "streamed": (post_bytes(LARGE, ID_HEADER), 200),
    "OIP": (post_bytes(INFER, ID_HEADER, path="/v2/models/journey/infer"), 200),
    "GET": (get_bytes("/v1/models", ID_HEADER), 200),
    "page": (get_bytes("/ui.css", ID_HEADER), 200),
    "preflight": (get_bytes("/v1/attention", ID_HEADER, f"Origin: {APP}",
                            "Access-Control-Request-Method: POST").replace(b"GET", b"OPTIONS"), 204),
    "not JSON": (post_bytes(b"{", ID_HEADER), 400),
    "unknown model": (post_bytes(BODY.replace(b"journey", b"nobody"), ID_HEADER), 404),
    "unknown route": (get_bytes("/nowhere", ID_HEADER), 404),
    "wrong method": (get_bytes("/v1/attention", ID_HEADER), 405),
    "other page": (get_bytes("/v2", ID_HEADER, "Origin: https://other.example"), 403),
    "too large": (post_bytes(b" " * 1048577, ID_HEADER), 413),
    "two origins": (get_bytes("/v2", ID_HEADER, f"Origin: {APP}", f"Origin: {APP}"), 400),
    "expectation": (post_bytes(BODY, ID_HEADER, "Expect: 200-ok"), 417),
}


@pytest.mark.parametrize("name", REPLIES)
def test_every_reply_has_the_id_of_its_request(logged, name):
    data, status = REPLIES[name]
    reply = send(logged, data)
    assert (reply.status, reply.headers.get("x-request-id")) == (status, "mine"), reply
    made = send(logged, data.replace(ID_HEADER.encode() + b"\r\n", b""))
    assert made.status == status and MADE.fullmatch(made.headers["x-request-id"]), made


@pytest.mark.parametrize("value, taken", [
    ("a", True), ("x" * 128, True), ("!~\"'()*+,-./:;<=>?@[]^_`{|}", True), ("x" * 129, False),
    ("", False), ("two words", False), ("tab\tin it", False), ("caf\xe9", False), ("x" * 5000, False)],
    ids=["short", "longest", "marks", "too long", "empty", "blank", "tab", "not ASCII", "huge"])
def test_id_of_visible_ascii_is_taken_and_another_is_replaced(logged, value, taken):
    reply = send(logged, get_bytes("/v2/health/live").replace(
        b"\r\n\r\n", b"\r\nX-Request-Id: " + value.encode("latin-1") + b"\r\n\r\n"))
    got = reply.headers["x-request-id"]
    assert got == value if taken else MADE.fullmatch(got), got


def test_made_ids_differ_on_all_threads(logged):
    ids = []

    def run():
        with requests.Session() as session:
            ids.extend(session.get(logged.url + "/v2/health/live", timeout=60).headers["X-Request-Id"]
                       for _ in range(100))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 800 and all(map(MADE.fullmatch, ids))


def test_late_body_gets_its_408_with_the_id(start_server):
    server = start_server("--demo", "--header-timeout", 1, "--idle-timeout", 2, "--access-log",
                          "--log-format", "json")
    reply = send(server, post_bytes(BODY, ID_HEADER)[:-1])
    assert (reply.status, reply.headers["x-request-id"]) == (408, "mine")
    event = event_of(server, id="mine")
    assert (event["status"], event["error"]) == (408, "Request timeout")


def test_allowed_page_elsewhere_may_read_and_send_the_headers(logged):
    reply = requests.post(logged.url + "/v1/attention", data=BODY, timeout=60, headers={
        "Content-Type": "application/json", "Origin": APP})
    exposed = reply.headers["Access-Control-Expose-Headers"].split(", ")
    assert {"X-Request-Id", "Server-Timing"} <= set(exposed)
    assert reply.headers["Timing-Allow-Origin"] == APP
    reply = requests.options(logged.url + "/v1/attention", timeout=60, headers={
        "Origin": APP, "Access-Control-Request-Method": "POST"})
    allowed = reply.headers["Access-Control-Allow-Headers"].split(", ")
    assert {"X-Request-Id", "traceparent"} <= set(allowed)
    assert "Timing-Allow-Origin" not in logged.get("/v2").headers


# --- Server-Timing ---

def timing_of(reply):
    """Returns the stages in milliseconds."""
    match = re.fullmatch(", ".join(rf"{name};dur=(\d+\.\d{{3}})" for name in (*STAGES, "total")),
                         reply.headers["server-timing"])
    return [float(value) for value in match.groups()]


@pytest.mark.parametrize("name", ["native", "streamed", "OIP", "unknown model", "not JSON"])
def test_stages_of_a_reply_are_part_of_its_total_time(logged, name):
    *stages, total = timing_of(send(logged, REPLIES[name][0]))
    assert stages[1] > 0 and sum(stages) <= total + 0.005
    assert (stages[2] > 0 and stages[3] > 0) == (REPLIES[name][1] == 200)


def test_reply_that_no_worker_made_has_no_timing(logged):
    for name in ("GET", "page", "unknown route", "too large", "preflight"):
        assert "server-timing" not in send(logged, REPLIES[name][0]).headers


def test_queue_is_the_time_that_a_request_waits_for_a_worker(start_server):
    """There is one worker for two large requests, so one of them waits while it computes the other."""
    server = start_server("--demo", "--workers", 1, "--max-queue-delay", 600000, "--max-reply", "4GiB",
                          "--access-log", "--log-format", "json")
    busy = json.dumps({"model": "patterns", "queries": [[0.5] * 128] * 4000}).encode()
    with Connection(server.port, 120) as first, Connection(server.port, 120) as second:
        first.send(post_bytes(busy, "X-Request-Id: first"))
        second.send(post_bytes(busy, "X-Request-Id: second"))
        timings = {reply.headers["x-request-id"]: timing_of(reply)
                   for reply in (first.read_reply(), second.read_reply())}
    event = event_of(server, id="second")
    assert event["queue_us"] / 1000 == pytest.approx(timings["second"][0], abs=0.0015)
    assert timings["second"][0] + timings["first"][0] > min(t[2] for t in timings.values()) / 2


# --- the access log ---

def test_line_has_the_facts_of_the_request(logged):
    reply = send(logged, post_bytes(BODY, "X-Request-Id: facts", f"traceparent: 00-{TRACE}-{SPAN}-01"))
    event = event_of(logged, id="facts")
    times = {name: event.pop(name + "_us") for name in (*STAGES, "total")}
    assert event.pop("time")
    assert event == {
        "level": "info", "message": "request", "id": "facts", "method": "POST", "route": "/v1/attention",
        "model": "journey", "client": "127.0.0.1", "status": 200, "end": "replied",
        "body_bytes": len(BODY), "reply_bytes": len(reply.body), "rows": 2, "trace_id": TRACE,
        "span_id": SPAN}
    for name, value in zip(STAGES, timing_of(reply)):
        assert abs(times[name] / 1000 - value) < 0.0015
    assert sum(times[name] for name in STAGES) <= times["total"] + 5


def test_line_of_an_error_has_its_title(logged):
    send(logged, get_bytes("/v1/models/nobody", "X-Request-Id: error"))
    event = event_of(logged, id="error")
    assert (event["route"], event["status"], event["error"]) == ("/v1/models/", 404, "Unknown model")
    assert "model" not in event and "queue_us" not in event and "trace_id" not in event
    send(logged, get_bytes("/nowhere", "X-Request-Id: nowhere"))
    assert event_of(logged, id="nowhere")["route"] == "(none)"


@pytest.mark.parametrize("forwarded, client", [
    ("192.0.2.9", "192.0.2.9"), ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::")])
def test_line_has_the_client_that_limits_count(logged, forwarded, client):
    name = "for-" + forwarded
    send(logged, get_bytes("/v2", f"X-Request-Id: {name}", f"X-Forwarded-For: {forwarded}"))
    assert event_of(logged, id=name)["client"] == client


def test_client_that_leaves_has_no_status(logged):
    with Connection(logged.port) as connection:
        connection.send(post_bytes(BODY, "X-Request-Id: left")[:-9])
        assert send(logged, get_bytes("/v2")).status == 200
    event = event_of(logged, id="left")
    assert (event["status"], event["end"], event["body_bytes"]) == (0, "left_receiving", len(BODY) - 9)


@pytest.mark.parametrize("value, valid", [
    (f"00-{TRACE}-{SPAN}-00", True), (f"01-{TRACE}-{SPAN}-01-more", True), (f"cc-{TRACE}-{SPAN}-01", True),
    (f"00-{TRACE}-{SPAN}-01-more", False), (f"ff-{TRACE}-{SPAN}-01", False),
    (f"00-{'0' * 32}-{SPAN}-01", False), (f"00-{TRACE}-{'0' * 16}-01", False),
    (f"00-{TRACE.upper()}-{SPAN}-01", False), (f"00-{TRACE}-{SPAN}", False),
    (f"00-{TRACE}-{SPAN}-1", False), (f"00-{TRACE}-{SPAN}-011", False), (f"00-{TRACE[1:]}-{SPAN}-01", False),
    (f"0-{TRACE}-{SPAN}-01", False), (f"01-{TRACE}-{SPAN}-01more", False), ("00", False), ("", False)])
def test_only_a_valid_traceparent_is_kept(logged, value, valid):
    name = "parent-" + (value or "empty")
    send(logged, get_bytes("/v2", f"X-Request-Id: {name}", f"traceparent: {value}"))
    event = event_of(logged, id=name)
    expected = (TRACE, SPAN) if valid else (None, None)
    assert (event.get("trace_id"), event.get("span_id")) == expected


@pytest.mark.alone
def test_requests_are_logged_at_debug_without_the_option(start_server):
    server = start_server("--demo")
    for _ in range(3):
        server.get("/v2/health/live")
    assert " request " not in server.read_log()
    server = start_server("--demo", "--log-level", "debug")
    assert server.get("/v2/health/live", headers={"X-Request-Id": 'a"b=\\'}).status_code == 200
    deadline = time.monotonic() + 30
    while ' debug request id="a\\"b=\\\\" method=GET route=/v2/health/live client=' not in server.read_log():
        assert time.monotonic() < deadline, server.read_log()
        time.sleep(0.01)


@pytest.mark.alone
def test_access_log_does_not_depend_on_the_level(start_server):
    server = start_server("--demo", "--access-log", "--log-level", "error", "--log-format", "json")
    server.get("/v2/health/live")
    assert events_of(server, level="info", route="/v2/health/live")
