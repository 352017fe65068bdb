# SPDX-License-Identifier: Apache-2.0
"""What float32 makes of one sequence, whatever the magnitude of its numbers: the float64 result of
reference.py, how far off float32 may be (docs/protocol.md, Precision), and the largest of the
numbers that must not pass its range (Range).

Each sum is bounded by the magnitudes of its summands, and each score by an interval. Weights and
outputs follow from the ends of the intervals.
"""

from dataclasses import dataclass

import numpy as np

from reference import visible_keys

LARGEST = float(np.finfo(np.float32).max)
UNIT = 2.0 ** -23
SMALLEST = 2.0 ** -149  # a subnormal number is off by it
FLUSHED = 2.0 ** -126  # weights below it may be 0
LOG2_E = 1 / np.log(2)


@dataclass
class Bounded:
    """Numbers and how far off each may be."""
    exact: np.ndarray
    error: np.ndarray


@dataclass
class Range:
    outputs: Bounded  # [Tq, out_size]
    weights: Bounded  # [H, Tq, Tk]
    heads: Bounded  # [Tq, H, D]
    lse: Bounded  # [Tq, H]
    largest: float


def project(linear, rows):
    """Returns the product, and the largest sum of magnitudes."""
    exact, weight = linear(rows), np.abs(linear.weight)
    bias = 0 if linear.bias is None else np.abs(linear.bias)
    sums = np.abs(rows) @ weight.T + bias
    count = weight.shape[1] + 2
    # Folded weights are rounded once more, also to subnormal numbers.
    error = count * (UNIT * sums + SMALLEST * (1 + np.abs(rows).sum(axis=1, keepdims=True)))
    return Bounded(exact, error), sums.max()


def score_products(layer, head, q, k, queries, keys):
    """Returns scores [Tq, Tk] of scaled dot products, and the largest number on the way."""
    size = q.exact.shape[1]
    scale = size ** -0.5
    exact = scale * q.exact @ k.exact.T
    aq, ak = np.abs(q.exact) + q.error, np.abs(k.exact) + k.error
    # Also of W_k^T q, in sequences that are computed without projecting their keys.
    weight = np.abs(head.key.weight)
    direct = aq @ weight
    products = aq @ ak.T + direct @ np.abs(keys).T
    error = scale * (q.error @ ak.T + aq @ k.error.T + (size + keys.shape[1] + 8) * UNIT * products)
    error += size * SMALLEST * (ak.sum(axis=1) + scale * aq.sum(axis=1, keepdims=True))
    error += (size + 4) * SMALLEST * np.abs(keys).sum(axis=1)
    few = len(keys) >= 1024 and 4 * len(queries) <= size
    return Bounded(exact, error), direct.max() if few else 0.0


def score_additive(layer, head, q, k, queries, keys):
    """The same of w_v tanh(W_q q + W_k k); the weights W_q W and W_k W are products at load."""
    from_query, from_key, score = layer.additive
    sums = []
    for matrix, linear, rows in ((from_query, head.query, queries), (from_key, head.key, keys)):
        bias = 0 if linear.bias is None else matrix @ linear.bias
        folded = np.abs(matrix @ linear.weight)
        sums.append((np.abs(rows) @ folded.T + np.abs(bias),
                     SMALLEST * np.abs(rows).sum(axis=1, keepdims=True)))
    inner = (q.exact @ from_query.T)[:, None] + (k.exact @ from_key.T)[None]
    size = sums[0][0][:, None] + sums[1][0][None]
    count = head.query.weight.shape[1] + head.key.weight.shape[1] + 4
    error = count * (UNIT * size + sums[0][1][:, None] + sums[1][1][None] + SMALLEST)
    error = np.minimum(error, 2.0) + 4 * UNIT
    exact = np.tanh(inner) @ score
    total = np.abs(score).sum()
    return Bounded(exact, error @ np.abs(score) + len(score) * UNIT * total), \
        max(size.max(), total * LOG2_E)


def weigh(scores):
    """Returns the weights of one row, and its lse, each with its error."""
    low, high = scores.exact - scores.error, scores.exact + scores.error
    top = scores.exact.max()
    exact = np.exp(scores.exact - top)
    exact /= exact.sum()
    # A weight is the least when its own score is as low, and the others are as high, as can be.
    bounds = []
    for own, others in ((low, high), (high, low)):
        peak = max(own.max(), others.max())
        with np.errstate(under="ignore"):
            own_terms, other_terms = np.exp(own - peak), np.exp(others - peak)
            rest = other_terms.sum() - other_terms
            rest[np.argmax(other_terms)] = np.delete(other_terms, np.argmax(other_terms)).sum()
            total = own_terms + rest
        bounds.append(np.divide(own_terms, total, out=np.full(len(own), np.nan), where=total > 0))
    least, most = np.nan_to_num(bounds[0], nan=0.0), np.nan_to_num(bounds[1], nan=1.0)
    spread = np.maximum(most - exact, exact - least) + (len(exact) + 16) * UNIT * most + FLUSHED
    shifted = np.abs(scores.exact).max()
    return Bounded(exact, spread), \
        Bounded(top + np.log(np.exp(scores.exact - top).sum()),
                scores.error.max() + (len(exact) + 4) * UNIT * (1 + shifted))


