# SPDX-License-Identifier: Apache-2.0
"""Compares what attnd answered with what it has to answer."""

import numpy as np

# Of the largest expected number, as docs/protocol.md promises. With bfloat16 a logit is off by
# about 1/256 of itself: its tolerance is for logits as trained layers have them, up to about 10;
# and layers of a few columns, whose roundings do not average out, are off by a little more (3 of
# 30,000 random requests by up to 0.024).
TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "bf16 in a narrow layer": 4e-2}
# Where random numbers of order 1 happen to cancel, float32 cannot keep to that: then the largest
# counts as this.
ORDER_OF_SUMMANDS = 0.3


def assert_close(got, expected, what, least=0.0, precision="f32"):
    """Compares to TOLERANCE of the largest expected number, which counts as at least `least`."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    largest = max(np.abs(expected).max(), least)
    error = np.abs(got - expected).max()
    assert error <= TOLERANCE[precision] * largest, \
        f"{what}: off by {error:g}, the largest is {largest:g}"


def expected_weights(weights, need_weights):
    """What `need_weights` makes of [H, Tq, Tk]."""
    return weights.mean(axis=0) if need_weights == "mean" else weights


def assert_answers(answer, request, expected, what, precision="f32"):
    """Checks a batched answer to random numbers of order 1, ragged or not, against
    reference.attend_request()."""
    largest = max(ORDER_OF_SUMMANDS, *(np.abs(outputs).max() for outputs, _ in expected))
    assert len(answer["outputs"]) == len(expected), what
    for b, (outputs, weights) in enumerate(expected):
        assert_close(answer["outputs"][b], outputs, f"{what}: outputs[{b}]", largest,
                     precision)
        if request.get("need_weights"):
            got = answer["attention_weights"][b]
            assert_close(got, expected_weights(weights, request["need_weights"]),
                         f"{what}: attention_weights[{b}]", precision=precision)
            sums = np.sum(got, axis=-1)
            assert np.abs(sums - 1).max() <= 1e-5, f"{what}: a row of weights sums to {sums}"
    assert ("attention_weights" in answer) == bool(request.get("need_weights")), what


def assert_problem(response, status, title, field=None):
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["title"]) == (status, title), problem
    assert problem["detail"], problem
    if field is not None:
        assert problem["field"] == field, problem
    return problem
