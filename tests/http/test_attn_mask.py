# SPDX-License-Identifier: Apache-2.0
"""attn_mask, as scaled_dot_product_attention of torch has it: booleans, of which true sees, or numbers that are added."""

import json

import numpy as np
import pytest
import requests

from dot_product import SAFETENSORS, ask_json, attend, post, to_json
from programs import ROOT
from safetensors_file import make_safetensors, parse_safetensors

B, H, TQ, TK = 2, 4, 3, 6
SHAPES = [(TK,), (TQ, TK), (1, TK), (H, TQ, TK), (1, TQ, TK), (H, 1, TK), (B, H, TQ, TK), (B, 1, 1, TK), (1, 1, TQ, TK),
          (B, 1, TQ, TK), (1, H, 1, TK), (1, 1, 1, TK)]
LOWEST = float(np.finfo(np.float32).min)
NAMES = {"weights": "attention_weights", "heads": "heads", "lse": "lse"}


def make_fields(seed=0):
    rng = np.random.default_rng(seed)
    return rng, {"queries": rng.normal(size=(B, TQ, H, 5)).astype(np.float32),
                 "keys": rng.normal(size=(B, TK, 2, 5)).astype(np.float32),
                 "values": rng.normal(size=(B, TK, 2, 3)).astype(np.float32)}


def make_mask(rng, shape, booleans):
    """Where it has rows, the first one masks all keys."""
    seen = rng.random(shape) < 0.6
    if len(shape) > 1:
        seen[..., 0, :] = False
    return seen if booleans else np.where(seen, rng.normal(size=shape), -np.inf).astype(np.float32)


def expect(fields, mask, **options):
    """What float64 makes of each sequence."""
    added = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask
    added = np.broadcast_to(added, (B, H, TQ, TK))
    return [attend(fields["queries"][b], fields["keys"][b], fields["values"][b], bias=added[b], **options)
            for b in range(B)]


def ask_tensors(url, fields, dtype):
    words = {"need": ",".join(fields["need"])} | {name: str(value).lower() for name, value in fields.items()
                                                  if isinstance(value, (bool, float))}
    tensors = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    reply = post(url, make_safetensors(tensors, {name: dtype if name == "attn_mask" else "F32" for name in tensors},
                                       words), content_type=SAFETENSORS)
    assert reply.status_code == 200, reply.text
    return parse_safetensors(reply.content)[0]


def compare(got, expected, what):
    for b in range(B):
        for word, name in NAMES.items():
            wanted = expected[b][word]
            finite = np.isfinite(wanted)
            np.testing.assert_array_equal(np.isfinite(got[name][b]), finite, f"{what} {name}")
            np.testing.assert_allclose(np.asarray(got[name][b])[finite], wanted[finite], atol=1e-5, err_msg=f"{what} {name}")


@pytest.mark.parametrize("booleans", [True, False])
def test_every_shape_in_every_format(demo_server, booleans):
    for seed, shape in enumerate(SHAPES):
        rng, fields = make_fields(seed)
        fields |= {"attn_mask": make_mask(rng, shape, booleans), "need": list(NAMES)}
        expected = expect(fields, fields["attn_mask"])
        compare(ask_json(demo_server.url, fields), expected, f"JSON {shape}")
        compare(ask_tensors(demo_server.url, fields, "BOOL" if booleans else "F32"), expected, f"safetensors {shape}")


def test_booleans_have_the_bits_of_a_bias(demo_server):
    rng, fields = make_fields()
    seen = rng.random((H, TQ, TK)) < 0.5
    bias = post(demo_server.url, to_json(fields | {"bias": np.where(seen, 0, -np.inf)})).json()
    assert post(demo_server.url, to_json(fields | {"attn_mask": seen})).json() == bias


def test_numbers_of_16_bits(demo_server):
    rng, fields = make_fields()
    mask = rng.integers(-4, 5, (TQ, TK)).astype(np.float32)
    fields |= {"attn_mask": mask, "need": list(NAMES)}
    for dtype in ("F16", "BF16", "F64"):
        compare(ask_tensors(demo_server.url, fields, dtype), expect(fields, mask), dtype)


@pytest.mark.parametrize("field", ["attn_mask", "bias"])
def test_lowest_numbers_mask_and_whole_rows_of_them_are_even(demo_server, field):
    """transformers adds finfo.min where it masks, in whole rows too."""
    rng, fields = make_fields()
    mask = np.where(rng.random((B, 1, TQ, TK)) < 0.5, np.float32(LOWEST), 0)
    mask[:, :, 0] = LOWEST
    mask[:, :, 1:, 0] = 0
    got = ask_json(demo_server.url, fields | {field: mask, "need": ["weights"]})["attention_weights"]
    np.testing.assert_allclose(got[:, :, 0], 1 / TK, atol=1e-6)
    expected = expect(fields, np.where(mask < 0, -np.inf, mask))
    for b in range(B):
        np.testing.assert_allclose(got[b, :, 1:], expected[b]["weights"][:, 1:], atol=1e-6)