def attend_head(layer, head, queries, keys, values, visible):
    """Returns outputs, weights and lse of a head, and the largest number on the way."""
    q, largest_query = project(head.query, queries)
    k, largest_key = project(head.key, keys)
    v, largest_value = project(head.value, values)
    score = score_products if layer.additive is None else score_additive
    scores, largest_product = score(layer, head, q, k, queries, keys)
    largest = max(largest_query, largest_key, largest_value, largest_product)
    shape = len(queries), len(keys)
    weights = Bounded(np.zeros(shape), np.zeros(shape))
    lse = Bounded(np.full(len(queries), -np.inf), np.zeros(len(queries)))
    for i, row in enumerate(visible):
        if not row.any():
            weights.exact[i], weights.error[i] = 1 / len(keys), 4 * UNIT / len(keys)
            continue
        own = Bounded(scores.exact[i, row], scores.error[i, row])
        one, lse_one = weigh(own)
        weights.exact[i, row], weights.error[i, row] = one.exact, one.error
        lse.exact[i], lse.error[i] = lse_one.exact, lse_one.error
        largest = max(largest, LOG2_E * (np.abs(own.exact) + own.error).max())
    used = visible | ~visible.any(axis=1, keepdims=True)
    sums = np.abs(v.exact) + v.error
    of_inputs = np.abs(values)  # summed before they are projected, where keys are not projected
    largest = max(largest, (used @ sums).max(), (used @ of_inputs).max())
    weight = np.abs(head.value.weight)
    # The mean of the values, and its projection.
    through = of_inputs @ weight.T
    error = weights.error @ (sums + through) + weights.exact @ (v.error + 8 * UNIT * through)
    error += (len(keys) + values.shape[1] + 8) * (UNIT * (weights.exact @ (sums + through))
                                                 + SMALLEST * (1 + weight.sum(axis=1)))
    return Bounded(weights.exact @ v.exact, error), weights, lse, largest


def compute_range(layer, queries, keys, values, valid_lens=None, causal=None, head_mask=None,
                  positions=None, key_positions=None, window=None):
    """Takes what reference.compute() takes."""
    queries, keys, values = (np.asarray(x, np.float64) for x in (queries, keys, values))
    lens = np.broadcast_to(len(keys) if valid_lens is None else valid_lens, (len(queries),))
    visible = visible_keys(
        lens, np.asarray(range(len(queries)) if positions is None else positions, np.int64),
        np.asarray(range(len(keys)) if key_positions is None else key_positions, np.int64),
        layer.causal if causal is None else causal, window or 0)
    results = [attend_head(layer, head, queries, keys, values, visible) for head in layer.heads]
    factors = np.ones(len(layer.heads)) if head_mask is None else np.array(head_mask, np.float64)
    contexts = [Bounded(factor * one.exact,
                        np.abs(factor) * (one.error + 4 * UNIT * np.abs(one.exact)) + SMALLEST)
                for factor, (one, _, _, _) in zip(factors, results)]
    largest = max(result[3] for result in results)
    heads = Bounded(np.stack([one.exact for one in contexts], axis=1),
                    np.stack([one.error for one in contexts], axis=1))
    joined = Bounded(np.concatenate([one.exact for one in contexts], axis=1),
                     np.concatenate([one.error for one in contexts], axis=1))
    outputs = joined
    largest = max(largest, (np.abs(joined.exact) + joined.error).max())
    if layer.output:
        outputs, most = project(layer.output, joined.exact)
        outputs.error += joined.error @ np.abs(layer.output.weight).T
        largest = max(largest, most + outputs.error.max())
    return Range(outputs,
                 Bounded(np.stack([result[1].exact for result in results]),
                         np.stack([result[1].error for result in results])),
                 heads, Bounded(np.stack([result[2].exact for result in results], axis=1),
                                np.stack([result[2].error for result in results], axis=1)),
                 largest)


def assert_within(got, bounded, what):
    """Compares numbers; None stands for -infinity."""
    got = np.array(got, np.float64)
    got[np.isnan(got)] = -np.inf
    assert got.shape == bounded.exact.shape, what
    alike = got == bounded.exact
    with np.errstate(invalid="ignore"):  # of infinities that are alike
        off = np.abs(np.where(alike, 0, got - bounded.exact))
    wrong = ~(off <= 2 * bounded.error)
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0])
        raise AssertionError(f"{what}{list(at)} is {got[at]:g} instead of {bounded.exact[at]:g}, "
                             f"which may be off by {bounded.error[at]:g}")
