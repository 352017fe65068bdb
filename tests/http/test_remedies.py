# SPDX-License-Identifier: Apache-2.0
"""Refusals of requests without a model, which say what to do."""

import numpy as np
import pytest

from compare import assert_problem
from dot_product import SAFETENSORS
from dot_product import post as post_given
from dot_product import to_json, to_safetensors
from safetensors_file import make_safetensors


def give(server, fields, dtype="F32", metadata=None):
    """Posts arrays as safetensors, to the route that needs no model."""
    return post_given(server.url, make_safetensors(fields, dtype, metadata), content_type=SAFETENSORS)


def rows(*shape):
    return np.random.default_rng(1).normal(size=shape).round(2)


REFUSED_GIVEN = {
    "heads first": ({"queries": rows(2, 8, 3, 4), "keys": rows(2, 2, 3, 4), "causal": True}, "positions",
                    "if these are heads, as in [B, H, T, D] of torch, send [B, T, H, D]"),
    "scale 0": ({"queries": rows(2, 1, 4), "keys": rows(2, 1, 4), "scale": 0}, "scale", "leave it out for 1/sqrt(D)"),
    "scale near the end": ({"queries": rows(2, 1, 4), "keys": rows(2, 1, 4), "scale": 3.2e38}, "scale",
                           "send numbers within +-3e+38"),
    "heads that do not divide": ({"queries": rows(2, 10), "keys": rows(2, 10), "num_heads": 3}, "queries",
                                 "not a multiple of num_heads 3, but of 1, 2, 5, 10;"),
    "a mask as lengths": ({"queries": rows(3, 1, 4), "keys": rows(3, 1, 4), "valid_lens": [1, 1, 0]}, "valid_lens",
                          "send mask.sum(-1)"),
}


@pytest.mark.parametrize("name", REFUSED_GIVEN)
def test_given_options_are_refused_with_a_remedy(demo_server, name):
    fields, field, remedy = REFUSED_GIVEN[name]
    for body, kind in ((to_json(fields), "application/json"), (to_safetensors(fields), SAFETENSORS)):
        problem = post_given(demo_server.url, body, content_type=kind).json()
        assert problem["status"] == 400 and problem["field"] == field and remedy in problem["detail"], problem


def test_lengths_of_queries_may_be_0_and_1_where_no_mask_has_that_shape(demo_server):
    for fields in ({"queries": rows(2, 1, 4), "keys": rows(3, 1, 4), "valid_lens": [1, 1]},
                   {"queries": rows(2, 1, 4), "keys": rows(2, 1, 4), "valid_lens": [1, 2]},
                   {"queries": rows(2, 2, 1, 4), "keys": rows(2, 2, 1, 4), "valid_lens": [1, 1]},
                   {"queries": rows(2, 1, 4), "keys": rows(2, 1, 4), "valid_lens": [0, 0]},
                   {"queries": rows(1, 1, 4), "keys": rows(1, 1, 4), "valid_lens": [1]}):
        assert post_given(demo_server.url, to_json(fields)).status_code == 200


def test_numbers_are_named_as_the_client_sent_them(demo_server):
    queries = rows(3, 4, 16)
    queries[0, 2, 9] = np.nan
    for batch, where in ((queries, "queries[0][2][9]"), (queries[None], "queries[0][0][2][9]")):
        problem = give(demo_server, {"queries": batch, "keys": rows(*batch.shape)}).json()
        assert problem["detail"].startswith(where + " is not a number"), problem


@pytest.mark.parametrize("metadata", [{"need": "blocks", "block": "0"}, {"timeout_ms": "0"}])
def test_options_of_safetensors_have_no_line(demo_server, metadata):
    problem = give(demo_server, {"queries": rows(2, 1, 4), "keys": rows(2, 1, 4)}, metadata=metadata).json()
    assert problem["status"] == 400 and "line" not in problem["detail"], problem


@pytest.mark.parametrize("dtype, remedy", [("U16", "bits of bfloat16 are BF16"), ("I16", "send it as F32")])
def test_integers_of_16_bits_are_refused_as_rows(demo_server, dtype, remedy):
    raw = make_safetensors({"queries": rows(2, 1, 4), "keys": rows(2, 1, 4)}, "F16")
    problem = post_given(demo_server.url, raw.replace(b'"F16"', f'"{dtype}"'.encode()), content_type=SAFETENSORS).json()
    assert problem["title"] == "Wrong dtype" and remedy in problem["detail"], problem


def test_results_out_of_range_name_the_bias(demo_server):
    fields = {"queries": rows(1, 1, 4), "keys": rows(2, 1, 4), "bias": np.full((1, 2), np.finfo("f4").min)}
    reply = post_given(demo_server.url, to_json(fields | {"need": ["weights"]}))
    assert reply.json()["attention_weights"] == [[[0.5, 0.5]]]
    reply = post_given(demo_server.url, to_json(fields | {"need": ["scores"]}))
    problem = assert_problem(reply, 422, "Result not finite")
    assert problem["detail"].endswith("send smaller numbers, and null in bias where it masks")
