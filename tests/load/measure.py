# SPDX-License-Identifier: Apache-2.0
"""What the measurements of reliability.py share: servers, the generator, results."""

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from background import start_generator
from checkpoints import write_layer
from http1 import Connection, get_bytes, post_bytes
from proxy import Proxy
from safetensors_file import make_safetensors
from server import BINARY, Server, clean_environment

MIB = 1024 * 1024
WORK = Path(tempfile.mkdtemp(prefix="attnd-load-"))  # removed by reliability.py
SAFETENSORS = "Content-Type: application/vnd.safetensors"
REFUSALS = (429, 503)
GAVE_UP, FAILED = 0, -1  # outcomes without a status


class Impossible(Exception):
    """A measurement needs what this machine does not have."""


@dataclass
class Result:
    """One line of the table: what was asked and what was measured. `good` is None where nothing is
    asked."""
    name: str
    asked: str
    measured: str
    good: bool | None

    @property
    def verdict(self):
        return {True: "ok", False: "short", None: "-"}[self.good]

    def __str__(self):
        return f"{self.name}: asked {self.asked}, measured {self.measured}, {self.verdict}"


@functools.cache
def help_text():
    return subprocess.run([BINARY, "--help"], capture_output=True, text=True, check=True,
                          env=clean_environment()).stdout


def known(*options):
    """Returns option and value if BINARY has that option, so that older ones can be measured."""
    return options if re.search(rf"{options[0]}\b", help_text()) else ()


# Requests.

def d2l_request():
    """The example of Dive into Deep Learning, 5 kB of JSON, for a server with --demo."""
    body = {"model": "d2l", "queries": np.ones((2, 4, 100), int).tolist(),
            "keys": np.ones((2, 6, 100), int).tolist(), "valid_lens": [3, 2]}
    return post_bytes(json.dumps(body, separators=(",", ":")).encode())


def binary_request(model, *shape, seed=0, scale=1, **metadata):
    queries = (np.random.default_rng(seed).normal(size=shape) * scale).astype("f4")
    body = make_safetensors({"queries": queries}, metadata={"model": model} | metadata)
    return post_bytes(body, path="/v1/attention").replace(
        b"Content-Type: application/json", SAFETENSORS.encode(), 1)


def body_of(request):
    return request.split(b"\r\n\r\n", 1)[1]


def slow_model():
    """A layer that takes some 10 ms of one core for the 1 kB of slow_json()."""
    path = WORK / "slow.safetensors"
    if not path.exists():
        write_layer(path, num_heads=1, head_size=4, query_size=2, additive_size=512)
    return f"slow={path}"


def slow_json(tokens=96):
    rows = np.random.default_rng(0).normal(size=(tokens, 2)).round(2)
    body = json.dumps({"model": "slow", "queries": rows.tolist()}, separators=(",", ":"))
    return post_bytes(body.encode())


