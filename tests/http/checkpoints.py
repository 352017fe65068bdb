# SPDX-License-Identifier: Apache-2.0
"""Random checkpoints in every layout that attnd knows, each with its reference layer."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reference import Layer, layer_from_tensors
from safetensors_file import as_stored, parse_safetensors, write_safetensors

LAYOUTS = ("d2l", "torch_packed", "torch_split", "llms_from_scratch", "wrapper", "two_stage",
           "d2l_additive", "torch_additive", "grouped", "timm", "nanogpt",
           "nanogpt_transposed")
DTYPES = ("F32", "F16", "BF16", "F64")


@dataclass
class Checkpoint:
    name: str
    layout: str
    path: Path
    options: dict  # those after --model NAME=FILE,
    layer: Layer

    @property
    def argument(self):
        return ",".join([f"{self.name}={self.path}",
                         *(f"{key}={value}" for key, value in self.options.items())])


def random_tensors(rng, layout, num_heads, head_size, bias=None):
    """Returns random weights whose scores are of order 1, so that no key gets all the weight.
    Whether there are biases is random too when `bias` is None."""
    width = num_heads * head_size  # H*D
    sizes = rng.integers(1, 33, size=3)  # query_size, key_size, value_size
    bias = rng.random() < 0.5 if bias is None else bias

    def weight(rows, columns):
        return rng.normal(scale=columns ** -0.5, size=(rows, columns))

    def linear(name, rows, columns, with_bias=bias):
        tensors = {name + ".weight": weight(rows, columns)}
        if with_bias:
            tensors[name + ".bias"] = rng.normal(scale=0.5, size=rows)
        return tensors

    tensors = {}
    if layout.startswith("d2l"):
        for name, columns in zip(("W_q", "W_k", "W_v"), sizes):
            tensors |= linear(name, width, columns)
        tensors |= linear("W_o", width, width)
    elif layout in ("torch_packed", "torch_additive"):
        tensors["in_proj_weight"] = weight(3 * width, width)
    elif layout == "torch_split":
        tensors["q_proj_weight"] = weight(width, width)
        tensors["k_proj_weight"] = weight(width, sizes[1])
        tensors["v_proj_weight"] = weight(width, sizes[2])
    elif layout == "llms_from_scratch":
        for name in ("W_query", "W_key", "W_value"):
            tensors |= linear(name, width, sizes[0])
        tensors |= linear("out_proj", width, width, with_bias=True)
        tensors["mask"] = np.triu(np.ones((8, 8)), 1)
    elif layout == "grouped":
        shared = head_size * int(rng.choice([n for n in range(1, num_heads + 1) if num_heads % n == 0]))
        for name, rows in (("W_query", width), ("W_key", shared), ("W_value", shared)):
            tensors |= linear(name, rows, sizes[0])
        tensors |= linear("out_proj", sizes[0], width)
    elif layout == "timm":
        tensors |= linear("qkv", 3 * width, sizes[0]) | linear("proj", sizes[1], width)
    elif layout.startswith("nanogpt"):
        tensors |= linear("c_attn", 3 * width, width) | linear("c_proj", width, width)
        tensors["bias"] = np.tril(np.ones((1, 1, 8, 8)))
        if layout == "nanogpt_transposed":
            tensors |= {f"{name}.weight": tensors[f"{name}.weight"].T.copy() for name in ("c_attn", "c_proj")}
    elif layout == "wrapper":
        for h in range(num_heads):
            for name in ("W_query", "W_key", "W_value"):
                tensors |= linear(f"heads.{h}.{name}", head_size, sizes[0])
            tensors[f"heads.{h}.mask"] = np.triu(np.ones((8, 8)), 1)
    elif layout == "two_stage":
        shared = int(rng.integers(4, 33))
        for name in ("W_Q", "W_K", "W_V"):
            tensors |= linear(name, shared, sizes[0], with_bias=False)
            for h in range(num_heads):
                tensors |= linear(f"heads.{h}.{name}", head_size, shared, with_bias=False)
        tensors |= linear("W_O", int(sizes[1]), width, with_bias=False)
    if layout.startswith("torch"):
        if bias:
            tensors["in_proj_bias"] = rng.normal(scale=0.5, size=3 * width)
        tensors |= linear("out_proj", width, width)
    if layout.endswith("additive"):
        tensors |= additive_tensors(rng, head_size)
    return tensors


def additive_tensors(rng, head_size):
    size = int(rng.integers(1, 17))
    return {"attention.W_q.weight": rng.normal(scale=head_size ** -0.5, size=(size, head_size)),
            "attention.W_k.weight": rng.normal(scale=head_size ** -0.5, size=(size, head_size)),
            "attention.w_v.weight": rng.normal(size=(1, size))}


def random_checkpoint(rng, directory, name, layout, dtype, change=lambda rng, tensors: None):
    """Writes a random checkpoint, with tensors that were changed. Where the layout does not determine the number of heads, it is
    given on the command line or in the file's __metadata__, at random. So is `causal`, sometimes.
    """
    num_heads, head_size = int(rng.integers(1, 7)), int(rng.integers(1, 13))
    tensors = random_tensors(rng, layout, num_heads, head_size)
    change(rng, tensors)
    options = {}
    if layout not in ("wrapper", "two_stage"):
        options["num_heads"] = str(num_heads)
    causal = None
    if rng.random() < 0.3:
        causal = bool(rng.random() < 0.5)
        options["causal"] = "true" if causal else "false"
    metadata = {}
    if rng.random() < 0.5:
        metadata, options = options, {}
    path = directory / f"{name}.safetensors"
    write_safetensors(path, tensors, dtype, metadata)
    stored = {key: as_stored(tensor, dtype) for key, tensor in tensors.items()}
    return Checkpoint(name, layout, path, options, layer_from_tensors(stored, num_heads, causal))


def write_layer(path, num_heads, head_size, query_size, key_size=None, value_size=None,
                additive_size=0, seed=1, **metadata):
    """Writes a d2l layer. With additive_size, scores take long to compute although requests are
    small: Tq * Tk * H * additive_size times tanh."""
    rng = np.random.default_rng(seed)
    width, key_size = num_heads * head_size, key_size or query_size
    sizes = {"W_q": query_size, "W_k": key_size, "W_v": value_size or key_size}
    tensors = {f"{name}.weight": rng.normal(scale=size ** -0.5, size=(width, size))
               for name, size in sizes.items()}
    tensors["W_o.weight"] = rng.normal(scale=width ** -0.5, size=(width, width))
    if additive_size:
        for name in ("W_q", "W_k"):
            tensors[f"attention.{name}.weight"] = rng.normal(size=(additive_size, head_size))
        tensors["attention.w_v.weight"] = rng.normal(size=(1, additive_size))
    write_safetensors(path, tensors, "F32", {"num_heads": str(num_heads)} | metadata)


def read_layer(path):
    """Returns the reference of what write_layer() wrote."""
    tensors, metadata = parse_safetensors(path.read_bytes())
    causal = {"true": True, "false": False, None: None}[metadata.get("causal")]
    return layer_from_tensors(tensors, int(metadata["num_heads"]), causal)


def write_slow_layer(path):
    """Writes a layer that needs some 0.2 s of one core for slow_request(), which has a few kB."""
    write_layer(path, num_heads=1, head_size=4, query_size=2, additive_size=512)


def slow_request(seed=0, tokens=400):
    rows = np.random.default_rng(seed).normal(size=(tokens, 2)).round(2)
    return {"queries": rows.tolist()}
