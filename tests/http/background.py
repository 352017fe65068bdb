# SPDX-License-Identifier: Apache-2.0
"""attnd-bench http as a load behind the tests: each server of a test also serves others.

BACKGROUND_LOAD is the number of such requests a second and server, 0 by default. A test that counts
what it sent, or that fills a server itself, is marked `alone`: it runs without."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import tempfile
import weakref
from pathlib import Path

from http1 import get_bytes, post_bytes
from programs import BENCH

RATE = float(os.environ.get("BACKGROUND_LOAD", 0))
SECONDS = 900      # of one load at most
GIVE_UP = 0.5      # seconds, after which a client leaves
CONNECTIONS = 1    # of each of the two generators, so the load follows a slow server
PROGRAMS = Path(__file__).resolve().parents[1] / "load"

folder = tempfile.TemporaryDirectory(prefix="attnd-loadgen-")  # removed at exit
running = weakref.WeakSet()
is_paused = False


@functools.cache
def compiled(name):
    """Compiles a program of tests/load once; returns its path."""
    program = Path(folder.name) / name
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run([*compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", program,
                    PROGRAMS / f"{name}.c"], check=True)
    return program


def describe_request(request, body_path):
    """Returns the line of a complete request in a file for attnd-bench; its body becomes a file."""
    head, body = request.split(b"\r\n\r\n", 1)
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = dict(line.split(": ", 1) for line in lines)
    line = {"method": method, "path": path}
    if headers.pop("Content-Length", None) is not None:
        body_path.write_bytes(body)
        line["body_file"] = str(body_path)
    return json.dumps(line | {"headers": headers})


def start_generator(port, requests, seconds, give_up, rate, connections, fresh, source, samples=None):
    """Starts attnd-bench http. `requests` is a list of bytes, complete ones; each is as frequent as
    the others. rate 0 is a closed loop. Where `samples` is a path, a line for each is written there."""
    files = Path(tempfile.mkdtemp(dir=folder.name))
    lines = [describe_request(request, files / f"body-{number}")
             for number, request in enumerate(requests)]
    (files / "requests").write_text("\n".join(lines))
    loop = ("--rate", round(rate, 3), "--arrivals", "constant", "--connections",
            connections) if rate else ("--closed", connections)
    arguments = (f"http://127.0.0.1:{port}", "--requests", files / "requests", "--seconds", seconds,
                 "--warmup", 0, "--timeout-ms", round(give_up * 1e3), "--source", source, *loop,
                 *["--fresh"] * fresh, *(["--samples", samples] if samples else []))
    return subprocess.Popen([BENCH, "http", *map(str, arguments)], stdout=subprocess.DEVNULL)


def background_requests():
    """Requests for every server; those without --demo refuse some of them."""
    for tokens, fields in ((1, {}), (2, {"timeout_ms": 5}), (8, {"causal": True}),
                           (24, {"need_weights": True}), (60, {"priority": 1})):
        for model, width in (("d2l", 100), ("journey", 3)):
            body = {"model": model, "queries": [[0.5] * width] * tokens} | fields
            yield post_bytes(json.dumps(body).encode())
    yield post_bytes(b'{"queries": [[1, "x"]]}')
    yield get_bytes("/v2/health/ready")
    yield get_bytes("/v2/models/stats")
    yield get_bytes("/v1/models/d2l", "Connection: close")


class BackgroundLoad:
    """Keeps the server on `port` busy until it is dropped; nothing where RATE is 0."""

    def __init__(self, port):
        self.processes = []
        self.end = weakref.finalize(self, end_processes, self.processes)
        if RATE == 0 or is_paused:
            return
        requests = list(background_requests())
        for fresh in (False, True):
            self.processes.append(start_generator(port, requests, SECONDS, GIVE_UP, RATE / 2,
                                                  CONNECTIONS, fresh, "127.0.0.1"))
        running.add(self)

    def send_signal(self, number):
        for process in self.processes:
            process.send_signal(number)


def end_processes(processes):
    for process in processes:
        process.kill()
        process.wait()


@contextlib.contextmanager
def pause_background_load():
    """Meanwhile no load is started, and those that run send nothing."""
    global is_paused
    is_paused = True
    for load in list(running):
        load.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        is_paused = False
        for load in list(running):
            load.send_signal(signal.SIGCONT)
