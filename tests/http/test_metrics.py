# SPDX-License-Identifier: Apache-2.0
"""GET /metrics: what is in it, and that its sums are those of what was sent.

    PROMTOOL    Prometheus's promtool (the one in PATH); without it one test is skipped"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests

import oip
from checkpoints import slow_request, write_slow_layer
from http1 import Connection, get_bytes, post_bytes, send_unfinished
from scrape import Scrape, wait_for_counters, wait_for_scrape, wait_for_value
from server import BINARY, ROOT, clean_environment

PAGE = (ROOT / "docs/operate.md").read_text()
PROMTOOL = os.environ.get("PROMTOOL") or shutil.which("promtool")
ROWS = [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66]]
SMALL = {"model": "journey", "queries": ROWS}
NONE = "(none)"

pytestmark = pytest.mark.alone
needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="promtool (Debian: prometheus) is missing")


@pytest.fixture
def slow_model(tmp_path):
    path = tmp_path / "slow.safetensors"
    write_slow_layer(path)
    return f"slow={path}"


def infer(server, model, rows, status=200):
    body, headers = oip.pack([oip.tensor("queries", np.array([rows], np.float32), binary=True)])
    reply = oip.post(server, model, body, headers)
    assert reply.status_code == status, reply.text


def send_some_of_each(server):
    """Sends one request for each series that the scrapes below name."""
    assert server.attention(SMALL).status_code == 200
    assert server.heads(SMALL).status_code == 200
    infer(server, "d2l", [[1.0] * 100])
    infer(server, "d2l", [[1.0] * 99], 400)
    assert server.get("/v2/health/live").status_code == 200
    assert server.get("/v1/models/journey").status_code == 200
    assert server.get("/v1/models/unknown").status_code == 404
    assert server.get("/nothing").status_code == 404


def assert_histograms_are_sound(scrape):
    """Buckets grow, and the last is the count."""
    histograms = [family for family in scrape.families if family.type == "histogram"]
    assert len(histograms) == 7
    for family in histograms:
        for total in scrape.all(family.name + "_count"):
            buckets = scrape.all(family.name + "_bucket", **total.labels)
            bounds = [float(bucket.labels["le"]) for bucket in buckets]
            counts = [bucket.value for bucket in buckets]
            assert bounds == sorted(set(bounds)) and bounds[-1] == float("inf")
            assert counts == sorted(counts) and counts[-1] == total.value > 0
            assert scrape.value(family.name + "_sum", **total.labels) > 0


def test_reply_is_text_of_prometheus(start_server):
    server = start_server("--demo")
    send_some_of_each(server)
    scrape = Scrape(server)
    assert scrape.reply.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert scrape.reply.text.endswith("\n")
    assert all(family.documentation for family in scrape.families)
    assert len({(s.name, *sorted(s.labels.items())) for s in scrape.samples}) == len(scrape.samples)
    assert_histograms_are_sound(scrape)
    head = requests.head(server.url + "/metrics", timeout=60)
    assert (head.status_code, head.text) == (200, "")


def test_page_explains_every_metric(start_server):
    """tests/http/test_alerts.py reads the alerts in these rows."""
    rows = re.findall(r"^\| `((?:attnd|process)_\w+)` \|", PAGE, re.M)
    names = [*Scrape(start_server("--demo")).names(), "attnd_certificate_expiry_timestamp_seconds"]  # with TLS
    assert sorted(names) == sorted(rows)


def test_page_names_every_metric_of_keys(start_server, tmp_path):
    key, path = "0123456789abcdef", tmp_path / "keys"
    path.write_text(f"team:{key}\n")
    path.chmod(0o600)
    server = start_server("--demo", "--api-key-file", path)
    headers = {"Authorization": f"Bearer {key}"}
    for _ in range(2):  # a request is counted when it ends
        text = requests.get(server.url + "/metrics", headers=headers, timeout=60).text
        wait_for_counters()
    names = set(re.findall(r"^# TYPE (attnd_key_\w+) counter$", text, re.M))
    assert names == set(re.findall(r"`(attnd_key_\w+)`", PAGE)) != set()


@needs_promtool
def test_promtool_is_content_with_the_metrics(start_server):
    server = start_server("--demo")
    send_some_of_each(server)
    check = subprocess.run([PROMTOOL, "check", "metrics"], input=Scrape(server).reply.text, text=True,
                           capture_output=True, timeout=60)
    assert (check.returncode, check.stdout, check.stderr) == (0, "", "")


def test_sums_are_those_of_what_many_clients_sent(start_server):
    server = start_server("--demo", "--http-threads", 2)
    times, clients = 15, 6
    ended = threading.Event()

    def scrape_until_they_end():
        while not ended.wait(0.02):
            assert_histograms_are_sound(Scrape(server))

    def send():
        for _ in range(times):
            send_some_of_each(server)

    with ThreadPoolExecutor(clients + 1) as pool:
        scraping = pool.submit(scrape_until_they_end)
        sending = [pool.submit(send) for _ in range(clients)]
        try:
            for future in sending:
                future.result()
        finally:
            ended.set()
        scraping.result()

    # The end of a reply is counted after its client may have read it.
    count = times * clients
    scrape = wait_for_value(server, 1, "attnd_requests_in_flight")
    sent = {("/v1/attention", "journey", "200"): count, ("/v1/heads", "journey", "200"): count,
            ("/v2/models/*/infer", "d2l", "200"): count, ("/v2/models/*/infer", "d2l", "400"): count,
            ("/v2/health/live", NONE, "200"): count, ("/v1/models/", "journey", "200"): count,
            ("/v1/models/", NONE, "404"): count, (NONE, NONE, "404"): count}
    found = {(s.labels["route"], s.labels["model"], s.labels["status"]): s.value
             for s in scrape.all("attnd_requests_total") if s.labels["route"] != "/metrics"}
    assert found == sent

    for route in {route for route, *_ in sent}:
        assert (scrape.value("attnd_request_duration_seconds_count", route=route) ==
                scrape.sum("attnd_requests_total", route=route))
    stages = ("queue", "decode", "compute", "encode")
    for stage in stages:
        assert scrape.value(f"attnd_request_{stage}_seconds_count", route="/v1/heads") == count
    total = scrape.value("attnd_request_duration_seconds_sum", route="/v1/heads")
    assert total > sum(scrape.value(f"attnd_request_{stage}_seconds_sum", route="/v1/heads")
                       for stage in stages)
    assert scrape.value("attnd_request_rows_sum", route="/v1/attention") == count * len(ROWS)
    assert scrape.value("attnd_request_body_bytes_count", route="/v1/attention") == count
    for name in ("rejected", "expired", "cancelled"):
        assert scrape.sum(f"attnd_requests_{name}_total") == 0


def test_statistics_are_from_the_same_counters(start_server):
    server = start_server("--demo")
    for _ in range(3):
        send_some_of_each(server)
    scrape = Scrape(server)
    for model in server.get("/v2/models/stats").json()["model_stats"]:
        served = [s for s in scrape.all("attnd_requests_total", model=model["name"])
                  if s.labels["route"] != "/v1/models/"]
        fail = model["inference_stats"]["fail"]
        assert model["inference_count"] == sum(s.value for s in served if s.labels["status"] == "200")
        assert fail["count"] == sum(s.value for s in served if s.labels["status"] != "200")
    assert scrape.sum("attnd_requests_total", model="d2l", status="400") == 3


def test_restart_resets_the_counters(start_server):
    first = start_server("--demo")
    send_some_of_each(first)
    before = Scrape(first)
    first.stop()
    after = Scrape(start_server("--demo"))
    assert before.sum("attnd_requests_total") > 0
    assert after.all("attnd_requests_total") == []
    assert (after.value("process_start_time_seconds") >
            before.value("process_start_time_seconds") > time.time() - 600)
    assert before.value("process_cpu_seconds_total") > 0


def test_clients_cannot_make_series(start_server):
    server = start_server("--demo")
    send_some_of_each(server)
    num_series = len(Scrape(server).samples)
    with Connection(server.port) as connection:
        for i in range(50):
            for path in (f"/v1/models/m{i}", f"/v2/models/{i}/ready", f'/"{i}\\{{}}', f"/%0a{i}"):
                connection.send(get_bytes(path))
                assert connection.read_reply().status in (400, 404)
        for i in range(50):
            connection.send(post_bytes(b'{"model":"%d","queries":[[1]]}' % i))
            assert connection.read_reply().status == 404
    scrape = Scrape(server)
    labels = {(s.labels["route"], s.labels["model"]) for s in scrape.all("attnd_requests_total")}
    assert {model for _, model in labels} == {"journey", "d2l", NONE}
    # A route of descriptions, an error of attention, and the scrape before.
    assert len(scrape.samples) - num_series < 60


def test_scrape_shows_what_is_served(start_server):
    server = start_server("--demo")
    scrape = Scrape(server)
    models = server.get("/v1/models").json()["models"]
    assert scrape.value("attnd_models") == len(models)
    for model in models:
        assert scrape.value("attnd_model_memory_bytes", model=model["name"]) == model["memory"]
        (info,) = scrape.all("attnd_model_info", model=model["name"])
        assert info.labels["engine"] == model["engine"] and info.value == 1
        difference = scrape.value("attnd_model_engine_difference_ratio", model=model["name"])
        assert 0 <= difference < 1e-4
    version = subprocess.run([BINARY, "--version"], capture_output=True, text=True).stdout
    assert version == f"attnd {scrape.all('attnd_build_info')[0].labels['version']}\n"


def test_connections_and_memory_are_shown(start_server):
    server = start_server("--demo", "--max-connections", 20, "--max-memory", "64MiB")
    before = Scrape(server)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(Connection(server.port)) for _ in range(5)]
        for connection in connections:
            send_unfinished(connection, b" " * 1000000)
        held = before.value("attnd_memory_reserved_bytes") + 4000000
        scrape = wait_for_scrape(
            server, lambda scrape: scrape.value("attnd_memory_reserved_bytes") > held)
        assert scrape.value("attnd_requests_in_flight") == 6
        assert scrape.value("attnd_connections") >= before.value("attnd_connections") + 5
        assert scrape.value("attnd_connections_limit") == 20
        assert scrape.value("process_open_fds") >= before.value("process_open_fds") + 5
        assert scrape.value("attnd_memory_limit_bytes") <= 64 * 1024 * 1024
    scrape = wait_for_value(server, 5, "attnd_requests_cancelled_total", reason="receiving")
    assert scrape.value("attnd_requests_total", status="499", route="/v1/attention") == 5


def test_scrape_shows_a_busy_server_at_once(start_server, slow_model):
    """Every worker is busy, and others wait: the reply needs no worker."""
    server = start_server("--model", slow_model, "--workers", 1, "--queue", 9,
                          "--max-queue-delay", 3600000)
    large = post_bytes(json.dumps(slow_request(tokens=20000)).encode())
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(Connection(server.port)).send(large)
        scrape = wait_for_value(server, 3, "attnd_jobs_queued")
        assert scrape.value("attnd_workers") == scrape.value("attnd_workers_busy") == 1
        assert scrape.value("attnd_jobs_queued_limit") == 9
        assert scrape.value("attnd_queue_delay_seconds") > 0
        assert scrape.value("attnd_queue_delay_limit_seconds") == 3600
        assert scrape.value("attnd_requests_in_flight") == 5
    # Their clients have left: one was computed, and the others waited. But the worker may begin
    # another one before the server sees that its client has left, too.
    scrape = wait_for_value(server, 4, "attnd_requests_cancelled_total")
    waiting, computing = (scrape.value("attnd_requests_cancelled_total", reason=reason)
                          for reason in ("waiting", "computing"))
    assert waiting + computing == 4 and computing >= 1 and waiting >= 1
    assert scrape.sum("attnd_requests_expired_total") == 0
    (stats,) = server.get("/v2/models/slow/stats").json()["model_stats"]
    assert stats["inference_stats"]["fail"]["count"] == 4


def test_client_that_leaves_while_its_reply_is_sent_is_counted(start_server):
    server = start_server("--demo")
    many = np.random.default_rng(1).normal(size=(400, 100)).round(3).tolist()
    body = requests.Request(json={"model": "d2l", "queries": many, "need_weights": True},
                            method="POST", url="http://a").prepare().body
    with Connection(server.port) as connection:
        connection.send(post_bytes(body))
        assert connection.receive()
    scrape = wait_for_value(server, 1, "attnd_requests_cancelled_total", reason="sending")
    assert scrape.value("attnd_requests_total", route="/v1/attention", status="200") == 1


def test_expired_requests_are_counted(start_server):
    server = start_server("--demo", "--header-timeout", 1, "--idle-timeout", 1)
    assert server.attention(SMALL | {"timeout_ms": 0.001}).status_code == 504
    with Connection(server.port) as connection:
        send_unfinished(connection, b" " * 100)
        assert connection.read_reply().status == 408
    scrape = wait_for_value(server, 2, "attnd_requests_expired_total")
    assert scrape.value("attnd_requests_expired_total", reason="deadline") == 1
    assert scrape.value("attnd_requests_expired_total", reason="slow_body") == 1
    assert scrape.value("attnd_requests_total", status="504", model="journey") == 1
    assert scrape.value("attnd_requests_total", status="408", model=NONE) == 1
    assert scrape.sum("attnd_requests_cancelled_total") == 0


def refusals_of(server):
    """Returns (count, reasons) of each warning in the log."""
    return [(int(count), reasons) for count, reasons in re.findall(
        r' warn requests were refused count=(\d+) reasons="(.*)"$', server.read_log(), re.M)]


def test_refused_requests_are_counted_and_one_warning_says_why(start_server, slow_model):
    server = start_server("--model", slow_model, "--workers", 1, "--queue", 1)
    large = slow_request(tokens=20000) | {"timeout_ms": 4000}
    statuses = []
    with ThreadPoolExecutor(20) as clients:
        for reply in clients.map(lambda _: server.attention(large), range(20)):
            statuses.append(reply.status_code)
    num_refused = statuses.count(503)
    assert num_refused >= 15 and set(statuses) <= {503, 504}

    scrape = Scrape(server)
    assert scrape.value("attnd_requests_rejected_total", reason="queue_full") == num_refused
    assert scrape.sum("attnd_requests_rejected_total") == num_refused
    assert scrape.value("attnd_requests_total", status="503", model="slow") == num_refused
    (stats,) = server.get("/v2/models/slow/stats").json()["model_stats"]
    assert stats["inference_stats"]["fail"]["count"] == 20
    assert len(refusals_of(server)) >= 1
    end = time.monotonic() + 60
    while sum(count for count, _ in refusals_of(server)) < num_refused:
        assert time.monotonic() < end, server.read_log()
        time.sleep(0.2)
    assert len(refusals_of(server)) < num_refused / 2  # at most one in ten seconds, and the first at once
    assert all(reasons == f"queue_full {count}" for count, reasons in refusals_of(server))


def test_every_limit_has_its_reason(start_server):
    server = start_server("--demo", "--max-body", 10000, "--max-reply", 5000, "--max-memory", "8MiB",
                          "--max-per-client", 1)
    assert server.attention({"model": "d2l", "queries": [[1] * 100] * 100}).status_code == 413
    assert server.attention({"model": "d2l", "queries": [[1] * 100] * 20}).status_code == 413
    with Connection(server.port) as connection:
        send_unfinished(connection, b" " * 100)
        reply = server.get("/v2/models/d2l")
        assert reply.status_code == 429
    scrape = wait_for_value(server, 3, "attnd_requests_rejected_total")
    for reason in ("body_too_large", "reply_too_large", "too_many_requests"):
        assert scrape.value("attnd_requests_rejected_total", reason=reason) == 1
    assert scrape.value("attnd_requests_total", route="/v2/models/*", model="d2l", status="429") == 1
    assert scrape.value("attnd_requests_total", route="/v1/attention", model="d2l", status="413") == 1
    assert scrape.value("attnd_requests_total", route="/v1/attention", model=NONE, status="413") == 1


def test_dropped_log_lines_are_counted():
    """Standard error is a full device."""
    with open("/dev/full", "w") as full:
        process = subprocess.Popen([BINARY, "--demo", "--listen", "127.0.0.1:0"], stderr=full, text=True,
                                   stdout=subprocess.PIPE, env=clean_environment())
    try:
        match = re.match(r"listening on (\S+)", process.stdout.readline())
        text = requests.get(match[1] + "/metrics", timeout=60).text
        assert int(re.search(r"^attnd_log_lines_dropped_total (\d+)$", text, re.M)[1]) >= 5
    finally:
        process.terminate()
        process.communicate()
    assert process.returncode == 0
