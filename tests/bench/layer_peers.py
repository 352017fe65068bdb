# SPDX-License-Identifier: Apache-2.0
"""The layer in other programs: numpy, ONNX Runtime, OpenVINO.

Each maker returns a function that runs the layer once, a function that returns the outputs
[B, T, width] of the last run, and a description."""

import numpy as np

from problems import Unavailable


def make_numpy(problem, threads=None, dtype=np.float32, by_head=None):  # threads: see Peer
    """Computes the three projections as one product, with weights transposed beforehand. `by_head`
    says whether heads are computed one by one; by default only where their scores are large."""
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
        if length < 64 if by_head is None else not by_head:
            attended[:] = attend(q, k, v).transpose(0, 2, 1, 3)
        else:  # head by head, so that scores stay in the cache
            for b, h in np.ndindex(batch, heads):
                attended[b, :, h] = attend(q[b, h], k[b, h], v[b, h])
        outputs = attended.reshape(-1, width) @ out
        outputs += out_bias

    return run, lambda: outputs.reshape(problem.inputs.shape), f"numpy {np.__version__}"


def make_onnx(problem):
    """Returns a serialised ONNX model: MatMul + Add around the attention of com.microsoft."""
    from onnx import TensorProto, helper, numpy_helper
    nodes, tensors = [], []

    def project(projection, source, target):
        tensors.append(numpy_helper.from_array(
            np.ascontiguousarray(problem.weights[projection].T), f"{projection}.weight"))
        tensors.append(numpy_helper.from_array(problem.biases[projection],
                                               f"{projection}.bias"))
        nodes.append(helper.make_node("MatMul", [source, f"{projection}.weight"],
                                      [f"{projection}.product"]))
        nodes.append(helper.make_node("Add", [f"{projection}.product", f"{projection}.bias"],
                                      [target]))

    for name in "qkv":
        project(name, "inputs", name)
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
    used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if used != precision:
        raise Unavailable(f"OpenVINO computes in {used} on this CPU, not in {precision}")
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(problem.inputs, shared_memory=True))

    def run():
        request.infer()

    run.holds = serialised, problem  # OpenVINO has only their addresses
    return (run, lambda: request.get_output_tensor().data,
            f"OpenVINO {openvino.__version__.split('-')[0]}, {precision}")
