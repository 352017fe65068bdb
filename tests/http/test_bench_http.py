# SPDX-License-Identifier: Apache-2.0
"""attnd-bench http, the load generator: whether it sends what it is told to and reports what came back.
Servers of a few lines show what attnd never does."""

import csv
import json
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from http1 import closed_port
from openblas import needs_openblas
from programs import BENCH
from safetensors_file import make_safetensors
from server import ROOT, Server, run_bench

pytestmark = [pytest.mark.alone, needs_openblas]  # else there is no attnd-bench


def load(url, *options, code=0):
    """Returns the reports of a run of a second without warm-up."""
    result = run_bench("http", url, "--seconds", 1, "--warmup", 0, "--json", *options)
    assert result.returncode == code, result
    return [json.loads(line) for line in result.stdout.splitlines()]


def write_lines(path, *objects):
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    return path


@pytest.fixture(scope="module")
def attnd():
    with Server("--demo", "--max-queue-delay", 60_000) as server:
        yield server


class Fake:
    """`with Fake(reply) as fake` accepts connections, each in a thread. reply(number, request) returns
    the bytes that the request with this number gets, None to close; it may sleep."""

    def __init__(self, reply, listener=None):
        self.reply, self.listener = reply, listener or socket.create_server(("127.0.0.1", 0), backlog=512)
        self.requests, self.num_connections, self.open_now, self.open_most = [], 0, 0, 0
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        if self.listener.fileno() >= 0:
            self.listener.shutdown(socket.SHUT_RDWR)
            self.listener.close()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def read_request(self, file):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = file.readline()
            if not line:
                return None
            head += line
        size = next((int(line.split(b":")[1]) for line in head.split(b"\r\n")
                     if line.startswith(b"Content-Length")), 0)
        return head + file.read(size)

    def serve(self, connection):
        with connection, connection.makefile("rb") as file:
            request = self.read_request(file)
            if request is None:  # the first connection only looks whether somebody listens
                return
            with self.lock:
                self.num_connections += 1
                self.open_now += 1
                self.open_most = max(self.open_most, self.open_now)
            while request:
                with self.lock:
                    number = len(self.requests)
                    self.requests.append(request)
                reply = self.reply(number, request)
                try:
                    if reply is None:
                        break
                    connection.sendall(reply)
                    request = self.read_request(file)
                except OSError:
                    break
            with self.lock:
                self.open_now -= 1


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def test_every_format_is_served_by_attnd(attnd, tmp_path):
    queries = np.ones((1, 3, 3), "f4")
    (tmp_path / "q.safetensors").write_bytes(
        make_safetensors({"queries": queries}, metadata={"model": "journey"}))
    head = json.dumps({"inputs": [{"name": "queries", "datatype": "FP32", "shape": [1, 3, 3],
                                   "parameters": {"binary_data_size": queries.nbytes}}],
                       "parameters": {"binary_data_output": True}}).encode()
    (tmp_path / "oip.bin").write_bytes(head + queries.tobytes())
    rows = queries.tolist()
    file = write_lines(
        tmp_path / "requests.jsonl",
        {"path": "/v1/attention", "body": {"model": "journey", "queries": rows}, "weight": 2},
        {"path": "/v1/attention", "body_file": "q.safetensors"},
        {"path": "/v2/models/journey/infer", "body": {
            "inputs": [{"name": "queries", "datatype": "FP32", "shape": [1, 3, 3], "data": rows}]}},
        {"path": "/v2/models/journey/infer", "body_file": "oip.bin",
         "content_type": "application/octet-stream",
         "headers": {"Inference-Header-Content-Length": str(len(head))}},
        {"path": "/v2/health/live"}, {"path": "/nowhere"})
    samples = tmp_path / "samples.csv"
    report, = load(attnd.url, "--requests", file, "--closed", 4, "--samples", samples)
    assert report["statuses"].keys() == {"200", "404"} and report["loop"] == "closed"
    assert report["timed_out"] == report["misread"] == report["lost"] == 0

    rows = list(csv.DictReader(samples.open()))
    assert len(rows) == report["requests"]
    outcomes = {(row["request"], row["outcome"]) for row in rows}
    assert outcomes == {*((str(i), "200") for i in range(5)), ("5", "404")}
    served = [float(row["latency_ms"]) for row in rows if row["outcome"] == "200"]
    assert len(served) == report["served"] == report["statuses"]["200"]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        if len(served) * (1 - share) < 1:  # too few on a slow machine
            assert report["latency_ms"][name] is None
            continue
        assert report["latency_ms"][name] == pytest.approx(
            np.quantile(served, share, method="inverted_cdf"), rel=2e-3)
    assert report["latency_ms"]["max"] == pytest.approx(max(served))
    assert report["latency_ms"]["mean"] == pytest.approx(np.mean(served), rel=1e-3)


