# SPDX-License-Identifier: Apache-2.0
"""The layer in other programs: numpy, ONNX Runtime, OpenVINO.

Each maker returns a function that runs the layer once, a function that returns the outputs
[B, T, width] of the last run, and a description."""

import numpy as np

from problems import Unavailable


def make_numpy(problem, threads=None, dtype=np.float32, by_head=None):  # threads: see Peer
    """Projections of the same rows are one product, with weights transposed beforehand. `by_head`
    says whether heads are computed one by one; by default only where their scores are large."""
    batch, length, width, heads, key_length = problem.shape
    size = width // heads
    out, out_bias = (x.astype(dtype, order="C")
                     for x in (problem.weights["o"].T, problem.biases["o"]))
    outputs = None

    def projector(names, inputs):
        """Returns a function that makes [len(names), B, heads, T, size] of the inputs."""
        weight = np.concatenate([problem.weights[p] for p in names]).T.astype(dtype, order="C")
        bias = np.concatenate([problem.biases[p] for p in names]).astype(dtype)
        rows = inputs.astype(dtype).reshape(-1, width)

        def project():
            projected = rows @ weight
            projected += bias
            return projected.reshape(batch, -1, len(names), heads, size).transpose(2, 0, 3, 1, 4)

        return project

    if problem.keys is problem.queries:
        projectors = [projector("qkv", problem.queries)]
    else:
        projectors = [projector("q", problem.queries), projector("kv", problem.keys)]

    def attend(q, k, v):
        scores = q @ k.swapaxes(-1, -2)
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        return scores @ v / scores.sum(-1, keepdims=True)

    def run():
        nonlocal outputs
        q, k, v = (x for project in projectors for x in project())
        q = q * dtype(size**-0.5)
        attended = np.empty((batch, length, heads, size), dtype)
        if length * key_length < 64**2 if by_head is None else not by_head:
            attended[:] = attend(q, k, v).transpose(0, 2, 1, 3)
        else:  # head by head, so that scores stay in the cache
            for b, h in np.ndindex(batch, heads):
                attended[b, :, h] = attend(q[b, h], k[b, h], v[b, h])
        outputs = attended.reshape(-1, width) @ out
        outputs += out_bias

    return run, lambda: outputs.reshape(problem.queries.shape), f"numpy {np.__version__}"


def list_inputs(problem):
    """Returns the inputs by name; those of self-attention are one tensor."""
    inputs = {"queries": problem.queries}
    if problem.keys is not problem.queries:
        inputs["keys"] = problem.keys
    if problem.valid_lens is not None:
        inputs["valid_lens"] = problem.valid_lens
    return inputs


def make_onnx(problem, any_batch=False):
    """Returns a serialised ONNX model: MatMul + Add around the attention of com.microsoft, for the
    problem's number of sequences or for any."""
    from onnx import helper, numpy_helper
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

    listed = list_inputs(problem)
    keys = "keys" if "keys" in listed else "queries"
    project("q", "queries", "q")
    project("k", keys, "k")
    project("v", keys, "v")
    mask = ["", "valid_lens"] if "valid_lens" in listed else []  # no bias, then the mask
    nodes.append(helper.make_node("MultiHeadAttention", ["q", "k", "v", *mask], ["attended"],
                                  domain="com.microsoft", num_heads=problem.shape.heads))
    project("o", "attended", "outputs")
    inputs, outputs = ([helper.make_tensor_value_info(
                            name, helper.np_dtype_to_tensor_dtype(value.dtype),
                            ["batch" if any_batch else len(value), *value.shape[1:]])
                        for name, value in values.items()]
                       for values in (listed, {"outputs": problem.queries}))
    graph = helper.make_graph(nodes, "attention", inputs, outputs, tensors)
    return helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]).SerializeToString()


def make_session(serialised, threads, inputs):
    """Runs a serialised model whose `outputs` have the shape of `queries`, bound beforehand."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(serialised, options,
                                           providers=["CPUExecutionProvider"])
    outputs = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros_like(inputs["queries"]))
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
    binding.bind_ortvalue_output("outputs", outputs)
    return (lambda: session.run_with_iobinding(binding), outputs.numpy,
            f"ONNX Runtime {onnxruntime.__version__}")


def make_onnxruntime(problem, threads, serialise=make_onnx):
    return make_session(serialise(problem), threads, list_inputs(problem))


def make_openvino(problem, threads, precision, serialise=make_onnx):
    import openvino
    core, serialised = openvino.Core(), serialise(problem)
    compiled = core.compile_model(core.read_model(serialised), "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": precision})
    used = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if used != precision:
        raise Unavailable(f"OpenVINO computes in {used} on this CPU, not in {precision}")
    request = compiled.create_infer_request()
    for name, value in list_inputs(problem).items():
        request.set_tensor(name, openvino.Tensor(value, shared_memory=True))

    def run():
        request.infer()

    run.holds = serialised, problem  # OpenVINO has only their addresses
    return (run, lambda: request.get_output_tensor().data,
            f"OpenVINO {openvino.__version__.split('-')[0]}, {precision}")
