# SPDX-License-Identifier: Apache-2.0
"""attnd as a process: what it does when its outputs, descriptors or memory run out."""

import json
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests

from checkpoints import write_layer
from http1 import Connection, post_bytes
from safetensors_file import make_safetensors
from server import BINARY, GOLDEN, Server, clean_environment, is_sanitized, steady_address


def wait_for(condition, timeout=60):
    """Waits until condition() is true, and returns its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s"
        time.sleep(0.02)
    return value


def full_pipe():
    """Returns both ends of a pipe that has no room left."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(writer, b"#" * size)
        except BlockingIOError:
            pass
    os.set_blocking(writer, True)
    return reader, writer


# --- standard output ---

@pytest.mark.parametrize("arguments", [
    ["--help"], ["--version"], ["--demo", "--check-config"],
    ["inspect", "--model", f"a={GOLDEN}/additive_scoring.safetensors,num_heads=4"]],
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


def start_with_output(stdout, log_path, **environment):
    with open(log_path, "w") as log:
        return subprocess.Popen([BINARY, "--demo", "--listen", "127.0.0.1:0"], stdout=stdout,
                                stderr=log, env=clean_environment(**environment))


def test_address_is_printed_once_a_full_pipe_has_room(tmp_path):
    reader, writer = full_pipe()
    log_path = tmp_path / "log"
    process = start_with_output(writer, log_path)
    url = wait_for(lambda: re.search(r"url=(http://\S+)", log_path.read_text()))[1]
    assert requests.get(url + "/v2/health/live", timeout=60).status_code == 200
    os.close(writer)
    with open(reader) as lines:
        assert lines.readline().lstrip("#") == f"listening on {url}\n"
        process.terminate()
        assert process.wait(60) == 0


def test_both_outputs_are_json_without_warnings_where_the_log_is(start_server, tmp_path):
    """As in a container, where both are one; its memory is that of deploy/docker-compose.yml."""
    write_layer(tmp_path / "x.safetensors", num_heads=2, head_size=3, query_size=4)
    server = start_server("--demo", "--model-dir", tmp_path, "--max-memory", "512MiB",
                          "--admin-listen", "127.0.0.1:0", ATTND_LOG_FORMAT="json")
    line = json.loads(server.line)
    assert (line["level"], line["message"], line["url"]) == ("info", "listening", server.url)
    events = [json.loads(line) for line in server.read_log().splitlines()]
    assert {event["level"] for event in events} == {"info"}, events
    assert any(event["message"].startswith("fewer connections") for event in events), events


def test_full_standard_output_does_not_delay_a_stop(tmp_path):
    reader, writer = full_pipe()
    log_path = tmp_path / "log"
    process = start_with_output(writer, log_path)
    wait_for(lambda: "listening" in log_path.read_text())
    process.terminate()
    assert process.wait(60) == 0
    os.close(reader)
    os.close(writer)


# --- the log ---

def start_with_log(log, *arguments):
    """Starts attnd at level debug with its log going to a descriptor. Returns process and URL."""
    process = subprocess.Popen(
        [BINARY, "--demo", "--listen", "127.0.0.1:0", "--log-level", "debug", "--log-format",
         "json", *arguments], stdout=subprocess.PIPE, stderr=log, text=True, env=clean_environment())
    readable, _, _ = select.select([process.stdout], [], [], 60)
    if not readable:
        process.kill()
        raise AssertionError("attnd did not start within 60 s")
    return process, json.loads(process.stdout.readline())["url"]


def stop(process):
    process.terminate()
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()


def load(url, count=200):
    """Sends requests on eight connections; each must be served."""
    request = post_bytes(b'{"model": "journey", "queries": [[0.43, 0.15, 0.89]]}')

    def post_all(_):
        statuses = []
        with Connection(int(url.rpartition(":")[2]), timeout=20) as connection:
            for _ in range(count // 8):
                connection.send(request)
                statuses.append(connection.read_reply().status)
        return statuses

    with ThreadPoolExecutor(8) as pool:
        assert {status for all in pool.map(post_all, range(8)) for status in all} == {200}


@pytest.mark.parametrize("kind", ["pipe", "socket", "/dev/full"])
def test_log_that_takes_nothing_stops_nothing(kind):
    if kind == "pipe":
        ends = full_pipe()
    elif kind == "socket":
        ends = [end.detach() for end in socket.socketpair()]
    else:
        ends = [os.open(kind, os.O_WRONLY)]
    process, url = start_with_log(ends[-1])
    load(url, 1600 if kind == "socket" else 200)
    assert requests.get(url + "/v2/health/live", timeout=20).status_code == 200
    stop(process)
    for end in ends:
        os.close(end)


def test_dropped_log_lines_are_counted():
    reader, writer = os.pipe()
    process, url = start_with_log(writer, "--http-threads", "2")
    load(url, 1600)  # some 300 KB of lines; the pipe takes 64
    text = os.read(reader, 1 << 20)
    load(url, 8)
    text += os.read(reader, 1 << 20)
    stop(process)
    os.close(writer)
    with open(reader, "rb") as rest:
        text += rest.read()

    lines = [json.loads(line) for line in text.splitlines()]
    dropped = sum(line.get("dropped", 0) for line in lines)
    served = sum(line["message"] == "request" for line in lines)
    assert dropped > 0
    assert served + dropped >= 1608
    assert lines[-1]["message"] == "stopped"


def test_flags_of_a_shared_standard_error_are_kept():
    reader, writer = os.pipe()
    process, url = start_with_log(writer)
    load(url, 8)
    assert os.get_blocking(writer)
    stop(process)
    os.close(reader)
    os.close(writer)


# --- descriptors ---

@pytest.mark.skipif(is_sanitized(), reason="sanitizers open files of their own at start")
@pytest.mark.parametrize("limit", [4, 5, 6])
def test_lack_of_file_descriptors_at_start_is_named(limit):
    result = subprocess.run(
        [BINARY, "--demo", "--listen", "127.0.0.1:0", "--log-format", "json"], capture_output=True,
        text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
        env=clean_environment())
    assert result.returncode == 1, result
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert "open files" in lines[-1]["reason"], result.stderr


@pytest.mark.skipif(is_sanitized(), reason="sanitizers start threads of their own")
def test_lack_of_threads_at_start_is_named():
    """As a user of whom no other process runs; root has no such limit."""
    result = subprocess.run(
        [BINARY, "--demo", "--listen", "127.0.0.1:0", "--workers", "2"], capture_output=True, text=True, timeout=60,
        user=61234 if os.geteuid() == 0 else None, env=clean_environment(OPENBLAS_NUM_THREADS="1"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)))
    assert result.returncode == 1, result
    assert "cannot start 2 workers: no thread is left; raise the limit of processes" in result.stderr, result


# --- signals ---

def catches(process, which):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"SigCgt:\s+(\w+)", status)[1], 16) >> (which - 1) & 1


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT], ids=lambda which: which.name)
@pytest.mark.parametrize("options, exit_code", [([], 0), (["--check-config"], 1)],
                         ids=["serve", "check"])
