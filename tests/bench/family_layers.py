# SPDX-License-Identifier: Apache-2.0
"""Attention layers of published models, with random weights: their folders, as transformers reads
them, and the layer in float64."""

import json
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

import library  # finds tests/http
from safetensors_file import read_safetensors, write_safetensors

POSITIONS = 32768  # that every folder allows
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class Family(NamedTuple):
    model_type: str
    width: int
    heads: int
    key_heads: int
    head_size: int
    rope: dict = {}  # rope_parameters
    softcap: float = 0
    head_norms: bool = False
    window: int = 0
    options: dict = {}  # what else config.json has

    @property
    def hidden(self):
        return self.heads * self.head_size

    @property
    def key_hidden(self):
        return self.key_heads * self.head_size


FAMILIES = {
    "gpt2": Family("gpt2", 768, 12, 12, 64),
    "llama-3.2-1b": Family("llama", 2048, 32, 8, 64, LLAMA3 | {"factor": 32.0}),
    "llama-3.1-8b": Family("llama", 4096, 32, 8, 128, LLAMA3 | {"factor": 8.0}),
    "qwen3-0.6b": Family("qwen3", 1024, 16, 8, 128,
                         {"rope_type": "default", "rope_theta": 1e6}, head_norms=True),
    # Its layer 0 has a window of 4,096 keys.
    "gemma-2-2b": Family("gemma2", 2304, 8, 4, 256,
                         {"rope_type": "default", "rope_theta": 1e4}, softcap=50.0, window=4096,
                         options={"query_pre_attn_scalar": 256, "hidden_activation": "gelu"}),
    "mistral, window 512": Family("mistral", 4096, 32, 8, 128,
                                  {"rope_type": "default", "rope_theta": 1e4}, window=512),
    "mistral, no window": Family("mistral", 4096, 32, 8, 128,
                                 {"rope_type": "default", "rope_theta": 1e4}),
}


def make_config(family, layers=1):
    """Returns config.json. Numbers that no attention needs are small."""
    if family.model_type == "gpt2":
        return {"model_type": "gpt2", "architectures": ["GPT2Model"], "n_embd": family.width,
                "n_head": family.heads, "n_layer": layers, "n_positions": POSITIONS,
                "n_inner": 16, "vocab_size": 16, "bos_token_id": 0, "eos_token_id": 0}
    config = {"model_type": family.model_type, "hidden_size": family.width,
              "num_attention_heads": family.heads, "num_key_value_heads": family.key_heads,
              "head_dim": family.head_size, "num_hidden_layers": layers, "intermediate_size": 16,
              "vocab_size": 16, "max_position_embeddings": POSITIONS, "attention_bias": False,
              "rms_norm_eps": 1e-6, "rope_parameters": family.rope,
              "sliding_window": family.window or None} | family.options
    if family.softcap:
        config["attn_logit_softcapping"] = family.softcap
    return config


def make_tensors(family, seed=20170612):
    """Returns weights [out, in], biases and norms by the names "q", "k", "v", "o", "q.bias",
    "q.norm" and so on. Scores have a standard deviation of about 3."""
    rng = np.random.default_rng(seed)

    def weight(out, into, gain=1.0):
        return rng.normal(scale=gain / math.sqrt(into), size=(out, into)).astype("f4")

    tensors = {"q": weight(family.hidden, family.width, math.sqrt(3)),
               "k": weight(family.key_hidden, family.width, math.sqrt(3)),
               "v": weight(family.key_hidden, family.width),
               "o": weight(family.width, family.hidden)}
    if family.model_type == "gpt2":
        tensors |= {f"{p}.bias": rng.normal(scale=0.1, size=len(tensors[p])).astype("f4")
                    for p in "qkvo"}
    if family.head_norms:
        tensors |= {f"{p}.norm": rng.normal(1.3, 0.1, family.head_size).astype("f4")
                    for p in "qk"}
    return tensors