def test_weights_decide_how_often_requests_are_sent_and_the_seed_in_which_order(tmp_path):
    file = write_lines(tmp_path / "r", {"path": "/rare"}, {"path": "/often", "weight": 9})
    orders = []
    for seed in (1, 1, 2):
        with Fake(lambda *_: OK) as fake:
            report, = load(fake.url, "--requests", file, "--rate", 400, "--connections", 1,
                           "--seed", seed, "--header", "X-All: yes")
        assert report["served"] == len(fake.requests) > 300
        assert all(b"\r\nX-All: yes\r\n" in request for request in fake.requests)
        orders.append([b"/rare" in request for request in fake.requests])
        assert 0.04 < np.mean(orders[-1]) < 0.17
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.parametrize("arrivals", ["constant", "poisson"])
def test_open_loop_sends_at_its_rate_whatever_the_server_does(arrivals):
    with Fake(lambda *_: time.sleep(0.3) or OK) as fake:
        report, = load(fake.url, "--rate", 100, "--arrivals", arrivals, "--connections", 200)
    assert report["rate"] == 100 and report["arrivals"] == arrivals
    assert report["requests"] == 100 and 90 <= report["sent_per_s"] <= 100
    assert report["served"] == report["requests"] and report["generator"]["waited"] == 0
    assert 300 <= report["latency_ms"]["p50"] and fake.open_most > 20


def test_latency_counts_from_when_a_request_was_due():
    """The server stalls once for 0.5 s. The requests that were due meanwhile waited, too, on average for
    half of that. A generator that counts from when it sends has one slow request."""
    stalled = []

    def reply(number, _):
        if number == 20:
            stalled.append(time.sleep(0.5))
        return OK

    with Fake(reply) as fake:
        report, = load(fake.url, "--rate", 200, "--arrivals", "constant", "--connections", 1)
    assert stalled and report["served"] == report["requests"] == 200
    assert report["generator"]["waited"] > 80
    assert 500 <= report["latency_ms"]["max"] < 700
    assert 100 < report["latency_ms"]["p90"] and report["latency_ms"]["mean"] > 50


def test_connections_are_bounded_and_kept():
    with Fake(lambda *_: time.sleep(0.02) or OK) as fake:
        report, = load(fake.url, "--closed", 3)
    assert fake.open_most == 3 and fake.num_connections == 3 and report["clients"] == 3
    with Fake(lambda *_: time.sleep(0.02) or OK) as fake:
        report, = load(fake.url, "--closed", 3, "--fresh")
    assert fake.num_connections == report["requests"] > 20
    with Fake(lambda *_: time.sleep(0.1) or OK) as fake:
        report, = load(fake.url, "--rate", 100, "--connections", 2)
    assert fake.open_most == 2 and report["generator"]["waited"] > 50
    assert report["served_per_s"] <= report["sent_per_s"] < 30  # and not the rate


def test_warm_up_is_not_counted():
    began = []

    def reply(*_):
        began.append(time.monotonic())
        return OK if time.monotonic() - began[0] > 0.8 else OK.replace(b"200", b"500")

    with Fake(reply) as fake:
        result = run_bench("http", fake.url, "--closed", 1, "--warmup", 1, "--seconds", 1, "--json")
    report = json.loads(result.stdout)
    assert report["statuses"].keys() == {"200"} and report["requests"] < len(fake.requests)


@pytest.mark.parametrize("reply,counted", [
    (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", {"statuses": {"503": 10}}),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
     {"statuses": {"200": None}}),
    (b"HTTP/1.0 200 OK\r\n\r\nto the end", {"timed_out": None}),
    (b"SSH-2.0-a\r\n\r\n", {"misread": 10}),
    (OK + b"more", {"misread": 10}),
    (None, {"lost": 10}),
])
def test_what_is_not_served_is_counted_by_its_kind(reply, counted):
    with Fake(lambda *_: reply) as fake:
        report, = load(fake.url, "--closed", 1, "--timeout-ms", 400)
    nothing = {"statuses": {}, "timed_out": 0, "misread": 0, "lost": 0}
    for name in nothing:
        value = report[name]
        if name not in counted:
            assert value == nothing[name], report
        elif name == "statuses":
            assert value.keys() == counted[name].keys() and all(value.values()), report
        else:
            assert 0 < value <= 11, report  # a client pauses for 0.1 s after a failure
    if "200" not in report["statuses"]:
        assert report["served"] == 0 and report["latency_ms"]["p50"] is None


