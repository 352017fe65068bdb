# SPDX-License-Identifier: Apache-2.0
"""Scores with terms of content and position, against the same in plain float64: folders of deberta-v2, of any keys."""

import json
import math

import numpy as np
import pytest

from folders import copy_folder, refusal_of
from safetensors_file import read_safetensors, write_safetensors
from server import Server

H, D, E = 4, 12, 48

CONFIGS = {
    "buckets": {"position_buckets": 8, "max_relative_positions": 40, "share_att_key": True},
    "long": {"position_buckets": 256, "max_relative_positions": 512, "share_att_key": True,
             "norm_rel_ebd": "layer_norm", "layer_norm_eps": 0.1},
    "distances": {"position_buckets": -1, "max_relative_positions": 7, "share_att_key": False},
    "as many as positions": {"max_position_embeddings": 9, "norm_rel_ebd": "none", "share_att_key": False},
    "one term": {"position_buckets": 12, "max_relative_positions": 100, "pos_att_type": "p2c"},
}


def find_row(distance, config):
    """Returns the row of rel_embeddings for a key that is `distance` before the query."""
    longest = config.get("max_relative_positions", -1)
    longest = longest if longest > 0 else config["max_position_embeddings"]
    buckets = config.get("position_buckets", -1)
    span, middle = (buckets if buckets > 0 else longest), buckets // 2
    if buckets > 0 and abs(distance) > middle:
        steps = math.log(abs(distance) / middle) / math.log((longest - 1) / middle) * (middle - 1)
        distance = math.copysign(middle + math.ceil(steps), distance)
    return int(min(max(distance + span, 0), 2 * span - 1))


def make_folder(config, path, rng):
    """Writes a folder of one layer of random weights; returns config and tensors."""
    folder = copy_folder("deberta-v2", path)
    config = {"pos_att_type": ["c2p", "p2c"], "max_position_embeddings": 64} | config
    config |= {"model_type": "deberta-v2", "hidden_size": E, "num_attention_heads": H, "num_hidden_layers": 1,
               "relative_attention": True}
    rows = 1 + find_row(10**9, config)
    inside = "encoder.layer.0.attention."
    names = [f"self.{kind}_proj" for kind in ("query", "key", "value")] + ["output.dense"]
    names += [] if config.get("share_att_key") else ["self.pos_key_proj", "self.pos_query_proj"]
    if config["pos_att_type"] == "p2c" and not config.get("share_att_key"):
        names.remove("self.pos_key_proj")
    tensors = {f"{inside}{name}.weight": rng.normal(size=(E, E)) / E**0.5 for name in names}
    tensors |= {f"{inside}{name}.bias": rng.normal(size=E) / 3 for name in names}
    tensors |= {f"encoder.LayerNorm.{kind}": rng.normal(size=E) for kind in ("weight", "bias")}
    tensors["encoder.rel_embeddings.weight"] = rng.normal(size=(rows, E))
    tensors = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder, config, {name: tensor.astype(np.float64) for name, tensor in tensors.items()}


def compute(config, tensors, queries, keys, positions, key_positions):
    """Returns scores [H][Tq][Tk] and outputs [Tq][E]."""
    def project(name, rows):
        weight, bias = (tensors[f"encoder.layer.0.attention.{name}.{kind}"] for kind in ("weight", "bias"))
        return (rows @ weight.T + bias).reshape(len(rows), H, D).transpose(1, 0, 2)

    table = tensors["encoder.rel_embeddings.weight"]
    if config.get("norm_rel_ebd") == "layer_norm":
        table = table - table.mean(axis=-1, keepdims=True)
        table = table / np.sqrt(np.mean(table**2, axis=-1, keepdims=True) + config["layer_norm_eps"])
        table = table * tensors["encoder.LayerNorm.weight"] + tensors["encoder.LayerNorm.bias"]
    q, k, v = project("self.query_proj", queries), project("self.key_proj", keys), project("self.value_proj", keys)
    own = "self." if config.get("share_att_key") else "self.pos_"
    row = np.array([[find_row(i - j, config) for j in key_positions] for i in positions])
    scores, terms = np.einsum("hqd,hkd->hqk", q, k), 1
    if "c2p" in config["pos_att_type"]:
        scores, terms = scores + np.einsum("hqd,hqkd->hqk", q, project(own + "key_proj", table)[:, row]), terms + 1
    if "p2c" in config["pos_att_type"]:
        scores, terms = scores + np.einsum("hkd,hqkd->hqk", k, project(own + "query_proj", table)[:, row]), terms + 1
    scores /= np.sqrt(D * terms)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    heads = np.einsum("hqk,hkd->qhd", weights / weights.sum(axis=-1, keepdims=True), v).reshape(len(queries), E)
    dense = "encoder.layer.0.attention.output.dense"
    return scores, heads @ tensors[dense + ".weight"].T + tensors[dense + ".bias"]


@pytest.mark.parametrize("name", CONFIGS)
def test_terms_of_content_are_those_of_the_distance(name, tmp_path):
    rng = np.random.default_rng(7)
    folder, config, tensors = make_folder(CONFIGS[name], tmp_path, rng)
    with Server("--model", f"m={folder}") as server:
        for query_len, key_len in (33, 33), (1, 60), (50, 7), (40, 700), (2, 2500):
            queries, keys = rng.normal(size=(query_len, E)), rng.normal(size=(key_len, E))
            positions = np.sort(rng.choice(key_len + 20, query_len, replace=query_len > key_len))
            key_positions = rng.permutation(key_len) if key_len == 60 else np.arange(key_len)
            body = {"model": "m.0", "queries": queries.tolist(), "keys": keys.tolist(), "values": keys.tolist(),
                    "positions": positions.tolist(), "key_positions": key_positions.tolist(),
                    "need": ["outputs", "scores"]}
            reply = server.attention(body).json()
            scores, outputs = compute(config, tensors, queries, keys, positions, key_positions)
            for got, want in (reply["scores"], scores), (reply["outputs"], outputs):
                assert np.abs(np.reshape(got, want.shape) - want).max() <= 1e-5 * np.abs(want).max(), (query_len, key_len)


def test_what_the_terms_are_made_of_is_needed(tmp_path):
    folder = copy_folder("deberta-v2_apart", tmp_path)
    tensors = read_safetensors(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    key = "encoder.layer.0.attention.self.pos_key_proj"
    cases = ((f"{key}.weight", {}, f"'{key}.weight' is missing"), (f"{key}.bias", {}, f"'{key}.bias' is missing"),
             ("encoder.rel_embeddings.weight", {}, "'encoder.rel_embeddings.weight' is missing"),
             (None, {"max_relative_positions": 6}, "has shape [10,48], expected [12,48]"),
             (None, {"norm_rel_ebd": "layer_norm"}, "'encoder.LayerNorm.weight' is missing"),
             (None, {"share_att_key": True}, f"'{key}.bias' is not known of family deberta-v2"))
    for name, change, words in cases:
        write_safetensors(folder / "model.safetensors", {n: t for n, t in tensors.items() if n != name})
        (folder / "config.json").write_text(json.dumps(config | change))
        assert words in refusal_of("--model", f"m={folder}")
