# SPDX-License-Identifier: Apache-2.0
"""Times attnd and its alternatives in one run on the CPU of one machine. The layer, and one
projection of as many rows or of a few, are compared with numpy, ONNX Runtime and OpenVINO (in
float32 and bfloat16), the projection with the system's BLAS and oneDNN (both precisions), too.

    apt-get install libdnnl-dev
    python3 -m venv /tmp/peers
    /tmp/peers/bin/pip install -r tests/bench/requirements.txt
    /tmp/peers/bin/python tests/bench/peers.py --json peers.json --svg docs/peers.svg

All have the same random weights, biases and inputs. First every result is compared with float64. A
program whose result differs too much is reported and not timed, and the exit status is 1. A program
that this machine lacks is listed with the reason, as is what a program cannot do.
Then the programs take turns in every round. Ratios are taken within a round, because the speed of a
machine drifts. The time of a round is the median of at least 5 measurements of at least 10 ms each,
as in `attnd-bench`; with one thread it is CPU time. Every peer has its own process, without environment settings for BLAS and
similar libraries, and waits there while the others are timed.

attnd is timed by `attnd-bench`, which has its own weights and no biases. (A bias costs nothing,
because sums start with it.) Results are compared with libattnd, with the common weights. "attnd
f32" and "attnd bf16" are the kernels that attnd chooses; other sets of kernels (--cpu) are named.
Beside its figures are two peaks of the same kernels: multiply-adds in registers, and with operands
loaded from the first-level cache. The peers are called from Python with inputs and outputs bound beforehand, which costs them up to 0.01 ms.
In bf16, attnd and OpenVINO read and write float32. oneDNN is timed with rows that are already bf16
("oneDNN bf16"), and with rows that it converts in each run ("oneDNN f32>bf16").
"""

import clean_environment  # before numpy

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from library import bench_attnd, make_attnd
from layer_peers import make_numpy, make_onnxruntime, make_openvino
from plot import draw
from problems import Shape, count_gflop, make_problem
from product_peers import (build_onednn, make_numpy_product, make_onednn,
                           make_onnxruntime_product, make_openvino_product)
from tables import markdown, print_case
from turns import Peer

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ["1,128,768,12", "8,512,768,12", "1,2048,768,12", "64,1,768,12", "1,1,768,12"]
FEW_QUERIES = ["1,1,768,12,8192", "1,16,768,12,8192", "64,1,768,12,512"]  # for layers only
FEW_ROWS = ["4,1,768,12", "16,1,768,12"]  # for projections only
PRECISIONS = "f32", "bf16"
SETTLE_SECONDS = 0.1  # idle threads of the previous program spin for a while before they sleep


class Contender(NamedTuple):
    precision: str
    maker: object
    options: dict


def list_peers(part, onednn):
    if part == "layer":
        return {"numpy": Contender("f32", make_numpy, {}),
                "ONNX Runtime": Contender("f32", make_onnxruntime, {}),
                "OpenVINO f32": Contender("f32", make_openvino, {"precision": "f32"}),
                "OpenVINO bf16": Contender("bf16", make_openvino, {"precision": "bf16"})}
    return {"numpy": Contender("f32", make_numpy_product, {}),
            "ONNX Runtime": Contender("f32", make_onnxruntime_product, {}),
            "OpenVINO f32": Contender("f32", make_openvino_product, {"precision": "f32"}),
            "OpenVINO bf16": Contender("bf16", make_openvino_product, {"precision": "bf16"}),
            "oneDNN f32": Contender("f32", make_onednn, {"library": onednn, "rows": "f32"}),
            "oneDNN bf16": Contender("bf16", make_onednn, {"library": onednn, "rows": "bf16"}),
            "oneDNN f32>bf16": Contender("bf16", make_onednn,
                                         {"library": onednn, "rows": "f32 to bf16"})}


CANNOT = {"layer": {"oneDNN": {"precision": "f32", "unavailable": "has no attention"}},
          "projection": {}}


def compare_attnd(arguments, part, shape, expected):
    """Compares the sets of kernels that attnd chooses, then those of --cpu that are others."""
    entries = {}
    for cpu in "auto", *arguments.cpu:
        for precision in PRECISIONS:
            name = f"attnd {precision}" if cpu == "auto" else f"attnd {cpu} {precision}"
            peer = Peer(make_attnd, partial(make_problem, part, shape), 1,
                        {"library": str(arguments.library), "cpu": cpu, "precision": precision})
            entry = peer.compare(precision, expected)
            peer.close()
            if "detail" not in entry or entry["detail"] not in (
                    other.get("detail") for other in entries.values()):
                entries[name] = entry | {"cpu": cpu}
    return entries


def time_attnd(arguments, part, shape, threads, entry):
    engine = entry["detail"].split(", ")[1]
    return bench_attnd(arguments.attnd, part, shape, threads, entry["cpu"], entry["precision"],
                       engine, arguments.seconds)


def take_turns(arguments, part, shape, threads, entries, peers):
    """Returns milliseconds in each round by name, and by name what attnd-bench measured."""
    times = {name: [] for name, entry in entries.items() if "detail" in entry
             and "failed" not in entry}
    measured = defaultdict(list)
    for _ in range(arguments.rounds if "attnd f32" in times else 0):
        for name in times:
            time.sleep(SETTLE_SECONDS)
            if name in peers:
                times[name].append(peers[name].time(arguments.seconds))
            else:
                measured[name].append(time_attnd(arguments, part, shape, threads, entries[name]))
                times[name].append(measured[name][-1].milliseconds)
    if part == "projection" and threads == 1 and measured:
        times["cblas"] = [mine.cblas for mine in measured["attnd f32"]]
    return times, measured


