# SPDX-License-Identifier: Apache-2.0
"""What heads of kept captures do (POST /v1/captures/NAME/heads), and what a file may have for all layers together."""

import numpy as np
import pytest

from patterns import SENTENCE, embed, make_tensors
from safetensors_file import make_safetensors
from server import Server
from stored import (LEAST, MIB, PATH, Asker, Layer, as_sent, ask, assert_refused, delete, encode, get, hash_of,
                    make_file, put, random_capture, server)

JSON, SAFETENSORS = "application/json", "application/vnd.safetensors"
T, H, D = 9, 2, 8
OWN = ("mean_distance", "mass_on_self", "mass_on_previous")  # of queries that are the keys


@pytest.fixture(scope="module")
def shared():
    with Server("--demo", "--capture-memory", 16 * MIB, "--workers", 2) as running:
        yield running


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def layer_of(tokens=T, keys=None, seed=0, **options):
    return Layer({"queries": normal(tokens, H, D, seed=seed), "keys": normal(keys or tokens, H, D, seed=seed + 1)},
                 {}, options)


def ask_heads(server, question=None, name="x", content_type=JSON, headers=()):
    return Asker(server).post(f"{PATH}/{name}/heads", encode(question or {}, content_type), content_type, headers)


def heads_of(server, **question):
    reply = ask_heads(server, question)
    assert reply.status == 200, reply
    assert reply.json().keys() == {"model", "heads"}
    return reply.json()["heads"]


def means_of(weights, targets=None):
    """Returns the numbers of heads [H, Tq, Tk] whose queries are the keys, in float64."""
    rows, keys = np.indices(weights.shape[1:])
    logs = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
    sums = {"entropy": -(weights * logs).sum((1, 2)) / len(rows), "mass_on_first": weights[:, :, 0].mean(1),
            "mean_distance": (weights * abs(rows - keys)).sum((1, 2)) / len(rows),
            "mass_on_self": np.trace(weights, axis1=1, axis2=2) / len(rows),
            "mass_on_previous": np.trace(weights, -1, 1, 2) / (len(rows) - 1)}
    if targets is not None:
        known = [row for row, (first, end) in enumerate(targets) if first < end]
        sums["mass_on_target"] = np.mean([weights[:, row, slice(*targets[row])].sum(-1) for row in known], 0)
    return sums


@pytest.mark.parametrize("content_type", [JSON, SAFETENSORS])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "window": 3, "softcap": 2.0, "scale": 0.7}])
def test_numbers_are_those_of_the_weights(server, options, content_type):
    targets = np.array([[0, 0], *([i - 1, i] for i in range(1, T))])
    assert put(server, "x", make_file({"0": layer_of(**options)}, targets=targets)).status == 201
    weights = np.array(ask(server, "x", {"need": ["weights"]}).json()["attention_weights"], np.float64)
    reply = ask_heads(server, {"layer": "0"}, content_type=content_type)
    found = reply.json()["heads"]
    for name, numbers in means_of(weights, targets).items():
        assert np.allclose([head[name] for head in found], numbers, rtol=1e-5, atol=1e-6), name
    assert found[0].keys() >= {"tags", "mass_on_sink", "target_is_largest"} and "importance" not in found[0]


def test_tags_and_numbers_are_those_of_the_layer_that_made_the_rows(server):
    """The eight heads of `patterns`, by their projected rows."""
    rows = np.array(embed(SENTENCE))
    weights = make_tensors()
    queries, keys = (rows @ weights[f"W_{name}.weight"].T + weights.get(f"W_{name}.bias", 0) for name in "qk")
    layer = Layer({"queries": queries.reshape(len(rows), 8, 16), "keys": keys.reshape(len(rows), 8, 16)})
    assert put(server, "x", make_file({"3": layer})).status == 201
    wanted = server.heads({"model": "patterns", "queries": rows.tolist()}).json()["heads"]
    for got, head in zip(heads_of(server), wanted, strict=True):
        assert got.keys() == head.keys() - {"importance", "residual_importance"}
        assert got["tags"] == [tag for tag in head["tags"] if tag != "unused"]
        for name in got.keys() - {"tags"}:
            assert got[name] == pytest.approx(head[name], abs=2e-5), name


