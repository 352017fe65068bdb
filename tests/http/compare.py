# SPDX-License-Identifier: Apache-2.0
"""Compares replies of attnd with what was expected."""

import numpy as np

# Relative to the largest expected number, as docs/protocol.md promises; or, where the expected one
# has the roundings of bfloat16, by what is left in the middle between two of them.
TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "bf16, rounded alike": 2e-3}
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


def each_number(reply, request, expected):
    """Yields what a reply has, and what is expected of it: a name, both, and what the largest number
    counts as at least."""
    largest = {key: max(ORDER_OF_SUMMANDS, *(np.abs(getattr(result, key)).max() for result in expected))
               for key in ("outputs", "heads")}
    for b, result in enumerate(expected):
        for key in sorted(largest.keys() & reply.keys()):
            yield f"{key}[{b}]", reply[key][b], getattr(result, key), largest[key]
        if "attention_weights" in reply:
            yield (f"attention_weights[{b}]", reply["attention_weights"][b],
                   expected_weights(result.weights, request.get("need_weights")), 0.0)
        if "lse" in reply:  # its error is that of the largest score
            got = np.array([[-np.inf if number is None else number for number in row]
                            for row in reply["lse"][b]])
            finite = np.isfinite(result.lse)
            assert (np.isfinite(got) == finite).all(), f"lse[{b}]"
            yield f"lse[{b}]", got[finite], result.lse[finite], 1.0


def assert_reply(reply, request, expected, what, precision="f32", compute_others=None):
    """Compares a batched reply to random numbers of order 1, ragged or not, with the result of
    reference.compute_request(). Numbers may also lie between those of results that `compute_others`
    returns, which is only called where it matters."""
    assert set(reply) == {"model"} | expected_keys(request), what
    for key in set(reply) - {"model"}:
        assert len(reply[key]) == len(expected), what
    for got in reply.get("attention_weights", ()):
        sums = np.sum(got, axis=-1)
        assert np.abs(sums - 1).max() <= 1e-5, f"{what}: a row of weights sums to {sums}"

    others = None
    for i, (name, got, wanted, least) in enumerate(each_number(reply, request, expected)):
        if np.size(wanted) == 0:
            continue
        least = max(least, np.abs(wanted).max())
        if compute_others and np.abs(got - wanted).max() > TOLERANCE[precision] * least:
            others = others or [list(each_number(reply, request, other)) for other in compute_others()]
            spread = np.stack([wanted] + [other[i][2] for other in others])
            wanted = np.clip(got, spread.min(axis=0), spread.max(axis=0))
        assert_close(got, wanted, f"{what}: {name}", least, precision)


def assert_problem(response, status, title, field=None):
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["title"]) == (status, title), problem
    assert problem["detail"], problem
    if field is not None:
        assert problem["field"] == field, problem
    return problem