def test_each_server_that_misbehaves_is_reported():
    head = b"HTTP/1.1 200 OK\r\n"
    wrong = [b"SSH-2.0-x\r\n", b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 101 S\r\n\r\n", head + b"a: b\r\n" * 9000,
             head + b"a: " + b"b" * 90_000, head + b"Content-Length: x\r\n\r\n", OK + OK,
             *(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk for chunk in (b"zz\r\n", b"1\r\nab", b"\r\n"))]
    late = [b"HTTP/1.1 100 Continue\r\n\r\n", head + b"Content-Length: 3\r\n\r\nok", head[:-2]]
    with Fake(lambda number, _: ([*wrong, *late, None])[number % 14]) as fake:
        report, = load(fake.url, "--rate", 28, "--connections", 28, "--timeout-ms", 400)
    assert report["requests"] == 28 and report["served"] == 0 and report["statuses"] == {}, report
    assert (report["misread"], report["timed_out"], report["lost"]) == (20, 6, 2), report


def test_reply_that_ends_with_its_connection_is_served():
    def reply(number, _):
        return b"HTTP/1.1 200 OK\r\n\r\nto the end"

    class Closing(Fake):
        def serve(self, connection):
            with connection, connection.makefile("rb") as file:
                if self.read_request(file):
                    connection.sendall(reply(0, b""))

    with Closing(reply) as fake:
        report, = load(fake.url, "--closed", 1)
    assert report["served"] == report["requests"] > 10 and report["lost"] == 0


def test_connection_that_the_server_closed_meanwhile_is_replaced():
    """It says keep-alive, and closes before the next request: that one goes to a new connection."""
    class Forgetful(Fake):
        def serve(self, connection):
            with connection, connection.makefile("rb") as file:
                if self.read_request(file):
                    connection.sendall(OK)

    with Forgetful(None) as fake:
        report, = load(fake.url, "--rate", 100, "--arrivals", "constant")
    assert report["served"] == report["requests"] > 50 and report["lost"] == 0, report
    assert report["resent"] < 10, report  # the client has seen the end meanwhile


def test_request_that_is_lost_on_a_kept_connection_is_sent_again_and_counted():
    """The server reads the second request of each connection, works, and closes without a reply."""
    class Dropping(Fake):
        def serve(self, connection):
            with connection, connection.makefile("rb") as file:
                if self.read_request(file):
                    connection.sendall(OK)
                    self.requests.append(self.read_request(file))
                    time.sleep(0.02)

    with Dropping(None) as fake:
        report, = load(fake.url, "--closed", 1)
        result = run_bench("http", fake.url, "--closed", 1, "--warmup", 0, "--seconds", 1)
    assert report["served"] == report["requests"] and report["lost"] == 0, report
    assert report["resent"] >= report["requests"] - 2 > 10, report
    assert re.search(r"^ +\d+ sent twice", result.stdout, re.MULTILINE), result


def test_request_that_is_sent_again_has_no_more_time():
    def reply(number, _):
        if number in (1, 2):  # the same request: lost, then slow
            time.sleep(0.3)
        return None if number == 1 else OK

    with Fake(reply) as fake:
        report, = load(fake.url, "--closed", 1, "--timeout-ms", 400)
    assert report["timed_out"] == 1 and report["resent"] == 1 and report["lost"] == 0, report


def test_client_gives_up_and_the_next_request_has_a_new_connection():
    with Fake(lambda number, _: time.sleep(0.5 if number == 0 else 0) or OK) as fake:
        report, = load(fake.url, "--closed", 1, "--timeout-ms", 200)
    assert report["timed_out"] == 1 and report["statuses"]["200"] > 10
    assert fake.num_connections == 2


def listen_unix(path, backlog):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(backlog)
    return listener


def test_unix_server_that_closes_after_each_reply_is_no_reason_to_wait(tmp_path):
    class Forgetful(Fake):
        def serve(self, connection):
            with connection, connection.makefile("rb") as file:
                if self.read_request(file):
                    connection.sendall(OK)

    with Forgetful(None, listen_unix(tmp_path / "s", 64)):
        report, = load(f"unix:{tmp_path / 's'}", "--closed", 1, "--timeout-ms", 60_000)
    assert report["timed_out"] == report["lost"] == 0 and report["served"] > 1, report