def test_token_ids_of_the_file_name_heads_of_equal_tokens(server):
    """A text that comes twice: head 0 looks at the token after the earlier one, head 1 at the token itself."""
    ids = np.tile(np.random.default_rng(0).permutation(12), 2)
    rows = normal(12, 32, seed=1)[ids]
    before = np.vstack([np.zeros((1, 32)), rows[:-1]])
    layer = Layer({"queries": np.stack([2 * rows, 2 * rows], 1), "keys": np.stack([before, rows], 1)}, {}, {"causal": True})
    assert put(server, "x", make_file({"0": layer}, token_ids=ids)).status == 201
    assert [head["tags"] for head in heads_of(server)] == [["induction"], ["same token"]]
    assert put(server, "y", make_file({"0": layer})).status == 201
    reply = ask_heads(server, name="y").json()
    assert not {"induction", "same token"} & {tag for head in reply["heads"] for tag in head["tags"]}


def test_random_layers_say_what_their_weights_say(server):
    """Whatever a layer has. What is sent is put in the place of what is stored."""
    rng = np.random.default_rng(5)
    count = 0
    while count < 12:
        layers = random_capture(rng)
        assert put(server, "x", make_file(layers)).status in (200, 201)
        for name, layer in layers.items():
            if "queries" not in layer.tensors or "bias" in layer.tensors:
                continue
            count += 1
            question = {"layer": name, "causal": False} if rng.random() < 0.3 else {"layer": name}
            entropy = np.array(ask(server, "x", question | {"need": ["entropy"]}).json()["entropy"])
            found = heads_of(server, **question)
            assert np.allclose([head["entropy"] for head in found], entropy.mean(0), rtol=1e-4, atol=1e-5)
            sent = as_sent(layer, question)
            is_own = not name.endswith(".cross") and len(sent["queries"]) == len(sent["keys"])
            assert all((head[each] is None) != is_own for head in found for each in OWN if len(sent["queries"]) > 1)
        assert delete(server, "x").status == 204


def test_neighbours_are_known_where_queries_are_the_keys(server):
    layers = {"0": layer_of(), "1": layer_of(tokens=3, keys=T), "2.cross": layer_of()}
    assert put(server, "x", make_file(layers)).status == 201
    others = {"queries": normal(T, H, D, seed=7).tolist()}
    for question, is_own in (({"layer": 0}, True), ({"layer": 1}, False), ({"layer": "2.cross"}, False),
                             ({"layer": 0, "self_attention": False}, False),
                             ({"layer": "2.cross", "self_attention": True}, True),
                             ({"layer": 0, "query_rows": [0, 4]}, False), ({"layer": 0, **others}, False),
                             ({"layer": 0, "self_attention": True, **others}, True),
                             ({"layer": 1, "self_attention": True}, False)):
        for head in heads_of(server, **question):
            assert all((head[name] is not None) == is_own for name in OWN), question


def test_stored_targets_are_those_of_layers_with_as_many_queries(server):
    targets = np.array([[0, 1]] * T)
    layers = {"encoder.0": layer_of(), "decoder.0": layer_of(), "decoder.1": layer_of(tokens=4),
              "decoder.1.cross": layer_of()}
    assert put(server, "x", make_file(layers, targets=targets)).status == 201
    described = {layer["name"]: layer["targets"] for layer in get(server, "x").json()["layers"]}
    assert described == {"encoder.0": False, "decoder.0": True, "decoder.1": False, "decoder.1.cross": False}
    for name, has_targets in described.items():
        head = heads_of(server, layer=name)[0]
        assert (head["mass_on_target"] is not None) == has_targets
        assert not has_targets or head["mass_on_target"] == pytest.approx(head["mass_on_first"])
    rows = heads_of(server, layer="decoder.0", query_rows=[2, 5])[0]
    assert rows["mass_on_target"] == pytest.approx(rows["mass_on_first"])
    sent = heads_of(server, layer="decoder.0", targets=[[0, T]] * T)[0]
    assert sent["mass_on_target"] == pytest.approx(1)


# --- tensors for all layers ---

