# SPDX-License-Identifier: Apache-2.0
"""Positions of three axes, in all protocols, against float64; and who refuses them."""

import json

import numpy as np
import pytest
import requests

import oip
from compare import assert_problem
from safetensors_file import make_safetensors, parse_safetensors, write_safetensors
from server import Server

HEADS, SIZE, SECTIONS = 2, 16, (2, 3, 3)
WIDTH = HEADS * SIZE
CONFIG = {"model_type": "qwen2_vl", "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
          "num_hidden_layers": 1, "rms_norm_eps": 1e-6, "rope_theta": 100.0, "use_sliding_window": False,
          "rope_scaling": {"type": "mrope", "mrope_section": SECTIONS}}
RNG = np.random.default_rng(26)
WEIGHTS = {f"model.layers.0.self_attn.{name}_proj.weight": RNG.normal(scale=0.3, size=(WIDTH, WIDTH)) for name in "qkvo"} | {
    f"model.layers.0.self_attn.{name}_proj.bias": RNG.normal(size=WIDTH) for name in "qkv"}
WEIGHTS["model.layers.0.input_layernorm.weight"] = np.ones(WIDTH)
ROWS = RNG.normal(size=(2, 7, WIDTH)).astype(np.float32)
# Two tokens of text, an image of 2 x 2 patches, and one more.
AXES = np.array([[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]])
BATCH = np.array([AXES, AXES + [[0], [5], [70]]])


@pytest.fixture(scope="module", name="server")
def serve_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("axes")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_safetensors(folder / "model.safetensors", {name: tensor.astype(np.float32) for name, tensor in WEIGHTS.items()})
    # The bits of OpenBLAS depend on the other rows of a request.
    with Server("--model", f"m={folder},pre_norm=false", "--engine", "native") as server:
        yield server


def rotate(rows, axes):
    """Turns heads [T, H, D], whose pairs are half of D apart, by positions [3, T]."""
    half = SIZE // 2
    angles = axes[np.repeat([0, 1, 2], SECTIONS)].T * 100.0 ** (-np.arange(half) / half)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = rows[..., :half], rows[..., half:]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)


def compute(rows, axes):
    """Returns the causal layer's outputs in float64: the mask goes by the index of a row."""
    weight = {key.split(".")[4][0] + key[-1]: tensor.astype(np.float32).astype(float) for key, tensor in WEIGHTS.items()
              if "proj" in key}
    q, k, v = ((rows @ weight[f"{name}t"].T + weight[f"{name}s"]).reshape(-1, HEADS, SIZE) for name in "qkv")
    scores = np.einsum("qhd,khd->hqk", rotate(q, axes), rotate(k, axes)) / SIZE ** 0.5
    scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    attention = np.exp(scores - scores.max(2, keepdims=True))
    attention /= attention.sum(2, keepdims=True)
    return np.einsum("hqk,khd->qhd", attention, v).reshape(-1, WIDTH) @ weight["ot"].T


def post_tensors(server, tensors):
    dtype = {name: "F32" if name == "queries" else "I64" for name in tensors}
    body = make_safetensors(tensors, dtype, {"model": "m.text.0"})
    headers = {"Content-Type": "application/vnd.safetensors"}
    return requests.post(server.url + "/v1/attention", data=body, headers=headers, timeout=60)


def post_inputs(server, rows, axes, model="m.text.0"):
    inputs = [oip.tensor("queries", rows), oip.tensor("positions", axes, "INT64", binary=True)]
    return oip.post(server, model, *oip.pack(inputs))


def assert_near(outputs, want):
    assert np.abs(np.asarray(outputs) - want).max() <= 1e-5 * np.abs(want).max()


def test_every_protocol_rotates_by_three_axes(server):
    want = np.array([compute(rows, axes) for rows, axes in zip(ROWS, BATCH)])
    reply = server.attention({"model": "m.text.0", "queries": ROWS.tolist(), "positions": BATCH.tolist()})
    outputs = np.array(reply.json()["outputs"], np.float32)
    assert_near(outputs, want)
    tensors = parse_safetensors(post_tensors(server, {"queries": ROWS, "positions": BATCH}).content)[0]
    assert np.array_equal(tensors["outputs"], outputs)
    assert np.array_equal(oip.unpack(post_inputs(server, ROWS, BATCH))[1]["outputs"], outputs)
    for rows, axes, own in zip(ROWS, BATCH, outputs):
        reply = server.attention({"model": "m.text.0", "queries": rows.tolist(), "positions": axes.tolist()})
        assert np.array_equal(np.array(reply.json()["outputs"], np.float32), own)
        assert np.array_equal(oip.unpack(post_inputs(server, rows, axes))[1]["outputs"], own)


def test_ragged_sequences_have_their_own_axes(server):
    rows, axes = [ROWS[0, :3], ROWS[1]], [BATCH[0, :, :3], BATCH[1]]
    want = np.concatenate([compute(*pair) for pair in zip(rows, axes)])
    body = {"queries": np.concatenate(rows), "query_lens": [3, 7], "positions": np.concatenate(axes, 1)}
    outputs = parse_safetensors(post_tensors(server, body).content)[0]["outputs"]
    assert_near(outputs, want)
    reply = server.attention({"model": "m.text.0", "queries": [x.tolist() for x in rows],
                              "positions": [x.tolist() for x in axes]})
    assert np.array_equal(np.concatenate(reply.json()["outputs"]).astype(np.float32), outputs)


def test_equal_axes_are_as_one(server):
    one = {"model": "m.text.0", "queries": ROWS[0].tolist(), "need_weights": True}
    plain = server.attention(one).json()
    assert server.attention(one | {"positions": [list(range(7))] * 3}).json() == plain
    assert server.attention(one | {"positions": list(range(7))}).json() == plain


def test_models_say_that_they_take_axes(server):
    ropes = {model["name"]: model["rope"] for model in server.get("/v1/models").json()["models"]}
    assert ropes == {"m.text.0": {"type": "default", "size": SIZE, "base": 100, "axes": 3, "values": False}}


def test_other_layers_refuse_axes(demo_server):
    rows = np.ones((2, 100), np.float32)
    reply = demo_server.attention({"model": "d2l", "queries": rows.tolist(), "positions": [[0, 1]] * 3})
    assert_problem(reply, 400, "Wrong rank", "positions")
    assert "only for layers whose rotation has sections" in reply.json()["detail"]
    oip.assert_error(post_inputs(demo_server, rows, np.zeros((3, 2)), "d2l"), 400, "only for layers whose rotation")
    body = {"queries": rows.reshape(1, 2, 10, 10).tolist(), "keys": rows.reshape(1, 2, 10, 10).tolist(),
            "positions": [[[0, 1]] * 3]}
    reply = requests.post(demo_server.url + "/v1/attention/dot-product", json=body, timeout=60)
    assert_problem(reply, 400, "Wrong rank", "positions")
    assert "only for layers whose rotation has sections" in reply.json()["detail"]


@pytest.mark.parametrize("positions, title", [
    ([[0] * 7] * 2, "Uneven rows"), ([[0] * 7, [0] * 6, [0] * 7], "Uneven rows"), ([[[0] * 7] * 3], "Wrong rank"),
    ([[0] * 7, [0] * 7, [0] * 6 + [-1]], "Out of range")])
def test_bad_axes_are_refused(server, positions, title):
    reply = server.attention({"model": "m.text.0", "queries": ROWS[0].tolist(), "positions": positions})
    assert_problem(reply, 400, title, "positions")
