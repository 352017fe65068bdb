# SPDX-License-Identifier: Apache-2.0
"""Times attention layers of published models, of their sizes and with random weights, on the CPU of
one machine. Each has one sequence, a causal mask and all that its family does to queries, keys and
scores: shared key heads, rotary positions, norms, softcap.

    python3 -m venv /tmp/peers
    /tmp/peers/bin/pip install -r tests/bench/requirements.txt
    /tmp/peers/bin/pip install torch transformers --extra-index-url https://download.pytorch.org/whl/cpu
    /tmp/peers/bin/python tests/bench/families.py --family gpt2

--rows chooses what is timed:

layers    attnd, ONNX Runtime (GroupQueryAttention, or MultiHeadAttention of gpt2), and transformers'
          eager and sdpa, which are left out where they are not installed. First some rows of every
          result are compared with float64: those of attnd come from a server. A program whose rows
          differ too much is reported and not timed, and the exit status is 1. Then the programs take
          turns, as in peers.py. qwen3_5, gemma4 and deepseek_v3, which are timed when --family names
          them, are modules of transformers; float64 is theirs, too. Eager takes 9 GB and more for
          4,096 queries of deepseek_v3.
window    attention of 8,192 queries within a window of 512 keys over the attention to all keys
one-query one query over 8,192 keys: the share of the read bandwidth

attnd is timed by `attnd-bench`. The layers are float32. GFLOP/s count what the mask leaves. No
program applies the norm before the layer."""

import clean_environment  # before numpy

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from time import sleep

import numpy as np

from library import bench_command
from beside_numpy import start_attnd
from family_layers import FAMILIES, compute_rows, count_gflop, make_layer_problem, write_folder
from family_modules import (MODULES, compute_module_rows, make_module_problem, make_transformers_module,
                            write_module_folder)
from family_peers import make_onnxruntime_family, make_transformers
from peers import ROOT, SETTLE_SECONDS, machine_text
from safetensors_file import make_safetensors, parse_safetensors
from turns import Peer

LAYERS = ["gpt2", "llama-3.2-1b", "llama-3.1-8b", "qwen3-0.6b", "gemma-2-2b"]
PEERS = {"ONNX Runtime": (make_onnxruntime_family, {}),
         "eager": (make_transformers, {"attention": "eager"}),
         "sdpa": (make_transformers, {"attention": "sdpa"})}
MODULE_PEERS = {"eager": (make_transformers_module, {"attention": "eager"}),
                "sdpa": (make_transformers_module, {"attention": "sdpa"})}
NUM_ROWS = 16  # that are compared


def bench(arguments, folder, threads, *options):
    """Runs attnd-bench on a folder, and returns its report."""
    command = [*bench_command(arguments.attnd), "--model", f"layer={folder},pre_norm=false", "--workers", str(threads),
               "--engine", "native", "--seconds", "1", "--json", *options]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr)
    return json.loads(result.stdout)


def time_attnd(arguments, folder, threads, length):
    """Returns milliseconds, and the share of the multiply-add peak."""
    report = bench(arguments, folder, threads, "--shape", f"1,{length}")
    arguments.gflop = arguments.gflop or report["done_gflop"]
    assert abs(report["done_gflop"] / arguments.gflop - 1) < 1e-3, \
        "attnd-bench counts operations differently"
    return report["results"][0]["median_ms"], report["results"][0]["of_peak"]


def serve_rows(arguments, problem, rows):
    """Returns rows of the outputs of a server."""
    server, port = start_attnd(arguments.attnd, f"layer={problem.folder},pre_norm=false", "--max-body", "1GiB",
                               "--max-memory", "8GiB")
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        body = make_safetensors({"queries": problem.queries}, metadata={"model": "layer.0"})
        connection.request("POST", "/v1/attention", body,
                           {"Content-Type": "application/vnd.safetensors"})
        response = connection.getresponse()
        reply = response.read()
        if response.status != 200:
            sys.exit(f"attnd: {reply[:500].decode()}")
        return parse_safetensors(reply)[0]["outputs"].reshape(problem.queries.shape)[0, rows]
    finally:
        server.terminate()
        server.wait()


def run_layer(arguments, name, folder, length, threads):
    """Compares and times one layer. Returns the entries by name."""
    is_module = name in MODULES
    make_problem = partial(make_module_problem if is_module else make_layer_problem, name, folder, length)
    problem = make_problem()
    rows = np.unique(np.linspace(0, length - 1, NUM_ROWS).astype(int))
    expected = compute_module_rows(problem, rows) if is_module else compute_rows(problem, rows)
    difference = np.abs(serve_rows(arguments, problem, rows) - expected).max()
    entries = {"attnd": {"detail": "attnd", "difference": difference / np.abs(expected).max()}}
    if not entries["attnd"]["difference"] <= 1e-4:
        entries["attnd"]["failed"] = "differs from float64"
    peers = {peer: Peer(maker, make_problem, threads, {"threads": threads, "rows": rows} | options)
             for peer, (maker, options) in (MODULE_PEERS if is_module else PEERS).items()}
    entries |= {peer: process.compare("f32", expected) for peer, process in peers.items()}
    arguments.gflop = None if is_module else count_gflop(problem.family, length)

    times = {name: [] for name, entry in entries.items()
             if "detail" in entry and "failed" not in entry}
    shares = []
    for _ in range(arguments.rounds):
        for peer in times:
            sleep(SETTLE_SECONDS)
            if peer in peers:
                times[peer].append(peers[peer].time(1))
            else:
                elapsed, share = time_attnd(arguments, folder, threads, length)
                times[peer].append(elapsed)
                shares.append(share)
    for process in peers.values():
        process.close()
    for peer, mine in times.items():
        entries[peer] |= {"rounds_ms": mine}
    if shares:
        entries["attnd"]["of_peak"] = median(shares)
    return entries


