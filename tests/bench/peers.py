# SPDX-License-Identifier: Apache-2.0
"""Times attnd's layer beside what a user could pick instead, in one run on one machine: numpy,
ONNX Runtime and OpenVINO (in float32 and in bfloat16), all on the CPU.

    python3 -m venv /tmp/peers
    /tmp/peers/bin/pip install -r tests/bench/requirements.txt
    /tmp/peers/bin/python tests/bench/peers.py --json peers.json --svg peers.svg

All get the same random weights, biases and inputs. Before anything is timed, every result is
held against float64; what differs too much is reported and not timed, and the exit status is 1.
Then everybody takes turns, round by round, and ratios are of neighbours in time: machines drift.
A round's time is the median of at least 5 measurements of at least 10 ms each, which is what
`attnd bench` does, too. Every peer lives in a process of its own, whose environment is free of
settings for BLAS and the like, and waits there while the others are timed.

attnd is timed by `attnd bench`, which has weights of its own and no biases (a bias costs it
nothing: sums start there); what is compared is libattnd with the weights of all. The peers are
called from Python with inputs and outputs bound beforehand, which costs them up to 0.01 ms.
"""

import argparse
import ctypes
import html
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

SETTINGS = ("OPENBLAS_", "GOTO_", "OMP_", "MKL_", "KMP_", "ORT_", "OV_", "ATTND_")
DROPPED = sorted(name for name in os.environ if name.startswith(SETTINGS)
                 and name not in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))
for name in DROPPED:  # before numpy loads its BLAS; processes that we start inherit this
    del os.environ[name]

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/http"))

from safetensors_file import write_safetensors

SHAPES = ["1,128,768,12", "8,512,768,12", "1,2048,768,12", "64,1,768,12", "1,1,768,12"]
TOLERANCE = {"f32": 1e-4, "bf16": 3e-2}  # of the largest output
LEAST_SECONDS = 0.01  # of one measurement; shorter work is repeated
LEAST_MEASUREMENTS = 5  # in a round
SETTLE_SECONDS = 0.1  # idle threads of the one before spin for a while; then they sleep


class Shape(NamedTuple):
    sequences: int
    length: int
    width: int
    heads: int

    @property
    def gflop(self):
        """Multiplications and additions, each counted: four projections, scores, outputs."""
        rows = self.sequences * self.length
        return (8 * rows * self.width**2 + 4 * rows * self.length * self.width) * 1e-9


class Problem(NamedTuple):
    """A layer and its input. Weights are [out, in]."""
    shape: Shape
    weights: dict  # of "q", "k", "v", "o"
    biases: dict
    inputs: np.ndarray  # [B, T, width]


def make_problem(shape):
    rng = np.random.default_rng(20170612)
    width = shape.width
    weights = {p: (rng.normal(size=(width, width)) / np.sqrt(width)).astype("f4") for p in "qkvo"}
    biases = {p: (rng.normal(size=width) / 10).astype("f4") for p in "qkvo"}
    return Problem(shape, weights, biases,
                   rng.normal(size=(shape.sequences, shape.length, width)).astype("f4"))


# What is measured: each maker returns a function that runs once, one that returns the outputs
# [B, T, width] of the last run, and what it is in words.

def make_numpy(problem, threads=None, dtype=np.float32):
    """One product for the three projections, weights transposed beforehand."""
    batch, length, width, heads = problem.shape
    size = width // heads
    into = np.concatenate([problem.weights[p] for p in "qkv"]).T.astype(dtype, order="C")
    into_bias = np.concatenate([problem.biases[p] for p in "qkv"]).astype(dtype)
    out, out_bias = (x.astype(dtype, order="C")
                     for x in (problem.weights["o"].T, problem.biases["o"]))
    rows = problem.inputs.astype(dtype).reshape(-1, width)
    outputs = None

    def attend(q, k, v):
        scores = q @ k.swapaxes(-1, -2)
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        return scores @ v / scores.sum(-1, keepdims=True)

    def run():
        nonlocal outputs
        projected = rows @ into
        projected += into_bias
        q, k, v = projected.reshape(batch, length, 3, heads, size).transpose(2, 0, 3, 1, 4)
        q = q * dtype(size**-0.5)
        attended = np.empty((batch, length, heads, size), dtype)
        if length < 64:
            attended[:] = attend(q, k, v).transpose(0, 2, 1, 3)
        else:  # head by head: the scores stay in the cache
            for b, h in np.ndindex(batch, heads):
                attended[b, :, h] = attend(q[b, h], k[b, h], v[b, h])
        outputs = attended.reshape(-1, width) @ out
        outputs += out_bias

    return run, lambda: outputs.reshape(problem.inputs.shape), f"numpy {np.__version__}"


