# SPDX-License-Identifier: Apache-2.0
"""Makes a checkpoint's folder of random attention weights, to time how fast attnd loads it.

    python3 tests/bench/make_folder.py FOLDER LAYERS WIDTH HEADS [F32|F16|BF16] [SHARDS]

It is GPT-2's, whose weights are stored transposed; without embeddings and MLPs, which attnd does not read."""

import json
import pathlib
import sys

import numpy as np


def attention_shapes(layer, width):
    return {f"h.{layer}.attn.{name}": shape for name, shape in (
        ("c_attn.weight", [width, 3 * width]), ("c_attn.bias", [3 * width]),
        ("c_proj.weight", [width, width]), ("c_proj.bias", [width]))}


def write_shard(path, tensors, dtype, numbers):
    """Writes tensors of the shapes, {name: shape}, all with the same numbers."""
    header, end = {}, 0
    for name, shape in tensors.items():
        begin, end = end, end + int(np.prod(shape)) * numbers.itemsize
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in tensors.values():
            file.write(numbers[:int(np.prod(shape))])


folder, layers, width, heads = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:5])
dtype, shards = (sys.argv[5:6] or ["F32"])[0], int((sys.argv[6:7] or ["1"])[0])
numbers = np.random.default_rng(0).normal(0, 0.02, 3 * width * width).astype(np.float32)
if dtype == "F16":
    numbers = numbers.astype(np.float16)
if dtype == "BF16":
    numbers = (numbers.view(np.uint32) >> 16).astype(np.uint16)

folder.mkdir()
(folder / "config.json").write_text(json.dumps(
    {"model_type": "gpt2", "n_embd": width, "n_head": heads, "n_layer": layers}))
places = {}
for shard in range(shards):
    name = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
    tensors = {key: shape for layer in range(shard * layers // shards, (shard + 1) * layers // shards)
               for key, shape in attention_shapes(layer, width).items()}
    write_shard(folder / name, tensors, dtype, numbers)
    places |= dict.fromkeys(tensors, name)
if shards > 1:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
