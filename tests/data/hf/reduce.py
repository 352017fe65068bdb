#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds folders to the data: reduce.py FOLDER..., each with config.json, weights and cases.
Those that attnd refuses are left out.

What is kept of a folder is the first sequence of each case, and the layers up to the first of each
kind; BINARY (build/src/attnd) says what a layer is. Shards become one file. EXPECTED gets a line
for each layer, to be checked by hand, and MANIFEST.sha256 one for each file."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parent
ROOT = DATA.parents[2]
sys.path.insert(0, str(ROOT / "tests/http"))
from safetensors_file import read_safetensors, write_safetensors  # noqa: E402

BINARY = os.environ.get("BINARY", ROOT / "build/src/attnd")
SHARDED = {"bert"}  # these have two shards, which tests need
ALL_LAYERS = {"qwen3",  # tests/data/captures has what enters both layers
              "mllama"}  # one between the others attends to images
UNREAD = re.compile(r"\b(conv[123]|mlp|embed_tokens|lm_head)\.")  # by attention; left out where they are large
COUNTS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers",
          "num_decoder_layers", "encoder_num_hidden_layers", "decoder_num_hidden_layers")


def inspect(folder):
    """Returns what attnd says of the layers: part -> (H, KV and D, features)."""
    result = subprocess.run([BINARY, "inspect", folder], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ValueError(result.stderr.strip())
    rows = [line.split(None, 5) for line in result.stdout.splitlines()[2:]]
    return {row[0]: (*row[1:4], row[5]) for row in rows}


def number_of(name):
    """Returns the number of the layer in the name of a tensor or a part; -1 without one."""
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(found[1]) if found else -1


def count_layers(layers, tensors):
    """Returns how many layers hold one of each kind: of a part, features, sizes and tensors.

    Layers of t5 differ in the tensors only: the first one has the biases."""
    kinds = {}
    for part, features in layers.items():
        number = number_of(part)
        names = frozenset(name.replace(f".{number}.", ".", 1) for name in tensors
                          if number_of(name) == number and "att" in name.lower()
                          and ("text" not in part or "vision" not in name))
        kinds.setdefault((part.replace(str(number), "N"), features, names), number)
    return 1 + max(kinds.values())


def shorten(config, count):
    """Cuts the numbers of layers in config.json, and its lists by layer."""
    for section in config.values():
        if isinstance(section, dict):
            shorten(section, count)
    if "layers_block_type" in config:  # says how many layers there are
        config["layers_block_type"] = config["layers_block_type"][:count]
    for key in COUNTS:
        before = config.get(key)
        if not isinstance(before, int) or before <= count:
            continue
        config[key] = count
        for name, value in config.items():
            if name.endswith(("_idxs", "_indices")) and isinstance(value, list):
                config[name] = [number for number in value if number < count]
            elif "layer" in name and isinstance(value, list) and len(value) == before:
                config[name] = value[:count]
        if "num_kv_shared_layers" in config:  # the last ones
            config["num_kv_shared_layers"] = max(0, config["num_kv_shared_layers"] - before + count)


def read_cases(folder):
    """Returns the first sequence of each case; those of three axes beside the others."""
    cases = {name: tensor[:1] for name, tensor in read_safetensors(folder / "cases.safetensors").items()}
    path = folder / "cases-three-axes.safetensors"
    if not path.exists():
        return cases
    axes = read_safetensors(path)
    for name, tensor in axes.items():
        part, _, kind = name.rpartition("/")
        if kind in ("weights", "heads", "outputs"):
            cases[f"{part}/axes.{kind}"] = tensor[:1]
            cases[f"{part}/positions"] = axes["positions"].astype(np.float32)  # which attnd reads
        elif kind != "positions" and number_of(part) == min(map(number_of, axes.keys() - {"positions"})):
            assert np.array_equal(tensor[:1], cases[name]), name  # is not stored twice
    return cases


def write_weights(folder, tensors):
    """Writes the weights, as one file or as two shards."""
    if folder.name not in SHARDED:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names, index = list(tensors), {}
    for number, part in enumerate((names[0::2], names[1::2]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        write_safetensors(folder / file, {name: tensors[name] for name in part})
        index |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1) + "\n")


def reduce(source, layers):
    """Writes the reduced folder, given what attnd says of the whole; returns the lines of its layers."""
    tensors = {}
    for path in sorted(source.glob("model*.safetensors")):
        tensors |= read_safetensors(path)
    cases, config = read_cases(source), json.loads((source / "config.json").read_text())
    count = 1 + max(map(number_of, layers)) if source.name in ALL_LAYERS else count_layers(layers, tensors)
    shorten(config, count)

    folder = DATA / source.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_weights(folder, {name: tensor for name, tensor in tensors.items()
                           if number_of(name) < count and not (UNREAD.search(name) and tensor.nbytes > 512)})
    layers = inspect(folder)
    kept = {name: tensor for name, tensor in cases.items() if name.rpartition("/")[0] in layers}
    write_safetensors(folder / "cases.safetensors", kept)
    return [f"{source.name} {part}: {row[-1]}" for part, row in layers.items()]


def main():
    expected = DATA / "EXPECTED"
    lines = expected.read_text().splitlines() if expected.exists() else []
    for source in (Path(path).resolve() for path in sys.argv[1:]):
        try:
            layers = inspect(source)
        except ValueError as refusal:
            print(f"left out: {refusal}")
            continue
        added = reduce(source, layers)
        lines = [line for line in lines if line.split()[0] != source.name] + added
        print("\n".join(added))
    # Stable: the layers of a folder stay in their order.
    expected.write_text("".join(f"{line}\n" for line in sorted(lines, key=lambda line: line.split()[0])))
    (DATA / "MANIFEST.sha256").write_text("".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(DATA)}\n"
        for path in sorted(DATA.glob("*/*"))))


if __name__ == "__main__":
    main()