def make_onnx(problem):
    """The layer as an ONNX model, serialised: MatMul + Add around com.microsoft's attention."""
    from onnx import TensorProto, helper, numpy_helper
    nodes, tensors = [], []

    def project(part, source, target):
        tensors.append(numpy_helper.from_array(
            np.ascontiguousarray(problem.weights[part].T), f"{part}.weight"))
        tensors.append(numpy_helper.from_array(problem.biases[part], f"{part}.bias"))
        nodes.append(helper.make_node("MatMul", [source, f"{part}.weight"], [f"{part}.product"]))
        nodes.append(helper.make_node("Add", [f"{part}.product", f"{part}.bias"], [target]))

    for part in "qkv":
        project(part, "inputs", part)
    nodes.append(helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["attended"],
                                  domain="com.microsoft", num_heads=problem.shape.heads))
    project("o", "attended", "outputs")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, problem.inputs.shape)
            for name in ("inputs", "outputs")]
    graph = helper.make_graph(nodes, "attention", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]).SerializeToString()


def make_onnxruntime(problem, threads):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(make_onnx(problem), options,
                                           providers=["CPUExecutionProvider"])
    outputs = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(problem.inputs))
    binding = session.io_binding()
    binding.bind_ortvalue_input("inputs",
                                onnxruntime.OrtValue.ortvalue_from_numpy(problem.inputs))
    binding.bind_ortvalue_output("outputs", outputs)
    return (lambda: session.run_with_iobinding(binding), outputs.numpy,
            f"ONNX Runtime {onnxruntime.__version__}")


def make_openvino(problem, threads, precision):
    import openvino
    core, serialised = openvino.Core(), make_onnx(problem)
    compiled = core.compile_model(core.read_model(serialised), "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision})
    took = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if took != precision:
        raise RuntimeError(f"OpenVINO computes in {took} on this CPU, not in {precision}")
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(problem.inputs, shared_memory=True))

    def run():
        request.infer()

    run.holds = serialised, problem  # OpenVINO only has their addresses
    return (run, lambda: request.get_output_tensor().data,
            f"OpenVINO {openvino.__version__.split('-')[0]}, {precision}")


FLAG, SIZE, ADDRESS = ctypes.c_bool, ctypes.c_size_t, ctypes.c_void_p


def structure(**fields):
    """A struct of include/attnd, its members in the header's order."""
    return type("Structure", (ctypes.Structure,), {"_fields_": list(fields.items())})


Error = structure(status=ctypes.c_int, text=ctypes.c_char * 480)
ModelInfo = structure(name=ctypes.c_char * 65, engine=ctypes.c_char_p, cpu=ctypes.c_char_p)
Request = structure(num_sequences=SIZE, query_lens=ADDRESS, key_lens=ADDRESS, queries=ADDRESS,
                    keys=ADDRESS, values=ADDRESS, valid_lens=ADDRESS, valid_lens_per_query=FLAG,
                    causal=FLAG, head_mask=ADDRESS, need_weights=ctypes.c_int, crew=ADDRESS)
Result = structure(outputs=ADDRESS, weights=ADDRESS)
Sizes = structure(num_queries=SIZE, num_keys=SIZE, outputs=SIZE, weights=SIZE, scratch_bytes=SIZE)


