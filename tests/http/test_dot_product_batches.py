# SPDX-License-Identifier: Apache-2.0
"""Batches of POST /v1/attention/dot-product: sequences of several lengths with positions and masks of their own, in
both formats, against the formulas of one sequence in float64."""

import os

import numpy as np
import pytest

from dot_product import SAFETENSORS, ask_json, ask_safetensors, attend, post, rounded, to_json, to_safetensors

NAMES = {"weights": "attention_weights", "heads": "heads", "lse": "lse"}


def compare(got, expected, need, what):
    """Compares with 1e-5 of the largest number, or of 1 where all are smaller."""
    assert set(got) == {NAMES[word] for word in need}, what
    for word in need:
        numbers, wanted = np.asarray(got[NAMES[word]], np.float64), expected[word]
        assert numbers.shape == wanted.shape, (what, word, numbers.shape, wanted.shape)
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(numbers), finite, f"{what} {word}")
        error = np.abs(numbers[finite] - wanted[finite]).max(initial=0)
        assert error <= 1e-5 * np.abs(wanted[finite]).max(initial=1), (what, word, error)


def make_sequence(rng, heads, kv_heads, size, value_size, queries, keys):
    return {"queries": rng.normal(size=(queries, heads, size)), "keys": rng.normal(size=(keys, kv_heads, size)),
            "values": rng.normal(size=(keys, kv_heads, value_size))}


def make_options(rng, heads, kv_heads, queries, keys, count):
    """Random options: those of all sequences, and lists of those that each sequence has."""
    shared, each = {}, [None] * count
    if rng.random() < 0.3:
        shared["scale"] = float(rng.uniform(-1, 2))
    if rng.random() < 0.3:
        shared["softcap"] = float(rng.uniform(0.5, 20))
    if rng.random() < 0.3:
        shared["sinks"] = rng.normal(size=heads)
    if rng.random() < 0.3:
        shared["slopes"] = rng.uniform(0, 1, heads)
    if rng.random() < 0.3:
        shared["window"] = int(rng.integers(1, 6))
    for b in range(count):
        each[b] = {"positions": rng.integers(0, 12, queries[b]), "valid_lens": int(rng.integers(0, keys[b] + 1)),
                   "key_positions": rng.integers(0, 12, keys[b])}
    chosen = {name for name in ("positions", "key_positions", "valid_lens") if rng.random() < 0.4}
    each = [{name: value for name, value in options.items() if name in chosen} for options in each]
    if rng.random() < 0.5 and ("positions" in chosen or queries == keys):
        shared["causal"] = True
    return shared, each


def as_float32(fields):
    return {name: np.asarray(value, np.float32) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value
            for name, value in fields.items()}


def join(sequences, side_by_side, packed):
    """The tensors of a batch, as lists or packed, and num_heads where heads lie side by side."""
    fields = {}
    for name in ("queries", "keys", "values"):
        parts = [sequence[name] for sequence in sequences]
        if side_by_side:
            parts = [part.reshape(len(part), -1) for part in parts]
        fields[name] = np.concatenate(parts) if packed else parts
    if packed:
        fields["query_lens"] = [len(sequence["queries"]) for sequence in sequences]
        fields["key_lens"] = [len(sequence["keys"]) for sequence in sequences]
    if side_by_side:
        fields["num_heads"] = sequences[0]["queries"].shape[1]
        if sequences[0]["keys"].shape[1] != fields["num_heads"]:
            fields["num_kv_heads"] = sequences[0]["keys"].shape[1]
    return fields


def take(got, batch, b):
    """What a reply has of sequence `b`."""
    taken = {}
    for name, value in got.items():
        if name in ("query_lens", "key_lens"):
            continue
        if "query_lens" not in got:
            taken[name] = value[b]
            continue
        q, k = batch["query_lens"], batch["key_lens"]
        if name != "attention_weights":
            taken[name] = value[sum(q[:b]):sum(q[:b + 1])]
            continue
        heads = len(value) // sum(x * y for x, y in zip(q, k))
        first = heads * sum(x * y for x, y in zip(q[:b], k[:b]))
        taken[name] = value[first:first + heads * q[b] * k[b]].reshape(heads, q[b], k[b])
    return taken


def test_random_requests(demo_server):
    """Ragged batches of any sizes and options, in both formats and both layouts of heads."""
    rng = np.random.default_rng(int(os.environ["PROPERTY_SEED"]))
    for case in range(250):
        kv_heads, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))
        size, value_size, count = (int(rng.integers(1, high)) for high in (9, 9, 4))
        queries, keys = (rng.integers(1, 8, count).tolist() for _ in range(2))
        sequences = [as_float32(make_sequence(rng, kv_heads * group, kv_heads, size, value_size, q, k))
                     for q, k in zip(queries, keys)]
        shared, each = make_options(rng, kv_heads * group, kv_heads, queries, keys, count)
        shared = as_float32(shared)
        need = [word for word in NAMES if rng.random() < 0.6] or ["weights"]
        expected = [attend(sequence["queries"], sequence["keys"], sequence["values"], **shared, **options)
                    for sequence, options in zip(sequences, each)]

        side_by_side = bool(rng.integers(2))
        for packed, ask in ((False, ask_json), (True, ask_safetensors)):
            fields = join(sequences, side_by_side, packed) | shared | {"need": need}
            for name in each[0]:
                lists = [options[name] for options in each]
                fields[name] = np.concatenate(lists) if packed and name != "valid_lens" else lists
            got = ask(demo_server.url, fields)
            for b in range(count):
                compare(take(got, fields, b), expected[b], need, f"case {case}, sequence {b}: {sorted(fields)}")


