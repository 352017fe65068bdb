# SPDX-License-Identifier: Apache-2.0
"""Times attnd beside other servers, in one run on one machine: FastAPI with uvicorn and orjson,
LitServe, MLServer and Triton. All serve the same layer with the same weights, the peers by ONNX
Runtime. Each peer has a venv of its own, since their packages conflict:

    sudo apt-get install -y --no-install-recommends python3-venv libpython3.11
    python3 -m venv /tmp/peers
    /tmp/peers/bin/pip install -r tests/bench/requirements.txt
    for peer in fastapi litserve mlserver triton; do
        /usr/bin/python3 -m venv /tmp/served/$peer
        /tmp/served/$peer/bin/pip install -r tests/bench/served/$peer.txt
    done
    /tmp/peers/bin/python tests/bench/served_peers.py --venvs /tmp/served --svg docs/peers-served.svg

A server that is not installed is listed with the reason. First every reply is compared with
float64. A server whose outputs differ too much is reported and not timed, and the exit status is 1.
Then the servers take turns in every round, under a closed loop of `attnd-bench http`, which shares
the CPUs with them. Ratios are taken within a round. Each server runs with one worker, which computes
on all CPUs, and with a worker for each CPU; the setting that served more requests is the one that
counts.

CPU time and memory are those of all processes of a server, memory after all rounds. Triton and
MLServer compute small requests together, as attnd does. Triton is that of the wheel of
nvidia-pytriton, with its Python backend. The wheel has a program for each version of Python, which
needs the shared library that the distribution's Python has.
"""

import clean_environment  # before numpy

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "served"))

from beside_numpy import write_layer
from layer_peers import list_inputs, make_numpy, make_onnx
from peers import ROOT, SETTLE_SECONDS, machine_text
from problems import Shape, Unavailable, make_problem
from served_load import put_load
from served_report import draw_served, print_served, served_markdown
from servers import KINDS, Files, Server, Setting, list_versions
from turns import TOLERANCE


class Case(NamedTuple):
    title: str
    shape: Shape
    valid_lens: list = None
    ones: bool = False  # the inputs that are timed; those that are compared are random
    connections: int = 16  # of the closed loop
    batch: int = 16  # sequences that peers may compute together


CASES = {
    "d2l": Case("the d2l example: (2,4,100) over (2,6,100), 5 heads", Shape(2, 4, 100, 5, 6),
                [3, 2], ones=True),
    "row": Case("one row: (1,1,768), 12 heads", Shape(1, 1, 768, 12, 1)),
    "wide": Case("(1,128,768), 12 heads", Shape(1, 128, 768, 12, 128), connections=4, batch=1)}


def make_case_problem(case):
    valid_lens = case.valid_lens and np.array(case.valid_lens, np.int32)
    return make_problem("layer", case.shape)._replace(valid_lens=valid_lens)


def compute_float64(problem):
    """Returns the outputs. Keys that are masked are left out, sequence by sequence."""
    outputs = []
    for i, queries in enumerate(problem.queries):
        length = problem.shape.key_length if problem.valid_lens is None else problem.valid_lens[i]
        alone = problem._replace(shape=problem.shape._replace(sequences=1, key_length=int(length)),
                                 queries=queries[None])
        keys = alone.queries if problem.keys is problem.queries else problem.keys[i:i + 1, :length]
        run, result, _ = make_numpy(alone._replace(keys=keys), dtype=np.float64)
        run()
        outputs.append(result()[0])
    return np.array(outputs)


def fill_with_ones(problem):
    queries, keys = np.ones_like(problem.queries), np.ones_like(problem.keys)
    return problem._replace(queries=queries,
                            keys=queries if problem.keys is problem.queries else keys)