def test_hidden_states_pass_and_are_not_kept(server):
    """Their 3 MB come in several pieces, with other tensors before and behind."""
    hidden = normal(T, 40, 2100)
    layers = {"0": layer_of(), "text.1": layer_of()}
    for name, common in (("x", {"hidden_states": hidden, "token_ids": np.arange(T)}), ("y", {})):
        file = make_file(layers, **common)
        reply = put(server, name, file)
        assert reply.status == 201 and reply.json()["left_out"] == ["hidden_states"] * (name == "x")
        assert reply.json()["bytes"] == LEAST and reply.json()["sha256"] == hash_of(file)
        assert [layer["token_ids"] for layer in get(server, name).json()["layers"]] == [False, name == "x"]
        assert put(server, name, file).status == 200
    for name in layers:
        assert ask_heads(server, {"layer": name}).body == ask_heads(server, {"layer": name}, "y").body
        assert ask(server, "x", {"layer": name}).body == ask(server, "y", {"layer": name}).body


def test_what_counts_no_rows_is_left_out(server):
    common = {"token_ids": np.arange(5), "targets": np.zeros((5, 2), int), "hidden_states": normal(5, 1, 4)}
    assert put(server, "x", make_file({"0": layer_of()}, **common)).json()["left_out"] == list(common)


def test_file_of_hidden_states_says_what_it_lacks(server):
    file = make_safetensors({"hidden_states": normal(T, 2, 4), "token_ids": np.arange(T)},
                            {"hidden_states": "BF16", "token_ids": "I64"}, {})
    problem = assert_refused(put(server, "x", file), 400, "Missing key", "layers")
    assert "python3 -m attnd heads FOLDER --data FILE" in problem["detail"]


@pytest.mark.parametrize("title, field, change", [
    ("Out of range", "targets", {"targets": np.array([[0, 1]] * (T - 1) + [[0, T + 1]])}),
    ("Out of range", "targets", {"targets": np.array([[3, 3]] * T)}),
    ("Out of range", "targets", {"targets": np.array([[-1, 3]] * T)}),
    ("Out of range", "token_ids", {"token_ids": np.array([*range(T - 1), 1 << 40])}),
    ("Shape mismatch", "targets", {"targets": np.zeros((T, 3), int)}),
    ("Shape mismatch", "hidden_states", {"hidden_states": np.zeros((0, 2, 4))}),
    ("Wrong rank", "token_ids", {"token_ids": np.zeros((T, 1), int)}),
    ("Wrong rank", "hidden_states", {"hidden_states": np.zeros((T, 4))}),
    ("Unknown key", "token_id", {"token_id": np.zeros(T, int)}),
])
def test_wrong_tensors_are_refused(server, title, field, change):
    assert_refused(put(server, "x", make_file({"0": layer_of()}, **change)), 400, title, field)


@pytest.mark.parametrize("name, dtype", [("token_ids", "F32"), ("targets", "F64"), ("hidden_states", "I32")])
def test_wrong_types_are_refused(server, name, dtype):
    shape = {"token_ids": (T,), "targets": (T, 2), "hidden_states": (T, 1, 4)}[name]
    tensors = {"0.keys": normal(T, H, D), name: np.zeros(shape)}
    file = make_safetensors(tensors, {"0.keys": "F32", name: dtype}, {"layers": '["0"]'})
    assert_refused(put(server, "x", file), 400, "Wrong dtype", name)


# --- refusals ---

def test_layer_with_a_bias_names_what_to_ask_instead(server):
    layer = layer_of()
    layer.tensors["bias"] = normal(T, T)
    assert put(server, "x", make_file({"0": layer})).status == 201
    problem = assert_refused(ask_heads(server), 400, "Unknown key", "layer")
    assert "POST /v1/captures/NAME/attention" in problem["detail"]
    assert_refused(ask_heads(server, {"bias": normal(T, T).tolist()}), 400, "Unknown key", "bias")


def test_other_refusals(server):
    assert_refused(ask_heads(server), 404, "Unknown capture")
    assert put(server, "x", make_file({"0": layer_of(), "1": layer_of()})).status == 201
    assert_refused(ask_heads(server), 400, "Unknown layer", "layer")
    assert_refused(ask_heads(server, {"layer": 0}, headers=(f"Accept: {SAFETENSORS}",)), 406, "Not acceptable")
    assert_refused(ask_heads(server, {"layer": 0, "model": "d2l"}), 400, "Unknown key", "model")
    assert_refused(ask_heads(server, {"layer": 0, "self_attention": 1}), 400, "Wrong type", "self_attention")
    assert ask_heads(server, {"layer": 0, "need": ["entropy"], "timeout_ms": 60000}).status == 200
