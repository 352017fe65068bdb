# SPDX-License-Identifier: Apache-2.0
"""Times what people ask of a capture that is kept: one row over 32,768 keys of 8 key heads of 128 in float32, the 8
largest weights of four heads, over HTTP on a connection that is kept.

    python3 -m venv /tmp/stored
    /tmp/stored/bin/pip install numpy requests
    /tmp/stored/bin/python tests/bench/stored.py build/src

Beside it: reading the keys that are needed on as many cores (attnd-bench), sending all keys with the same question, and
the most memory that the server held.
"""

import clean_environment  # before numpy

import http.client
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src/python"))

from attnd._safetensors import from_safetensors, to_safetensors

HEADS, KV_HEADS, SIZE, KEYS, ROUNDS, SENT_ROUNDS = 32, 8, 128, 32768, 200, 5
CHOICES = {"four heads of one key head": [0, 1, 2, 3], "four heads of four key heads": [0, 8, 16, 24]}
BINARY = {"Content-Type": "application/vnd.safetensors"}


def post(connection, path, body, method="POST"):
    """Returns the seconds and the bytes of a reply."""
    began = time.perf_counter()
    connection.request(method, path, body, BINARY)
    reply = connection.getresponse()
    data = reply.read()
    assert reply.status in (200, 201), data[:300]
    return time.perf_counter() - began, data


def question(heads, tensors, **options):
    metadata = {"need": "top", "top_k": "8", **options}
    return to_safetensors({"weights_heads": np.array(heads), **tensors}, metadata)


def read_seconds(folder, key_heads):
    """Returns the seconds of reading the keys of so many key heads on all CPUs."""
    shape = f"1,1,{4 * SIZE},4,{KEYS}"
    result = subprocess.run([folder / "attnd-bench", "--json", "--part", "stored", "--shape", shape, "--kv-heads",
                             str(key_heads)], check=True, capture_output=True, text=True)
    return key_heads * KEYS * SIZE * 4 / (json.loads(result.stdout)["read_gb_per_s"] * 1e9)


def main():
    folder = Path(sys.argv[1])
    rng = np.random.default_rng(1)
    queries = rng.standard_normal((1, HEADS, SIZE), np.float32)
    keys = rng.standard_normal((KEYS, KV_HEADS, SIZE), np.float32)
    file = to_safetensors({"0.queries": queries, "0.keys": keys}, {"layers": '["0"]'})
    server = subprocess.Popen([folder / "attnd", "--listen", "127.0.0.1:0", "--capture-memory", "320MiB", "--max-body",
                               "256MiB"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        port = int(re.search(r":(\d+)$", server.stdout.readline().strip())[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        seconds, reply = post(connection, "/v1/captures/long", file, "PUT")
        print(f"PUT of {len(file) / 2**20:.0f} MiB: {seconds:.2f} s, counts {json.loads(reply)['bytes'] / 2**20:.1f} MiB")
        kept = {}
        for name, heads in CHOICES.items():
            body = question(heads, {}, layer="0")
            times = [post(connection, "/v1/captures/long/attention", body) for _ in range(ROUNDS)]
            kept[name] = median(seconds for seconds, _ in times), times[-1][1]
        status = Path(f"/proc/{server.pid}/status").read_text()
        most = re.search(r"VmHWM:\s+(\d+)", status)[1]
        print(f"most memory so far: {int(most) / 1024:.0f} MiB")
        for name, heads in CHOICES.items():
            sent = question(heads, {"queries": queries, "keys": keys})
            times = [post(connection, "/v1/attention/dot-product", sent) for _ in range(SENT_ROUNDS)]
            seconds, data = kept[name]
            assert all(np.array_equal(a, b) for a, b in zip(from_safetensors(bytearray(data)).values(),
                                                           from_safetensors(bytearray(times[-1][1])).values()))
            reading = read_seconds(folder, len({head * KV_HEADS // HEADS for head in heads}))
            slow = median(seconds for seconds, _ in times)
            print(f"{name}: kept {seconds * 1e3:.2f} ms; reading {reading * 1e3:.2f} ms, so the goal, 1.3 x reading + 0.5 "
                  f"ms, is {1.3e3 * reading + 0.5:.2f} ms; sent {slow * 1e3:.0f} ms, {slow / seconds:.0f} times as long")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