def start_all(arguments, files, folder, servers, entries):
    """Starts every server in every setting. Those that this machine lacks get an entry."""
    for kind in KINDS:
        for workers in arguments.workers:
            threads = max(len(os.sched_getaffinity(0)) // workers, 1)
            try:
                servers.append(Server(kind, files, Setting(workers, threads),
                                      folder / f"{kind.name}-{workers}"))
            except Unavailable as reason:
                entries.append({"server": kind.name, "unavailable": str(reason)})
                break


def compare(server, form, problems):
    """Returns the entry of the report before anything is timed, with a reason if it cannot be."""
    entry = {"server": server.name, "format": form.name, **server.setting._asdict()}
    differences = []
    try:
        for problem in problems:
            server.wait(form, list_inputs(problem))
            outputs, expected = server.ask(form, list_inputs(problem)), compute_float64(problem)
            if outputs.shape != expected.shape:
                raise RuntimeError(f"its outputs are {outputs.shape}, not {expected.shape}")
            differences.append(float(np.abs(outputs - expected).max() / np.abs(expected).max()))
    except (RuntimeError, ValueError, LookupError, AssertionError, OSError) as error:
        return entry | {"failed": f"{type(error).__name__}: {error}".split("\n")[0]}
    entry["difference"] = max(differences)
    if not entry["difference"] <= TOLERANCE["f32"]:  # NaN fails, too
        entry["failed"] = f"differs from float64 by {entry['difference']:.1e} of the largest output"
    return entry


def take_turns(arguments, contenders, inputs, connections):
    """Adds the figures of every round, and memory, to the entries of `contenders`: (server, format,
    entry). One that does not serve every request gets the reason instead."""
    for _ in range(arguments.rounds):
        for server, form, entry in contenders:
            time.sleep(SETTLE_SECONDS)
            try:
                entry.setdefault("rounds", []).append(put_load(
                    arguments.bench, server, form, inputs, connections, arguments.seconds))
            except RuntimeError as error:
                entry["failed"] = str(error)
        contenders = [each for each in contenders if "failed" not in each[2]]
    for server, _, entry in contenders:
        entry["pss"], entry["rss"] = server.memory()


def run_case(arguments, case):
    problem = make_case_problem(case)
    timed = fill_with_ones(problem) if case.ones else problem
    entries, contenders, servers = [], [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx = folder / "layer.onnx"
        onnx.write_bytes(make_onnx(problem, any_batch=True))
        files = Files(write_layer(problem, folder), onnx, list_inputs(problem), case.batch,
                      arguments.attnd, arguments.venvs)
        try:
            start_all(arguments, files, folder, servers, entries)
            for server in servers:
                for form in server.formats:
                    entries.append(compare(server, form, [problem, timed]))
                    if "failed" not in entries[-1]:
                        contenders.append((server, form, entries[-1]))
            take_turns(arguments, contenders, list_inputs(timed), case.connections)
        finally:
            for server in servers:
                server.stop()
    return {"title": case.title, "connections": case.connections, "results": entries}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--case", choices=CASES, action="append",
                        help="may be given several times; default: all")
    parser.add_argument("--venvs", type=Path, default=Path("/tmp/served"), metavar="FOLDER",
                        help="where the peers' venvs are; default: /tmp/served")
    parser.add_argument("--workers", type=int, action="append", metavar="N",
                        help="may be given several times; default: 1, and one for each CPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4, help="length of one turn; default: 4")
    parser.add_argument("--attnd", type=Path, default=ROOT / "build/src/attnd")
    parser.add_argument("--bench", type=Path, metavar="FILE",
                        help="attnd-bench; default: beside attnd")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report")
    parser.add_argument("--from-json", type=Path, metavar="FILE",
                        help="measure nothing; print tables and plot of a report written by --json")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the plot")
    arguments = parser.parse_args()
    if not arguments.attnd.exists() and not arguments.from_json:
        parser.error(f"{arguments.attnd} does not exist; build attnd, or use --attnd")
    arguments.attnd, arguments.venvs = arguments.attnd.resolve(), arguments.venvs.resolve()
    arguments.bench = arguments.bench or arguments.attnd.with_name("attnd-bench")
    arguments.workers = arguments.workers or sorted({1, len(os.sched_getaffinity(0))})
    return arguments


def measure(arguments):
    print(f"{machine_text()}; load {os.getloadavg()[0]:.2f}; {arguments.rounds} rounds")
    cases = []
    for name in arguments.case or CASES:
        cases.append(run_case(arguments, CASES[name]))
        print_served(cases[-1])
        sys.stdout.flush()
    return {"machine": machine_text(), "date": time.strftime("%Y-%m-%d"),
            "rounds": arguments.rounds, "versions": list_versions(arguments.venvs), "cases": cases}


def main():
    arguments = parse_arguments()
    if arguments.from_json:
        report = json.loads(arguments.from_json.read_text())
    else:
        report = measure(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    print("\n" + served_markdown(report))
    if arguments.svg:
        arguments.svg.write_text(draw_served(report))
    failed = sorted({f"{entry['server']}: {entry['failed']}" for case in report["cases"]
                     for entry in case["results"] if "failed" in entry})
    sys.exit("FAILED: " + "; ".join(failed) if failed else 0)  # status 1


if __name__ == "__main__":
    main()
