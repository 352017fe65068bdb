# SPDX-License-Identifier: Apache-2.0
"""beside_numpy.py ATTND [--shape B,T,WIDTH,HEADS] [--rounds N]: self-attention as a request to
attnd over HTTP, beside the same layer in numpy on the same machine. Only outputs are asked for.

The request and its reply are safetensors, on a connection that is kept open. numpy computes in
float32, with as many BLAS threads as there are CPUs: once with all heads in one product, as it is
mostly written, and once head by head, so that the scores stay in the cache. numpy has the inputs in
memory already. All have the same random weights, are compared with float64 first, and take turns. A
ratio is the median of those of the rounds."""

import clean_environment  # before numpy

import argparse
import http.client
import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

import library  # finds tests/http
from layer_peers import make_numpy
from peers import machine_text, parse_shape
from problems import make_problem
from safetensors_file import make_safetensors, parse_safetensors, write_safetensors
from turns import Peer


def make_request(problem, threads, port):  # threads: see Peer
    """Posts the inputs to the model `layer` of the attnd at `port`."""
    own_keys = {} if problem.keys is problem.queries else {"keys": problem.keys}
    body = make_safetensors({"queries": problem.queries} | own_keys)
    headers = {"Content-Type": "application/vnd.safetensors"}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    reply = None

    def run():
        nonlocal reply
        connection.request("POST", "/v1/attention", body, headers)
        response = connection.getresponse()
        reply = response.read()
        assert response.status == 200, reply

    return run, lambda: parse_safetensors(reply)[0]["outputs"], "attnd over HTTP"


def write_layer(problem, folder):
    """Writes the layer to a file, and returns what --model says of it."""
    path = Path(folder) / "layer.safetensors"
    tensors = {f"W_{p}.weight": weight for p, weight in problem.weights.items()}
    tensors |= {f"W_{p}.bias": bias for p, bias in problem.biases.items()}
    write_safetensors(path, tensors)
    return f"layer={path},num_heads={problem.shape.heads}"


def start_attnd(program, model, *options):
    """Serves `model` on a free port. Returns the process and the port."""
    server = subprocess.Popen(
        [program, "--model", model, "--listen", "127.0.0.1:0", *options],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    address = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", server.stdout.readline())
    if not address:
        sys.exit(f"{program} did not start")
    return server, int(address[1])


def measure(shape, rounds, port, expected):
    """Returns the milliseconds of each round by name."""
    threads = len(os.sched_getaffinity(0))
    makers = {"attnd over HTTP": (make_request, {"port": port}),
              "numpy, all heads in one product": (make_numpy, {"by_head": False}),
              "numpy, head by head": (make_numpy, {"by_head": True})}
    peers = {name: Peer(maker, partial(make_problem, "layer", shape), threads,
                        {"threads": threads} | options)
             for name, (maker, options) in makers.items()}
    for name, peer in peers.items():
        entry = peer.compare("f32", expected)
        if "difference" not in entry or "failed" in entry:
            sys.exit(f"{name}: {entry}")
    times = {name: [] for name in peers}
    for _ in range(rounds):
        for name, peer in peers.items():
            times[name].append(peer.time(1))
    for peer in peers.values():
        peer.close()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("attnd", type=Path)
    parser.add_argument("--shape", type=parse_shape, default="1,2048,768,12", metavar="B,T,WIDTH,HEADS")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    problem = make_problem("layer", arguments.shape)
    run, outputs, _ = make_numpy(problem, dtype=np.float64)
    run()
    with tempfile.TemporaryDirectory() as folder:
        server, port = start_attnd(arguments.attnd, write_layer(problem, folder))
        try:
            times = measure(arguments.shape, arguments.rounds, port, outputs())
        finally:
            server.terminate()
            server.wait()
    print(f"{machine_text()}; shape {','.join(map(str, arguments.shape))}; numpy {np.__version__}\n")
    print("| | ms | fastest to slowest round | of attnd's time |\n|---|---|---|---|")
    own = times["attnd over HTTP"]
    for name, mine in times.items():
        ratios = [ms / base for ms, base in zip(mine, own)]
        print(f"| {name} | {median(mine):.0f} | {min(mine):.0f} to {max(mine):.0f} "
              f"| {median(ratios):.1f}x |")


if __name__ == "__main__":
    main()
