# SPDX-License-Identifier: Apache-2.0
"""Random requests to random layers, compared with reference.py.

PROPERTY_CASES is the number of cases. PROPERTY_SEED, which every run prints first, repeats a run.
A case is seeded with the seed of the run, the number of its model and its own number, so the cases
of one model can be run alone.
"""

import functools
import os

import numpy as np
import orjson
import pytest

from checkpoints import DTYPES, LAYOUTS, random_checkpoint
from compare import ORDER_OF_SUMMANDS, assert_reply, assert_close
from reference import Exact, compute_request, no_mask
from reference_bf16 import Bf16, compute_nudged
from server import Server, skip_without

NUM_MODELS = 50
CASES_PER_MODEL = -(-int(os.environ.get("PROPERTY_CASES", 500)) // NUM_MODELS)
SEED = int(os.environ["PROPERTY_SEED"])  # conftest.py sets it


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models")
    checkpoints = []
    for i in range(NUM_MODELS):
        # 12 layouts and 4 dtypes; with the division every pair of them occurs.
        layout, dtype = LAYOUTS[i % len(LAYOUTS)], DTYPES[(i + i // len(LAYOUTS)) % len(DTYPES)]
        checkpoints.append(random_checkpoint(np.random.default_rng([SEED, i]), directory,
                                             f"m{i:02}-{layout}", layout, dtype))
    return checkpoints


def serve(models, *options):
    return Server(*(word for model in models for word in ("--model", model.argument)), *options)


@pytest.fixture(scope="module")
def server(models):
    with serve(models) as running:
        yield running


@pytest.fixture(scope="module")
def bf16_server(models):
    skip_without("--precision", "bf16")
    with serve(models, "--precision", "bf16") as running:
        yield running


def random_rows(rng, lens, width):
    return [rng.normal(size=(length, width)).astype(np.float32).tolist() for length in lens]


def random_valid_lens(rng, query_lens, key_lens):
    kind = rng.choice(["none", "null", "per sequence", "per query", "zeros"])
    if kind == "none":
        return {}
    if kind == "null":
        return {"valid_lens": None}
    if kind == "zeros":
        return {"valid_lens": [0] * len(key_lens)}
    if kind == "per sequence":
        return {"valid_lens": [int(rng.integers(0, tk + 1)) for tk in key_lens]}
    return {"valid_lens": no_mask([rng.integers(0, tk + 1, size=tq).tolist()
                                   for tq, tk in zip(query_lens, key_lens)])}


def random_positions(rng, query_lens, key_lens):
    """Returns positions and key_positions, each with a chance: one list for all sequences where
    they are equally long, or one for each; in order, as of new tokens after others, or not."""
    request = {}
    for field, lens in ("positions", query_lens), ("key_positions", key_lens):
        if rng.random() < 0.7:
            continue
        first, in_order = int(rng.integers(0, 20)), rng.random() < 0.5
        lists = [list(range(first, first + length)) if in_order
                 else rng.integers(0, 2 * length, size=length).tolist() for length in lens]
        once = len(set(lens)) == 1 and rng.random() < 0.3
        request[field] = lists[0] if once else lists
    return request


def add_random_masks(rng, model, request):
    """Adds a bias or an attn_mask of any shape, booleans or numbers of which some hide, and prefix_lens, each
    with a chance. Batches whose sequences differ in length have no bias."""
    query_lens, key_lens = ([len(rows) for rows in request.get(field, request["queries"])] for field in ("queries", "keys"))
    causal = request.get("causal", model.layer.causal)
    if causal and rng.random() < 0.3:
        request["prefix_lens"] = [int(rng.integers(0, length + 1)) for length in key_lens]
    if len(set(query_lens)) > 1 or len(set(key_lens)) > 1 or rng.random() < 0.6:
        return
    axes = [len(key_lens), len(model.layer.heads), query_lens[0]]
    shape = [axis if rng.random() < 0.5 else 1 for axis in axes[int(rng.integers(4)):]] + key_lens[:1]
    bias = np.where(rng.random(shape) < 0.7, rng.normal(size=shape).astype(np.float32), None)
    field = str(rng.choice(["bias", "attn_mask", "booleans"]))
    request["bias" if field == "bias" else "attn_mask"] = (np.not_equal(bias, None) if field == "booleans" else bias).tolist()


def random_request(rng, model, max_queries=12, max_keys=12):
    """Returns a random batched request that the model accepts, with at most so many rows in a
    sequence."""
    query_size, key_size, value_size = model.layer.sizes
    num_sequences, ragged = int(rng.integers(1, 5)), rng.random() < 0.5

    def lens(most):
        return rng.integers(1, most + 1, size=num_sequences if ragged else 1).repeat(
            1 if ragged else num_sequences).tolist()

    query_lens, key_lens = lens(max_queries), lens(max_keys)
    request = {"model": model.name}
    # Keys may only be omitted if they are as wide as queries, and values if as wide as keys.
    if query_size == key_size and max_queries == max_keys and rng.random() < 0.5:
        key_lens = query_lens
    else:
        request["keys"] = random_rows(rng, key_lens, key_size)
    if key_size != value_size or rng.random() < 0.5:
        request["values"] = random_rows(rng, key_lens, value_size)
    request["queries"] = random_rows(rng, query_lens, query_size)
    request |= random_valid_lens(rng, query_lens, key_lens)
    if rng.random() < 0.5:
        request["causal"] = bool(rng.random() < 0.5)
    if rng.random() < 0.3:
        request["head_mask"] = rng.choice([0, 1, 0.5, -2], size=len(model.layer.heads)).tolist()
    request |= random_positions(rng, query_lens, key_lens)
    if rng.random() < 0.3:
        request["window"] = int(rng.integers(0, 1 + max(key_lens)))
    if rng.random() < 0.5:
        request["need_weights"] = [True, "mean", False][rng.integers(3)]
    elif rng.random() < 0.8:
        words = ["outputs", "weights", "heads", "lse"]
        request["need"] = rng.choice(words, rng.integers(1, 5), replace=False).tolist()
    return request


def compare_random_requests(server, models, number, precision, cases=range(CASES_PER_MODEL),
                            **sizes):
    model = models[number]
    # A model whose columns cancel too much at the start is computed by OpenBLAS, in float32.
    described = server.get("/v1/models/" + model.name).json()
    bf16 = described["precision"] == "bf16"
    precision = precision if bf16 else "f32"
    for case in cases:
        rng = np.random.default_rng([SEED, number, case])
        request = random_request(rng, model, **sizes)
        add_random_masks(rng, model, request)
        what = f"PROPERTY_SEED={SEED}, {model.name}, case {case}"
        response = server.attention(request)
        assert response.status_code == 200, f"{what}: {response.text}"
        assert_reply(orjson.loads(response.content), request,
                     compute_request(model.layer, request, Bf16() if bf16 else Exact), what, precision,
                     functools.partial(compute_nudged, model.layer, request) if bf16 else None)


@pytest.mark.parametrize("number", range(NUM_MODELS))
def test_random_requests_agree_with_the_reference(server, models, number):
    compare_random_requests(server, models, number, "f32")


@pytest.mark.parametrize("number", range(NUM_MODELS))
def test_few_queries_over_many_keys_agree_with_the_reference(server, models, number):
    compare_random_requests(server, models, number, "f32", cases=[0], max_queries=40, max_keys=3000)


@pytest.mark.parametrize("number", range(NUM_MODELS))
def test_random_requests_agree_with_the_reference_in_bf16(bf16_server, models, number):
    compare_random_requests(bf16_server, models, number, "bf16, rounded alike")


@pytest.mark.parametrize("number", range(0, NUM_MODELS, 4))
def test_few_queries_over_many_keys_agree_in_bf16(bf16_server, models, number):
    compare_random_requests(bf16_server, models, number, "bf16, rounded alike", cases=[0],
                            max_queries=40, max_keys=3000)


def padded(request):
    """Returns the request with every sequence padded to the longest, and valid_lens to match."""
    def pad(sequences):
        longest = max(map(len, sequences))
        width = len(sequences[0][0])
        return [rows + [[9.0] * width] * (longest - len(rows)) for rows in sequences]

    return request | {"queries": pad(request["queries"]), "keys": pad(request["keys"]),
                      "values": pad(request["values"]),
                      "valid_lens": [len(rows) for rows in request["keys"]]}


@pytest.mark.parametrize("number", range(0, NUM_MODELS, 2))
def test_ragged_request_equals_padding_with_valid_lens(server, models, number):
    model, rng = models[number], np.random.default_rng([SEED, number, 1, 1])
    query_size, key_size, value_size = model.layer.sizes
    query_lens, key_lens = rng.integers(1, 17, size=(2, 4)).tolist()
    ragged = {"model": model.name, "queries": random_rows(rng, query_lens, query_size),
              "keys": random_rows(rng, key_lens, key_size),
              "values": random_rows(rng, key_lens, value_size),
              "causal": bool(number % 4), "need_weights": True}
    reply, other = server.attention(ragged), server.attention(padded(ragged))
    assert (reply.status_code, other.status_code) == (200, 200), reply.text + other.text
    for b, (tq, tk) in enumerate(zip(query_lens, key_lens)):
        what = f"PROPERTY_SEED={SEED}, {model.name}, sequence {b}"
        assert_close(reply.json()["outputs"][b],
                     np.array(other.json()["outputs"][b])[:tq], what, ORDER_OF_SUMMANDS)
        weights = np.array(other.json()["attention_weights"][b])
        assert_close(reply.json()["attention_weights"][b], weights[:, :tq, :tk], what)
        assert (weights[:, :tq, tk:] == 0).all(), f"{what}: padding has attention weights"


def test_masked_keys_do_not_change_the_result(server, models):
    """Rows after valid_lens may be as large as float32 allows."""
    for model in models:
        rng = np.random.default_rng([SEED, 2, 2, 2])
        query_size, key_size, value_size = model.layer.sizes
        request = {"model": model.name, "queries": random_rows(rng, [3], query_size),
                   "keys": random_rows(rng, [4], key_size),
                   "values": random_rows(rng, [4], value_size), "valid_lens": [2]}
        clean = server.attention(request)
        for tensor in ("keys", "values"):
            for row in request[tensor][0][2:]:
                row[:] = [3e38] * len(row)
        dirty = server.attention(request)
        assert dirty.status_code == 200, f"PROPERTY_SEED={SEED}, {model.name}: {dirty.text}"
        assert dirty.json() == clean.json(), f"PROPERTY_SEED={SEED}, {model.name}"
