# SPDX-License-Identifier: Apache-2.0
"""Layers of published models in other programs: ONNX Runtime, and transformers on PyTorch.

Each maker returns a function that runs the layer once, a function that returns some rows of the
outputs of the last run, and a description. Causal masks and angles of rotary positions are made
beforehand, as models share them between their layers."""

import importlib

import numpy as np

from family_layers import rotary_tables, stored_names
from layer_peers import make_session
from problems import Unavailable


class Graph:
    """An ONNX graph that is being made."""

    def __init__(self):
        from onnx import helper, numpy_helper
        self.helper, self.numpy_helper, self.nodes, self.tensors = helper, numpy_helper, [], []

    def constant(self, name, value):
        self.tensors.append(self.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, kind, inputs, output, **attributes):
        outputs = [output] if isinstance(output, str) else output
        self.nodes.append(self.helper.make_node(kind, inputs, outputs, **attributes))
        return outputs[0]

    def project(self, name, source, weight, bias=None):
        product = self.node("MatMul", [source, self.constant(f"{name}.weight", weight.T)],
                            f"{name}.product")
        if bias is None:
            return product
        return self.node("Add", [product, self.constant(f"{name}.bias", bias)], name)

    def serialise(self, like):
        """Returns the model, from `queries` to `outputs`, which both have the shape of `like`."""
        from onnx import TensorProto
        inputs, outputs = ([self.helper.make_tensor_value_info(name, TensorProto.FLOAT, like.shape)]
                           for name in ("queries", "outputs"))
        graph = self.helper.make_graph(self.nodes, "attention", inputs, outputs, self.tensors)
        return self.helper.make_model(graph, ir_version=9, opset_imports=[
            self.helper.make_opsetid("", 17),
            self.helper.make_opsetid("com.microsoft", 1)]).SerializeToString()


def norm_heads(graph, problem, name, source, heads):
    """Adds the RMS norm of each head."""
    size = problem.family.head_size
    split = graph.node("Reshape", [source, graph.constant(f"{name}.split", np.array(
        [1, problem.length, heads, size]))], f"{name}.heads")
    normed = graph.node("SimplifiedLayerNormalization",
                        [split, graph.constant(f"{name}.norm", problem.tensors[f"{name}.norm"])],
                        f"{name}.normed", axis=-1, epsilon=1e-6, stash_type=1)
    return graph.node("Reshape", [normed, graph.constant(f"{name}.join", np.array(
        [1, problem.length, heads * size]))], f"{name}.rows")


def add_attention(graph, problem):
    """Adds everything up to the heads' outputs. Projections of the same rows are one product where
    nothing comes between them and the attention."""
    family, tensors = problem.family, problem.tensors
    if family.model_type == "gpt2":
        rows = [graph.project(p, "queries", tensors[p], tensors[f"{p}.bias"]) for p in "qkv"]
        return graph.node("MultiHeadAttention", rows, "attended", domain="com.microsoft",
                          num_heads=family.heads, unidirectional=1)

    if family.head_norms:
        rows = [graph.project(p, "queries", tensors[p]) for p in "qkv"]
        for i, heads in enumerate((family.heads, family.key_heads)):
            rows[i] = norm_heads(graph, problem, "qk"[i], rows[i], heads)
    else:
        packed = np.concatenate([tensors[p] for p in "qkv"])
        rows = [graph.project("qkv", "queries", packed), "", ""]
    last = np.array([problem.length - 1], np.int32)
    tables = [graph.constant(name, table.astype("f4")) for name, table
              in zip(("cosines", "sines"), rotary_tables(family, problem.length))]
    none = np.zeros((1, family.key_heads, 0, family.head_size), "f4")
    inputs = rows + [graph.constant("past keys", none), graph.constant("past values", none),
                     graph.constant("last", last),
                     graph.constant("length", np.int32(problem.length)), *tables]
    return graph.node("GroupQueryAttention", inputs, ["attended", "new keys", "new values"],
                      domain="com.microsoft", num_heads=family.heads,
                      kv_num_heads=family.key_heads, do_rotary=1, softcap=float(family.softcap),
                      local_window_size=family.window or -1)


def make_onnxruntime_family(problem, threads, rows):
    graph = Graph()
    attended = add_attention(graph, problem)
    product = graph.constant("o.weight", problem.tensors["o"].T)
    bias = problem.tensors.get("o.bias")
    graph.node("MatMul", [attended, product], "outputs" if bias is None else "o.product")
    if bias is not None:
        graph.node("Add", ["o.product", graph.constant("o.bias", bias)], "outputs")
    run, outputs, detail = make_session(graph.serialise(problem.queries), threads,
                                        {"queries": problem.queries})
    return run, lambda: outputs()[0, rows], detail


def make_transformers(problem, threads, rows, attention):
    """Runs the module of transformers with `attention`: "eager" or "sdpa"."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise Unavailable(f"{error}; install torch and transformers") from error
    family = problem.family
    if attention == "sdpa" and family.softcap:
        raise Unavailable("sdpa of transformers has no softcap")
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)

    name = family.model_type
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    title = {"gpt2": "GPT2"}.get(name, name.capitalize())
    config = transformers.AutoConfig.from_pretrained(problem.folder)
    config._attn_implementation = attention
    layer = getattr(module, f"{title}Attention")(config, layer_idx=0).eval()
    layer.load_state_dict({stored.split("attn.", 1)[1]: torch.from_numpy(np.ascontiguousarray(value))
                           for stored, value in stored_names(family, problem.tensors).items()})
    inputs = torch.from_numpy(problem.queries)
    options = {"attention_mask": None}  # causal, since the module is
    if attention == "eager":
        length = problem.length
        options["attention_mask"] = torch.full((length, length), -torch.inf).triu(1)[None, None]
    if family.rope:
        rotary = getattr(module, f"{title}RotaryEmbedding")(config)
        options["position_embeddings"] = rotary(inputs, torch.arange(problem.length)[None])
    outputs = None

    def run():
        nonlocal outputs
        outputs = layer(inputs, **options)[0]

    return (run, lambda: outputs[0].numpy()[rows],
            f"transformers {transformers.__version__} {attention} on PyTorch "
            f"{torch.__version__.split('+')[0]}")