def test_with_every_other_option(demo_server):
    rng, fields = make_fields()
    fields["keys"], fields["values"] = fields["keys"][:, :TQ], fields["values"][:, :TQ]
    mask = rng.normal(size=(H, TQ, TQ)).astype(np.float32)
    mask[rng.random(mask.shape) < 0.3] = -np.inf
    options = {"causal": True, "softcap": 2.0, "sinks": rng.normal(size=H).astype(np.float32),
               "slopes": rng.random(H).astype(np.float32)}
    fields |= options | {"attn_mask": mask, "need": list(NAMES)}
    expected = [attend(fields["queries"][b], fields["keys"][b], fields["values"][b], bias=mask, **options)
                for b in range(B)]
    compare(ask_json(demo_server.url, fields), expected, "JSON")
    compare(ask_tensors(demo_server.url, fields, "F32"), expected, "safetensors")


BAD = {
    "both": ({"attn_mask": [True], "bias": [[0]]}, "Unknown key", "attn_mask", "remove one of them"),
    "keys": ({"attn_mask": [True]}, "Shape mismatch", "attn_mask", "of which all but Tk may be 1"),
    "queries": ({"attn_mask": [[True, True]] * 3}, "Shape mismatch", "attn_mask", "[Tq, Tk]"),
    "heads": ({"attn_mask": [[[True, True]] * 2] * 2}, "Shape mismatch", "attn_mask", "[H, Tq, Tk]"),
    "sequences": ({"attn_mask": [[[[True, True]]]] * 2}, "Shape mismatch", "attn_mask", "[B, H, Tq, Tk]"),
    "axes": ({"attn_mask": [[[[[True, True]]]]]}, "Wrong rank", "attn_mask", "1 to 4 levels"),
    "no list": ({"attn_mask": True}, "Wrong type", "attn_mask", "where true sees"),
    "a number": ({"attn_mask": 1}, "Wrong rank", "attn_mask", "1 to 4 levels"),
    "empty": ({"attn_mask": []}, "Empty tensor", "attn_mask", "at least one element"),
    "uneven": ({"attn_mask": [[True, True], [True]]}, "Uneven rows", "attn_mask", "attn_mask[1]"),
    "number after booleans": ({"attn_mask": [True, 0]}, "Wrong type", "attn_mask", "attn_mask[1] is an integer"),
    "null after booleans": ({"attn_mask": [True, None]}, "Wrong type", "attn_mask", "send a boolean"),
    "boolean after numbers": ({"attn_mask": [0, True]}, "Wrong type", "attn_mask", "or of booleans alone"),
    "text": ({"attn_mask": ["true", "true"]}, "Wrong type", "attn_mask", "is a string"),
    "0 and 1": ({"attn_mask": [1, 0]}, "Out of range", "attn_mask", "send booleans, where true is"),
    "large": ({"attn_mask": [0, 1e39]}, "Out of range", "attn_mask", "float32"),
    "bias of booleans": ({"bias": [[True, True]]}, "Wrong type", "bias", "booleans as attn_mask"),
    "attention_mask": ({"attention_mask": [1, 1]}, "Unknown key", "attention_mask", "use attn_mask"),
    "key_padding_mask": ({"key_padding_mask": [False, True]}, "Unknown key", "key_padding_mask", "the reverse"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_mask_names_the_field_and_the_remedy(demo_server, name):
    changes, title, field, detail = BAD[name]
    body = {"queries": [[[1.0], [2.0], [3.0]]] * 2, "keys": [[[1.0]], [[2.0]]]}
    reply = post(demo_server.url, json.dumps(body | changes))
    problem = reply.json()
    assert (reply.status_code, problem["title"], problem["field"]) == (400, title, field), problem
    assert detail in problem["detail"], problem


@pytest.mark.parametrize("mask, dtype, title, detail", [
    (np.ones((2, 2)), "U8", "Wrong dtype", "U8"), (np.ones((2, 2)), "I64", "Wrong dtype", "BOOL, F32"),
    (np.ones((2, 2, 2, 2, 2)), "BOOL", "Wrong rank", "[Tk], [Tq, Tk]"), (np.ones((0, 2)), "BOOL", "", "attn_mask"),
    (np.array([0, np.nan]), "F32", "Out of range", "attn_mask[1]"),
    (np.array([0, np.inf]), "F32", "Out of range", "attn_mask[1]"), (np.eye(2), "F32", "Out of range", "send booleans")])
def test_bad_tensor_names_the_field_and_the_remedy(demo_server, mask, dtype, title, detail):
    rows = np.ones((2, 1, 3), np.float32)
    tensors = {"queries": rows, "keys": rows, "attn_mask": mask}
    reply = post(demo_server.url, make_safetensors(tensors, {"queries": "F32", "keys": "F32", "attn_mask": dtype}),
                 content_type=SAFETENSORS)
    problem = reply.json()
    assert reply.status_code == 400 and problem["title"].startswith(title) and detail in problem["detail"], problem


# --- with a model ---

X = np.random.default_rng(4).normal(size=(B, 4, 3)).astype(np.float32)
MODEL = {"model": "journey", "queries": X.tolist(), "need": ["weights"]}


def ask_model(server, **fields):
    reply = requests.post(server.url + "/v1/attention", timeout=60, json=MODEL | fields)
    assert reply.status_code == 200, reply.text
    return np.asarray(reply.json()["attention_weights"])


def ask_oip(server, mask, datatype, binary=False, data=None):
    queries = {"name": "queries", "shape": list(X.shape), "datatype": "FP32", "data": X.ravel().tolist()}
    extra = {"name": "attn_mask", "shape": list(mask.shape), "datatype": datatype}
    raw = (mask if mask.dtype == bool else mask.astype("<f4")).tobytes() if binary else b""
    extra |= {"parameters": {"binary_data_size": len(raw)}} if binary else {"data": mask.tolist() if data is None else data}
    head = json.dumps({"inputs": [queries, extra], "outputs": [{"name": "attention_weights"}]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))} if binary else {}
    reply = requests.post(server.url + "/v2/models/journey/infer", timeout=60, data=head + raw, headers=headers)
    assert reply.status_code == 200, reply.text
    output, = reply.json()["outputs"]
    return np.asarray(output["data"]).reshape(output["shape"])


def expect_model(server, added):
    """The causal layer's scores with the mask, in float64; a row without a key is even."""
    reply = requests.post(server.url + "/v1/attention", timeout=60, json=MODEL | {"causal": False, "need": ["scores"]})
    scores = np.asarray(reply.json()["scores"])
    scores = np.where(np.tri(4, dtype=bool), scores + np.broadcast_to(added, scores.shape), -np.inf)
    none = np.isneginf(scores).all(-1, keepdims=True)
    powers = np.exp(np.where(none, 0, scores - np.where(none, 0, scores.max(-1, keepdims=True))))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("shape", [(4,), (4, 4), (2, 4, 4), (1, 1, 4, 4), (B, 1, 1, 4), (B, 2, 4, 4)])
def test_layer_takes_masks_in_every_format(demo_server, shape):
    rng = np.random.default_rng(len(shape))
    seen = rng.random(shape) < 0.6
    seen.flat[0] = True
    for mask, kind in ((seen, "BOOL"), (rng.normal(size=shape).astype(np.float32), "FP32")):
        expected = expect_model(demo_server, np.where(mask, 0, -np.inf) if kind == "BOOL" else mask)
        tensors = {"queries": X, "attn_mask": mask}
        raw = make_safetensors(tensors, {"queries": "F32", "attn_mask": "BOOL" if kind == "BOOL" else "F32"},
                               {"model": "journey", "need": "weights"})
        reply = requests.post(demo_server.url + "/v1/attention", timeout=60, data=raw,
                              headers={"Content-Type": SAFETENSORS})
        assert reply.status_code == 200, reply.text
        replies = [ask_model(demo_server, attn_mask=mask.tolist()), ask_oip(demo_server, mask, kind),
                   ask_oip(demo_server, mask, kind, data=mask.ravel().tolist()),
                   ask_oip(demo_server, mask, kind, binary=True), parse_safetensors(reply.content)[0]["attention_weights"]]
        if kind == "FP32":
            replies.append(ask_model(demo_server, bias=mask.tolist()))
        for got in replies:
            np.testing.assert_allclose(got, expected, atol=1e-5)
            np.testing.assert_array_equal(np.float32(got), np.float32(replies[0]))


@pytest.mark.parametrize("field", ["attn_mask", "bias"])
@pytest.mark.parametrize("causal", [True, False])
def test_layer_makes_rows_of_lowest_numbers_even(demo_server, field, causal):
    """Over the keys that the layer's own mask leaves; elsewhere they mask."""
    seen = np.random.default_rng(11).random((2, 4, 4)) < 0.5
    seen[:, [1, 3]] = False
    seen[:, [0, 2], 0] = True
    own = np.tri(4, dtype=bool) if causal else np.ones((4, 4), bool)
    expected = np.where(seen.any(-1, keepdims=True), 0, own / own.sum(-1, keepdims=True))
    masked = ask_model(demo_server, attn_mask=seen.tolist(), causal=causal)
    for dtype, lowest in (("F32", LOWEST), ("BF16", -3.3895313892515355e38)):
        mask = np.where(seen, 0, lowest)
        raw = make_safetensors({"queries": X, field: mask}, {"queries": "F32", field: dtype},
                               {"model": "journey", "need": "weights", "causal": str(causal).lower()})
        reply = requests.post(demo_server.url + "/v1/attention", timeout=60, data=raw, headers={"Content-Type": SAFETENSORS})
        assert reply.status_code == 200, reply.text
        for got in (parse_safetensors(reply.content)[0]["attention_weights"],
                    ask_model(demo_server, **{field: mask.tolist()}, causal=causal)):
            rows = ~seen.any(-1)
            np.testing.assert_allclose(got[:, rows], np.broadcast_to(expected, got.shape)[:, rows], atol=1e-6)
            np.testing.assert_allclose(got[:, ~rows], masked[:, ~rows], atol=1e-6)


BAD_OF_LAYERS = {
    "bias of booleans": ({"bias": [[True] * 4] * 4}, "Wrong type", "booleans as attn_mask"),
    "both": ({"attn_mask": [True] * 4, "bias": [0] * 4}, "Unknown key", "remove one of them"),
    "another Tk": ({"attn_mask": [True] * 3}, "Shape mismatch", "of which all but Tk may be 1"),
    "heads": ({"bias": [[[0] * 4] * 4] * 3}, "Shape mismatch", "[H, Tq, Tk]"),
    "0 and 1": ({"attn_mask": [1, 0, 1, 1]}, "Out of range", "send booleans, where true is"),
    "large": ({"bias": [0, 0, 0, 1e39]}, "Out of range", "float32"),
    "several lengths": ({"queries": [X[0].tolist(), X[1, :2].tolist()], "attn_mask": [True] * 4}, "Shape mismatch",
                        "sequences of several lengths"),
}


@pytest.mark.parametrize("name", BAD_OF_LAYERS)
def test_layer_refuses_a_bad_mask_with_the_remedy(demo_server, name):
    changes, title, detail = BAD_OF_LAYERS[name]
    problem = requests.post(demo_server.url + "/v1/attention", timeout=60, json=MODEL | changes).json()
    assert (problem["status"], problem["title"]) == (400, title) and detail in problem["detail"], problem


def test_layer_refuses_infinities_with_null_and_booleans_as_bias_in_every_format(demo_server):
    url = demo_server.url + "/v1/attention"
    body = json.dumps(MODEL | {"bias": [0, 0, 0, float("-inf")]})
    problem = requests.post(url, timeout=60, data=body, headers={"Content-Type": "application/json"}).json()
    assert problem["status"] == 400 and "null in bias" in problem["detail"] and "such as 0" not in problem["detail"], problem
    raw = make_safetensors({"queries": X, "bias": np.ones(4)}, {"queries": "F32", "bias": "BOOL"}, {"model": "journey"})
    problem = requests.post(url, timeout=60, data=raw, headers={"Content-Type": SAFETENSORS}).json()
    assert problem["status"] == 400 and "booleans as attn_mask" in problem["detail"], problem
    inputs = [{"name": "queries", "shape": list(X.shape), "datatype": "FP32", "data": X.ravel().tolist()},
              {"name": "bias", "shape": [4], "datatype": "BOOL", "data": [True] * 4}]
    reply = requests.post(demo_server.url + "/v2/models/journey/infer", timeout=60, json={"inputs": inputs})
    assert reply.status_code == 400 and "booleans as attn_mask" in reply.json()["error"], reply.text


def test_bias_of_booleans_names_attn_mask(demo_server):
    rows = np.ones((2, 1, 3), np.float32)
    reply = post(demo_server.url, make_safetensors({"queries": rows, "keys": rows, "bias": np.ones((2, 2))},
                                                   {"queries": "F32", "keys": "F32", "bias": "BOOL"}),
                 content_type=SAFETENSORS)
    assert reply.status_code == 400 and "booleans as attn_mask" in reply.json()["detail"], reply.text


def test_blocks_of_an_image_on_the_page_see_each_other(demo_server):
    page = (ROOT / "docs/protocol.md").read_text()
    body = json.loads(page.split("**Blocks of an image**")[1].split("```json")[1].split("```")[0])
    reply = requests.post(demo_server.url + "/v1/attention", timeout=60, json=body).json()
    assert np.array_equal(np.asarray(reply["attention_weights"])[0] > 0, body["attn_mask"])