def test_signal_ends_attnd_while_models_load(tmp_path, which, options, exit_code):
    """There are many models. A signal must be caught: process 1 of a container would not get it
    otherwise."""
    write_layer(tmp_path / "x.safetensors", num_heads=8, head_size=64, query_size=512)
    models = [f"--model=x{i}={tmp_path}/x.safetensors" for i in range(60)]
    process = subprocess.Popen(
        [BINARY, *models, "--listen", "127.0.0.1:0", *options], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env=clean_environment())
    try:
        wait_for(lambda: catches(process, which))
        process.send_signal(which)
        output, _ = process.communicate(timeout=60)
        assert (process.returncode, output) == (exit_code, "")
    finally:
        process.kill()


def test_killed_server_starts_again_at_the_same_address():
    """It is killed while requests are under way on open connections."""
    listen = steady_address()
    for _ in range(10):
        server = Server("--demo", listen=listen)
        with Connection(server.port) as whole, Connection(server.port) as half:
            whole.send(b"POST /v1/attention HTTP/1.1\r\nHost: attnd\r\n"
                       b"Content-Type: application/json\r\nContent-Length: 39\r\n\r\n"
                       b'{"model":"journey","queries":[[1,2,3]]}')
            half.send(b"POST /v1/attention HTTP/1.1\r\nHost: attnd\r\nContent-Length: 9\r\n\r\n{")
            server.process.kill()
            server.process.wait(60)
        os.unlink(server.log_path)
    with Server("--demo", listen=listen) as server:
        load(server.url, 8)


