# SPDX-License-Identifier: Apache-2.0
"""Starts the real attnd on a free port of 127.0.0.1 and stops it again."""

import contextlib
import functools
import os
import random
import re
import select
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import orjson
import pytest
import requests

from background import BackgroundLoad
from programs import BENCH, BINARY, ROOT

GOLDEN = ROOT / "tests/data/golden"
SCRATCH = tempfile.TemporaryDirectory(prefix="attnd-tests-")  # removed when the tests end
PATIENCE = 150  # seconds for what ends by itself: a slow machine must not fail a test, which has 180
SANITIZER_REPORTS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "runtime error:",
                     "WARNING: ThreadSanitizer", "ThreadSanitizer: ")


def clean_environment(**changes):
    """Our own environment without ATTND_* variables, which would configure the daemon, and without the number of
    threads that tests/run.sh has for numpy."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("ATTND_") and name != "OPENBLAS_NUM_THREADS"}
    return kept | changes


@functools.cache
def has_sanitizer(name):
    return f"__{name}_init".encode() in BINARY.read_bytes()


def is_sanitized():
    return has_sanitizer("asan") or has_sanitizer("tsan")


def run_attnd(*arguments, timeout=PATIENCE, cwd=None, user=None, preexec_fn=None, **environment):
    """Runs attnd until it ends. Returns the completed process, with its output as text. A start without an
    address gets a free port: another program may have the default one."""
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout, cwd=cwd, user=user, preexec_fn=preexec_fn,
                          env=clean_environment(**{"ATTND_LISTEN": "127.0.0.1:0"} | environment))


def skip_without(*options):
    """Skips a test where this build or CPU has no kernels for what these options ask for."""
    result = run_attnd("--check-config", "--demo", *options)
    if result.returncode != 0:
        assert re.search("has no kernels for|has only f32|has no OpenBLAS", result.stderr), result
        pytest.skip(f"this build or CPU has no kernels for {' '.join(options)}")


def run_bench(*arguments, timeout=PATIENCE, cwd=None, **environment):
    """Runs attnd-bench until it ends. Returns what run_attnd() does."""
    return subprocess.run([BENCH, *map(str, arguments)], capture_output=True, text=True,
                          timeout=timeout, cwd=cwd, env=clean_environment(**environment))


def steady_address():
    """Returns a free address whose port the kernel gives to no client, for servers that start there one after
    the other: no connection of another program takes it meanwhile."""
    clients_begin = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", random.randrange(1024, max(clients_begin, 2048))))
            return f"127.0.0.1:{probe.getsockname()[1]}"


class Server:
    """A running attnd. stderr goes to a file, so that a full pipe can never stop it."""

    def __init__(self, *arguments, listen="127.0.0.1:0", cwd=None, **environment):
        log, self.log_path = tempfile.mkstemp(dir=SCRATCH.name, prefix="log-")
        self.process = subprocess.Popen(
            [BINARY, *map(str, arguments), *(["--listen", listen] if listen else [])],
            stdout=subprocess.PIPE, stderr=log, text=True, cwd=cwd,
            env=clean_environment(**environment))
        os.close(log)
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        self.line = self.process.stdout.readline() if readable else f"(nothing within {PATIENCE} s)"
        match = re.fullmatch(r"listening on (https?://127\.0\.0\.1:(\d+))\n|"
                             r'\{.*"message":"listening","url":"(https?://127\.0\.0\.1:(\d+))"\}\n', self.line)
        if not match:
            self.process.kill()
            raise AssertionError(f"attnd did not start: {self.line!r}\n{self.read_log()}")
        self.url, self.port = match[1] or match[3], int(match[2] or match[4])
        self.load = BackgroundLoad(self.port)

    def read_log(self):
        return Path(self.log_path).read_text(errors="replace")

    def request(self, method, path, **options):
        """On a connection of its own, as requests.request() does, which also looks in the environment for proxies."""
        with requests.Session() as session:
            session.trust_env = False
            return session.request(method, self.url + path, **options)

    def get(self, path, **options):
        return self.request("GET", path, timeout=60, **options)

    def post(self, path, body):
        """Posts JSON, which orjson writes: json takes 20 times as long for the numbers of a large request."""
        return self.request("POST", path, data=orjson.dumps(body), headers={"Content-Type": "application/json"},
                            timeout=120)

    def attention(self, body):
        return self.post("/v1/attention", body)

    def heads(self, body):
        return self.post("/v1/heads", body)

    def is_alive(self):
        return self.process.poll() is None and self.get("/v2/health/live").status_code == 200

    def wait(self, timeout=60):
        """Waits for attnd to end, then checks that it ended cleanly.

        Under ThreadSanitizer attnd is asked to stop once more. That of gcc 12 defers a signal that
        comes while a thread is about to sleep, and then lets it sleep: seen in one of some 2,000
        stops, with attnd's handler never called."""
        for signals_left in (1, 0) if has_sanitizer("tsan") else (0,):
            try:
                rest, _ = self.process.communicate(timeout=timeout)
                break
            except subprocess.TimeoutExpired:
                if signals_left == 0:
                    self.process.kill()
                    raise AssertionError(f"attnd did not stop in {timeout} s\n{self.read_log()}")
                self.process.send_signal(signal.SIGTERM)
        self.load.end()
        log = self.read_log()
        os.unlink(self.log_path)
        assert self.process.returncode == 0, f"exit {self.process.returncode}\n{log}"
        assert all(line.startswith("listening on unix:") for line in rest.splitlines()), \
            f"more than one line on stdout: {rest!r}"
        reports = [report for report in SANITIZER_REPORTS if report in log]
        assert not reports, log

    def stop(self, timeout=60):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.wait(timeout)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.stop()
        else:  # a test has failed already: do not hide its reason behind another
            self.load.end()
            self.process.kill()
            self.process.wait()
            os.unlink(self.log_path)