def cell(entries, name):
    """Returns a peer's time over attnd's, and its own."""
    if name not in entries or "rounds_ms" not in entries[name] or "rounds_ms" not in entries["attnd"]:
        return "failed" if "failed" in entries.get(name, {}) else "not timed"
    mine = entries[name]["rounds_ms"]
    over = median(x / y for x, y in zip(mine, entries["attnd"]["rounds_ms"]))
    return f"{over:.2f}x, {median(mine):.1f} ms"


def print_layers(arguments):
    """Prints a row when it is measured. Returns what failed."""
    notes, failed = {}, []
    print(f"| layer | queries | threads | {' | '.join(PEERS)} | attnd | GFLOP/s | of peak |")
    print("|---" * (len(PEERS) + 6) + "|")
    for name in arguments.family or LAYERS:
        for length in arguments.length or (512, 4096):
            for threads in arguments.threads or (1, 2):
                entries = run_layer(arguments, name, arguments.folders[name], length, threads)
                own = entries["attnd"]
                cells = [name, str(length), str(threads), *(cell(entries, peer) for peer in PEERS)]
                if "rounds_ms" in own:
                    elapsed = median(own["rounds_ms"])
                    cells += [f"{elapsed:.1f} ms", f"{arguments.gflop / elapsed * 1e3:.0f}",
                              f"{own['of_peak']:.2f}"]
                print(f"| {' | '.join(cells)} |", flush=True)
                for peer, entry in entries.items():
                    worst = max(entry.get("difference", 0), notes.get(peer, {}).get("difference", 0))
                    notes[peer] = notes.get(peer, {}) | entry | {"difference": worst}
                    if "failed" in entry:
                        failed.append(f"{name}, {length}: {peer}: {entry['failed']}")
    print()
    for peer, note in notes.items():
        texts = []
        if "detail" in note:
            texts.append(f"differs from float64 by at most {note['difference']:.0e} of the largest")
        if "unavailable" in note:
            texts.append(f"not timed: {note['unavailable']}")
        print(f"{note.get('detail', peer)}: {'; '.join(texts)}")
    return failed


def print_window(arguments):
    print("| threads | window of 512 | all keys | window over all |\n|---|---|---|---|")
    for threads in arguments.threads or (1, 2):
        times = {"mistral, window 512": [], "mistral, no window": []}
        for _ in range(arguments.rounds):
            for name, mine in times.items():
                report = bench(arguments, arguments.folders[name], threads, "--part", "attention",
                               "--shape", "1,8192")
                mine.append(report["results"][0]["median_ms"])
        few, all_keys = times.values()
        ratio = median(x / y for x, y in zip(few, all_keys))
        print(f"| {threads} | {median(few):.1f} ms | {median(all_keys):.1f} ms | {ratio:.3f}x |",
              flush=True)


def print_one_query(arguments):
    print("| layer | threads | ms | GB/s | of the read bandwidth |\n|---|---|---|---|---|")
    for name in arguments.family or ["llama-3.1-8b"]:
        for threads in arguments.threads or (1, 2):
            report = bench(arguments, arguments.folders[name], threads, "--part", "attention",
                           "--shape", "1,1,8192", "--seconds", str(arguments.rounds))
            own = report["results"][0]
            print(f"| {name} | {threads} | {own['median_ms']:.3f} | {own['gb_per_s']:.1f} "
                  f"| {own['of_reading']:.2f} |", flush=True)


ROWS = {"layers": print_layers, "window": print_window,
        "one-query": print_one_query}


class Folders(dict):
    """The folders of layers, which are written when they are needed."""

    def __init__(self, parent):
        self.parent = Path(parent)

    def __missing__(self, name):
        self[name] = str(self.parent / f"layer{len(self)}")
        if name in MODULES:
            write_module_folder(self[name], name)
        else:
            write_folder(self[name], FAMILIES[name])
        return self[name]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", choices=list(ROWS), default="layers")
    parser.add_argument("--family", choices=[*FAMILIES, *MODULES], action="append",
                        help="may be given several times")
    parser.add_argument("--length", type=int, action="append", metavar="T",
                        help="queries, as --family; default: 512, 4096")
    parser.add_argument("--threads", type=int, action="append", help="as --family; default: 1, 2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--attnd", type=Path, default=ROOT / "build/src/attnd")
    arguments = parser.parse_args()
    if not arguments.attnd.exists():
        parser.error(f"{arguments.attnd} does not exist; build attnd, or use --attnd")
    arguments.attnd = arguments.attnd.resolve()
    print(f"{machine_text()}; load {os.getloadavg()[0]:.2f}; {arguments.rounds} rounds\n")
    with tempfile.TemporaryDirectory() as folder:
        arguments.folders = Folders(folder)
        failed = ROWS[arguments.rows](arguments)
    sys.exit("FAILED: " + "; ".join(failed) if failed else 0)  # status 1


if __name__ == "__main__":
    main()