def test_full_queue_of_a_unix_socket_is_waited_for(tmp_path):
    class Late(Fake):
        def accept(self):
            time.sleep(0.4)
            super().accept()

    with Late(lambda *_: OK, listen_unix(tmp_path / "s", 0)):
        report, = load(f"unix:{tmp_path / 's'}", "--closed", 4)
    assert report["lost"] == report["timed_out"] == 0 and report["served"] > 50, report
    assert report["latency_ms"]["max"] > 300, report


def test_server_that_is_gone_is_said_to_refuse():
    with Fake(lambda *_: OK) as fake:
        threading.Timer(0.4, fake.stop).start()
        result = run_bench("http", fake.url, "--closed", 1, "--fresh", "--warmup", 0, "--seconds", 1)
    assert "connections lost (Connection refused)" in result.stdout, result


def test_unix_socket_is_an_address(tmp_path):
    with Fake(lambda *_: OK, listen_unix(tmp_path / "s", 64)) as fake:
        report, = load(f"unix:{tmp_path / 's'}", "--closed", 2)
    assert report["served"] > 10 and b"\r\nHost: localhost\r\n" in fake.requests[0]
    result = run_bench("http", f"unix:{tmp_path / 'missing'}")
    assert result.returncode == 1 and "No such file" in result.stderr, result


def test_sweep_has_a_row_for_each_rate(attnd):
    result = run_bench("http", attnd.url + "/v2/health/live", "--rate", "50,100,200", "--seconds", 1,
                       "--warmup", 0)
    assert result.returncode == 0, result
    head, names, *lines = result.stdout.splitlines()
    assert "open (poisson)" in head and names.split()[:5] == ["rate/s", "sent/s", "served/s", "p50", "p90"]
    rows = [line.split() for line in lines if re.match(r" *\d+ +[\d.]+ +[\d.]+ ", line)]
    assert [row[0] for row in rows] == ["50", "100", "200"], result.stdout
    assert all(0.8 < float(row[1]) / float(row[0]) <= 1 for row in rows), result.stdout
    assert all(0.4 < float(row[2]) / float(row[0]) <= 1 for row in rows), result.stdout


def test_what_was_not_served_has_a_line():
    with Fake(lambda number, _: OK if number % 2 else OK.replace(b"200", b"503")) as fake:
        result = run_bench("http", fake.url, "--rate", 100, "--seconds", 1, "--warmup", 0)
    assert result.returncode == 0 and "not served: " in result.stdout and " x 503; of 100\n" in result.stdout


def test_generator_says_when_it_was_late_itself():
    """It is stopped for half of the time, so it sends late."""
    with Fake(lambda *_: OK) as fake:
        process = subprocess.Popen([BENCH, "http", fake.url, "--rate", "200", "--seconds", "2",
                                    "--warmup", "0", "--json"], stdout=subprocess.PIPE, text=True)
        for _ in range(5):
            time.sleep(0.2)
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.2)
            process.send_signal(signal.SIGCONT)
        report = json.loads(process.communicate()[0])
    assert report["generator"]["behind"] and report["generator"]["late_p99_ms"] > 100, report
    assert report["latency_ms"]["p99"] > 100 and 0 < report["generator"]["cpus"] < 1
    assert report["served"] == report["requests"] > 300


@pytest.mark.parametrize("options,code,words", [
    (["https://127.0.0.1"], 2, "speaks no TLS"),
    (["127.0.0.1"], 2, "write an address such as 127.0.0.1:8080"),
    (["http://127.0.0.1:CLOSED"], 1, "Connection refused; check the address"),
    (["http://nothing.invalid:1"], 1, "nothing.invalid"),
    ([], 2, "the URL comes first"),
    (["--rate", "1", "http://a:1"], 2, "unexpected argument"),
    (["http://a:1", "--rate", "0"], 2, "--rate: '0' is not a list"),
    (["http://a:1", "--rate", "1,,2"], 2, "--rate"),
    (["http://a:1", "--rate", "1,2,x"], 2, "--rate"),
    (["http://a:1", "--rate", "1.2.3"], 2, "--rate"),
    (["http://a:1", "--rate", "1e3"], 2, "--rate"),
    (["http://a:1", "--rate", "-1"], 2, "--rate"),
    (["http://a:1", "--rate", "1000001"], 2, "--rate"),
    (["http://a:1", "--rate", "0.3", "--seconds", "3"], 2, "numbers from 0.33 to"),
    (["http://a:1", "--rate", ",".join(["1"] * 101)], 2, "at most 100"),
    (["http://a:1", "--closed", "1.5"], 2, "whole numbers"),
    (["http://a:1", "--closed", ""], 2, "--closed"),
    (["http://a:1", "--closed", "1", "--rate", "1"], 2, "leave one out"),
    (["http://a:1", "--seconds", "0"], 2, "--seconds"),
    (["http://a:1", "--connections", "0"], 2, "--connections"),
    (["http://a:1", "--timeout-ms", "0"], 2, "--timeout-ms"),
    (["http://a:1", "--header", "x"], 2, "--header"),
    (["http://a:1", "--header", "Content-Length: 3"], 2, "frames the request"),
    (["http://a:1", "--requests", "/nowhere"], 1, "cannot read /nowhere: No such file"),
    (["http://a:1", "--requests", "/dev/null"], 2, "has no requests; write one JSON object"),
    (["http://127.0.0.1:1", "--source", "x"], 2, "--source"),
    (["unix:/x", "--source", "127.0.0.1"], 2, "--source"),
])
def test_what_cannot_be_done_is_one_line_with_a_remedy(options, code, words):
    with closed_port() as port:
        result = run_bench("http", *(option.replace("CLOSED", str(port)) for option in options))
    assert result.returncode == code and words in result.stderr and not result.stdout, result
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("attnd-bench http: "), result


