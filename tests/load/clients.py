# SPDX-License-Identifier: Apache-2.0
"""Times what Python programs can do to get all attention weights of 2,048 tokens: 207 MB.

    build/venv/bin/python tests/load/make_wide.py wide.safetensors
    build-release/src/attnd --model wide=wide.safetensors
    build/venv/bin/python tests/load/clients.py http://127.0.0.1:8080

Prints a table for docs/clients.md: seconds from arrays to arrays, and the most memory that the
program held. Each call has a process of its own, as in a script, and is repeated."""

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import requests
import tritonclient.http as triton
from safetensors.numpy import load, save

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src/python"))

from attnd import AsyncClient, Client

REPEATS = 5
TIMEOUT = 300  # seconds


def post_safetensors(url, tokens):
    body = save({"queries": tokens}, {"model": "wide", "need_weights": "true"})
    return requests.post(url + "/v1/attention", data=body, stream=True, timeout=TIMEOUT,
                         headers={"Content-Type": "application/vnd.safetensors"})


async def attend_async(url, tokens):
    async with AsyncClient(url) as client:
        return await client.attend("wide", tokens, need_weights=True)


def infer(url, tokens):
    client = triton.InferenceServerClient(url.partition("//")[2], network_timeout=TIMEOUT)
    queries = triton.InferInput("queries", list(tokens.shape), "FP32")
    queries.set_data_from_numpy(tokens)
    wanted = [triton.InferRequestedOutput(name) for name in ("outputs", "attention_weights")]
    reply = client.infer("wide", [queries], outputs=wanted)
    return reply.as_numpy("outputs"), reply.as_numpy("attention_weights")


WAYS = {
    "`Client().attend(...)`":
        lambda url, tokens: Client(url).attend("wide", tokens, need_weights=True),
    "`await AsyncClient().attend(...)`":
        lambda url, tokens: asyncio.run(attend_async(url, tokens)),
    "requests, `load(reply.raw.read())` of safetensors":
        lambda url, tokens: load(post_safetensors(url, tokens).raw.read()).values(),
    "requests, `load(reply.content)` of safetensors":
        lambda url, tokens: load(post_safetensors(url, tokens).content).values(),
    "tritonclient, `infer(...)`": infer,
    "`Client(json=True).attend(...)`":
        lambda url, tokens: Client(url, json=True).attend("wide", tokens, need_weights=True),
}


def run_once(url, way):
    """Prints the seconds and the MiB of one call."""
    tokens = np.random.default_rng(0).normal(size=(2048, 768)).astype(np.float32)
    start = time.perf_counter()
    shapes = {array.shape for array in WAYS[way](url, tokens)}
    seconds = time.perf_counter() - start
    assert shapes == {(2048, 768), (12, 2048, 2048)}, shapes
    print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def main(url):
    print("| | seconds | MiB |\n|---|---|---|")
    for way in WAYS:
        runs = [json.loads(subprocess.check_output([sys.executable, __file__, url, way]))
                for _ in range(REPEATS)]
        seconds = [seconds for seconds, _ in runs]
        print(f"| {way} | {statistics.median(seconds):.2f} ({min(seconds):.2f} to "
              f"{max(seconds):.2f}) | {max(mib for _, mib in runs):.0f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) == 2 else run_once(*sys.argv[1:])
