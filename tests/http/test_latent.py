# SPDX-License-Identifier: Apache-2.0
"""Latent attention, whose config.json and tensors a test makes, beside plain numpy in float64."""

import json

import numpy as np
import pytest

from folders import change_config, refusal_of, rewrite
from safetensors_file import write_safetensors
from server import Server

WIDTH, HEADS, RANK, PLAIN, SHARED, VALUE = 24, 3, 10, 6, 4, 5
QUERY_RANK = 14
MODULE = "model.layers.0.self_attn."


def make_folder(path, **changes):
    """Writes a folder of one layer with random weights; returns it, its config and tensors."""
    config = {"model_type": "deepseek_v3", "hidden_size": WIDTH, "num_attention_heads": HEADS,
              "num_key_value_heads": HEADS, "num_hidden_layers": 1, "q_lora_rank": QUERY_RANK,
              "kv_lora_rank": RANK, "qk_nope_head_dim": PLAIN, "qk_rope_head_dim": SHARED,
              "v_head_dim": VALUE, "rope_theta": 100.0} | changes
    shapes = {"kv_a_proj_with_mqa": (RANK + SHARED, WIDTH), "kv_b_proj": (HEADS * (PLAIN + VALUE), RANK),
              "o_proj": (WIDTH, HEADS * VALUE)}
    if config["q_lora_rank"] is None:
        shapes["q_proj"] = (HEADS * (PLAIN + SHARED), WIDTH)
    else:
        shapes |= {"q_a_proj": (QUERY_RANK, WIDTH), "q_b_proj": (HEADS * (PLAIN + SHARED), QUERY_RANK)}
    rng = np.random.default_rng(5)
    tensors = {f"{name}.weight": rng.normal(size=shape) * shape[1] ** -0.5 for name, shape in shapes.items()}
    tensors["kv_a_layernorm.weight"] = rng.normal(size=RANK)
    if config["q_lora_rank"] is not None:
        tensors["q_a_layernorm.weight"] = rng.normal(size=QUERY_RANK)
    if config.get("attention_bias"):
        for name in {"q_a_proj", "kv_a_proj_with_mqa", "o_proj"} & shapes.keys():
            tensors[f"{name}.bias"] = rng.normal(size=shapes[name][0])
    tensors = {name: array.astype(np.float32) for name, array in tensors.items()}
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    stored = {MODULE + name: array for name, array in tensors.items()}
    stored["model.layers.0.input_layernorm.weight"] = np.ones(WIDTH, np.float32)
    if config.get("num_nextn_predict_layers"):  # a layer that predicts more tokens, which is not served
        stored |= {name.replace("layers.0.", "layers.1."): array for name, array in stored.items()}
    write_safetensors(path / "model.safetensors", stored)
    return path, config, {name: array.astype(float) for name, array in tensors.items()}


def norm(rows, weight):
    return rows / np.sqrt((rows ** 2).mean(-1, keepdims=True) + 1e-6) * weight


def turn(rows, interleaved):
    """Turns [..., T, SHARED] to positions 0, 1, ..."""
    half = SHARED // 2
    angles = np.arange(rows.shape[-2])[:, None] * 100.0 ** (-np.arange(half) / half)
    first, second = (rows[..., ::2], rows[..., 1::2]) if interleaved else (rows[..., :half], rows[..., half:])
    return np.concatenate([first * np.cos(angles) - second * np.sin(angles),
                           second * np.cos(angles) + first * np.sin(angles)], -1)


def attend(config, tensors, queries, keys, values):
    """Returns outputs and weights of one sequence, as DeepSeek-V2's paper defines them."""
    def linear(name, rows):
        return rows @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0)

    def by_head(rows):
        return rows.reshape(len(rows), HEADS, -1).transpose(1, 0, 2)

    interleaved = config.get("rope_interleave", True)
    if config["q_lora_rank"] is None:
        q = by_head(linear("q_proj", queries))
    else:
        q = by_head(linear("q_b_proj", norm(linear("q_a_proj", queries), tensors["q_a_layernorm.weight"])))
    of_keys, of_values = (linear("kv_a_proj_with_mqa", rows) for rows in (keys, values))
    k, v = (by_head(linear("kv_b_proj", norm(rows[:, :RANK], tensors["kv_a_layernorm.weight"])))
            for rows in (of_keys, of_values))
    scores = q[..., :PLAIN] @ k[..., :PLAIN].transpose(0, 2, 1)
    scores += turn(q[..., PLAIN:], interleaved) @ turn(of_keys[:, RANK:], interleaved).T
    scores *= (PLAIN + SHARED) ** -0.5
    scores[:, np.arange(len(queries))[:, None] < np.arange(len(keys))] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    heads = (weights @ v[..., PLAIN:]).transpose(1, 0, 2).reshape(len(queries), -1)
    return linear("o_proj", heads), weights