def stored_names(family, tensors, layer=0):
    """Returns the tensors as a checkpoint of the family names and arranges them."""
    if family.model_type == "gpt2":
        packed = [np.concatenate([tensors[p + part] for p in "qkv"]) for part in ("", ".bias")]
        return {f"h.{layer}.attn.c_attn.weight": packed[0].T, f"h.{layer}.attn.c_attn.bias": packed[1],
                f"h.{layer}.attn.c_proj.weight": tensors["o"].T,
                f"h.{layer}.attn.c_proj.bias": tensors["o.bias"]}
    before = f"model.layers.{layer}.self_attn."
    return ({f"{before}{p}_proj.weight": tensors[p] for p in "qkvo"}
            | {f"{before}{p}_norm.weight": tensors[f"{p}.norm"] for p in "qk" if family.head_norms})


def write_folder(folder, family, layers=1):
    """Writes a folder of equal layers. Returns the bytes of its tensors."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(make_config(family, layers)))
    tensors, stored = make_tensors(family), {}
    for layer in range(layers):
        stored |= stored_names(family, tensors, layer)
    write_safetensors(folder / "model.safetensors", stored)
    return sum(tensor.nbytes for tensor in stored.values())


def rotary_tables(family, length):
    """Returns cosines and sines [length, D/2] in float64."""
    rope, size = family.rope, family.head_size
    frequencies = rope["rope_theta"] ** (-np.arange(0, size, 2) / size)
    if rope["rope_type"] == "llama3":
        turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        kept = np.clip((turns - low) / (high - low), 0, 1)
        frequencies *= kept + (1 - kept) / rope["factor"]
    angles = np.arange(length)[:, None] * frequencies
    return np.cos(angles), np.sin(angles)


class LayerProblem(NamedTuple):
    """A layer and its input [1, T, width], which is random too."""
    family: Family
    folder: str
    tensors: dict
    queries: np.ndarray

    @property
    def length(self):
        return self.queries.shape[1]


def make_layer_problem(name, folder, length):
    """Reads nothing: the weights are made again, and equal those of the folder."""
    family = FAMILIES[name]
    rng = np.random.default_rng(length)
    return LayerProblem(family, folder, make_tensors(family),
                        rng.normal(size=(1, length, family.width)).astype("f4"))


def count_gflop(family, length):
    """Counts what a causal mask and the window leave."""
    window = min(family.window or length, length)
    pairs = length * window - window * (window - 1) / 2
    projections = 4 * length * family.width * (family.hidden + family.key_hidden)
    return (projections + 4 * pairs * family.hidden) * 1e-9


def compute_rows(problem, rows):
    """Returns the outputs of some rows in float64."""
    family, tensors = problem.family, problem.tensors
    inputs = problem.queries[0].astype("f8")

    def project(name, at, heads):
        x = at @ tensors[name].T.astype("f8") + tensors.get(f"{name}.bias", 0)
        x = x.reshape(len(at), heads, family.head_size)
        if f"{name}.norm" in tensors:
            x *= tensors[f"{name}.norm"] / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        return x

    def rotate(x, positions):
        if not family.rope:
            return x
        cos, sin = (table[positions][:, None] for table in rotary_tables(family, problem.length))
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    keys = rotate(project("k", inputs, family.key_heads), np.arange(problem.length))
    values = project("v", inputs, family.key_heads)
    queries = rotate(project("q", inputs[rows], family.heads), rows)
    attended = np.empty_like(queries)
    for i, row in enumerate(rows):
        first = max(0, row + 1 - family.window) if family.window else 0
        for head in range(family.heads):
            key_head = head * family.key_heads // family.heads
            scores = keys[first:row + 1, key_head] @ queries[i, head] / math.sqrt(family.head_size)
            if family.softcap:
                scores = family.softcap * np.tanh(scores / family.softcap)
            weights = np.exp(scores - scores.max())
            attended[i, head] = weights @ values[first:row + 1, key_head] / weights.sum()
    return attended.reshape(len(rows), -1) @ tensors["o"].T.astype("f8") + tensors.get("o.bias", 0)