def make_attnd(problem, library):
    """libattnd on the calling thread; its results do not depend on the number of threads."""
    lib, error = ctypes.CDLL(library), Error()
    lib.attnd_version.restype = ctypes.c_char_p
    lib.attn_model_get_info.restype = ctypes.POINTER(ModelInfo)

    def check(status):
        if status != 0:
            raise RuntimeError(error.text.decode() or f"libattnd: status {status}")

    check(lib.attnd_init(ctypes.byref(error)))
    model = ctypes.c_void_p()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.safetensors"
        tensors = {f"W_{p}.weight": weight for p, weight in problem.weights.items()}
        tensors |= {f"W_{p}.bias": bias for p, bias in problem.biases.items()}
        write_safetensors(path, tensors, metadata={"num_heads": str(problem.shape.heads)})
        check(lib.attn_model_load(b"peers", str(path).encode(), None, ctypes.byref(model),
                                  ctypes.byref(error)))
    lens = np.full(problem.shape.sequences, problem.shape.length, np.uintp)
    x = problem.inputs.ctypes.data
    request, sizes = Request(len(lens), lens.ctypes.data, lens.ctypes.data, x, x, x), Sizes()
    check(lib.attn_plan(model, ctypes.byref(request), ctypes.byref(sizes), ctypes.byref(error)))
    memory = np.empty(sizes.scratch_bytes + 64, np.uint8)
    scratch = memory[-memory.ctypes.data % 64:]
    outputs = np.empty(sizes.outputs, np.float32)
    result = Result(outputs.ctypes.data)

    def run():
        check(lib.attn_run(model, ctypes.byref(request), ctypes.c_void_p(scratch.ctypes.data),
                           ctypes.byref(result)))

    run.holds = lens, problem  # libattnd only has their addresses
    info = lib.attn_model_get_info(model).contents
    return (run, lambda: outputs.reshape(problem.inputs.shape),
            f"attnd {lib.attnd_version().decode()}, {info.engine.decode()}, {info.cpu.decode()}")


PEERS = {
    "numpy": (make_numpy, {}),
    "onnxruntime": (make_onnxruntime, {}),
    "openvino f32": (make_openvino, {"precision": "f32"}),
    "openvino bf16": (make_openvino, {"precision": "bf16"}),
}


def time_runs(run, seconds):
    """Milliseconds of one run: the median of several measurements, the first one dropped."""
    def measure():
        runs, elapsed, began = 0, 0, time.perf_counter()
        while elapsed < LEAST_SECONDS:
            run()
            runs, elapsed = runs + 1, time.perf_counter() - began
        return elapsed / runs * 1e3

    measure()
    times, end = [], time.perf_counter() + seconds
    while len(times) < LEAST_MEASUREMENTS or time.perf_counter() < end:
        times.append(measure())
    return median(times)


def serve(connection, maker, shape, options):
    """In a process of its own: sends the outputs, then a time for every number of seconds."""
    try:
        run, outputs, detail = maker(make_problem(shape), **options)
        run()
        connection.send((np.array(outputs()), detail))
        while True:
            connection.send(time_runs(run, connection.recv()))
    except EOFError:  # the other end was closed: we are done
        pass
    except Exception as error:
        connection.send(RuntimeError(f"{type(error).__name__}: {error}".split("\n")[0]))


class Peer:
    """A process that holds one contender."""

    def __init__(self, maker, shape, threads, options):
        for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
            os.environ[name] = str(threads)
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, maker, shape, options),
                                       daemon=True)
        self.process.start()
        other.close()

    def receive(self):
        answer = self.connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def time(self, seconds):
        self.connection.send(seconds)
        return self.receive()

    def close(self):
        self.connection.close()
        self.process.join()


def bench_attnd(arguments, shape, threads, engine):
    """Milliseconds of one run and the multiply-add peak in GFLOP/s, from `attnd bench`."""
    done = subprocess.run(
        [arguments.attnd.resolve(), "bench", "--shape", ",".join(map(str, shape)), "--workers",
         str(threads), "--engine", engine, "--seconds", str(arguments.seconds), "--json"],
        stdout=subprocess.PIPE, text=True, check=True)
    report = json.loads(done.stdout)
    result = next(r for r in report["results"] if r["name"] == engine)
    assert abs(report["dense_gflop"] / shape.gflop - 1) < 1e-3, "work is counted differently"
    return result["median_ms"], report["peak_gflops"]


