# SPDX-License-Identifier: Apache-2.0
"""Compares replies of attnd with what was expected."""

import numpy as np

# Relative to the largest expected number, as docs/protocol.md promises. With bfloat16 a score is
# off by about 1/256 of itself, so the tolerance is for scores of trained layers, up to about 10.
# In layers of a few columns roundings do not average out: 3 of 30,000 random requests were off by
# up to 0.024.
TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "bf16 in a small layer": 4e-2}
# Where random numbers of order 1 cancel, float32 cannot meet that tolerance. The largest expected
# number then counts as at least this.
ORDER_OF_SUMMANDS = 0.3


def assert_close(got, expected, what, min_largest=0.0, precision="f32"):
    """Compares with TOLERANCE, relative to the largest expected number or to `min_largest`."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    largest = max(np.abs(expected).max(), min_largest)
    error = np.abs(got - expected).max()
    assert error <= TOLERANCE[precision] * largest, \
        f"{what}: off by {error:g}; the largest number is {largest:g}"


def expected_weights(weights, need_weights):
    """Returns what a reply has of attention weights [H, Tq, Tk], given `need_weights`."""
    return weights.mean(axis=0) if need_weights == "mean" else weights


def assert_reply(reply, request, expected, what, precision="f32"):
    """Compares a batched reply to random numbers of order 1, ragged or not, with the result of
    reference.attend_request()."""
    largest = max(ORDER_OF_SUMMANDS, *(np.abs(outputs).max() for outputs, _ in expected))
    assert len(reply["outputs"]) == len(expected), what
    for b, (outputs, weights) in enumerate(expected):
        assert_close(reply["outputs"][b], outputs, f"{what}: outputs[{b}]", largest,
                     precision)
        if request.get("need_weights"):
            got = reply["attention_weights"][b]
            assert_close(got, expected_weights(weights, request["need_weights"]),
                         f"{what}: attention_weights[{b}]", precision=precision)
            sums = np.sum(got, axis=-1)
            assert np.abs(sums - 1).max() <= 1e-5, f"{what}: a row of weights sums to {sums}"
    assert ("attention_weights" in reply) == bool(request.get("need_weights")), what


def assert_problem(response, status, title, field=None):
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["title"]) == (status, title), problem
    assert problem["detail"], problem
    if field is not None:
        assert problem["field"] == field, problem
    return problem
