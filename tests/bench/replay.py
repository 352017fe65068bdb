# SPDX-License-Identifier: Apache-2.0
"""Times what guards and rerankers ask of captured queries and keys: a few rows of 8 of 32 heads
over 4,096 BF16 keys of 8 key heads of 128, reduced to sums over spans, over HTTP.

    python3 -m venv /tmp/replay
    /tmp/replay/bin/pip install numpy requests fastapi uvicorn
    /tmp/replay/bin/python tests/bench/replay.py build/src/attnd

In turns: attnd; and what people write, a float32 copy of the keys and a whole softmax in numpy, behind
FastAPI, which gets the same binary body. Both results are compared first. Beside them, without a
goal: numpy at its best in this process, attnd refusing the body after it has read all of it (the
transport alone), and reading the keys once from memory.
"""

import clean_environment  # before numpy

import argparse
import http.client
import json
import os
import platform
import struct
import subprocess
import sys
import threading
import time
from statistics import median

import numpy as np

HEADS, KV_HEADS, SIZE, KEYS, CHOSEN = 32, 8, 128, 4096, list(range(0, 32, 4))
SPANS = np.array([[0, 512], [512, 2048], [2048, 4000], [4000, 4096]])
PEER = '''
import json, struct
import numpy as np
from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool
app = FastAPI()
def tensor(header, data, name):
    entry = header[name]
    raw = data[slice(*entry["data_offsets"])]
    if entry["dtype"] == "BF16":
        wide = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(entry["shape"])
    kind = {"F32": np.float32, "I64": np.int64}[entry["dtype"]]
    return np.frombuffer(raw, kind).reshape(entry["shape"])
def reduce(body):
    size = struct.unpack("<Q", body[:8])[0]
    header, data = json.loads(body[8:8 + size]), body[8 + size:]
    queries, keys = tensor(header, data, "queries"), tensor(header, data, "keys")
    heads, spans = tensor(header, data, "weights_heads"), tensor(header, data, "spans")
    q = queries[:, heads].transpose(1, 0, 2)
    k = keys[:, heads // (queries.shape[1] // keys.shape[1])].transpose(1, 2, 0)
    scores = q @ k / np.sqrt(q.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    sums = np.stack([weights[..., a:b].sum(-1) for a, b in spans], -1)
    return np.ascontiguousarray(sums, np.float32).tobytes()
@app.post("/reduce")
async def answer(request: Request):
    body = await request.body()
    return Response(await run_in_threadpool(reduce, body))
'''


def make_body(rows, extra=None):
    """Returns the request in safetensors."""
    rng = np.random.default_rng(rows)
    queries = rng.standard_normal((rows, HEADS, SIZE)).astype(np.float32)
    keys = rng.standard_normal((KEYS, KV_HEADS, SIZE)).astype(np.float32)
    tensors = {"queries": ("F32", queries), "spans": ("I64", SPANS), "weights_heads": ("I64", np.array(CHOSEN)),
               "keys": ("BF16", (keys.view(np.uint32) >> 16).astype(np.uint16))}
    header, data = {"__metadata__": {"need": "spans", **(extra or {})}}, b""
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": array.shape,
                        "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def post(connection, path, body):
    connection.request("POST", path, body, {"Content-Type": "application/octet-stream"})
    reply = connection.getresponse()
    return reply.status, reply.read()


def count_per_second(port, path, body, seconds, clients, status):
    """Returns requests a second of some clients, each with one connection."""
    counts, end = [0] * clients, time.monotonic() + seconds

    def run(i):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.monotonic() < end:
            assert post(connection, path, body)[0] == status
            counts[i] += 1
    began = time.monotonic()
    threads = [threading.Thread(target=run, args=(i,)) for i in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - began)


def wait_for(port):
    for _ in range(200):
        try:
            http.client.HTTPConnection("127.0.0.1", port, timeout=1).request("GET", "/")
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


def numpy_at_best(body):
    """Returns requests a second in this process: keys that are float32, transposed and chosen."""
    rows = {}
    exec(PEER.split("app = FastAPI()")[1].split("@app")[0], {"np": np, "struct": struct, "json": json}, rows)
    size = struct.unpack("<Q", body[:8])[0]
    header, data = json.loads(body[8:8 + size]), body[8 + size:]
    queries, keys = rows["tensor"](header, data, "queries"), rows["tensor"](header, data, "keys")
    q = np.ascontiguousarray(queries[:, CHOSEN].transpose(1, 0, 2)) / np.float32(SIZE ** 0.5)
    k = np.ascontiguousarray(keys[:, [h // (HEADS // KV_HEADS) for h in CHOSEN]].transpose(1, 2, 0))

    def once():
        scores = q @ k
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.add.reduceat(weights, SPANS[:, 0], -1) / weights.sum(-1, keepdims=True)
    count, end = 0, time.monotonic() + 1
    while time.monotonic() < end:
        once()
        count += 1
    return count


def read_once(body):
    """Returns how often a second the bytes of the body can be read from memory."""
    words, times = np.frombuffer(body[:len(body) // 8 * 8], np.uint64), []
    for _ in range(50):
        began = time.perf_counter()
        words.max()
        times.append(time.perf_counter() - began)
    return 1 / median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("attnd")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--clients", type=int, default=2)
    options = parser.parse_args()
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="ascii")
                  if line.startswith("model name")), platform.machine())
    print(f"{model}, {os.cpu_count()} CPUs, {options.clients} clients")
    servers = [subprocess.Popen([options.attnd, "--listen", "127.0.0.1:8491"], stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL)]
    peer = f"import uvicorn; exec({PEER!r}); uvicorn.run(app, port=8492, log_level='error')"
    servers.append(subprocess.Popen([sys.executable, "-c", peer]))
    try:
        wait_for(8491)
        wait_for(8492)
        for rows in (1, 16):
            compare(rows, options)
    finally:
        for server in servers:
            server.kill()


def compare(rows, options):
    body, path = make_body(rows), "/v1/attention/dot-product"
    status, reply = post(http.client.HTTPConnection("127.0.0.1", 8491), path, body)
    assert status == 200, reply
    size = struct.unpack("<Q", reply[:8])[0]
    got = np.frombuffer(reply[8 + size:], np.float32)
    expected = np.frombuffer(post(http.client.HTTPConnection("127.0.0.1", 8492), "/reduce", body)[1],
                             np.float32)
    print(f"\n{rows} row{'s' * (rows > 1)}: largest difference {abs(got - expected).max():.1e}")
    refused = make_body(rows, {"refused": "1"})
    ways = {"attnd": (8491, path, body, 200), "numpy behind FastAPI": (8492, "/reduce", body, 200),
            "transport alone": (8491, path, refused, 400)}
    rates = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, (port, where, text, status) in ways.items():
            rates[name].append(count_per_second(port, where, text, options.seconds, options.clients, status))
    for name, values in rates.items():
        print(f"  {name:22} {median(values):8.1f} requests/s ({min(values):.1f} to {max(values):.1f})")
    ratios = [a / b for a, b in zip(rates["attnd"], rates["numpy behind FastAPI"])]
    print(f"  attnd over FastAPI     {median(ratios):8.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    print(f"  numpy at its best      {numpy_at_best(body):8.1f} a second, in this process")
    print(f"  reading the body once  {read_once(body):8.1f} a second")


if __name__ == "__main__":
    main()