def test_one_of_many_that_start_together_gets_the_address():
    """Each has two listening sockets, which share the address among them and with nobody else."""
    listen = steady_address()
    for _ in range(5):
        processes = [subprocess.Popen([BINARY, "--demo", "--listen", listen, "--http-threads", "2"],
                                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                      env=clean_environment()) for _ in range(8)]
        try:
            wait_for(lambda: sum(process.poll() == 1 for process in processes) == 7)
            load(f"http://{listen}", 64)
            assert sum(process.poll() is None for process in processes) == 1
        finally:
            for process in processes:
                process.kill()
                process.wait()


# --- memory ---

MIB = 1 << 20
BUDGET = 128 * MIB
# Beside budget and weights: the program, its libraries, stacks, and what malloc() holds free. The
# last two grow with the threads, so a test says how many workers there are.
REST = 64 * MIB


def memory_of(server, field):
    """Returns a size of /proc/PID/status in bytes: VmRSS, or VmHWM for its peak."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) * 1024


def count_fds(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def assert_memory_is_bounded_and_returned(server, at_start):
    assert memory_of(server, "VmHWM") <= BUDGET + REST
    # glibc does not trim the end of a thread's heap: up to 4 MiB for each thread that allocates.
    # What no request held any more would be most of the budget.
    wait_for(lambda: memory_of(server, "VmRSS") <= at_start + BUDGET / 4)


needs_real_sizes = pytest.mark.skipif(is_sanitized(), reason="sanitizers use memory of their own")


@needs_real_sizes
def test_idle_workers_keep_no_more_than_the_budget_and_release_it(start_server):
    """Requests of 16 MB one after another, which sixteen workers share among them."""
    server = start_server("--demo", "--workers", 16, "--max-memory", BUDGET)
    at_start = memory_of(server, "VmRSS")
    body = make_safetensors({"queries": np.ones((1000, 40, 100), "f4")}, metadata={"model": "d2l"})
    with requests.Session() as session:
        for _ in range(24):
            reply = session.post(server.url + "/v1/attention", data=body, timeout=60,
                                 headers={"Content-Type": "application/vnd.safetensors"})
            assert reply.status_code == 200, reply.text
    assert_memory_is_bounded_and_returned(server, at_start)


@needs_real_sizes
def test_memory_of_large_bodies_returns_to_the_system(start_server):
    """Many clients post JSON of different sizes and ask for all weights, more than fit at once."""
    server = start_server("--demo", "--workers", 4, "--max-memory", BUDGET, "--max-body", BUDGET)
    at_start = memory_of(server, "VmRSS")

    def post(i):
        tokens = 400 + 13 * i
        row = "[" + ",".join(["0.123456789012345"] * 100) + "]"
        body = (f'{{"model":"d2l","need_weights":true,"queries":[{",".join([row] * tokens)}]}}')
        statuses = set()
        with requests.Session() as session:
            for _ in range(3):
                reply = session.post(server.url + "/v1/attention", data=body, timeout=120,
                                     headers={"Content-Type": "application/json",
                                              "Accept": "application/vnd.safetensors"})
                statuses.add(reply.status_code)
        return statuses

    with ThreadPoolExecutor(48) as pool:
        statuses = set().union(*pool.map(post, range(48)))
    assert 200 in statuses and statuses <= {200, 503}
    assert_memory_is_bounded_and_returned(server, at_start)


@needs_real_sizes
def test_memory_of_abandoned_uploads_returns_to_the_system(start_server):
    """Bodies of which one byte is missing, in sizes that malloc() maps and in others."""
    server = start_server("--demo", "--workers", 4, "--max-memory", BUDGET, "--max-body", BUDGET)
    at_start = memory_of(server, "VmRSS")
    for size, count in ((3_900_000, 27), (200_000, 540), (9_000_000, 11)):
        uploads = []
        for _ in range(count):
            uploads.append(Connection(server.port))
            uploads[-1].send(b"POST /v1/attention HTTP/1.1\r\nHost: attnd\r\n"
                             b"Content-Type: application/json\r\n"
                             b"Content-Length: %d\r\n\r\n" % size)
            uploads[-1].send(b" " * (size - 1))
        wait_for(lambda: memory_of(server, "VmRSS") >= 0.8 * size * count)
        for upload in uploads:
            upload.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            upload.socket.close()
        wait_for(lambda: count_fds(server) < 30)
    assert_memory_is_bounded_and_returned(server, at_start)
