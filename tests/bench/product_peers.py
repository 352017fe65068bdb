# SPDX-License-Identifier: Apache-2.0
"""One projection in other programs, as make_problem() describes it: numpy's BLAS and oneDNN. Makers
are as in layer_peers.py."""

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np

from problems import Unavailable

SOURCE = Path(__file__).with_name("onednn.c")
ROWS = {"f32": 0, "bf16": 1, "f32 to bf16": 2}  # enum onednn_rows
UNIMPLEMENTED = 3  # dnnl_unimplemented


def make_numpy_product(problem, threads):  # threads: see Peer
    rows = problem.queries.reshape(-1, problem.shape.width)
    weight, bias = np.ascontiguousarray(problem.weights["o"].T), problem.biases["o"]
    outputs = np.empty_like(rows)

    def run():
        np.matmul(rows, weight, out=outputs)
        np.add(outputs, bias, out=outputs)

    return (run, lambda: outputs.reshape(problem.queries.shape),
            f"numpy {np.__version__}")


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