@pytest.mark.parametrize("changes", [
    {}, {"q_lora_rank": None}, {"rope_interleave": False}, {"attention_bias": True},
    {"q_lora_rank": None, "attention_bias": True, "rope_interleave": False},
    {"num_nextn_predict_layers": 1}, {"model_type": "deepseek_v2", "q_lora_rank": None}])
@pytest.mark.parametrize("apart", [False, True])
def test_latent_attention_is_that_of_the_paper(changes, apart, tmp_path):
    """`apart` has keys and values of their own, which are different tensors."""
    folder, config, tensors = make_folder(tmp_path / "m", **changes)
    rng = np.random.default_rng(6)
    rows = [rng.normal(size=(count, WIDTH)).astype(np.float32) for count in ((7, 9, 9) if apart else (7,) * 3)]
    if not apart:
        rows = rows[:1] * 3
    request = {"queries": [rows[0].tolist()], "need_weights": True}
    if apart:
        request |= {"keys": [rows[1].tolist()], "values": [rows[2].tolist()]}
    with Server("--model", f"m={folder},pre_norm=false") as server:
        reply = server.attention(request | {"model": "m.0"}).json()
        described = server.get("/v1/models/m.0").json()
    outputs, weights = attend(config, tensors, *(array.astype(float) for array in rows))
    assert np.abs(np.array(reply["outputs"][0]) - outputs).max() <= 1e-5 * np.abs(outputs).max()
    assert np.abs(np.array(reply["attention_weights"][0]) - weights).max() <= 1e-5
    assert (described["key_head_size"], described["head_size"]) == (PLAIN + SHARED, VALUE)
    assert described["latent"] == {"query_size": config["q_lora_rank"], "key_size": RANK + SHARED,
                                   "shared": SHARED, "eps": 1e-6}


@pytest.mark.parametrize("value", [0, -1, 2 ** 24 + 1, 2 ** 63, 1.5, "4", [4]])
@pytest.mark.parametrize("key", ["q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"])
def test_bad_size_is_refused_by_its_key(key, value, tmp_path):
    folder, _, _ = make_folder(tmp_path / "m")
    change_config(folder, **{key: value})
    line = refusal_of("--model", f"m={folder}")
    assert key in line or "is not valid JSON" in line and value == 2 ** 63


@pytest.mark.parametrize("changes, words", [
    ({"qk_rope_head_dim": 3}, "qk_rope_head_dim is 3, but rotated numbers come in pairs"),
    ({"num_key_value_heads": 1}, "num_key_value_heads is 1, but with latent attention"),
    ({"kv_lora_rank": 11}, "kv_a_proj_with_mqa.weight' has shape [14,24], expected [15,24]"),
    ({"q_lora_rank": 2 ** 24}, "q_a_proj.weight' has shape [14,24], expected [16777216,24]"),
    ({"qk_nope_head_dim": 2 ** 24}, "q_b_proj.weight' has shape [30,14]"),
    ({"v_head_dim": 6}, "kv_b_proj.weight' has shape [33,10], expected [36,10]"),
    ({"q_lora_rank": None}, "q_proj.weight' is missing"),
    ({"attention_bias": True}, "q_a_proj.bias' is missing"),
    ({"rope_interleave": 1}, "rope_interleave is 1")])
def test_config_of_another_model_is_refused(changes, words, tmp_path):
    folder, _, _ = make_folder(tmp_path / "m")
    change_config(folder, **changes)
    assert words in refusal_of("--model", f"m={folder}")


@pytest.mark.parametrize("name, shape, words", [
    ("kv_b_proj.weight", (HEADS * (PLAIN + VALUE) + 1, RANK), "expected [33,10]"),
    ("kv_a_layernorm.weight", (RANK + SHARED,), "expected [10]"),
    ("q_a_layernorm.weight", None, "is missing"),
    ("kv_b_proj.bias", (HEADS * (PLAIN + VALUE),), "does not have"),
    ("q_proj.weight", (HEADS * (PLAIN + SHARED), WIDTH), "is not known of family")])
def test_bad_tensor_is_refused_by_its_name(name, shape, words, tmp_path):
    def change(tensors):
        tensors.pop(MODULE + name, None)
        if shape is not None:
            tensors[MODULE + name] = np.zeros(shape, np.float32)

    folder, _, _ = make_folder(tmp_path / "m")
    rewrite(folder, change)
    line = refusal_of("--model", f"m={folder}")
    assert MODULE + name in line and words in line