def run_case(arguments, part, shape, threads, expected):
    gflop = count_gflop(part, shape)
    case = {"part": part, "shape": shape, "threads": threads, "gflop": gflop}
    entries = compare_attnd(arguments, part, shape, expected)
    listed = list_peers(part, arguments.onednn)
    peers = {name: Peer(maker, partial(make_problem, part, shape), threads,
                        {"threads": threads} | options)
             for name, (_, maker, options) in listed.items()}
    entries |= {name: peer.compare(listed[name].precision, expected)
                for name, peer in peers.items()}
    entries |= CANNOT[part]
    times, measured = take_turns(arguments, part, shape, threads, entries, peers)
    for peer in peers.values():
        peer.close()
    if "cblas" in times:  # the engine openblas
        entries["cblas"] = {"precision": "f32", "detail": "cblas: the one that attnd links"}
    for name, mine in times.items():
        if mine:
            entries[name] |= {"rounds_ms": mine, "median_ms": median(mine), "min_ms": min(mine),
                              "max_ms": max(mine), "gflops": gflop / median(mine) * 1e3}
    for name, mine in measured.items():
        entries[name]["peaks_gflops"] = [m.peak for m in mine]
        if mine[0].loaded_peak is not None:
            entries[name]["loaded_peaks_gflops"] = [m.loaded_peak for m in mine]
    return case | {"results": entries}


def machine_text():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} CPUs"


def parse_shape(text):
    numbers = [int(number) for number in text.split(",")]
    shape = Shape(*numbers, *numbers[1:2] if len(numbers) == 4 else ())
    if min(shape) < 1 or shape.width % shape.heads:
        raise ValueError("HEADS must divide WIDTH")
    return shape


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--part", choices=["layer", "projection"],
                        help="time only this part; default: both")
    parser.add_argument("--shape", type=parse_shape, action="append",
                        metavar="B,T,WIDTH,HEADS[,TK]",
                        help="may be given several times; default: " + " ".join(SHAPES)
                        + ", for the layer " + " ".join(FEW_QUERIES)
                        + ", and for projections 4 and 16 rows")
    parser.add_argument("--threads", type=int, action="append", help="as --shape; default: 1, 2")
    parser.add_argument("--cpu", action="append", metavar="SET",
                        help="also time this set of kernels of attnd, where it is not the one that "
                        "attnd chooses; may be given several times; default: avx512, amx")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=1, help="length of one turn; default: 1")
    parser.add_argument("--minutes", type=float, default=15, metavar="N",
                        help="begin no other case after so long; default: 15")
    parser.add_argument("--quick", action="store_true", help="two rounds of three shapes")
    parser.add_argument("--attnd", type=Path, default=ROOT / "build/src/attnd")
    parser.add_argument("--library", type=Path, default=ROOT / "build/src/libattnd.so")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report")
    parser.add_argument("--from-json", type=Path, metavar="FILE",
                        help="measure nothing; print table and plot of a report written by --json")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the plot")
    arguments = parser.parse_args()
    for path in arguments.attnd, arguments.library:
        if not path.exists() and not arguments.from_json:
            parser.error(f"{path} does not exist; build attnd, or use --attnd and --library")
    arguments.attnd, arguments.library = arguments.attnd.resolve(), arguments.library.resolve()
    arguments.rounds = 2 if arguments.quick else max(arguments.rounds, 1)
    arguments.cpu = arguments.cpu or ["avx512", "amx"]
    return arguments


def list_shapes(arguments, part):
    more = FEW_ROWS if part == "projection" else FEW_QUERIES
    texts = SHAPES[::4] + more[:1] if arguments.quick else SHAPES + more
    return sorted(arguments.shape or map(parse_shape, texts),
                  key=lambda shape: -count_gflop(part, shape))


def measure(arguments):
    cases, end = [], time.monotonic() + arguments.minutes * 60
    for part in [arguments.part] if arguments.part else ["layer", "projection"]:
        for shape in list_shapes(arguments, part):
            if time.monotonic() > end:
                print(f"\nleft out after {arguments.minutes:g} minutes: {part} {tuple(shape)}")
                continue
            maker = make_numpy if part == "layer" else make_numpy_product
            run, outputs, _ = maker(make_problem(part, shape), dtype=np.float64)
            run()
            for threads in arguments.threads or (1, 2):
                cases.append(run_case(arguments, part, shape, threads, outputs()))
                print_case(cases[-1])
                sys.stdout.flush()
    return cases


def main():
    arguments = parse_arguments()
    if arguments.from_json:
        report = json.loads(arguments.from_json.read_text())
    else:
        dropped = " ".join(clean_environment.DROPPED)
        print(f"{machine_text()}; load {os.getloadavg()[0]:.2f}; {arguments.rounds} rounds"
              + (f"; removed from the environment: {dropped}" if dropped else ""))
        with tempfile.TemporaryDirectory() as folder:
            arguments.onednn = build_onednn(folder)
            report = {"machine": machine_text(), "date": time.strftime("%Y-%m-%d"),
                      "cases": measure(arguments)}
        if arguments.json:
            arguments.json.write_text(json.dumps(report, indent=1))
    print("\n" + markdown(report))
    if arguments.svg:
        arguments.svg.write_text(draw(report))
    failed = sorted({f"{name}: {entry['failed']}" for case in report["cases"]
                     for name, entry in case["results"].items() if "failed" in entry})
    sys.exit("FAILED: " + "; ".join(failed) if failed else 0)  # status 1


if __name__ == "__main__":
    main()