@pytest.mark.parametrize("ask", [ask_json, ask_safetensors])
def test_bias_shapes(demo_server, ask):
    """H and Tq of a bias may be 1, and null or -inf masks a key; a masked row attends to all keys alike."""
    rng = np.random.default_rng(5)
    q, k, v = (as_float32(make_sequence(rng, 4, 2, 3, 5, 3, 6))[name] for name in ("queries", "keys", "values"))
    for shape in ((3, 6), (1, 6), (4, 3, 6), (1, 3, 6), (4, 1, 6), (1, 1, 1, 6), (1, 4, 3, 6)):
        bias = rng.normal(size=shape).astype(np.float32)
        bias[rng.random(shape) < 0.3] = -np.inf
        bias[..., 0, :] = -np.inf
        fields = {"queries": q[None], "keys": k[None], "values": v[None], "need": list(NAMES), "bias": bias}
        expected = attend(q, k, v, bias=bias[0] if len(shape) == 4 else bias)
        compare({name: value[0] for name, value in ask(demo_server.url, fields).items()}, expected, NAMES, f"bias {shape}")


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_keys_of_16_bits_have_the_bits_of_float32(demo_server, dtype):
    rng = np.random.default_rng(6)
    fields = {name: rounded(value, dtype) for name, value in make_sequence(rng, 8, 2, 16, 16, 5, 40).items()}
    fields["need"] = list(NAMES)
    short, whole = (ask_safetensors(demo_server.url, fields, each) for each in (dtype, "F32"))
    for name in whole:
        np.testing.assert_array_equal(short[name], whole[name], name)
    compare(whole, attend(fields["queries"], fields["keys"], fields["values"]), NAMES, dtype)


SMALL = {"queries": np.ones((2, 4, 3), np.float32), "keys": np.ones((5, 2, 3), np.float32),
         "values": np.ones((5, 2, 6), np.float32)}


def test_d2l_dot_product_attention(demo_server):
    """DotProductAttention of Dive into Deep Learning, section 11.3.3: num_heads 1 and valid_lens."""
    rng = np.random.default_rng(8)
    queries, keys, values = (rng.normal(size=(2, count, width)).astype(np.float32)
                             for count, width in ((1, 2), (10, 2), (10, 4)))
    reply = ask_json(demo_server.url, {"queries": queries, "keys": keys, "values": values, "num_heads": 1,
                                  "valid_lens": [2, 6], "need": ["heads", "weights"]})
    for b, length in enumerate((2, 6)):
        scores = queries[b].astype(np.float64) @ keys[b].T / np.sqrt(2)
        powers = np.where(np.arange(10) < length, np.exp(scores), 0)
        weights = powers / powers.sum()
        np.testing.assert_allclose(reply["attention_weights"][b, 0], weights, atol=1e-6)
        np.testing.assert_allclose(reply["heads"][b, :, 0], weights @ values[b], atol=1e-6)


def test_ragged_batches_have_no_bias(demo_server):
    rng = np.random.default_rng(9)
    sequences = [make_sequence(rng, 2, 2, 3, 3, 2, keys) for keys in (3, 4)]
    fields = join(sequences, False, False) | {"bias": np.zeros((2, 4))}
    problem = post(demo_server.url, to_json(fields)).json()
    assert problem["title"] == "Shape mismatch" and "equal lengths" in problem["detail"], problem


def test_large_reply_is_streamed(demo_server):
    """The layer is part of the request, and lives until the last piece was sent."""
    rng = np.random.default_rng(10)
    fields = as_float32({"queries": rng.normal(size=(300, 4, 8)), "keys": rng.normal(size=(300, 2, 8))})
    expected = attend(fields["queries"], fields["keys"], causal=True)
    for ask in (ask_json, ask_safetensors):
        compare(ask(demo_server.url, fields | {"causal": True}), expected, ["weights"], "streamed")


def test_beside_a_model(demo_server):
    """The same route of a server that has models, whose statistics do not count it."""
    before = demo_server.get("/v2/models/stats").json()
    compare(ask_json(demo_server.url, SMALL), attend(*SMALL.values()), ["heads"], "beside models")
    assert demo_server.get("/v2/models/stats").json() == before


def test_times_out_and_priority(demo_server):
    reply = post(demo_server.url, to_json(SMALL | {"timeout_ms": 1e-6, "priority": 1}))
    assert (reply.status_code, reply.json()["title"]) == (504, "Deadline exceeded"), reply.text