def compare(name, peer, expected):
    """What the report says of a peer before it is timed."""
    try:
        outputs, detail = peer.receive()
    except (RuntimeError, EOFError, OSError) as error:
        return {"refused": str(error).strip() or "its process ended"}
    difference = float(np.abs(outputs - expected).max() / np.abs(expected).max())
    entry = {"detail": detail, "difference": difference}
    if not difference <= TOLERANCE["bf16" if name.endswith("bf16") else "f32"]:  # nor NaN
        entry["refused"] = f"differs from float64 by {difference:.1e} of the largest output"
    return entry


def run_case(arguments, shape, threads, expected):
    case = {"shape": shape, "threads": threads, "gflop": shape.gflop}
    attnd = Peer(make_attnd, shape, 1, {"library": str(arguments.library.resolve())})
    entries = {"attnd": compare("attnd", attnd, expected)}
    attnd.close()
    peers = {name: Peer(maker, shape, threads, {"threads": threads} | options)
             for name, (maker, options) in PEERS.items()}
    entries |= {name: compare(name, peer, expected) for name, peer in peers.items()}
    times = {name: [] for name, entry in entries.items() if "refused" not in entry}
    peaks = []
    for _ in range(arguments.rounds if "attnd" in times else 0):
        for name in times:
            time.sleep(SETTLE_SECONDS)
            if name == "attnd":
                engine = entries["attnd"]["detail"].split(", ")[1]
                elapsed, peak = bench_attnd(arguments, shape, threads, engine)
                peaks.append(peak)
            else:
                elapsed = peers[name].time(arguments.seconds)
            times[name].append(elapsed)
    for peer in peers.values():
        peer.close()
    for name in times if peaks else ():
        mine = times[name]
        entries[name] |= {
            "rounds_ms": mine, "median_ms": median(mine), "min_ms": min(mine),
            "max_ms": max(mine), "gflops": shape.gflop / median(mine) * 1e3,
            "over_attnd": median(x / y for x, y in zip(mine, times["attnd"]))}
    return case | {"peak_gflops": median(peaks) if peaks else None, "peaks_gflops": peaks,
                   "results": entries}


def heading(case):
    *sizes, heads = case["shape"]
    return (f"({','.join(map(str, sizes))}) {heads} heads, {case['threads']} "
            f"thread{'s' * (case['threads'] > 1)}, {case['gflop']:.3f} GFLOP")


def print_case(case):
    print("\n" + heading(case), end="")
    if case["peak_gflops"]:  # where it varies much, something else ran
        print(f"; multiply-add peak {case['peak_gflops']:.0f} GFLOP/s "
              f"({min(case['peaks_gflops']):.0f}..{max(case['peaks_gflops']):.0f})", end="")
    print(f"\n  {'':14}{'ms':>10}  {'(min..max of the rounds)':26}{'GFLOP/s':>8}"
          f"{'time/attnd':>12}{'difference':>12}")
    for name, entry in case["results"].items():
        if "median_ms" in entry:
            spread = f"({entry['min_ms']:.3f}..{entry['max_ms']:.3f})"
            print(f"  {name:14}{entry['median_ms']:10.3f}  {spread:26}{entry['gflops']:8.1f}"
                  f"{entry['over_attnd']:12.2f}{entry['difference']:12.1e}")
        else:
            print(f"  {name:14}not timed: {entry.get('refused', 'attnd was refused')}")


STYLE = """
  .ground { fill: #fff } text { fill: #24292f; font: 12px sans-serif } .faint { fill: #57606a }
  .attnd { fill: #0969da } .f32 { fill: #8c959f } .bf16 { fill: #d4b072 }
  .spread { stroke: #24292f } .peak { stroke: #cf222e; stroke-dasharray: 4 3 }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #0d1117 } text { fill: #e6edf3 } .faint { fill: #9198a1 }
    .attnd { fill: #4493f8 } .f32 { fill: #6e7681 } .bf16 { fill: #8a6d3b }
    .spread { stroke: #e6edf3 } .peak { stroke: #ff7b72 }
  }
"""


