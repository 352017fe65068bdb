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


def expected_keys(request):
    """Returns the keys that the reply to a request has besides the model."""
    need = request.get("need") or ["outputs"] + ["weights"] * bool(request.get("need_weights"))
    return {"attention_weights" if word == "weights" else word for word in need}


def assert_reply(reply, request, expected, what, precision="f32"):
    """Compares a batched reply to random numbers of order 1, ragged or not, with the result of
    reference.compute_request()."""
    assert set(reply) == {"model"} | expected_keys(request), what
    largest = {key: max(ORDER_OF_SUMMANDS, *(np.abs(getattr(result, key)).max() for result in expected))
               for key in ("outputs", "heads")}
    for key in set(reply) - {"model"}:
        assert len(reply[key]) == len(expected), what
    for b, result in enumerate(expected):
        for key in largest.keys() & reply.keys():
            assert_close(reply[key][b], getattr(result, key), f"{what}: {key}[{b}]", largest[key],
                         precision)
        if "attention_weights" in reply:
            got = reply["attention_weights"][b]
            assert_close(got, expected_weights(result.weights, request.get("need_weights")),
                         f"{what}: attention_weights[{b}]", precision=precision)
            sums = np.sum(got, axis=-1)
            assert np.abs(sums - 1).max() <= 1e-5, f"{what}: a row of weights sums to {sums}"
        if "lse" in reply:
            assert_lse(reply["lse"][b], result.lse, f"{what}: lse[{b}]", precision)


def assert_lse(got, expected, what, precision="f32"):
    """Compares [Tq, H], where null stands for -inf. Its error is that of the largest score."""
    got = np.array([[-np.inf if number is None else number for number in row] for row in got])
    finite = np.isfinite(expected)
    assert (np.isfinite(got) == finite).all(), what
    if finite.any():
        assert_close(got[finite], expected[finite], what, 1.0, precision)


def assert_problem(response, status, title, field=None):
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["title"]) == (status, title), problem
    assert problem["detail"], problem
    if field is not None:
        assert problem["field"] == field, problem
    return problem
