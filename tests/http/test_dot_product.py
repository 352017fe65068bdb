# SPDX-License-Identifier: Apache-2.0
"""POST /v1/attention/dot-product and the words of need that reduce weights, against numpy."""
import json

import numpy as np
import pytest
import requests
from reload import wait_for_log
from safetensors_file import make_safetensors
from server import Server

PATH = "/v1/attention/dot-product"
BINARY = "application/octet-stream"


@pytest.fixture(name="server", scope="module")
def start_demo():
    server = Server("--demo")
    yield server
    server.stop()


def post(server, **body):
    return requests.post(server.url + PATH, timeout=60, **body)


def post_tensors(server, tensors, metadata=None, keys="F32"):
    types = {name: "F32" if array.dtype == np.float32 else "I64" for name, array in tensors.items()}
    return post(server, data=make_safetensors(tensors, {**types, "keys": keys}, metadata),
                headers={"Content-Type": BINARY})


def read_reply(reply):
    assert reply.status_code == 200, reply.text
    size = int.from_bytes(reply.content[:8], "little")
    header, data = json.loads(reply.content[8:8 + size]), reply.content[8 + size:]
    assert header.pop("__metadata__") == {"model": "dot-product"}
    return {name: np.frombuffer(data[slice(*entry["data_offsets"])],
                                {"F32": "<f4", "I64": "<i8"}[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in header.items()}


def score(queries, keys, scale=None, softcap=None, slopes=None, bias=None, causal=False,
          window=0, valid=None, positions=None, key_positions=None):
    """Returns the scores [H, Tq, Tk] of one sequence, queries [Tq, H, D] and keys [Tk, KV, D]."""
    heads, size = queries.shape[1:]
    keys = np.repeat(keys.astype(float), heads // keys.shape[1], axis=1)
    scores = np.einsum("qhd,khd->hqk", queries.astype(float), keys) * (scale or size ** -0.5)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    i = np.arange(len(queries)) if positions is None else np.asarray(positions)
    j = np.arange(len(keys)) if key_positions is None else np.asarray(key_positions)
    far = j[None] - i[:, None]
    if slopes is not None:
        scores = scores + np.asarray(slopes)[:, None, None] * far
    if bias is not None:
        scores = scores + bias
    masked = np.zeros_like(far, dtype=bool)
    if causal:
        masked |= far > 0
    if window:
        masked |= far <= -window if causal else abs(far) > window
    if valid is not None:
        masked |= np.arange(len(keys)) >= valid
    return np.where(masked, -np.inf, scores)


def weigh(queries, keys, sinks=None, **options):
    """Returns the weights [H, Tq, Tk] of one sequence, whose scores are those of score()."""
    scores = score(queries, keys, **options)
    top = scores.max(-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, np.asarray(sinks)[:, None, None])
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        return weights / (total + np.exp(np.asarray(sinks)[:, None, None] - top))
    return np.where(total > 0, weights / np.where(total > 0, total, 1), 1 / len(keys))


def reduce_weights(weights, spans, targets, block, top_k, row_weights):
    """Returns what the weights [H, Tq, Tk] of one sequence are reduced to, by the field's name."""
    starts = [np.arange(0, length, block) for length in weights.shape[1:]]
    sums = np.add.reduceat(np.add.reduceat(weights, starts[0], 1), starts[1], 2)
    rows = np.diff([*starts[0], weights.shape[1]])
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.where(weights > 0, weights * np.log(weights), 0).sum(-1).T
    return {"span_weights": np.stack([weights[..., a:b].sum(-1) for a, b in spans], -1),
            "top_weights": -np.sort(-weights, axis=-1)[..., :top_k],
            "target_weights": np.stack([weights[:, q, a:b].sum(-1)
                                        for q, (a, b) in enumerate(targets)]),
            "received": (weights * row_weights[..., None]).sum(1), "entropy": entropy,
            "block_weights": sums / rows[None, :, None]}


WORDS = ["weights", "scores", "spans", "top", "target", "received", "entropy", "blocks"]


def random_case(seed):
    """Returns queries, keys, values, options of weigh() and options of the reductions."""
    rng = np.random.default_rng(seed)
    tq, tk, kv, group, size, value = (int(n) for n in rng.integers(1, [9, 12, 4, 4, 9, 7]))
    heads = kv * group
    queries, keys, values = (rng.standard_normal(shape).astype(np.float32) for shape in (
        (tq, heads, size), (tk, kv, size), (tk, kv, value)))
    maybe = {"scale": 0.3, "softcap": 1.5, "sinks": rng.standard_normal(heads).astype(np.float32),
             "slopes": rng.random(heads).astype(np.float32), "causal": True,
             "window": int(rng.integers(1, 6)), "valid": int(rng.integers(0, tk + 1)),
             "bias": np.where(rng.random((heads, 1, tk)) < 0.2, -np.inf,
                              rng.standard_normal((heads, 1, tk))).astype(np.float32)}
    options = {name: value for name, value in maybe.items() if rng.random() < 0.4}
    if options.get("causal"):
        options["positions"] = sorted(int(n) for n in rng.integers(0, tk, tq))
    first = rng.integers(0, tk, (3, 1))
    spans = np.concatenate([first, rng.integers(first + 1, tk + 1)], -1)
    first = rng.integers(0, tk, (tq, 1))
    targets = np.concatenate([first, rng.integers(first + 1, tk + 1)], -1)
    targets[rng.random(tq) < 0.3] = 0
    reductions = {"spans": spans, "targets": targets, "block": int(rng.integers(1, 6)),
                  "top_k": int(rng.integers(1, tk + 1)),
                  "row_weights": rng.uniform(-1, 1, (heads, tq)[seed % 2:]).astype(np.float32)}
    return queries, keys, values, options, reductions


def listed(item):
    """Returns JSON of arrays; -inf becomes null."""
    if isinstance(item, np.ndarray):
        return listed(item.tolist())
    if isinstance(item, list):
        return [listed(inner) for inner in item]
    return None if item == -np.inf else item


def send_json(server, tensors, options):
    reply = post(server, json={key: listed(value) for key, value in {**tensors, **options}.items()})
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert body.pop("model") == "dot-product"
    return {key: np.array(value, dtype=object if key == "top_keys" else float)
            for key, value in body.items()}


def send_binary(server, tensors, options):
    arrays = {key: np.asarray(value) for key, value in {**tensors, **options}.items()
              if isinstance(value, (np.ndarray, list)) and key != "need"}
    metadata = {key: ",".join(value) if key == "need" else str(value).lower()
                for key, value in options.items() if key not in arrays}
    return read_reply(post_tensors(server, arrays, metadata))


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("send", [send_json, send_binary], ids=["json", "safetensors"])
def test_random_requests_match_numpy(server, send, seed):
    queries, keys, values, options, reductions = random_case(seed)
    weights = weigh(queries, keys, **options)
    scores = score(queries, keys, **{name: options[name] for name in options if name != "sinks"})
    valid = options.pop("valid", None)
    if valid is not None:
        options["valid_lens"] = np.array([valid]) if send is send_binary else valid
    reply = send(server, {"queries": queries, "keys": keys, "values": values},
                 {**options, **reductions, "need": ["heads", *WORDS]})
    expected = reduce_weights(weights, **reductions)
    heads = np.einsum("hqk,khd->qhd", weights,
                      np.repeat(values, queries.shape[1] // values.shape[1], axis=1))
    assert np.allclose(reply["attention_weights"], weights, rtol=0, atol=1e-5)
    assert np.allclose(reply["heads"], heads, rtol=0, atol=1e-5)
    got = reply["scores"].astype(float)  # null is NaN then
    assert np.allclose(np.where(np.isnan(got), -np.inf, got), scores, rtol=1e-5, atol=1e-5)
    for name, value in expected.items():
        assert reply[name].shape == value.shape, name
        assert np.allclose(reply[name], value, rtol=1e-5, atol=1e-5), name


@pytest.mark.parametrize("send", [send_json, send_binary], ids=["json", "safetensors"])
def test_power_iteration_finds_the_largest_singular_value(server, send):
    """A v are heads with values v, and u A is what keys receive from rows of weights u."""
    rng = np.random.default_rng(5)
    queries, keys = (3 * rng.standard_normal((40, heads, 8)).astype(np.float32) for heads in (4, 2))
    keys = np.repeat(keys, 2, axis=1)  # a head of values for each head
    tensors, options = {"queries": queries, "keys": keys}, {"causal": True}
    v = np.ones((40, 4, 1), np.float32)
    for _ in range(100):
        u = send(server, tensors | {"values": v}, options | {"need": ["heads"]})["heads"].reshape(40, 4)
        received = send(server, tensors, options | {"need": ["received"], "row_weights": u.T.astype(np.float32)})["received"]
        squares = np.linalg.norm(received, axis=1)
        v = (received / squares[:, None]).T[..., None].astype(np.float32)
    expected = np.linalg.svd(weigh(queries, keys, causal=True), compute_uv=False)[:, 0]
    assert np.allclose(np.sqrt(squares), expected, rtol=0, atol=1e-4)


def test_score_of_a_single_key_is_told(server):
    reply = send_json(server, {"queries": [[[3, 4]]], "keys": [[[5, 6]]]}, {"need": ["scores"], "scale": 1})
    assert reply["scores"].tolist() == [[[39]]]


def test_scores_that_are_masked_or_out_of_range_are_told_apart(server):
    large = {"queries": [[[1e20]]], "keys": [[[1]], [[-1e20]]], "need": ["scores"]}
    reply = post(server, json=large)
    assert reply.status_code == 422 and reply.json()["title"] == "Result not finite"
    assert reply.json()["detail"].startswith("scores[0][0][1] is not finite")
    reply = post(server, json=large | {"valid_lens": 1})
    assert reply.json()["scores"] == [[[1e20, None]]]


def test_heads_side_by_side_and_as_an_axis_are_the_same(server):
    queries, keys, values, _, _ = random_case(7)
    flat = {"queries": queries.reshape(len(queries), -1), "keys": keys.reshape(len(keys), -1),
            "values": values.reshape(len(values), -1)}
    sizes = {"num_heads": queries.shape[1], "num_kv_heads": keys.shape[1]}
    axis = {"queries": queries, "keys": keys, "values": values}
    for send in (send_json, send_binary):
        one, other = send(server, axis, {}), send(server, flat, sizes)
        assert list(one) == list(other) == ["heads"] and (one["heads"] == other["heads"]).all()
        batch = {key: np.stack([value, value]) for key, value in axis.items()}
        assert (send(server, batch, {})["heads"] == one["heads"]).all()


def test_bf16_keys_have_the_bits_of_the_same_numbers(server):
    queries, keys, _, _, _ = random_case(11)
    rounded = (keys.view(np.uint32) & 0xFFFF0000).view(np.float32)
    tensors = {"queries": queries, "keys": rounded}
    wide, narrow = (read_reply(post_tensors(server, tensors, keys=keys)) for keys in ("F32", "BF16"))
    assert wide["attention_weights"].tobytes() == narrow["attention_weights"].tobytes()


def test_ragged_batch_is_its_sequences(server):
    cases = [random_case(seed) for seed in (1, 1, 3)]
    size = cases[0][0].shape[1:], cases[0][1].shape[1:]
    rng = np.random.default_rng(0)
    queries = [rng.standard_normal((length, *size[0])).astype(np.float32) for length in (3, 1, 5)]
    keys = [rng.standard_normal((length, *size[1])).astype(np.float32) for length in (4, 2, 7)]
    options = {"need": ["weights", "received", "entropy", "top"], "top_k": 2, "weights_queries": [-1]}
    body = {"queries": [listed(q) for q in queries], "keys": [listed(k) for k in keys], **options}
    reply = post(server, json=body).json()
    packed = send_binary(server, {"queries": np.concatenate(queries), "keys": np.concatenate(keys),
                                  "query_lens": np.array([3, 1, 5]), "key_lens": np.array([4, 2, 7]),
                                  "weights_queries": np.array([-1])},
                         {"need": options["need"], "top_k": 2})
    at = 0
    for b, (q, k) in enumerate(zip(queries, keys)):
        weights = weigh(q, k)[:, -1:]
        assert np.allclose(reply["attention_weights"][b], weights, rtol=0, atol=1e-5)
        assert np.allclose(reply["received"][b], weights.sum(1), rtol=0, atol=1e-5)
        end = at + weights.size
        assert np.allclose(packed["attention_weights"][at:end], weights.ravel(), rtol=0, atol=1e-5)
        at = end
    assert packed["top_keys"].dtype == np.int64 and len(packed["entropy"]) == 3 * size[0][0]


Q, K = [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], [[[1, 2]], [[3, 4]], [[5, 6]]]
BAD = {  # changes, title, field, what the detail has
    "no keys": ({"keys": None}, "Missing key", "keys", "[Tk, heads, head size]"),
    "flat": ({"queries": [[1, 2]]}, "Wrong rank", "queries", "or send num_heads"),
    "groups": ({"keys": [[[1, 2]] * 3]}, "Shape mismatch", "keys", "must be a multiple"),
    "head size": ({"keys": [[[1, 2, 3]]]}, "Shape mismatch", "keys", "size 3, but those of queries 2"),
    "width": ({"queries": [[1, 2, 3]], "keys": [[1, 2, 3]], "num_heads": 2}, "Shape mismatch",
              "queries", "not a multiple of num_heads 2"),
    "kv alone": ({"num_kv_heads": 1}, "Missing key", "num_heads", "without num_heads"),
    "zero heads": ({"num_heads": 0}, "Out of range", "num_heads", "at least 1"),
    "value heads": ({"values": [[[1], [1]]] * 3}, "Shape mismatch", "values", "have 2 heads"),
    "value rows": ({"values": [[[1]]] * 2}, "Shape mismatch", "values", "one value for each key"),
    "no values": ({"need": ["heads"]}, "Missing key", "values", "send values"),
    "outputs": ({"need": ["outputs"]}, "Unknown output", "need", "heads are the outputs"),
    "sinks": ({"sinks": [1]}, "Shape mismatch", "sinks", "2 heads"),
    "slopes": ({"slopes": [1, 2, 3]}, "Shape mismatch", "slopes", "2 heads"),
    "softcap": ({"softcap": 0}, "Out of range", "softcap", "above 0"),
    "scale": ({"scale": 1e39}, "Out of range", "scale", "out of range for float32"),
    "bias": ({"bias": [[1, 2]]}, "Shape mismatch", "bias", "[Tq, Tk]"),
    "bias text": ({"bias": [["a"]]}, "Wrong type", "bias", "bias[0][0]"),
    "causal": ({"causal": True}, "Missing key", "positions", '"positions": [1,2]'),
    "mask": ({"mask": [[1]]}, "Unknown key", "mask", "use attn_mask"),
    "model": ({"model": "a"}, "Unknown key", "model", "there is no model"),
    "head_mask": ({"head_mask": [1, 1]}, "Unknown key", "head_mask", "weights_heads"),
    "row_weights": ({"need": ["received"], "row_weights": [[1, 2]]}, "Shape mismatch", "row_weights",
                    "for each of 2 heads"),
    "row_weights alone": ({"row_weights": [1, 2]}, "Outputs disagree", "row_weights", "list received in need"),
    "spans alone": ({"spans": [[0, 1]]}, "Outputs disagree", "spans", "list spans in need"),
    "word alone": ({"need": ["blocks"]}, "Missing key", "block", "queries and keys make a block"),
    "empty span": ({"need": ["spans"], "spans": [[0, 1], [2, 2]]}, "Out of range", "spans", "spans[1]"),
    "far span": ({"need": ["spans"], "spans": [[0, 4]]}, "Out of range", "spans", "has 3 keys"),
    "short span": ({"need": ["spans"], "spans": [[0]]}, "Uneven rows", "spans",
                   "send a first key, and the key after the last"),
    "top_k 0": ({"need": ["top"], "top_k": 0}, "Out of range", "top_k", "at least 1"),
    "top_k 4": ({"need": ["top"], "top_k": 4}, "Out of range", "top_k", "has 3 keys"),
    "top_in": ({"need": ["top"], "top_k": 2, "top_in": [1, 2]}, "Out of range", "top_k", "has 1 key"),
    "many ranges": ({"need": ["top"], "top_k": 1, "top_in": [[0, 1]] * 1025}, "Out of range", "top_in",
                    "1024 at most"),
    "block 0": ({"need": ["blocks"], "block": 0}, "Out of range", "block", "at least 1"),
    "targets": ({"need": ["target"], "targets": [None]}, "Uneven rows", "targets",
                "send one for each query"),
    "target": ({"need": ["target"], "targets": [[2, 1], None]}, "Out of range", "targets", "targets[0]"),
    "row twice": ({"weights_queries": [1, -1]}, "Duplicate index", "weights_queries", "is -1"),
    "row far": ({"weights_queries": [-3]}, "Out of range", "weights_queries", "2 rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_request_names_the_field_and_the_remedy(server, name):
    changes, title, field, detail = BAD[name]
    reply = post(server, json={"queries": Q, "keys": K, **changes})
    problem = reply.json()
    assert (reply.status_code, problem["title"], problem["field"]) == (400, title, field), problem
    assert detail in problem["detail"], problem


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["queries", "keys", "bias", "sinks"])
def test_binary_numbers_must_be_finite(server, name, number):
    tensors = {"queries": np.ones((2, 1, 3), np.float32), "keys": np.ones((2, 1, 3), np.float32),
               "bias": np.zeros((2, 2), np.float32), "sinks": np.zeros(1, np.float32)}
    tensors[name].flat[-1] = number
    reply = post_tensors(server, tensors)
    assert reply.status_code == 400 and reply.json()["field"] == name, reply.text


@pytest.mark.parametrize("name", ["keys", "values"])
def test_rows_that_only_bias_masks_must_be_finite(server, name):
    tensors = {"queries": np.ones((2, 1, 3), np.float32), "keys": np.ones((2, 1, 3), np.float32),
               "values": np.ones((2, 1, 3), np.float32), "bias": np.float32([[0, -np.inf]])}
    assert post_tensors(server, tensors).status_code == 200
    tensors[name][1] = np.nan
    problem = post_tensors(server, tensors).json()
    assert (problem["title"], problem["field"]) == ("Out of range", name), problem


def test_server_without_a_model_serves_the_route(start_server):
    server = start_server()
    assert server.get("/v2/health/ready").json() == {"ready": True}
    reply = post(server, json={"queries": Q, "keys": K})
    assert reply.status_code == 200 and len(reply.json()["attention_weights"]) == 2
    reply = server.attention({"queries": [[1]]})
    assert (reply.status_code, reply.json()["title"]) == (404, "Unknown model")


def test_folder_without_models_is_not_ready(start_server, tmp_path):
    server = start_server("--model-dir", tmp_path)
    assert server.get("/v2/health/ready").status_code == 503
    assert post(server, json={"queries": Q, "keys": K}).status_code == 200


def test_log_names_no_model(start_server):
    """The model of such a request ends with it, before the line of the log is written."""
    server = start_server("--access-log", MALLOC_PERTURB_="165")
    assert post(server, json={"queries": Q, "keys": K}).status_code == 200
    wait_for_log(server, "status=")
    line = next(line for line in server.read_log().splitlines() if PATH in line and "status=" in line)
    assert " model=" not in line and " rows=2 " in line, line
