# SPDX-License-Identifier: Apache-2.0
"""Requests whose numbers have any magnitude that float32 has: a reply of 200 has the right numbers,
and 422 only comes where a number on the way passes the range of float32.

Cases are numbered and seeded as those of test_property.py."""

import functools

import numpy as np
import orjson
import pytest

from checkpoints import LAYOUTS, random_checkpoint
from compare import assert_problem
from openblas import needs_openblas
from ranges import LARGEST, Bounded, assert_within, compute_range
from reference import each_sequence
from server import Server, skip_without
from test_property import CASES_PER_MODEL, SEED, random_request

NUM_MODELS = 16
FOLDED = ("attention.", "W_Q", "W_K", "W_V")  # a model weight is the product of two tensors


def widen_weights(rng, tensors):
    """Multiplies tensors, and some columns of them, by powers of 10."""
    for name, tensor in tensors.items():
        if name.endswith("mask"):
            continue
        folded = any(word in name for word in FOLDED) or "attention.w_v.weight" in tensors
        most = 12 if folded else 30
        tensor *= 10.0 ** rng.uniform(-most, most)
        if rng.random() < 0.3:
            tensor *= 10.0 ** rng.uniform(-6, 6, tensor.shape[-1:])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wide")
    return [random_checkpoint(np.random.default_rng([SEED, 4, i]), directory, f"w{i:02}",
                              LAYOUTS[i % len(LAYOUTS)], "F32", widen_weights)
            for i in range(NUM_MODELS)]


@pytest.fixture(scope="module", params=(("native", "auto"), ("native", "portable"),
                                        ("native", "avx2"), pytest.param(("openblas", "auto"), marks=needs_openblas)),
                ids="-".join)
def server(request, models):
    engine, cpu = request.param
    skip_without("--engine", engine, "--cpu", cpu)
    with Server(*(word for model in models for word in ("--model", model.argument)),
                "--engine", engine, "--cpu", cpu) as running:
        yield running


def widen_request(rng, model, request):
    """Multiplies inputs by powers of 10: often such that scores are of order 1, or of the order of
    the largest float32."""
    typical = {field: max(np.abs(linear.weight).max(), 1e-38) for field, linear in
               zip(("queries", "keys", "values"), (model.layer.heads[0].query,
                                                   model.layer.heads[0].key,
                                                   model.layer.heads[0].value))}
    near = rng.choice([0, rng.uniform(36, 40)])  # of scores
    shift = rng.uniform(near - 38, 38) if near else rng.uniform(-30, 30)
    for field, sign in ("queries", 1), ("keys", -1), ("values", 1):
        if field not in request:
            continue
        exponent = rng.uniform(-38, 38)
        if rng.random() < 0.8:
            exponent = sign * shift + (near if field == "keys" else 0) - np.log10(typical[field])
        jitter = rng.choice([0, 0, 3, 20])
        request[field] = [np.clip(np.array(rows) * 10.0 ** np.clip(
            exponent + rng.uniform(-jitter, jitter, np.shape(rows)), -38, 38),
            -1e38, 1e38).astype(np.float32).tolist() for rows in request[field]]


def random_wide_request(rng, model, case):
    """Returns a small request, since one number that is not finite is enough for 422; the first of a
    model has many keys, and often so few queries that keys are not projected."""
    most = [(2, 2600), (12, 12), (1, 2), (2, 3)][min(case, 1 + case % 3)]
    request = random_request(rng, model, *most)
    widen_request(rng, model, request)
    return request


@pytest.fixture(scope="module")
def cases_of(models):
    """A function that returns the cases of a model, for all servers: request, expected numbers, and what it is."""
    @functools.cache
    def make(number):
        made = []
        for case in range(max(4, CASES_PER_MODEL // 2)):
            rng = np.random.default_rng([SEED, 4, number, case])
            request = random_wide_request(rng, models[number], case)
            with np.errstate(over="ignore", under="ignore"):
                expected = [compute_range(models[number].layer, *sequence) for sequence in each_sequence(request)]
            made.append((request, expected, f"PROPERTY_SEED={SEED}, {models[number].name}, case {case}"))
        return made

    return make


def assert_right_or_none(server, request, expected, what):
    response = server.attention(request)
    if response.status_code != 200:
        assert_problem(response, 422, "Result not finite")
        most = max(one.largest for one in expected)
        assert most > 0.999 * LARGEST, f"{what}: the largest number is {most:g}: {response.text}"
        return
    reply = orjson.loads(response.content)
    for b, one in enumerate(expected):
        for key in reply.keys() & {"outputs", "heads", "lse"}:
            assert_within(reply[key][b], getattr(one, key), f"{what}: {key}[{b}]")
        if "attention_weights" in reply:
            weights = one.weights
            if request.get("need_weights") == "mean":
                weights = Bounded(weights.exact.mean(axis=0), weights.error.mean(axis=0))
            assert_within(reply["attention_weights"][b], weights, f"{what}: weights[{b}]")


@pytest.mark.parametrize("number", range(NUM_MODELS))
def test_numbers_are_right_or_none(server, cases_of, number):
    for request, expected, what in cases_of(number):
        assert_right_or_none(server, request, expected, what)
