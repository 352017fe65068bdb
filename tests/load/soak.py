# SPDX-License-Identifier: Apache-2.0
"""Soak: 64 clients post mixed shapes to one attnd for a while and check every answer.

    BINARY=build/src/attnd build/venv/bin/python tests/load/soak.py [SECONDS]

Requests and answers are made beforehand, so that the clients spend their time on the daemon. Its
memory is sampled all the while: the clients send the same mix again and again, so once every
worker has seen the largest request, resident memory may not grow any more.
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

from checkpoints import LAYOUTS, random_checkpoint, write_layer
from compare import assert_reply
from reference import attend_request
from server import Server, is_sanitized

NUM_CLIENTS = 64
NUM_REQUESTS = 96  # different ones
SAMPLE_SECONDS = 0.25
# Of resident memory, from the second quarter of the time to the last. Allocators keep a little
# more as time goes by (0.4 MB in 20 s were seen); a leak of 500 bytes a request is more than this
# after 20 s of 1000 requests/s.
MAX_GROWTH_KB = 4 * 1024


@dataclass
class Report:
    seconds: float
    num_requests: int
    wrong: list
    resident: list = field(repr=False)  # [sample] kB
    fds_before: int = 0
    fds_after: int = 0
    memory_judged: bool = True

    @property
    def growth_kb(self):
        """Between the medians of the second and the last quarter of the time."""
        quarter = max(len(self.resident) // 4, 1)
        return float(np.median(self.resident[-quarter:]) -
                     np.median(self.resident[quarter:2 * quarter]))

    def __str__(self):
        memory = (f"resident memory {min(self.resident)} to {max(self.resident)} kB, "
                  f"growth after warm-up {self.growth_kb:.0f} kB")
        if not self.memory_judged:
            memory += " (not judged: a sanitizer keeps freed memory, and looks for leaks itself)"
        return (f"{self.num_requests / self.seconds:.0f} requests/s over {self.seconds:.0f} s\n"
                f"{memory}\nopen files {self.fds_before} before, {self.fds_after} after\n"
                f"{NUM_CLIENTS} clients, {self.num_requests} requests, {len(self.wrong)} wrong")


def make_requests(rng, checkpoints):
    """Pairs of a body and what checks its answer; sizes from one token to some hundred."""
    pairs = []
    for i in range(NUM_REQUESTS):
        name, layer = checkpoints[i % len(checkpoints)]
        ragged = rng.integers(1, 4)
        lens = rng.integers(1, [4, 16, 64][i % 3], size=ragged).tolist()
        sizes = layer.sizes
        query, key, value = ([rng.normal(size=(length, size)).round(3).tolist() for length in lens]
                             for size in sizes)
        request = {"model": name, "queries": query, "keys": key, "values": value,
                   "valid_lens": [int(rng.integers(0, length + 1)) for length in lens],
                   "causal": bool(i % 2), "need_weights": [False, "mean", True][i // 3 % 3]}
        expected = attend_request(layer, request)
        pairs.append((json.dumps(request).encode(), request, expected))
    return pairs


def resident_kb(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def num_fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def client(port, pairs, number, deadline, counts, wrong):
    """Posts the requests round and round, each client from another place; checks all answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    at = number
    while at == number or time.monotonic() < deadline:  # each client asks at least once
        body, request, expected = pairs[at % len(pairs)]
        try:
            connection.request("POST", "/v1/attention", body,
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
            assert response.status == 200, text
            assert_reply(json.loads(text), request, expected, f"request {at % len(pairs)}")
        except Exception as error:  # whatever goes wrong is an answer that is not right
            wrong.append(repr(error))
            connection.close()
        counts[number] += 1
        at += 1
    connection.close()


def soak(server, pairs, seconds):
    pid = server.process.pid
    fds_before = num_fds(pid)
    counts, wrong, resident = [0] * NUM_CLIENTS, [], []
    began = time.monotonic()
    threads = [threading.Thread(target=client, args=(server.port, pairs, number, began + seconds,
                                                     counts, wrong))
               for number in range(NUM_CLIENTS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        resident.append(resident_kb(pid))
        time.sleep(SAMPLE_SECONDS)
    elapsed = time.monotonic() - began
    for _ in range(100):  # the daemon may take a moment to see that the clients have gone
        if num_fds(pid) <= fds_before:
            break
        time.sleep(0.1)
    return Report(elapsed, sum(counts), wrong, resident, fds_before, num_fds(pid),
                  not is_sanitized())


def run(seconds, seed=1):
    """Starts a server with a layer of every layout, soaks it, stops it; returns the report."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as directory:
        made = [random_checkpoint(rng, Path(directory), layout, layout, "F32")
                for layout in LAYOUTS]
        wide = Path(directory) / "wide.safetensors"
        checkpoints = [(checkpoint.name, checkpoint.layer) for checkpoint in made]
        checkpoints.append(("wide", write_layer(wide, 4, 16, 64)))
        models = [checkpoint.argument for checkpoint in made] + [f"wide={wide}"]
        pairs = make_requests(rng, checkpoints)
        with Server("--http-threads", 2,
                    *(word for model in models for word in ("--model", model))) as server:
            return soak(server, pairs, seconds)


def check(report):
    assert report.num_requests >= NUM_CLIENTS, "a client has asked nothing"
    assert not report.wrong, report.wrong[:3]
    assert report.fds_after <= report.fds_before, "connections are still open"
    if report.memory_judged:
        assert report.growth_kb <= MAX_GROWTH_KB, "resident memory grows"


if __name__ == "__main__":
    result = run(float(sys.argv[1]) if len(sys.argv) > 1 else 60)
    print(result)
    check(result)