def draw(cases, machine):
    """A bar of GFLOP/s for each peer, all on one scale; text and ground change together."""
    left, room, step = 110, 460, 17
    fastest = [case["gflop"] / entry["min_ms"] * 1e3 for case in cases
               for entry in case["results"].values() if "min_ms" in entry]
    most = max(fastest + [case["peak_gflops"] or 0 for case in cases] + [1])
    scale, y, body = room / most, 30, []

    def write(x, y, text, kind=""):
        body.append(f'<text x="{x}" y="{y}"{kind}>{html.escape(text)}</text>')

    def line(x1, y1, x2, y2, kind):
        body.append(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" '
                    f'y2="{y2:.1f}"/>')

    write(10, 20, "GFLOP/s of one layer, more is better", ' style="font-weight: bold"')
    for case in cases:
        y += 24
        write(10, y - 6, heading(case))
        top = y
        for name, entry in case["results"].items():
            write(left - 6, y + 12, name, ' class="faint" text-anchor="end"')
            if "median_ms" in entry:
                kind = ("attnd" if name == "attnd" else
                        "bf16" if name.endswith("bf16") else "f32")
                low, high = (left + case["gflop"] / entry[key] * 1e3 * scale
                             for key in ("max_ms", "min_ms"))
                body.append(f'<rect class="{kind}" x="{left}" y="{y + 2}" height="{step - 4}" '
                            f'width="{entry["gflops"] * scale:.1f}"/>')
                line(low, y + step / 2, high, y + step / 2, "spread")
                write(left + room + 8, y + 12,
                      f"{entry['gflops']:.0f} GFLOP/s, {entry['median_ms']:.4g} ms")
            else:
                write(left + 4, y + 12, "not timed", ' class="faint"')
            y += step
        if case["peak_gflops"]:
            peak = left + case["peak_gflops"] * scale
            line(peak, top, peak, y, "peak")
    y += 20
    write(10, y, "Dashed: the float32 multiply-add peak. Thin line in a bar: slowest to fastest "
          "round.", ' class="faint"')
    write(10, y + 17, machine, ' class="faint"')
    size = f'width="{left + room + 170}" height="{y + 30}"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{STYLE}</style>\n'
            f'<rect class="ground" {size}/>\n' + "\n".join(body) + "\n</svg>\n")


def machine_text():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} CPUs"


def parse_shape(text):
    shape = Shape(*map(int, text.split(",")))
    if min(shape) < 1 or shape.width % shape.heads:
        raise ValueError("HEADS divides WIDTH")
    return shape


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--shape", type=parse_shape, action="append", metavar="B,T,WIDTH,HEADS",
                        help="may be given several times; default: " + " ".join(SHAPES))
    parser.add_argument("--threads", type=int, action="append", help="as --shape; default: 1, 2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=1, help="of one turn; default: 1")
    parser.add_argument("--quick", action="store_true", help="two rounds of two small shapes")
    parser.add_argument("--attnd", type=Path, default=ROOT / "build/src/attnd")
    parser.add_argument("--library", type=Path, default=ROOT / "build/src/libattnd.so")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--svg", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    for path in arguments.attnd, arguments.library:
        if not path.exists():
            parser.error(f"{path} does not exist: build attnd, or say where it is")
    arguments.rounds = 2 if arguments.quick else max(arguments.rounds, 1)
    return arguments


def main():
    arguments = parse_arguments()
    machine, cases = machine_text(), []
    print(f"{machine}; load {os.getloadavg()[0]:.2f}; {arguments.rounds} rounds"
          + (f"; left out of the environment: {' '.join(DROPPED)}" if DROPPED else ""))
    for shape in arguments.shape or map(parse_shape, SHAPES[::4] if arguments.quick else SHAPES):
        run, outputs, _ = make_numpy(make_problem(shape), dtype=np.float64)
        run()
        for threads in arguments.threads or (1, 2):
            cases.append(run_case(arguments, shape, threads, outputs()))
            print_case(cases[-1])
            sys.stdout.flush()
    details = {entry["detail"] for case in cases for entry in case["results"].values()
               if "detail" in entry}
    print("\n" + "; ".join(sorted(details)))
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine, "cases": cases}, indent=1))
    if arguments.svg:
        arguments.svg.write_text(draw(cases, machine))
    refused = any("refused" in entry for case in cases for entry in case["results"].values())
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