def test_too_few_open_files_are_said_before_the_load():
    result = subprocess.run([BENCH, "http", "http://127.0.0.1:1", "--closed", "1000"], text=True,
                            capture_output=True, timeout=60, preexec_fn=lambda: resource.setrlimit(
                                resource.RLIMIT_NOFILE, (100, 200)))
    assert result.returncode == 2 and "ulimit -Hn" in result.stderr, result


def test_file_of_samples_is_never_replaced(tmp_path):
    (tmp_path / "kept").write_text("kept")
    with Fake(lambda *_: OK) as fake:
        for path in (tmp_path / "kept", tmp_path, tmp_path / "missing/file"):
            result = run_bench("http", fake.url, "--samples", path)
            assert result.returncode == 2 and str(path) in result.stderr and not result.stdout, result
    assert (tmp_path / "kept").read_text() == "kept"


def test_steps_before_one_that_fails_are_kept(tmp_path):
    """Its parent has left so many files open that the second step has none for its connections."""
    samples = tmp_path / "samples.csv"
    files = [os.dup(0) for _ in range(70)]
    with Fake(lambda *_: OK) as fake:
        result = subprocess.run(
            [BENCH, "http", fake.url, "--closed", "1,30", "--seconds", "1", "--warmup", "0",
             "--samples", samples], text=True, capture_output=True, timeout=60,
            pass_fds=files, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (94, 94)))
    for file in files:
        os.close(file)
    assert result.returncode == 1 and "cannot open a socket: Too many open files" in result.stderr, result
    rows = list(csv.DictReader(samples.open()))
    assert len(rows) > 10 and {row["step"] for row in rows} == {"0"}


def test_help_names_every_option_and_the_program_names_it():
    result = run_bench("http", "--help")
    assert result.returncode == 0, result
    for option in ("requests", "rate", "closed", "arrivals", "connections", "fresh", "seconds", "warmup",
                   "timeout-ms", "header", "source", "seed", "samples", "json", "help"):
        assert f"\n  --{option}" in result.stdout, option
    assert "attnd-bench http URL" in run_bench("--help").stdout


def test_commands_of_the_page_run(attnd, tmp_path):
    """Those that begin with attnd-bench, for a second each and at lower rates."""
    page = (ROOT / "docs/load-testing.md").read_text()
    file = re.search(r"cat > requests.jsonl <<'END'\n(.*?)^END$", page, re.DOTALL | re.MULTILINE)[1]
    (tmp_path / "requests.jsonl").write_text(file)
    commands = re.findall(r"^ *attnd-bench (http .*)$", page, re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        command = command.replace("http://127.0.0.1:8080", attnd.url)
        command = re.sub(r"--rate \S+", "--rate 20,40", command)
        command, _, output = command.partition(" > ")
        result = run_bench(*shlex.split(command), "--seconds", 1, "--warmup", 0, cwd=tmp_path)
        assert result.returncode == 0 and "not served" not in result.stdout, result
        assert result.stdout.count("\n") >= (2 if output else 4), result
        if output:
            (tmp_path / output).write_text(result.stdout)
    program = re.search(r"^python3 - <<'END'\n(.*?)^END$", page, re.DOTALL | re.MULTILINE)[1]
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)
    svg = (tmp_path / "load.svg").read_text()
    assert "<svg" in svg and "requests sent a second" in svg
