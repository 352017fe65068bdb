# SPDX-License-Identifier: Apache-2.0
"""Soak: 64 clients post requests of mixed shapes to one attnd and check every reply.

    BINARY=build/src/attnd build/venv/bin/python tests/load/soak.py [SECONDS]

Requests and expected replies are made beforehand, so that the time is spent in the daemon. Its
resident memory is sampled meanwhile. The clients repeat the same requests, so memory must not grow
after every worker has computed the largest one: SECONDS begin when each client has posted them all.
"""

import http.client
import json
import os
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from checkpoints import LAYOUTS, random_checkpoint, read_layer, write_layer
from compare import assert_reply
from reference import compute_request
from server import Server, is_sanitized

NUM_CLIENTS = 64
NUM_REQUESTS, FEW_REQUESTS = 96, 39  # different ones, of a soak of half a minute at least, and of a shorter one
SAMPLE_SECONDS = 0.25
# Growth of resident memory from the second quarter of the time to the last. Allocators keep a
# little more as time passes (0.4 MB in 20 s were seen). A leak of 500 bytes for each request
# exceeds this limit after 20 s of 1000 requests/s.
MAX_GROWTH_KB = 4 * 1024


@dataclass
class Report:
    seconds: float
    num_requests: int
    wrong: list
    resident: list = field(repr=False)  # [sample] kB
    fds_before: int = 0
    fds_after: int = 0
    memory_checked: bool = True

    @property
    def growth_kb(self):
        """The difference between the medians of the second and the last quarter of the time."""
        quarter = max(len(self.resident) // 4, 1)
        return float(np.median(self.resident[-quarter:]) -
                     np.median(self.resident[quarter:2 * quarter]))

    def __str__(self):
        memory = (f"resident memory {min(self.resident)} to {max(self.resident)} kB, "
                  f"growth after warm-up {self.growth_kb:.0f} kB")
        if not self.memory_checked:
            memory += " (not checked: a sanitizer keeps freed memory, and finds leaks itself)"
        return (f"{self.num_requests / self.seconds:.0f} requests/s over {self.seconds:.0f} s\n"
                f"{memory}\nopen files {self.fds_before} before, {self.fds_after} after\n"
                f"{NUM_CLIENTS} clients, {self.num_requests} requests, {len(self.wrong)} wrong")


def make_requests(rng, checkpoints, count):
    """Returns (body, request, expected result) of random requests with 1 to 63 tokens."""
    cases = []
    for i in range(count):
        name, layer = checkpoints[i % len(checkpoints)]
        ragged = rng.integers(1, 4)
        lens = rng.integers(1, [4, 16, 64][i % 3], size=ragged).tolist()
        sizes = layer.sizes
        query, key, value = ([rng.normal(size=(length, size)).round(3).tolist() for length in lens]
                             for size in sizes)
        request = {"model": name, "queries": query, "keys": key, "values": value,
                   "valid_lens": [int(rng.integers(0, length + 1)) for length in lens],
                   "causal": bool(i % 2), "need_weights": [False, "mean", True][i // 3 % 3]}
        expected = compute_request(layer, request)
        cases.append((json.dumps(request).encode(), request, expected))
    return cases


def resident_kb(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def num_fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def client(port, cases, number, stop, counts, wrong):
    """Posts the requests again and again, starting at `number`, and checks all replies: a reply that is the
    last right one again is right."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    at, right = number, {}
    while at == number or not stop.is_set():  # each client sends at least one request
        body, request, expected = cases[at % len(cases)]
        try:
            connection.request("POST", "/v1/attention", body,
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            assert response.status == 200, text
            if text != right.get(at % len(cases)):
                assert_reply(json.loads(text), request, expected, f"request {at % len(cases)}")
                right[at % len(cases)] = text
        except Exception as error:  # any failure counts as a wrong reply
            wrong.append(repr(error))
            connection.close()
        counts[number] += 1
        at += 1
    connection.close()


def soak(server, cases, seconds):
    pid = server.process.pid
    fds_before = num_fds(pid)
    counts, wrong, resident = [0] * NUM_CLIENTS, [], []
    began, stop = time.monotonic(), threading.Event()
    threads = [threading.Thread(target=client,
                                args=(server.port, cases, number, stop, counts, wrong))
               for number in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    while not is_sanitized() and min(counts) < len(cases):
        time.sleep(SAMPLE_SECONDS)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        resident.append(resident_kb(pid))
        time.sleep(SAMPLE_SECONDS)
    stop.set()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - began
    for _ in range(100):  # the daemon needs a moment to notice that the clients have left
        if num_fds(pid) <= fds_before:
            break
        time.sleep(0.1)
    return Report(elapsed, sum(counts), wrong, resident, fds_before, num_fds(pid),
                  not is_sanitized())


def run(seconds, seed=1):
    """Starts a server with a layer of every layout, soaks and stops it. Returns the report."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as directory:
        made = [random_checkpoint(rng, Path(directory), layout, layout, "F32")
                for layout in LAYOUTS]
        wide = Path(directory) / "wide.safetensors"
        checkpoints = [(checkpoint.name, checkpoint.layer) for checkpoint in made]
        write_layer(wide, 4, 16, 64)
        checkpoints.append(("wide", read_layer(wide)))
        models = [checkpoint.argument for checkpoint in made] + [f"wide={wide}"]
        cases = make_requests(rng, checkpoints, NUM_REQUESTS if seconds >= 30 else FEW_REQUESTS)
        # Under a sanitizer 64 clients wait longer than by default.
        with Server("--http-threads", 2, "--max-queue-delay", 600_000,
                    *(word for model in models for word in ("--model", model))) as server:
            return soak(server, cases, seconds)


def check(report):
    assert report.num_requests >= NUM_CLIENTS, "a client sent no request"
    assert not report.wrong, report.wrong[:3]
    assert report.fds_after <= report.fds_before, "connections stayed open"
    if report.memory_checked:
        assert report.growth_kb <= MAX_GROWTH_KB, "resident memory grows"


if __name__ == "__main__":
    result = run(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
    print(result)
    check(result)
