# SPDX-License-Identifier: Apache-2.0
"""What attention weights are reduced to (spans, top, target, received, entropy, blocks), in JSON and
safetensors, compared with numpy on the reply that has all weights. docs/protocol.md has the formulas."""

import json
import re

import numpy as np
import pytest
import requests

from checkpoints import write_layer
from compare import assert_problem
from reference import visible_keys
from safetensors_file import make_safetensors, parse_safetensors
from server import Server

SAFETENSORS = {"Content-Type": "application/vnd.safetensors"}
WORDS = {"scores": ["scores"], "spans": ["span_weights"], "top": ["top_keys", "top_weights"],
         "target": ["target_weights"],
         "received": ["received"], "entropy": ["entropy"], "blocks": ["block_weights"]}
OPTIONS = {"spans": "spans", "top": "top_k", "target": "targets", "blocks": "block"}
FLOATS = {"queries", "keys", "row_weights"}
TEXTS = {"causal", "window", "top_k", "block"}  # in __metadata__; all else is a tensor
FIELDS = [field for fields in WORDS.values() for field in fields]
ALL = {"need": list(WORDS), "spans": [[0, 2], [1, 3]], "top_k": 2, "block": 2}
HEADS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("reductions") / "layer.safetensors"
    write_layer(path, num_heads=HEADS, head_size=3, query_size=5)
    with Server("--model", f"m={path}", "--workers", 2) as running:
        yield running


