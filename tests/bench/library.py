# SPDX-License-Identifier: Apache-2.0
"""attnd itself: results from libattnd, times from `attnd-bench`."""

import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from problems import Unavailable, count_gflop

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from safetensors_file import write_safetensors

FLAG, SIZE, ADDRESS = ctypes.c_bool, ctypes.c_size_t, ctypes.c_void_p


def structure(**fields):
    """Returns the type of a struct in include/attnd, with its members in the same order."""
    return type("Structure", (ctypes.Structure,), {"_fields_": list(fields.items())})


Error = structure(status=ctypes.c_int, text=ctypes.c_char * 480)
UsedEngine = structure(name=ctypes.c_char_p, cpu=ctypes.c_char_p, precision=ctypes.c_char_p)
ModelInfo = structure(name=ctypes.c_char * 65, engine=UsedEngine)  # their first members
Engine = structure(engine=ctypes.c_char_p, cpu=ctypes.c_char_p, precision=ctypes.c_char_p,
                   serve_only=FLAG)
Reductions = structure(spans=ADDRESS, num_spans=SIZE, spans_per_sequence=FLAG, top_k=SIZE,
                       top_in=ADDRESS, num_top_in=SIZE, targets=ADDRESS, token_ids=ADDRESS,
                       row_weights=ADDRESS,
                       row_weights_per_head=FLAG, block=SIZE, received=FLAG, entropy=FLAG, scores=FLAG)
Request = structure(num_sequences=SIZE, query_lens=ADDRESS, key_lens=ADDRESS, queries=ADDRESS,
                    keys=ADDRESS, keys_are_queries=FLAG, encoded_keys=ADDRESS, keys_type=ctypes.c_char_p, packed=ADDRESS,
                    values=ADDRESS, valid_lens=ADDRESS, valid_lens_per_query=FLAG,
                    positions=ADDRESS, key_positions=ADDRESS, axis_positions=ADDRESS,
                    axis_key_positions=ADDRESS, causal=FLAG, prefix_lens=ADDRESS, window=SIZE, chunk=SIZE, bias=ADDRESS,
                    bias_sequence_ld=SIZE, bias_head_ld=SIZE, bias_row_ld=SIZE, head_mask=ADDRESS,
                    need_weights=ctypes.c_int, reduce=Reductions, weights_heads=ADDRESS,
                    num_weights_heads=SIZE, weights_queries=ADDRESS, num_weights_queries=SIZE,
                    omit_outputs=FLAG, need_heads=FLAG, need_contributions=FLAG, need_projections=FLAG, need_lse=FLAG,
                    parallel=ADDRESS)
Result = structure(outputs=ADDRESS, weights=ADDRESS, heads=ADDRESS, contributions=ADDRESS,
                   projected_queries=ADDRESS, projected_keys=ADDRESS, projected_values=ADDRESS, lse=ADDRESS, scores=ADDRESS, span_weights=ADDRESS, top_weights=ADDRESS,
                   top_keys=ADDRESS, target_weights=ADDRESS, received=ADDRESS, entropy=ADDRESS, block_weights=ADDRESS)
Sizes = structure(num_queries=SIZE, num_keys=SIZE, outputs=SIZE, weights=SIZE, heads=SIZE,
                  contributions=SIZE, projected_queries=SIZE, projected_keys=SIZE, projected_values=SIZE, lse=SIZE, scores=SIZE,
                  span_weights=SIZE, top=SIZE, target_weights=SIZE, received=SIZE, entropy=SIZE,
                  block_weights=SIZE, scratch_bytes=SIZE, flops=ctypes.c_double, plan=SIZE * 192)
UNSUPPORTED = 6  # ATTN_E_UNSUPPORTED


