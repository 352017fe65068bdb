# SPDX-License-Identifier: Apache-2.0
"""Single heads: what head_mask leaves out, and POST /v1/heads against reruns."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import requests

from checkpoints import LAYOUTS, random_checkpoint, read_layer, write_layer
from compare import assert_close, assert_problem
from reference import attend, attend_request, layer_from_tensors
from safetensors_file import as_stored, make_safetensors, write_safetensors

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_head_that_is_left_out_cannot_overflow(start_server, tmp_path):
    """The values of head 0 overflow float32. They are not computed when nobody needs them."""
    rng = np.random.default_rng(3)
    tensors = {f"{name}.weight": rng.normal(size=(6, 6)) for name in ("W_q", "W_k", "W_v", "W_o")}
    tensors["W_v.weight"][:2] = 3e38
    path = tmp_path / "large.safetensors"
    write_safetensors(path, tensors, "F32", {"num_heads": "3"})
    server = start_server("--model", f"large={path}")
    rows = rng.normal(size=(4, 6)).round(2) + 5
    request = {"queries": [rows.tolist()], "need_weights": True}

    assert_problem(server.attention(request), 422, "Result not finite")
    reply = server.attention(request | {"head_mask": [0, 1, 1]})
    assert reply.status_code == 200, reply.text

    tensors["W_v.weight"][:2] = 0
    layer = layer_from_tensors({name: as_stored(tensor, "F32")
                                for name, tensor in tensors.items()}, 3)
    outputs, weights = attend(layer, rows, rows, rows)
    assert_close(reply.json()["outputs"][0], outputs, "outputs")
    assert_close(reply.json()["attention_weights"][0], weights, "weights")


def whole_norm(outputs):
    return np.sqrt(sum((np.asarray(rows) ** 2).sum() for rows in outputs))


def outputs_of(layer, request, **changes):
    return [outputs for outputs, _ in attend_request(layer, request | changes)]


def assert_heads(reply, layer, request):
    """Compares a reply with reruns in float64 that leave out each head, each two heads, of which gram has
    one number, and all."""
    num_heads = len(layer.heads)
    mask = np.array(request.get("head_mask") or np.ones(num_heads))
    outputs = outputs_of(layer, request)
    norm = whole_norm(outputs)
    gram = np.array(reply["gram"])
    assert gram.shape == (num_heads, num_heads) and (gram == gram.T).all()
    residual = norm / whole_norm(request["queries"]) if layer.sizes[0] == len(outputs[0][0]) else None
    for head in reply["heads"]:
        expected = None if residual is None else pytest.approx(head["importance"] * residual, rel=1e-5)
        assert head["residual_importance"] == expected
    largest = max(1, max(head["importance"] for head in reply["heads"]))
    few = [[*set] for size in (1, 2) for set in itertools.combinations(range(num_heads), size)]
    for left_out in [*few, [*range(num_heads)]]:
        some = outputs_of(layer, request,
                          head_mask=np.where(np.isin(range(num_heads), left_out), 0, mask))
        change = whole_norm([a - b for a, b in zip(outputs, some)]) / norm
        predicted = np.sqrt(max(gram[np.ix_(left_out, left_out)].sum(), 0)) / norm
        assert abs(predicted - change) <= 1e-5 * largest, (left_out, predicted, change)
        if len(left_out) == 1:
            assert abs(reply["heads"][left_out[0]]["importance"] - change) <= 1e-5 * largest


def assert_means(reply, layer, request):
    """Compares what the heads attend to with the weights of the reference."""
    itself = "keys" not in request
    weights = [w for _, w in attend_request(layer, request)]
    for h, head in enumerate(reply["heads"]):
        rows = [row for w in weights for row in w[h]]
        entropy = [-(row[row > 0] * np.log(row[row > 0])).sum() for row in rows]
        assert abs(head["entropy"] - np.mean(entropy)) <= 1e-5
        assert abs(head["mass_on_first"] - np.mean([row[0] for row in rows])) <= 1e-5
        assert head["mass_on_sink"] is None
        if not itself:
            assert head["mean_distance"] is head["mass_on_self"] is head["mass_on_previous"] is None
            continue
        at = [(i, row) for w in weights for i, row in enumerate(w[h])]
        distance = [(abs(np.arange(len(row)) - i) * row).sum() for i, row in at]
        assert abs(head["mean_distance"] - np.mean(distance)) <= 1e-4
        assert abs(head["mass_on_self"] - np.mean([row[i] for i, row in at])) <= 1e-5
        previous = [row[i - 1] for i, row in at if i > 0]
        if previous:
            assert abs(head["mass_on_previous"] - np.mean(previous)) <= 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_heads_of_every_layout_match_the_reference(start_server, tmp_path, layout):
    rng = np.random.default_rng(LAYOUTS.index(layout) + 1)
    checkpoint = random_checkpoint(rng, tmp_path, "random", layout, "F32")
    server = start_server("--model", checkpoint.argument)
    sizes = checkpoint.layer.sizes
    lens = rng.integers(1, 40, size=3).tolist()
    query, key, value = ([rng.normal(size=(length, size)).round(3).tolist() for length in lens]
                         for size in sizes)
    request = {"queries": query, "keys": key, "values": value,
               "valid_lens": [int(rng.integers(0, length + 1)) for length in lens],
               "head_mask": rng.uniform(0.5, 1, size=len(checkpoint.layer.heads)).round(2).tolist()}
    requests_ = [request]
    if len(set(sizes)) == 1:
        requests_.append({"queries": query, "causal": True})
    for body in requests_:
        reply = server.heads(body)
        assert reply.status_code == 200, reply.text
        assert reply.headers["Content-Type"] == "application/json"
        assert_heads(reply.json(), checkpoint.layer, body)
        assert_means(reply.json(), checkpoint.layer, body)


def test_heads_takes_safetensors(start_server, tmp_path):
    write_layer(tmp_path / "layer.safetensors", 3, 4, 8)
    layer = read_layer(tmp_path / "layer.safetensors")
    server = start_server("--model", f"layer={tmp_path / 'layer.safetensors'}")
    rows = np.random.default_rng(1).normal(size=(20, 8)).astype(np.float32)
    body = make_safetensors({"queries": rows}, metadata={"need_weights": "true"})
    reply = requests.post(server.url + "/v1/heads", body, timeout=60,
                          headers={"Content-Type": "application/vnd.safetensors"})
    assert reply.status_code == 200, reply.text
    assert_heads(reply.json(), layer, {"queries": [rows]})
    assert_means(reply.json(), layer, {"queries": [rows]})


def test_heads_see_the_prefix_of_each_sequence_in_both_formats(start_server, tmp_path):
    """A bias is not taken here, under either name."""
    write_layer(tmp_path / "layer.safetensors", 3, 4, 8)
    layer = read_layer(tmp_path / "layer.safetensors")
    server = start_server("--model", f"layer={tmp_path / 'layer.safetensors'}")
    rows = np.random.default_rng(6).normal(size=(2, 9, 8)).astype(np.float32)
    for options in ({"prefix_lens": [4, 0]}, {"prefix_lens": [9, 3], "valid_lens": [7, 9]}, {"prefix_lens": [2, 6], "window": 3}):
        body = {"queries": rows.tolist(), "causal": True} | options
        reply = server.heads(body)
        assert reply.status_code == 200, reply.text
        assert_heads(reply.json(), layer, body)
        assert_means(reply.json(), layer, body)

        tensors = {"queries": rows} | {name: np.array(lens) for name, lens in options.items() if name.endswith("_lens")}
        words = {"causal": "true"} | {name: str(value) for name, value in options.items() if name == "window"}
        raw = make_safetensors(tensors, {name: "F32" if name == "queries" else "I64" for name in tensors}, words)
        binary = requests.post(server.url + "/v1/heads", raw, timeout=60,
                               headers={"Content-Type": "application/vnd.safetensors"})
        assert binary.json() == reply.json(), binary.text

    problem = assert_problem(server.heads({"queries": rows[0].tolist(), "causal": True, "prefix_lens": 10}), 400, "Out of range")
    assert problem["field"] == "prefix_lens"
    for field, mask in (("bias", [0.5] * 9), ("attn_mask", [True] * 9)):
        problem = assert_problem(server.heads({"queries": rows[0].tolist(), field: mask}), 400, "Unknown key")
        assert problem["field"] == field


def test_targets_are_what_the_weights_say(start_server, tmp_path):
    write_layer(tmp_path / "layer.safetensors", 3, 4, 8)
    server = start_server("--model", f"layer={tmp_path / 'layer.safetensors'}")
    rng = np.random.default_rng(5)
    lens = (7, 12)
    rows = [rng.normal(size=(length, 8)).round(3).tolist() for length in lens]
    targets = [[None if rng.random() < 0.3 else sorted(rng.choice(length + 1, 2, False).tolist())
                for _ in range(length)] for length in lens]
    weights = server.attention({"queries": rows, "need_weights": True}).json()["attention_weights"]
    reply = server.heads({"queries": rows, "targets": targets}).json()["heads"]
    pairs = [(b, q, t) for b, some in enumerate(targets) for q, t in enumerate(some) if t]
    for h, head in enumerate(reply):
        found = [np.array(weights[b][h][q]) for b, q, _ in pairs]
        mass = np.mean([row[t[0]:t[1]].sum() for row, (_, _, t) in zip(found, pairs)])
        largest = np.mean([t[0] <= row.argmax() < t[1] for row, (_, _, t) in zip(found, pairs)])
        assert abs(head["mass_on_target"] - mass) <= 1e-5
        assert abs(head["target_is_largest"] - largest) <= 1e-9

    tensors = {"queries": np.concatenate(rows), "query_lens": lens,
               "targets": [target or [0, 0] for some in targets for target in some]}
    body = make_safetensors(tensors, {name: "I64" for name in tensors} | {"queries": "F32"})
    binary = requests.post(server.url + "/v1/heads", body, timeout=60,
                           headers={"Content-Type": "application/vnd.safetensors"})
    assert binary.json()["heads"] == reply, binary.text

    plain = server.heads({"queries": rows, "targets": [[None] * length for length in lens]}).json()
    assert plain["heads"][0]["mass_on_target"] is plain["heads"][0]["target_is_largest"] is None
    problem = assert_problem(server.heads({"queries": rows[0], "targets": [[0, 8]] * 7}), 400,
                             "Out of range")
    assert problem["field"] == "targets"


def test_token_ids_name_what_heads_look_for(demo_server):
    """Head 3 of `patterns` attends to every token with the same word."""
    body = json.loads((DOCS / "examples/patterns.json").read_text())
    words = "the dog chased the cat and the cat chased the mouse".split()
    ids = [sorted(set(words)).index(word) for word in words]
    reply = demo_server.heads(body | {"token_ids": ids})
    head = reply.json()["heads"][3]
    assert (head["tags"], head["shares"], head["weak"]) == (["same token"], [pytest.approx(1, abs=0.01)], [False]), reply.text
    rows = np.array(body["queries"], np.float32).reshape(-1, 32)
    tensors = {"queries": np.stack([rows, rows]), "token_ids": np.array(ids)}  # for both sequences
    binary = requests.post(demo_server.url + "/v1/heads", make_safetensors(tensors, {"queries": "F32", "token_ids": "I64"}, {"model": "patterns"}),
                           timeout=60, headers={"Content-Type": "application/vnd.safetensors"})
    assert binary.json()["heads"][3]["tags"] == ["same token"], binary.text

    for ids, title in ((ids[:-1], "Uneven rows"), ([2 ** 31] * 11, "Out of range"), (["a"] * 11, "Wrong type")):
        problem = assert_problem(demo_server.heads(body | {"token_ids": ids}), 400, title)
        assert problem["field"] == "token_ids"
    assert_problem(demo_server.attention(body | {"token_ids": [0] * 11}), 400, "Outputs disagree", "token_ids")


def test_tags_need_six_keys(demo_server):
    rows = np.eye(6, 32).tolist()
    for count in (5, 6):
        heads = demo_server.heads({"model": "patterns", "queries": rows[:count]}).json()["heads"]
        assert all((head["tags"] != []) == (count == 6) for head in heads)


def test_results_of_heads_that_are_not_finite_are_422(demo_server):
    large = {"model": "journey", "queries": [[3e38, 3e38, 3e38], [3e38, -3e38, 3e38]]}
    problem = assert_problem(demo_server.heads(large), 422, "Result not finite")
    assert "head 0" in problem["detail"]


def test_sum_of_heads_that_is_not_finite_is_422(start_server, tmp_path):
    """Both heads fit float32, but not their sum. Squares may leave its range."""
    tensors = {"W_q.weight": 1e-38 * np.eye(2), "W_k.weight": 1e-38 * np.eye(2),
               "W_v.weight": np.eye(2), "W_o.weight": np.array([[1, 1], [0, 0]])}
    write_safetensors(tmp_path / "sum", tensors, "F32", {"num_heads": "2"})
    server = start_server("--model", f"sum={tmp_path / 'sum'}")

    problem = assert_problem(server.heads({"queries": [[3e38, 3e38]]}), 422, "Result not finite")
    assert "all heads" in problem["detail"]
    reply = server.heads({"queries": [[1.5e38, 1.5e38]]})
    assert [head["importance"] for head in reply.json()["heads"]] == pytest.approx([0.5, 0.5])


def test_heads_of_patterns_have_the_tags_of_their_names(demo_server):
    request = json.loads((DOCS / "examples/patterns.json").read_text())
    tags = [head["tags"] for head in demo_server.heads(request).json()["heads"]]
    assert tags == [["previous"], ["next"], ["first token"], ["self"],
                    ["local window"], ["even"], ["long range"], ["causal prefix"]]