def wide_model(width, num_heads, name="wide"):
    path = WORK / f"{name}.safetensors"
    if not path.exists():
        write_layer(path, num_heads=num_heads, head_size=width // num_heads, query_size=width)
    return f"{name}={path}"


# The generator.

class Samples:
    """What became of the requests of one generator, from the lines that it has written."""

    WORDS = {"timed out": GAVE_UP, "misread": FAILED, "lost": FAILED}

    def __init__(self, lines, seconds, kinds):
        rows = []
        for line in lines:
            _, request, end, latency, outcome = line.rstrip("\n").split(",")
            rows.append((float(end), float(latency) / 1e3, kinds[int(request)],
                         self.WORDS[outcome] if outcome in self.WORDS else int(outcome)))
        self.table = np.array(rows, [("at", "f8"), ("latency", "f8"), ("class", "i4"),
                                     ("outcome", "i4")])
        self.seconds = seconds

    def chosen(self, outcome=None, kind=None):
        rows = self.table
        if outcome is not None:
            rows = rows[np.isin(rows["outcome"], outcome)]
        return rows if kind is None else rows[rows["class"] == kind]

    def count(self, outcome=None, kind=None):
        return len(self.chosen(outcome, kind))

    def rate(self, kind=None):
        """Returns replies with 200 for each second while requests were sent."""
        rows = self.chosen(200, kind)
        return np.count_nonzero(rows["at"] <= self.seconds) / self.seconds

    def share(self):
        """Returns the share of requests that got 200."""
        return self.count(200) / max(self.count(), 1)

    def p99_ms(self, outcome=None, kind=None):
        """Returns the latency of the slowest in 100. One of all requests counts as infinite
        unless it got 200, so that a server gains nothing by refusing."""
        rows = self.chosen(outcome, kind)
        served = (rows["outcome"] == 200) | (outcome is not None)
        latencies = np.where(served, rows["latency"], np.inf)
        if len(latencies) == 0:
            return float("inf")
        return float(np.quantile(latencies, 0.99, method="higher")) * 1e3

    def outcomes(self):
        values, counts = np.unique(self.table["outcome"], return_counts=True)
        names = {GAVE_UP: "given up", FAILED: "failed"}
        return ", ".join(f"{count} x {names.get(value, value)}"
                         for value, count in zip(values.tolist(), counts))


class Load:
    """A running generator. `requests` is a list of bytes; the class of each is its index, unless
    `classes` gives it. rate 0 is a closed loop, see start_generator()."""

    def __init__(self, port, requests, seconds, *, rate=0, connections=1, give_up=60, fresh=False,
                 source="127.0.0.1", classes=None):
        self.seconds, self.kinds = seconds, classes or range(len(requests))
        self.samples = Path(tempfile.mkdtemp(dir=WORK)) / "samples.csv"
        self.process = start_generator(port, requests, seconds, give_up, rate, connections, fresh,
                                       source, self.samples)

    def wait(self):
        assert self.process.wait() == 0, "the generator failed"
        with self.samples.open() as lines:
            next(lines)  # the names of the columns
            samples = Samples(lines, self.seconds, self.kinds)
        self.samples.unlink()
        return samples


def run_load(*arguments, **options):
    return Load(*arguments, **options).wait()


# Servers.

def answers(port, seconds):
    """Returns whether /v2/health/live is 200 on a new connection within `seconds`."""
    try:
        with Connection(port, seconds) as connection:
            connection.send(get_bytes("/v2/health/live"))
            reply = connection.read_reply()
            return reply is not None and reply.status == 200
    except (OSError, AssertionError):
        return False


def answers_after(port, seconds):
    """Returns how long it takes until a newcomer is answered, infinity if over `seconds`."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if answers(port, seconds):
            return time.monotonic() - began
        time.sleep(0.01)
    return float("inf")


def memory_mib(pid, field="VmRSS"):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", status)[1]) / 1024


@contextlib.contextmanager
def serve(*arguments, must_live=True):
    """Runs attnd. It is killed at the end: whether it stops in order is measured elsewhere."""
    server = Server("--demo", *arguments)
    try:
        yield server
        assert not must_live or server.process.poll() is None, server.read_log()[-2000:]
    finally:
        server.process.kill()
        server.process.communicate()
        os.unlink(server.log_path)


@contextlib.contextmanager
def serve_behind_proxy(*arguments, trusted="127.0.0.1/32", log_port=9):
    """Runs two replicas behind HAProxy, all with the settings of deploy/, and yields its port.
    HAProxy logs to a port of UDP."""
    if not shutil.which("haproxy"):
        raise Impossible("haproxy is not installed")
    arguments = (*arguments, "--workers", "1", "--max-memory", "512MiB",
                 *known("--trusted-proxy", trusted), *known("--max-per-client", "64"))
    with serve(*arguments) as one, serve(*arguments) as two, \
            Proxy((one.port, two.port), log_port=log_port) as proxy:
        yield proxy.port