def make_attnd(problem, library, cpu, precision):
    """Runs libattnd on the calling thread. Its results do not depend on the number of threads."""
    lib, error = ctypes.CDLL(library), Error()
    lib.attn_version.restype = ctypes.c_char_p
    lib.attn_model_get_info.restype = ctypes.POINTER(ModelInfo)
    path = None

    def check(status):
        if status != 0:
            text = error.text.decode().removeprefix(f"{path}: ") or f"libattnd: status {status}"
            raise Unavailable(text) if status == UNSUPPORTED else RuntimeError(text)

    check(lib.attn_init(ctypes.byref(error)))
    model = ctypes.c_void_p()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.safetensors"
        tensors = {f"W_{p}.weight": weight for p, weight in problem.weights.items()}
        tensors |= {f"W_{p}.bias": bias for p, bias in problem.biases.items()}
        write_safetensors(path, tensors, metadata={"num_heads": str(problem.shape.heads)})
        options = Engine(None, cpu.encode(), precision.encode())
        check(lib.attn_model_load(b"peers", str(path).encode(), None, ctypes.byref(options),
                                  ctypes.byref(model), ctypes.byref(error)))
    info = lib.attn_model_get_info(model).contents
    assert info.engine.precision == precision.encode()
    query_lens, key_lens = (np.full(problem.shape.sequences, length, np.uintp)
                            for length in (problem.shape.length, problem.shape.key_length))
    keys = problem.keys.ctypes.data
    request = Request(len(query_lens), query_lens.ctypes.data, key_lens.ctypes.data,
                      problem.queries.ctypes.data, keys, values=keys)
    sizes = Sizes()
    check(lib.attn_plan(model, ctypes.byref(request), ctypes.byref(sizes), ctypes.byref(error)))
    memory = np.empty(sizes.scratch_bytes + 64, np.uint8)
    scratch = memory[-memory.ctypes.data % 64:]
    outputs = np.empty(sizes.outputs, np.float32)
    result = Result(outputs.ctypes.data)

    def run():
        lib.attn_run(model, ctypes.byref(request), ctypes.byref(sizes), ctypes.c_void_p(scratch.ctypes.data),
                     ctypes.byref(result))

    run.holds = query_lens, key_lens, problem  # libattnd has only their addresses
    return (run, lambda: outputs.reshape(problem.queries.shape),
            f"attnd {lib.attn_version().decode()}, {info.engine.name.decode()}, "
            f"{info.engine.cpu.decode()}, {precision}")


def bench_command(program):
    """Returns the command of attnd-bench, which is beside attnd. An older attnd has it as a command."""
    beside = Path(program).with_name("attnd-bench")
    return [str(beside)] if beside.exists() else [program, "bench"]


class Measured(NamedTuple):
    milliseconds: float
    cblas: float  # milliseconds of the engine openblas, beside native in float32; else None
    peak: float  # GFLOP/s of multiply-adds in registers, of the same kernels
    loaded_peak: float  # the same with operands in memory; None if attnd-bench has none


def bench_attnd(program, part, shape, threads, cpu, precision, engine, seconds):
    """Runs attnd-bench once."""
    if part == "projection":  # the same rows; sequences of one row need no work between the steps
        shape = shape._replace(sequences=shape.rows, length=1, key_length=1)
    command = [*bench_command(program), "--part", part, "--shape", ",".join(map(str, shape)),
               "--workers", str(threads), "--cpu", cpu, "--seconds", str(seconds), "--json"]
    command += ["--engine", "auto" if (engine, precision) == ("native", "f32") else engine]
    if precision != "f32":
        command += ["--precision", precision]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True,
                                       check=True).stdout)
    assert abs(report["dense_gflop"] / count_gflop(part, shape) - 1) < 1e-3, \
        "attnd-bench counts operations differently"
    result = next(r for r in report["results"]
                  if r["name"] == engine and r.get("precision", "f32") == precision)
    cblas = next((r["median_ms"] for r in report["results"] if r["name"] == "openblas"), None)
    return Measured(result["median_ms"], cblas, report["peak_gflops"],
                    report.get("loaded_peak_gflops"))
