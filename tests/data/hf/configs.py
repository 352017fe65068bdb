#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes CONFIGS: config.json as people write it, and as the class of transformers completes it.

It needs transformers, on your machine only. A line is [model_type, config, completed]. An empty config has all
defaults of the class. Of what a class writes, only keys are kept that the table of families reads, or that change the
attention. What a class refuses is left out."""

import json
import re
from pathlib import Path

from transformers import CONFIG_MAPPING

DATA = Path(__file__).resolve().parent
FAMILIES = DATA.parents[2] / "src/weights/families"
SOURCES = "".join(path.read_text() for path in sorted(FAMILIES.rglob("*.[ch]")))
OBJECTS = {"attn_config", "text_config", "vision_config", "encoder", "decoder", "rope_parameters"}
FEW = {"num_hidden_layers": 4}
NONE_SHARED = {"num_kv_shared_layers": 0}  # of so few

# Rotary parameters in the spelling of version 4, and in one between both versions.
ROTARY = [
    {"rope_theta": 12345.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_theta": 12345.0, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    {"max_position_embeddings": 256, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0,
        "mscale_all_dim": 0.0}},
    {"rope_theta": 12345.0, "rope_scaling": None, "partial_rotary_factor": 0.5},
]
BETA = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.3}
LONG = {"type": "longrope", "short_factor": [1.5] * 48, "long_factor": [2.5] * 48}

# Their classes lose some of it: the older word "type", or the rope_theta of layers with a window.
LOSERS = {"modernbert", "modernbert-decoder", "olmo3"}

# What single families read in a way of their own.
OWN = [
    ("ministral3", {"rope_theta": 12345.0, "rope_scaling": BETA}),
    ("ministral3", {"original_max_position_embeddings": 32, "rope_scaling": BETA}),
    ("mistral4", {"rope_scaling": BETA}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 8}),
    ("smollm3", FEW | {"use_sliding_window": True, "sliding_window": 8, "no_rope_layers": [1, 0, 0, 1]}),
    ("smollm3", {"use_sliding_window": True}),
    ("voxtral", {"text_config": {"num_attention_heads": 16}}),
    ("voxtral", {"text_config": {"model_type": "llama", "head_dim": 64, "rope_theta": 500.0}}),
    ("dbrx", {"rope_theta": 2e4, "attn_config": {"rope_theta": 5e5}}),
    ("dbrx", {"max_seq_len": 256, "rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                                   "high_freq_factor": 4.0}}),
    ("cohere2", {"_sliding_window_pattern": 2}),
    ("cohere2", {"sliding_window_pattern": 2}),
    ("gemma3_text", {"_sliding_window_pattern": 2}),
    ("gemma3_text", {"sliding_window_pattern": 2}),
    ("gpt_neox", {"partial_rotary_factor": 0.5, "rope_theta": 12345.0}),
    ("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 12345.0}),
    ("gpt_neox_japanese", {"partial_rotary_factor": 0.5}),
    ("minimax_m2", {"rotary_dim": 64}),
    ("minimax_m2", {"rotary_dim": 64, "partial_rotary_factor": 0.25}),
    ("minimax_m2", {"rotary_dim": 64, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}),
    ("modernbert", {"sliding_window": 8, "local_attention": 64}),
    ("modernbert", {"local_attention": 64}),
    ("modernbert-decoder", {"local_attention": 64}),
    ("cwm", {"window_pattern": 2}),
    ("phi3", {"max_position_embeddings": 8192, "rope_scaling": LONG}),
    ("phi3", {"max_position_embeddings": 8192, "original_max_position_embeddings": 2048, "rope_scaling": LONG}),
    ("granitemoehybrid", FEW | {"layers_block_type": ["mamba", "attention", "mamba", "attention"]}),
    ("nemotron_h", {"layer_types": ["linear_attention", "full_attention", "moe", "full_attention"]}),
    ("nemotron_h", {"hybrid_override_pattern": "M*-*", "sliding_window": 8, "num_hidden_layers": 4}),
    ("moonshine", {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}),
    ("bart", {"num_attention_heads": 4, "num_hidden_layers": 3}),
    ("t5", {"head_dim": 32}),
    ("glm4_moe_lite", {"head_dim": 32}),
    ("gemma3n_text", {"query_pre_attn_scalar": 256}),
    ("qwen3_vl_moe_text", {"sliding_window": 8}),
    ("dots1", {"sliding_window": 0}),
    ("deberta-v2", {"relative_attention": True, "pos_att_type": "p2c|c2p", "position_buckets": 256,
                    "norm_rel_ebd": "layer_norm", "share_att_key": True}),
    ("gpt2", {"hidden_size": 96, "num_attention_heads": 4, "num_hidden_layers": 3}),
]


def table_types():
    """Returns each model_type of the table that transformers has."""
    words = dict.fromkeys(re.findall(r'"([\w-]+)"', SOURCES))
    rows = re.findall(r'(?:\.type = |[A-Z0-9_]{3,}\(\s*|^ {4}\{)"([\w-]+)"', SOURCES, re.M)
    return [kind for kind in dict.fromkeys(rows) if kind in words and kind in CONFIG_MAPPING]


def keep(config, words):
    """Returns what the table of families may read of a config, and what may change the attention."""
    inside = {key: keep(value, words) if key in OBJECTS and isinstance(value, dict) else value
              for key, value in config.items() if re.sub("^(en|de)coder_", "", key) in words | OBJECTS}
    return inside if "rope_type" not in config and "full_attention" not in config else config


def main():
    words = set(re.findall(r"\w+", SOURCES)) - {"architectures", "dtype", "model_type"}
    lines = []
    for kind in table_types():
        rotates = "rope_parameters" in CONFIG_MAPPING[kind]().to_dict() and kind not in LOSERS
        few = FEW | (NONE_SHARED if kind == "gemma3n_text" else {})
        cases = [{"text_config": {}} if re.search(rf'\{{"{kind}", .*, (true|false),', SOURCES) else {}]
        cases += [few | case for case in ROTARY if rotates] + [case for name, case in OWN if name == kind]
        for case in cases:
            try:
                full = CONFIG_MAPPING[kind].from_dict(json.loads(json.dumps(case)))
                full = json.loads(json.dumps(full.to_dict(), default=str))
            except Exception as error:  # of many kinds, by the class
                print(f"{kind} {case}: {type(error).__name__} {str(error)[:100]}")
                continue
            if set(full.get("layer_types") or ["?"]) == {"linear_attention"}:
                continue  # no layer has attention
            lines.append(json.dumps([kind, case, keep(full, words)], separators=(",", ":")))
    (DATA / "CONFIGS").write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} lines")


if __name__ == "__main__":
    main()
