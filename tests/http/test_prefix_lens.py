# SPDX-License-Identifier: Apache-2.0
"""prefix_lens: the first keys of a sequence, which a causal mask does not hide."""

import numpy as np
import pytest
import requests

from safetensors_file import make_safetensors, parse_safetensors

T = 6
SAFETENSORS = "application/vnd.safetensors"
X = np.random.default_rng(7).normal(size=(2, T, 3)).astype(np.float32)


def ask(server, fields, path="/v1/attention"):
    reply = requests.post(server.url + path, timeout=60, json=fields)
    assert reply.status_code == 200, reply.text
    return np.asarray(reply.json()["attention_weights"])


def expect_seen(prefix, window=0, positions=None, valid=T):
    """[Tq, Tk], as the page defines it: a row that sees nothing sees all."""
    places = np.arange(T) if positions is None else np.asarray(positions)
    i, j, key = places[:, None], places[None, :], np.arange(T)
    seen = (j <= i) | (key < prefix)
    if window:
        seen &= j > i - window
    seen &= key < valid
    return np.where(seen.any(-1, keepdims=True), seen, True)


@pytest.mark.parametrize("options", [
    {}, {"window": 2}, {"valid_lens": [4, 2]}, {"valid_lens": [0, 5], "window": 3},
    {"positions": [3, 5, 9, 10, 20, 21]}, {"positions": [5, 3, 0, 9, 1, 2]}, {"positions": [5, 3, 0, 9, 1, 2], "window": 3}])
def test_first_keys_are_seen_on_both_routes(demo_server, options):
    lens = [4, 1]
    fields = options | {"causal": True, "prefix_lens": lens, "need": ["weights"], "queries": X.tolist()}
    given = {"keys": X.tolist(), "num_heads": 1}
    if "positions" in options:
        given["key_positions"] = options["positions"]
    replies = [ask(demo_server, fields | {"model": "journey"}), ask(demo_server, fields | given, "/v1/attention/dot-product")]
    for b, prefix in enumerate(lens):
        seen = expect_seen(prefix, options.get("window", 0), options.get("positions"), options.get("valid_lens", [T, T])[b])
        for got in replies:
            for head in got[b]:
                np.testing.assert_array_equal(head > 0, seen, f"{options} {b}")


@pytest.mark.parametrize("prefix", [0, 3, T])
def test_every_format_has_the_bits_of_one(demo_server, prefix):
    fields = {"model": "journey", "queries": X[0].tolist(), "need": ["weights"], "prefix_lens": prefix}
    got = ask(demo_server, fields)
    mask = np.where(expect_seen(prefix), 0, None).tolist()
    np.testing.assert_array_equal(got, ask(demo_server, fields | {"prefix_lens": None, "causal": False, "attn_mask": mask}))
    body = make_safetensors({"queries": X[0], "prefix_lens": np.int64([prefix])}, {"queries": "F32", "prefix_lens": "I64"},
                            {"model": "journey", "need": "weights"})
    reply = requests.post(demo_server.url + "/v1/attention", timeout=60, data=body, headers={"Content-Type": SAFETENSORS})
    assert reply.status_code == 200, reply.text
    np.testing.assert_array_equal(parse_safetensors(reply.content)[0]["attention_weights"], np.float32(got))
    inputs = [{"name": "queries", "shape": [T, 3], "datatype": "FP32", "data": X[0].ravel().tolist()},
              {"name": "prefix_lens", "shape": [1], "datatype": "INT64", "data": [prefix]}]
    reply = requests.post(demo_server.url + "/v2/models/journey/infer", timeout=60,
                          json={"inputs": inputs, "outputs": [{"name": "attention_weights"}]})
    assert reply.status_code == 200, reply.text
    np.testing.assert_array_equal(np.float32(reply.json()["outputs"][0]["data"]), np.float32(got).ravel())


def test_sequences_of_several_lengths(demo_server):
    rows = [X[0].tolist(), X[1, :2].tolist()]
    reply = requests.post(demo_server.url + "/v1/attention", timeout=60, json={
        "model": "journey", "queries": rows, "need": ["weights"], "prefix_lens": [5, 2]}).json()["attention_weights"]
    for b, prefix in enumerate((5, 2)):
        alone = ask(demo_server, {"model": "journey", "queries": rows[b], "need": ["weights"], "prefix_lens": prefix})
        np.testing.assert_array_equal(reply[b], alone)


@pytest.mark.parametrize("changes, title, field, detail", [
    ({"prefix_lens": 7}, "Out of range", "prefix_lens", "its sequence has 6 keys"),
    ({"prefix_lens": -1}, "Out of range", "prefix_lens", "its sequence has 6 keys"),
    ({"prefix_lens": 1.5}, "Wrong type", "prefix_lens", "whole number"),
    ({"prefix_lens": True}, "Wrong type", "prefix_lens", "boolean"),
    ({"prefix_lens": [1, 2]}, "Shape mismatch", "prefix_lens", "1 sequence"),
    ({"prefix_lens": [[1], [2, 3]]}, "Wrong rank", "prefix_lens", "levels"),
    ({"prefix_lens": []}, "Empty tensor", "prefix_lens", "at least one element"),
    ({"prefix_lens": 2, "causal": False}, "Missing key", "causal", "leave it out"),
    ({"prefix_len": 2}, "Unknown key", "prefix_len", "prefix_lens")])
@pytest.mark.parametrize("path", ["/v1/attention", "/v1/attention/dot-product"])
def test_bad_lengths_name_the_field_and_the_remedy(demo_server, path, changes, title, field, detail):
    body = {"model": "journey"} if path == "/v1/attention" else {"keys": X[0].tolist(), "num_heads": 1}
    reply = requests.post(demo_server.url + path, timeout=60, json=body | {"queries": X[0].tolist(), "causal": True} | changes)
    problem = reply.json()
    assert (reply.status_code, problem["title"], problem["field"]) == (400, title, field), problem
    assert detail in problem["detail"], problem
