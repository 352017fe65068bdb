# SPDX-License-Identifier: Apache-2.0
"""What reference.py computes, with the roundings of --precision bf16: both factors of every product
are bfloat16, of which the rest is float64. A float32 sum beside the middle between two bfloat16 may
be rounded up or down, since each kernel has an order of its own. So sums can be nudged by what
float32 rounds."""

import numpy as np

from reference import compute_request, log_sum_exp

NUDGE = 2.0 ** -22  # float32 sums are off by less of the magnitudes that they add up
NUDGED_RUNS = 64
BLOCK, CHUNK = 96, 24 * 96  # keys; weights are rounded relative to the largest up to their block
DIRECT_KEYS_MIN = 1024  # few queries over so many keys: neither is rounded, see math/plan/rules.h


def round_bf16(numbers):
    """Returns numbers as float32, rounded to the nearest bfloat16, ties to even."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    bits = bits + 0x7fff + (bits >> 16 & 1) & 0xffff0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


class Bf16:
    """The arithmetic of compute(), with sums that are off by so much of their magnitudes."""

    def __init__(self, nudge=0.0, seed=0):
        self.nudge, self.rng = nudge, np.random.default_rng(seed)

    def sum(self, sums, magnitudes):
        if self.nudge == 0:
            return sums
        return sums + self.nudge * self.rng.uniform(-1, 1, np.shape(sums)) * magnitudes

    def product(self, rows, weight):
        """Returns rows [n, in] times weight [out, in], whose factors are rounded already."""
        return self.sum(rows @ weight.T, np.abs(rows) @ np.abs(weight).T)

    def project(self, linear, rows):
        result = self.product(round_bf16(rows), round_bf16(linear.weight))
        return result if linear.bias is None else result + linear.bias

    def project_folded(self, matrix, linear, rows):
        """Additive scoring folds its matrix [A, D] into the projection before it."""
        folded = self.product(matrix, linear.weight.T)
        result = self.product(round_bf16(rows), round_bf16(folded))
        return result if linear.bias is None else result + matrix @ linear.bias

    def round_weights(self, weights):
        """Rounds a row of attention weights; with a nudge, relative to anything, as not all kernels
        have the same largest."""
        unit = 2.0 ** self.rng.uniform(-1, 1) if self.nudge else 1.0
        rounded, largest = np.zeros_like(weights), 0.0
        for first in range(0, len(weights), BLOCK):
            block = weights[first:first + BLOCK]
            largest = max(0.0 if first % CHUNK == 0 else largest, block.max())
            if largest > 0:
                rounded[first:first + BLOCK] = round_bf16(block / largest * unit) / unit * largest
        return rounded

    def score(self, head, additive, queries, keys, direct):
        """Returns scores [Tq, Tk]."""
        if additive is not None:
            from_query, from_key, score = additive
            q = self.project_folded(from_query, head.query, queries)
            k = self.project_folded(from_key, head.key, keys)
            return self.sum(np.tanh(q[:, None] + k[None]) @ score, np.abs(score).sum())
        q, scale = self.project(head.query, queries), np.log2(np.e) / np.sqrt(len(head.query.weight))
        if direct:
            k = keys @ round_bf16(head.key.weight).T
            k = k if head.key.bias is None else k + head.key.bias
            return self.product(q * scale, k) * np.log(2)
        k = round_bf16(self.project(head.key, keys))
        return self.product(round_bf16(q * scale), k) * np.log(2)

    def attend_head(self, head, additive, queries, keys, values, visible, bias, plain):
        """As reference.attend_head()."""
        direct = (plain and additive is None and len(keys) >= DIRECT_KEYS_MIN and
                  len(queries) <= len(head.value.weight) // 4)
        scores = self.score(head, additive, queries, keys, direct)
        weights, lse = np.zeros_like(scores), np.full(len(scores), -np.inf)
        for i, row in enumerate(visible):
            if not row.any():
                weights[i] = 1 / len(keys)
                continue
            scores[i] = self.sum(scores[i] + bias[i], 1.0)
            lse[i] = log_sum_exp(scores[i, row])
            weights[i, row] = np.exp(scores[i, row] - lse[i])
        if direct:
            return self.project(head.value, weights @ values), weights, lse
        factors = np.stack([self.round_weights(row) for row in weights])
        return (self.product(factors, round_bf16(self.project(head.value, values)).T), weights, lse)


def compute_nudged(layer, request):
    """Returns what compute_request() does, several times, with sums that are nudged."""
    return [compute_request(layer, request, Bf16(NUDGE, seed)) for seed in range(NUDGED_RUNS)]
