# SPDX-License-Identifier: Apache-2.0
"""One projection in other programs, as make_problem() describes it. Makers are as in
layer_peers.py."""

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np

from family_peers import Graph
from layer_peers import make_onnxruntime, make_openvino
from problems import Unavailable

SOURCE = Path(__file__).with_name("onednn.c")
ROWS = {"f32": 0, "bf16": 1, "f32 to bf16": 2}  # enum onednn_rows
UNIMPLEMENTED = 3  # dnnl_unimplemented


def make_numpy_product(problem, threads=None, dtype=np.float32):  # threads: see Peer
    rows = problem.queries.reshape(-1, problem.shape.width).astype(dtype)
    weight = problem.weights["o"].T.astype(dtype, order="C")
    bias = problem.biases["o"].astype(dtype)
    outputs = np.empty_like(rows)

    def run():
        np.matmul(rows, weight, out=outputs)
        np.add(outputs, bias, out=outputs)

    return (run, lambda: outputs.reshape(problem.queries.shape),
            f"numpy {np.__version__}")


def serialise_product(problem):
    graph = Graph()
    graph.project("outputs", "queries", problem.weights["o"], problem.biases["o"])
    return graph.serialise(problem.queries)


def make_graph_product(problem, threads, maker, options):
    """By a maker of layer_peers.py, which is given all rows as one matrix."""
    rows = problem.queries.reshape(-1, problem.shape.width)
    run, outputs, detail = maker(problem._replace(queries=rows, keys=rows), threads,
                                 serialise=serialise_product, **options)
    return run, lambda: outputs().reshape(problem.queries.shape), detail


def make_onnxruntime_product(problem, threads):
    return make_graph_product(problem, threads, make_onnxruntime, {})


def make_openvino_product(problem, threads, precision):
    return make_graph_product(problem, threads, make_openvino, {"precision": precision})


def build_onednn(folder):
    """Builds onednn.c in `folder`. Returns the library, or Unavailable with the reason."""
    compiler, library = os.environ.get("CC", "cc"), Path(folder) / "onednn.so"
    try:
        found = subprocess.run([compiler, "-E", SOURCE, "-o", "/dev/null"], capture_output=True,
                               text=True)
    except OSError as error:
        return Unavailable(f"no C compiler: {error}")
    if found.returncode != 0:
        reason = next((line.split("error: ")[1] for line in found.stderr.splitlines()
                       if "error: " in line), "the preprocessor failed")
        return Unavailable(f"{SOURCE.name}: {reason} (on Debian 12: apt-get install libdnnl-dev)")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", SOURCE, "-ldnnl", "-o", library],
                   check=True)
    return library


def make_onednn(problem, threads, library, rows):
    """`rows` is a key of ROWS. OpenMP has the threads: see Peer."""
    if isinstance(library, Unavailable):
        raise library
    lib = ctypes.CDLL(library)
    lib.onednn_detail.restype = ctypes.c_char_p
    outputs = np.empty_like(problem.queries)
    holds = [np.ascontiguousarray(x) for x in
             (problem.weights["o"], problem.biases["o"], problem.queries, outputs)]
    status = lib.onednn_create(ctypes.c_size_t(problem.shape.rows),
                               ctypes.c_size_t(problem.shape.width),
                               *(ctypes.c_void_p(x.ctypes.data) for x in holds), ROWS[rows])
    if status == UNIMPLEMENTED:
        raise Unavailable(f"oneDNN has no product of {rows} rows for this CPU")
    if status != 0:
        raise RuntimeError(f"oneDNN: status {status}")

    def run():
        if lib.onednn_run() != 0:
            raise RuntimeError("oneDNN: the product failed")

    run.holds = holds  # oneDNN has only their addresses
    return run, lambda: outputs, f"{lib.onednn_detail().decode()}, {rows}"