def rows(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def ask(server, request):
    response = server.attention({"model": "m"} | request)
    assert response.status_code == 200, response.text
    return response.json()


# --- the same request in safetensors ---

def pack(request):
    """Returns a batched or unbatched request as safetensors; ragged tensors follow each other."""
    tensors, texts = {}, {"model": "m", "need": ",".join(request["need"])}
    ragged = isinstance(request["queries"][0], np.ndarray) and request["queries"][0].ndim == 2
    for name, value in request.items():
        if name in TEXTS:
            texts[name] = json.dumps(value)
        elif name == "targets":
            tensors[name] = pack_targets(value, ragged)
        elif name in ("queries", "keys") and ragged:
            tensors[name] = np.concatenate(value)
            tensors["query_lens" if name == "queries" else "key_lens"] = [len(part) for part in value]
        elif name != "need":
            tensors[name] = np.asarray(value)
    dtypes = {name: "F32" if name in FLOATS else "I64" for name in tensors}
    return make_safetensors(tensors, dtypes, texts)


def pack_targets(targets, batched):
    rows_of = [row for sequence in targets for row in sequence] if batched else targets
    return np.array([row or [0, 0] for row in rows_of])


def ask_in_safetensors(server, request):
    response = requests.post(server.url + "/v1/attention", data=pack(request), headers=SAFETENSORS,
                             timeout=60)
    assert response.status_code == 200, response.text
    return parse_safetensors(response.content)[0]


def as_json(request):
    def plain(value):
        if isinstance(value, np.ndarray):
            return value.tolist()
        return [plain(item) for item in value] if isinstance(value, list) else value
    return {name: plain(value) for name, value in request.items()}


def flat_numbers(value, missing=-1):
    """Yields the numbers of nested lists; null is `missing`."""
    if isinstance(value, list):
        for item in value:
            yield from flat_numbers(item, missing)
    else:
        yield missing if value is None else value


def assert_same_numbers(packed, reply, fields):
    """Compares a reply in safetensors with that in JSON, to the bit."""
    for field in fields:
        integers = field == "top_keys"
        expected = np.array(list(flat_numbers(reply[field], -1 if integers else -np.inf)),
                            "<i8" if integers else "<f4")
        assert packed[field].dtype == expected.dtype, field
        assert packed[field].tobytes() == expected.tobytes(), field


# --- numpy ---

def block_means(weights, n):
    """Returns sums over the keys and means over the rows of blocks."""
    starts_of_rows, starts_of_keys = (range(0, size, n) for size in weights.shape[1:])
    return np.stack([np.stack([weights[:, q:q + n, k:k + n].sum(axis=2).mean(axis=1)
                               for k in starts_of_keys], axis=1) for q in starts_of_rows], axis=1)


def entropies(weights):
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.where(weights > 0, weights * np.log(weights), 0).sum(axis=2)


def sums_of(weights, ranges):
    """Returns [H, rows, ranges]: the sum of each range of every row."""
    return np.stack([weights[:, :, first:end].sum(axis=2) for first, end in ranges], axis=2)


def select(request, weights, sequence):
    """Returns the selected weights of a sequence [H, Tq, Tk], and which rows they are."""
    queries = np.arange(weights.shape[1])
    chosen = queries[request.get("weights_queries", slice(None))]
    heads = np.arange(HEADS)[request.get("weights_heads", slice(None))]
    return weights[heads][:, chosen], chosen


def assert_near(got, expected, what):
    got = np.array(got, np.float64)
    assert got.shape == expected.shape, what
    assert (np.abs(got - expected) <= 1e-5 * np.maximum(1, np.abs(expected))).all(), what


def assert_top(request, keys, top, weights, visible):
    """Compares [H, rows, R, k] by weights: which of two equal ones is first may differ."""
    k, in_ranges = request["top_k"], request.get("top_in", [[0, weights.shape[2]]])
    in_ranges = [in_ranges] if np.ndim(in_ranges) == 1 else in_ranges
    shape = (*weights.shape[:2], len(in_ranges), k)
    keys = np.array(list(flat_numbers(keys))).reshape(shape)
    top = np.array(top).reshape(shape)
    for h, q, r in np.ndindex(shape[:3]):
        first, end = in_ranges[r]
        row, seen = weights[h, q, first:end], visible[q, first:end]
        count = min(k, int(seen.sum()))
        found = keys[h, q, r, :count] - first
        assert (found >= 0).all() and seen[found].all() and len(set(found)) == count
        assert_near(top[h, q, r, :count], row[found], "weights of the top keys")
        assert_near(top[h, q, r, :count], np.sort(row[seen])[::-1][:count], "the largest weights")
        assert (np.diff(top[h, q, r]) <= 0).all()
        equal = np.diff(top[h, q, r, :count]) == 0
        assert (np.diff(found)[equal] > 0).all(), "of equal weights, the smaller key is first"
        assert (keys[h, q, r, count:] == -1).all() and (top[h, q, r, count:] == 0).all()


def visible_of(request, b, num_queries, num_keys):
    """Returns [Tq, Tk]; a row without a key sees all of them."""
    lens = request.get("valid_lens")
    lens = np.full(num_queries, num_keys if lens is None else lens[b])
    visible = visible_keys(lens, np.arange(num_queries), np.arange(num_keys),
                           request.get("causal", False), request.get("window", 0))
    return visible | ~visible.any(axis=1, keepdims=True)


def assert_scores(scores, weights, visible):
    """Compares scores with the weights that their softmax has; a row without a key has none."""
    scores = np.array(list(flat_numbers(scores, -np.inf))).reshape(weights.shape)
    empty = np.isinf(scores).all(axis=2)
    assert (np.isfinite(scores) == visible)[~empty].all() and (visible | ~empty[0, :, None]).all()
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(scores - scores.max(axis=2, keepdims=True))
    assert_near((exponentials / exponentials.sum(axis=2, keepdims=True))[~empty], weights[~empty], "scores")


def assert_sequence(request, reply, weights, b):
    """Compares what a reply has of sequence `b` with its weights [H, Tq, Tk]."""
    visible = visible_of(request, b, *weights.shape[1:])
    weights, chosen = select(request, weights, b)
    if "scores" in reply:
        assert_scores(reply["scores"], weights, visible[chosen])
    if "span_weights" in reply:
        spans = request["spans"]
        spans = spans[b] if np.ndim(spans) == 3 else spans
        assert_near(reply["span_weights"], sums_of(weights, spans), "span_weights")
    if "top_keys" in reply:
        assert_top(request, reply["top_keys"], reply["top_weights"], weights, visible[chosen])
    if "target_weights" in reply:
        targets = [request["targets"][b][q] or [0, 0] for q in chosen]
        expected = [[weights[h, q, first:end].sum() for h in range(len(weights))]
                    for q, (first, end) in enumerate(targets)]
        assert_near(reply["target_weights"], np.array(expected), "target_weights")
    if "received" in reply:
        factors = np.broadcast_to(request.get("row_weights", 1), (HEADS, len(visible)))
        factors = factors[request.get("weights_heads", slice(None))][:, chosen]
        assert_near(reply["received"], np.einsum("hqk,hq->hk", weights, factors), "received")
    if "entropy" in reply:
        assert_near(reply["entropy"], entropies(weights).T, "entropy")
    if "block_weights" in reply:
        assert_near(reply["block_weights"], block_means(weights, request["block"]), "block_weights")


# --- random requests ---

def random_range(random, end, least=1):
    first = int(random.integers(0, end - least + 1))
    return [first, int(random.integers(first + least, end + 1))]


def random_targets(random, num_queries, num_keys):
    return [None if random.random() < 0.3 else random_range(random, num_keys)
            for _ in range(num_queries)]


def random_selection(random, count):
    chosen = random.permutation(count)[:random.integers(1, count + 1)]
    return [int(i) for i in chosen]


def random_request(seed):
    """Returns a batched request, ragged as a rule, with a random set of words."""
    random = np.random.default_rng(seed)
    lens = random.integers(1, 12, size=random.integers(1, 4))
    key_lens = random.integers(3, 20, size=len(lens))
    request = {"queries": [rows(n, 5, seed=seed + i) for i, n in enumerate(lens)],
               "keys": [rows(n, 5, seed=seed + 100 + i) for i, n in enumerate(key_lens)]}
    words = [word for word in WORDS if random.random() < 0.5] or ["received"]
    shortest = int(key_lens.min())
    request["need"] = words + ["lse"] * (random.random() < 0.2)
    if random.random() < 0.4:
        request["causal"] = True
    if random.random() < 0.3:
        request["window"] = int(random.integers(1, 6))
    if random.random() < 0.3:
        request["valid_lens"] = [int(random.integers(0, n + 1)) for n in key_lens]
    if random.random() < 0.4:
        request["weights_heads"] = random_selection(random, HEADS)
    if random.random() < 0.4:
        from_end = random.random() < 0.5
        request["weights_queries"] = [-1 - i if from_end else i
                                      for i in random_selection(random, int(lens.min()))]
    add_options(random, request, words, lens, key_lens, shortest)
    return request


def add_options(random, request, words, lens, key_lens, shortest):
    if "spans" in words:
        shared = random.random() < 0.5
        count = int(random.integers(1, 5))
        request["spans"] = [random_range(random, shortest) for _ in range(count)] if shared else [
            [random_range(random, int(n)) for _ in range(count)] for n in key_lens]
    if "top" in words:
        request["top_k"] = int(random.integers(1, shortest + 1))
        if random.random() < 0.5:
            request["top_in"] = [random_range(random, shortest, request["top_k"])
                                 for _ in range(random.integers(1, 4))]
            if random.random() < 0.3:
                request["top_in"] = request["top_in"][0]
    if "target" in words:
        request["targets"] = [random_targets(random, n, int(m)) for n, m in zip(lens, key_lens)]
    if "blocks" in words:
        request["block"] = int(random.integers(1, 25))
    if "received" in words and len(set(lens)) == 1:
        shape = (lens[0],) if random.random() < 0.5 else (HEADS, lens[0])
        request["row_weights"] = random.uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("seed", range(150))
def test_reductions_are_those_of_all_weights(server, seed):
    request = random_request(seed)
    inputs = {name: request[name] for name in ("queries", "keys", "causal", "window", "valid_lens")
              if name in request}
    every = ask(server, as_json(inputs | {"need": ["weights"]}))["attention_weights"]
    reply = ask(server, as_json(request))
    fields = [field for word in request["need"] for field in WORDS.get(word, [word])]
    assert set(reply) == {"model", *fields}
    for b, weights in enumerate(every):
        one = {field: reply[field][b] for field in fields}
        assert_sequence(request, one, np.array(weights), b)

    assert_same_numbers(ask_in_safetensors(server, request), reply, fields)


# --- shapes ---

def shapes_of(reply):
    return {field: np.shape(reply[field]) for field in FIELDS}


def expected_shapes(heads, queries, keys, spans=2, k=2, block=2, ranges=()):
    blocks = heads, -(-queries // block), -(-keys // block)
    return {"scores": (heads, queries, keys), "span_weights": (heads, queries, spans),
            "top_keys": (heads, queries, *ranges, k),
            "top_weights": (heads, queries, *ranges, k), "target_weights": (queries, heads),
            "received": (heads, keys), "entropy": (queries, heads), "block_weights": blocks}


def test_shapes_of_one_sequence_and_of_a_padded_batch(server):
    one = ALL | {"queries": rows(5, 5), "targets": [[0, 1], None, [1, 4], [0, 0], [4, 5]]}
    reply = ask(server, as_json(one))
    assert shapes_of(reply) == expected_shapes(HEADS, 5, 5)
    assert np.array(reply["target_weights"])[[1, 3]].tolist() == [[0] * HEADS] * 2
    packed = ask_in_safetensors(server, one)
    assert shapes_of(packed) == expected_shapes(HEADS, 5, 5)
    assert_same_numbers(packed, reply, FIELDS)

    two = one | {"queries": rows(2, 5, 5), "top_in": [[0, 2], [1, 4], [0, 5]], "weights_heads": [3, 1],
                 "weights_queries": [-1, 0, 2], "targets": [one["targets"]] * 2}
    reply = ask(server, as_json(two))
    shapes = {field: (2, *shape) for field, shape in expected_shapes(2, 3, 5, ranges=(3,)).items()}
    assert shapes_of(reply) == shapes
    tensors = {name: np.array(two[name]) for name in two.keys() - TEXTS - {"need", "targets"}}
    tensors["targets"] = np.array([pack_targets(one["targets"], False)] * 2)
    dtypes = {name: "F32" if name == "queries" else "I64" for name in tensors}
    body = make_safetensors(tensors, dtypes, {"need": ",".join(WORDS), "top_k": "2", "block": "2"})
    response = requests.post(server.url + "/v1/attention", data=body, headers=SAFETENSORS, timeout=60)
    packed = parse_safetensors(response.content)[0]
    assert shapes_of(packed) == shapes and "key_lens" not in packed
    assert_same_numbers(packed, reply, FIELDS)
    # One list of targets, and one span, stand for all sequences.
    assert ask(server, as_json(two | {"targets": one["targets"], "spans": [two["spans"]] * 2})) == reply


def test_ragged_results_are_one_row_of_numbers(server):
    parts = [rows(2, 5), rows(4, 5, seed=2)]
    request = ALL | {"queries": parts, "spans": [[0, 2]], "targets": [[[0, 1]] * 2, [[1, 3]] * 4]}
    packed = ask_in_safetensors(server, request)
    assert packed["query_lens"].tolist() == packed["key_lens"].tolist() == [2, 4]
    sizes = [expected_shapes(HEADS, n, n, spans=1) for n in (2, 4)]
    for field in FIELDS:
        assert packed[field].shape == (sum(int(np.prod(size[field])) for size in sizes),), field


# --- meaning ---

def test_a_row_without_a_key_has_even_weights(server):
    request = ALL | {"queries": rows(3, 5), "valid_lens": 0, "targets": [[0, 1]] * 3}
    reply = ask(server, as_json(request))
    assert np.allclose(reply["span_weights"], 2 / 3) and np.allclose(reply["received"], 1)
    assert np.allclose(reply["target_weights"], 1 / 3)
    assert np.allclose(reply["entropy"], np.log(3))
    assert np.allclose(reply["block_weights"], [[2 / 3, 1 / 3]] * 2)
    assert reply["top_keys"] == [[[0, 1]] * 3] * HEADS and np.allclose(reply["top_weights"], 1 / 3)


def test_row_weights_count_all_queries_and_heads(server):
    """Those that are selected, too, and in each sequence of a padded batch."""
    factors = rows(HEADS, 6, seed=3)
    request = {"queries": rows(2, 6, 5), "need": ["received"], "weights_heads": [3, 1], "weights_queries": [-1, 2]}
    weights = np.array(ask(server, as_json(request | {"need": ["weights"]}))["attention_weights"])
    reply = ask(server, as_json(request | {"row_weights": factors}))["received"]
    assert_near(reply, np.einsum("bhqk,hq->bhk", weights, factors[[3, 1]][:, [5, 2]]), "received")
    packed = request | {"queries": rows(12, 5), "query_lens": [6, 6], "row_weights": factors}
    texts = {"need": "received"}
    tensors = {name: np.asarray(value) for name, value in packed.items() if name != "need"}
    for dtype in "F32", "F64":
        dtypes = {name: dtype if name == "row_weights" else "F32" if name == "queries" else "I64" for name in tensors}
        response = requests.post(server.url + "/v1/attention", data=make_safetensors(tensors, dtypes, texts),
                                 headers=SAFETENSORS, timeout=60)
        assert response.status_code == 200, response.text
        assert_same_numbers(parse_safetensors(response.content)[0], {"received": reply}, ["received"])


def test_row_weights_of_one_keep_every_bit(server):
    request = {"queries": rows(70, 5).tolist(), "need": ["received"], "causal": True}
    for ones in [1] * 70, [[1] * 70] * HEADS:
        assert ask(server, request | {"row_weights": ones}) == ask(server, request)


def test_row_weights_need_sequences_of_equal_lengths(server):
    for binary in False, True:
        request = {"queries": BATCH, "need": ["received"], "row_weights": np.ones(2, np.float32)}
        problem = assert_problem(refused(server, request, binary), 400, "Shape mismatch", "row_weights")
        assert "send one sequence at a time" in problem["detail"]


def test_fewer_visible_keys_than_top_k_are_null(server):
    reply = ask(server, {"queries": rows(3, 5).tolist(), "causal": True, "need": ["top"], "top_k": 3})
    for keys, weights in zip(reply["top_keys"], reply["top_weights"]):
        assert [sum(key is None for key in row) for row in keys] == [2, 1, 0]
        assert keys[0] == [0, None, None] and weights[0] == [1, 0, 0]


def test_selection_from_the_end_is_each_sequences_own_last_row(server):
    parts = [rows(2, 5), rows(6, 5, seed=2)]
    request = {"queries": [part.tolist() for part in parts], "need": ["weights", "entropy"], "causal": True}
    every, last = ask(server, request), ask(server, request | {"weights_queries": [-1, 0]})
    for b, part in enumerate(parts):
        assert last["entropy"][b] == [every["entropy"][b][-1], every["entropy"][b][0]]
        for h in range(HEADS):
            weights = every["attention_weights"][b][h]
            assert last["attention_weights"][b][h] == [weights[-1], weights[0]]


def test_a_sequence_has_the_same_bits_alone(server):
    parts = [rows(3, 5), rows(40, 5, seed=2), rows(7, 5, seed=3)]
    request = ALL | {"need": [word for word in WORDS if word != "target"], "causal": True}
    together = ask(server, as_json(request | {"queries": parts}))
    for b, part in enumerate(parts):
        alone = ask(server, as_json(request | {"queries": part}))
        for field in alone.keys() - {"model"}:
            assert alone[field] == together[field][b], field


def test_large_replies_are_streamed(server):
    request = {"queries": rows(2, 1500, 5), "need": ["top", "entropy"], "top_k": 9, "causal": True}
    response = server.attention({"model": "m"} | as_json(request))
    assert response.status_code == 200 and response.headers["Transfer-Encoding"] == "chunked"
    tensors = {"queries": request["queries"]}
    texts = {"need": "top,entropy", "top_k": "9", "causal": "true"}
    packed = requests.post(server.url + "/v1/attention", headers=SAFETENSORS, timeout=60,
                           data=make_safetensors(tensors, "F32", texts))
    packed = parse_safetensors(packed.content)[0]
    assert packed["top_keys"].shape == (2, HEADS, 1500, 9)
    assert_same_numbers(packed, response.json(), ["top_keys", "top_weights", "entropy"])


def test_analysis_of_heads_takes_the_words_and_ignores_them(server):
    request = {"model": "m", "queries": rows(4, 5).tolist()}
    reply = server.heads(request | {"need": ["received", "top"], "top_k": 2})
    assert reply.status_code == 200 and reply.json() == server.heads(request).json()


# --- what is refused ---

BATCH = [rows(2, 5), rows(4, 5, seed=2)]
ERRORS = {
    "span empty": ({"spans": [[0, 1], [1, 1]]}, "Out of range", "spans", "spans[1] "),
    "span reversed": ({"spans": [[2, 1]]}, "Out of range", "spans", "the first key"),
    "span outside": ({"spans": [[1, 4]]}, "Out of range", "spans", "at most 3"),
    "span negative": ({"spans": [[-1, 2]]}, "Out of range", "spans", "begins at a number out of range"),
    "span of three": ({"spans": [[0, 1, 2]]}, None, "spans", ""),
    "span alone": ({"spans": [0, 2]}, "Wrong rank", "spans", ""),
    "span fraction": ({"spans": [[0, 1.5]]}, "Wrong type", "spans", ""),
    "spans empty": ({"spans": np.zeros((0, 2), int)}, "Empty tensor", "spans", ""),
    "top_k 0": ({"top_k": 0}, "Out of range", "top_k", ""),
    "top_k negative": ({"top_k": -1}, "Out of range", "top_k", ""),
    "top_k fraction": ({"top_k": 1.5}, "Wrong type", "top_k", ""),
    "top_k over keys": ({"top_k": 4}, "Out of range", "top_k", "3 keys"),
    "top_k over range": ({"top_k": 3, "top_in": [[0, 3], [1, 3]]}, "Out of range", "top_k", "2 keys"),
    "top_in outside": ({"top_k": 1, "top_in": [2, 4]}, "Out of range", "top_in", ""),
    "top_in empty": ({"top_k": 1, "top_in": [[1, 1]]}, "Out of range", "top_in", ""),
    "targets outside": ({"targets": [[0, 1], [0, 4], [0, 0]]}, "Out of range", "targets", "targets[1] "),
    "targets empty": ({"targets": [[0, 1], [2, 2], [0, 0]]}, "Out of range", "targets", "targets[1] "),
    "too few targets": ({"targets": [[0, 1]]}, None, "targets", ""),
    "too many targets": ({"targets": [[0, 1]] * 4}, None, "targets", ""),
    "block 0": ({"block": 0}, "Out of range", "block", ""),
    "block negative": ({"block": -3}, "Out of range", "block", ""),
    "row_weights short": ({"row_weights": np.ones(2)}, "Shape mismatch", "row_weights", "each of 3 queries"),
    "row_weights of two heads": ({"row_weights": np.ones((2, 3))}, "Shape mismatch", "row_weights", "each of 4 heads"),
    "row_weights empty": ({"row_weights": np.ones(0)}, "Empty tensor", "row_weights", ""),
    "row_weights of three axes": ({"row_weights": np.ones((1, HEADS, 3))}, "Wrong rank", "row_weights", ""),
}
WORD_OF = {"spans": "spans", "top_k": "top", "top_in": "top", "targets": "target", "block": "blocks",
           "row_weights": "received"}


def refused(server, request, binary):
    if not binary:
        return server.attention({"model": "m"} | as_json(request))
    return requests.post(server.url + "/v1/attention", data=pack(request), headers=SAFETENSORS, timeout=60)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", ERRORS)
def test_wrong_option_is_refused(server, name, binary):
    options, title, field, detail = ERRORS[name]
    if binary and name == "span fraction":
        pytest.skip("integers of I64 have none")
    title = title or ("Shape mismatch" if binary else "Uneven rows")
    request = {"queries": rows(3, 5), "need": [WORD_OF[field]]} | options
    problem = assert_problem(refused(server, request, binary), 400, title, field)
    assert detail in problem["detail"], problem
    assert "send " in problem["detail"], problem


@pytest.mark.parametrize("binary", [False, True])
def test_word_and_option_need_each_other(server, binary):
    values = {"spans": [[0, 1]], "top_k": 1, "top_in": [[0, 1]], "targets": [[0, 1]] * 3, "block": 1,
              "row_weights": np.ones(3)}
    request = {"queries": rows(3, 5)}
    for word, option in OPTIONS.items():
        problem = assert_problem(refused(server, request | {"need": [word]}, binary), 400, "Missing key", option)
        assert f"need has {word}, but {option} was left out; send " in problem["detail"]
    for option, value in values.items():
        response = refused(server, request | {"need": ["lse"], option: value}, binary)
        problem = assert_problem(response, 400, "Outputs disagree", option)
        assert f"list {WORD_OF[option]} in need, or leave {option} out" in problem["detail"]


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape, place", [((3,), "row_weights[1]"), ((HEADS, 3), "row_weights[2][1]")])
def test_row_weight_that_is_not_finite_is_refused(server, shape, place, number):
    factors = np.ones(shape)
    factors[(2, 1) if len(shape) == 2 else 1] = number
    request = {"queries": rows(3, 5), "need": ["received"], "row_weights": factors}
    problem = assert_problem(refused(server, request, True), 400, "Out of range", "row_weights")
    assert place + " " in problem["detail"], problem
    text = json.dumps({"model": "m"} | as_json(request)).replace("-Infinity", "-1e39").replace("Infinity", "1e39")
    response = requests.post(server.url + "/v1/attention", data=text.replace("NaN", "1e999"), timeout=60,
                             headers={"Content-Type": "application/json"})
    problem = assert_problem(response, 400, "Out of range", "row_weights")
    assert place + " " in problem["detail"], problem


@pytest.mark.parametrize("binary", [False, True])
def test_ragged_sequences_have_their_own_limits(server, binary):
    own = {"queries": BATCH, "need": ["spans"], "spans": [[[0, 2]], [[0, 4]]]}
    assert refused(server, own, binary).status_code == 200
    problem = assert_problem(refused(server, own | {"spans": [[0, 4]]}, binary), 400, "Out of range", "spans")
    assert "at most 2: the shortest sequence has 2 keys" in problem["detail"]
    problem = assert_problem(refused(server, own | {"spans": [[[0, 3]], [[0, 4]]]}, binary), 400,
                             "Out of range", "spans")
    assert "its sequence has 2 keys" in problem["detail"]
    one = own | {"spans": [[[0, 2]]]}
    uneven = "Shape mismatch" if binary else "Uneven rows"
    problem = assert_problem(refused(server, one, binary), 400, uneven, "spans")
    assert "send " in problem["detail"], problem
    top = {"queries": BATCH, "need": ["top"], "top_k": 3}
    problem = assert_problem(refused(server, top, binary), 400, "Out of range", "top_k")
    assert "the shortest sequence has 2 keys" in problem["detail"]


def test_one_list_of_targets_needs_equal_sequences(server):
    request = {"queries": [part.tolist() for part in BATCH], "need": ["target"], "targets": [[0, 1]] * 2}
    assert_problem(server.attention({"model": "m"} | request), 400, "Wrong rank", "targets")
    request["targets"] = [[[0, 1]] * 2, [None, [0, 4], None, [0, 0]]]
    assert np.shape(ask(server, request)["target_weights"][1]) == (4, HEADS)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("indices, title", [([-4], "Out of range"), ([3], "Out of range"),
                                            ([0, -3], "Duplicate index"), ([-1, -1], "Duplicate index")])
def test_rows_from_the_end_are_checked(server, binary, indices, title):
    request = {"queries": rows(3, 5), "need": ["entropy"], "weights_queries": indices}
    problem = assert_problem(refused(server, request, binary), 400, title, "weights_queries")
    assert "weights_queries[" in problem["detail"]
    assert title == "Duplicate index" or problem["expected"] == [-3, 2]


@pytest.mark.parametrize("binary", [False, True])
def test_rows_from_both_ends_are_distinct_in_each_sequence(server, binary):
    ragged = {"queries": BATCH, "need": ["entropy"], "weights_queries": [1, -1]}
    problem = assert_problem(refused(server, ragged, binary), 400, "Duplicate index", "weights_queries")
    assert ask(server, as_json(ragged | {"weights_queries": [0, -1]}))["entropy"]


HUGE = ["1e30", "-1e30", "-1e10", "9223372036854775808", "-9223372036854775808", "18446744073709551615"]


@pytest.mark.parametrize("text", HUGE)
def test_huge_indices_are_not_the_last_row(server, text):
    queries = rows(3, 5)
    body = '{"queries": %s, "need": ["entropy"], "weights_queries": [%s]}' % (queries.tolist(), text)
    response = requests.post(server.url + "/v1/attention", data=body, timeout=60,
                             headers={"Content-Type": "application/json"})
    assert_problem(response, 400, "Out of range", "weights_queries")
    body = make_safetensors({"queries": queries, "weights_queries": [float(text)]},
                            {"queries": "F32", "weights_queries": "F64"}, {"need": "entropy"})
    response = requests.post(server.url + "/v1/attention", data=body, timeout=60, headers=SAFETENSORS)
    assert_problem(response, 400, "Out of range", "weights_queries")


@pytest.mark.parametrize("text", ["--1", "- 1", "-", "+1"])
def test_index_that_is_no_number_is_refused(server, text):
    body = '{"queries": [[1,1,1,1,1]], "need": ["entropy"], "weights_queries": [%s]}' % text
    response = requests.post(server.url + "/v1/attention", data=body, timeout=60,
                             headers={"Content-Type": "application/json"})
    assert_problem(response, 400, "Malformed JSON")


def test_targets_of_many_sequences_are_reserved_once(start_server, tmp_path):
    path = tmp_path / "layer.safetensors"
    write_layer(path, num_heads=HEADS, head_size=3, query_size=5)
    small = start_server("--model", f"m={path}", "--max-memory", "64MiB")
    request = {"queries": np.zeros((300, 30, 5)).tolist(), "need": ["target"]}
    assert small.attention(request | {"targets": [[[0, 1]] * 30] * 300}).status_code == 200


def test_selections_need_weights_or_a_reduction(server):
    request = {"queries": rows(3, 5).tolist(), "weights_heads": [1], "weights_queries": [-1]}
    assert_problem(server.attention({"model": "m"} | request | {"need": ["lse"]}), 400,
                   "Nothing to select from", "weights_heads")
    for word in "received", "entropy":
        assert set(ask(server, request | {"need": [word]})) == {"model", word}


def test_words_that_the_route_lacks_are_refused(server):
    for word in "masks", "Spans", "span_weights", "":
        response = server.attention({"model": "m", "queries": [[1] * 5], "need": [word]})
        problem = assert_problem(response, 400, "Unknown output", "need")
        assert "scores, spans, top, target, received, entropy" in problem["detail"]
    response = server.attention({"model": "m", "queries": [[1] * 5], "need": ["top", "top"], "top_k": 1})
    assert_problem(response, 400, "Duplicate output", "need")


def test_reply_that_is_too_large_is_refused(start_server, tmp_path):
    path = tmp_path / "layer.safetensors"
    write_layer(path, num_heads=HEADS, head_size=3, query_size=5)
    small = start_server("--model", f"m={path}", "--max-reply", "64KiB")
    request = {"queries": rows(2000, 5).tolist(), "causal": True}
    assert small.attention(request | {"need": ["received"], "weights_heads": [0]}).status_code == 200
    response = small.attention(request | {"need": ["top"], "top_k": 8})
    assert_problem(response, 413, "Reply too large")


def test_memory_of_all_results_is_reserved(start_server, tmp_path):
    """A reply that is streamed holds its numbers: 4 bytes for each, 8 for each key."""
    path = tmp_path / "layer.safetensors"
    write_layer(path, num_heads=HEADS, head_size=3, query_size=5)
    small = start_server("--model", f"m={path}", "--max-memory", "1MiB", "--workers", 1)
    data = rows(20000, 5)

    def needed(need, **texts):
        body = make_safetensors({"queries": data}, "F32", {"need": need} | texts)
        response = requests.post(small.url + "/v1/attention", data=body, headers=SAFETENSORS, timeout=60)
        problem = assert_problem(response, 413, "Request too large")
        return int(re.search(r"would need (\d+) bytes", problem["detail"])[1])

    received = needed("received")
    assert needed("received,entropy") - received >= 20000 * HEADS * 4
    assert needed("received,top", top_k="8") - received >= 20000 * HEADS * 8 * (4 + 8)
    assert needed("received,blocks", block="100") - received >= 200 * 200 * HEADS * 4


# --- contributions ---

def test_contributions_are_what_single_heads_add(server):
    queries = rows(2, 6, 5)
    request = {"queries": queries.tolist(), "need": ["outputs", "contributions"]}
    reply = ask(server, request)
    parts, outputs = np.array(reply["contributions"]), np.array(reply["outputs"])
    bias = outputs - parts.sum(axis=2)
    assert parts.shape[:3] == (2, 6, HEADS)
    assert np.allclose(bias, bias[0, 0], atol=1e-5)
    for head in range(HEADS):
        mask = [float(h == head) for h in range(HEADS)]
        alone = ask(server, request | {"head_mask": mask})
        assert np.allclose(alone["outputs"], parts[:, :, head] + bias, atol=1e-5)
        assert not np.array(alone["contributions"])[:, :, np.arange(HEADS) != head].any()


def test_contributions_of_selected_heads_and_queries(server):
    every = np.array(ask(server, {"queries": rows(2, 6, 5).tolist(), "need": ["contributions"]})["contributions"])
    some = {"queries": rows(2, 6, 5), "need": ["contributions"], "weights_heads": [3, 1], "weights_queries": [-1, 0]}
    packed = ask_in_safetensors(server, some)
    reply = ask(server, some | {"queries": some["queries"].tolist()})
    assert np.allclose(reply["contributions"], every[:, [5, 0]][:, :, [3, 1]], atol=1e-6)
    assert np.allclose(packed["contributions"], np.concatenate(reply["contributions"]), atol=1e-6)


def test_contributions_of_ragged_sequences_are_packed(server):
    parts = [rows(3, 5), rows(2, 5, seed=2)]
    packed = ask_in_safetensors(server, {"queries": parts, "need": ["contributions"]})["contributions"]
    reply = ask(server, {"queries": [part.tolist() for part in parts], "need": ["contributions"]})
    assert packed.shape[:2] == (5, HEADS)
    assert np.allclose(packed, np.concatenate([np.array(c) for c in reply["contributions"]]), atol=1e-6)


# --- projections ---

def test_projections_are_products_with_the_weights(server, tmp_path):
    path = tmp_path / "layer.safetensors"
    write_layer(path, num_heads=HEADS, head_size=3, query_size=5)
    tensors, _ = parse_safetensors(path.read_bytes())
    queries, keys = rows(2, 3, 5), rows(2, 6, 5, seed=2)
    fields = {"queries": queries, "keys": keys, "need": ["projections"]}
    reply = ask(server, fields | {"queries": queries.tolist(), "keys": keys.tolist()})
    packed = ask_in_safetensors(server, fields)
    for name, given, weight in (("queries", queries, "W_q"), ("keys", keys, "W_k"), ("values", keys, "W_v")):
        expected = (given @ tensors[f"{weight}.weight"].T).reshape(*given.shape[:2], HEADS, 3)
        assert np.allclose(reply[f"projected_{name}"], expected, atol=1e-5), name
        assert np.array_equal(packed[f"projected_{name}"].ravel(), np.float32(reply[f"projected_{name}"]).ravel()), name


def test_projections_of_ragged_keys_are_packed(server):
    fields = {"queries": [rows(3, 5), rows(2, 5)], "keys": [rows(4, 5), rows(6, 5)], "need": ["projections"]}
    packed = ask_in_safetensors(server, fields)
    assert packed["key_lens"].tolist() == [4, 6]
    assert packed["projected_queries"].shape == (5, HEADS, 3) and packed["projected_values"].shape == (10, HEADS, 3)
