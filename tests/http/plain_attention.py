# SPDX-License-Identifier: Apache-2.0
"""Attention in float64 by numpy, and a client that answers with it."""

import numpy as np

from attnd.recording import to_float


def compute_weights(queries, keys, scale, values=None, causal=False, window=None, softcap=None, bias=None, sinks=None,
                    positions=None, self_attention=None, token_ids=None):
    """Returns the weights [H, Tq, Tk] of a request of one sequence, in float64. The last two change nothing."""
    queries, keys = (to_float(rows).astype(np.float64) for rows in (queries, keys))
    keys = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    scores = scale * np.matmul(queries.transpose(1, 0, 2), keys.transpose(1, 2, 0))
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias

    positions = np.arange(len(queries)) if positions is None else positions
    distance = positions[:, None] - np.arange(len(keys))
    visible = distance >= 0 if causal else np.full_like(distance, True, bool)
    if window is not None:
        visible = visible & (distance < window if causal else np.abs(distance) <= window)
    scores = np.where(visible, scores, -np.inf)

    sinks = np.full((len(scores), 1, 1), -np.inf) if sinks is None else sinks[:, None, None].astype(np.float64)
    largest = np.maximum(scores.max(-1, keepdims=True), sinks)
    exponentials = np.exp(scores - largest)
    return exponentials / (exponentials.sum(-1, keepdims=True) + np.exp(sinks - largest))


class NumpyClient:
    """Answers dot_product() for one sequence as attnd does, in numpy."""

    def dot_product(self, queries, keys, values=None, need=("weights",), weights_heads=None, weights_queries=None,
                    spans=None, top_k=1, top_in=None, block=1, targets=None, row_weights=1, **options):
        weights = compute_weights(queries, keys, **options)
        chosen = np.ix_(*(range(count) if indices is None else np.atleast_1d(indices)
                          for count, indices in zip(weights.shape, (weights_heads, weights_queries))))
        selected, factors = weights[chosen], np.broadcast_to(row_weights, weights.shape[:2])[chosen]
        results = {}
        for word in need:
            if word == "weights":
                results[word] = selected
            elif word == "heads":
                values = np.repeat(values, len(weights) // values.shape[1], axis=1)
                results[word] = np.einsum("hqk,khd->qhd", weights, values)
            elif word == "received":
                results[word] = np.einsum("hqk,hq->hk", selected, factors)
            elif word == "target":
                results[word] = np.stack([selected[:, i, first:end].sum(-1) for i, (first, end) in enumerate(targets)])
            elif word == "spans":
                results[word] = np.stack([selected[..., first:end].sum(-1) for first, end in spans], -1)
            elif word == "top":
                results[word] = find_top(selected, top_k, top_in)
            elif word == "blocks":
                results[word] = mean_blocks(selected, block)
        return results


def find_top(weights, top_k, top_in):
    """Returns the keys and weights of the k largest of each row, in each range: [.., k], or [.., R, k]."""
    if np.ndim(top_in) == 2:
        pairs = [find_top(weights, top_k, each) for each in top_in]
        return tuple(np.stack(arrays, axis=-2) for arrays in zip(*pairs))
    first, end = (0, weights.shape[-1]) if top_in is None else top_in
    keys = first + np.argsort(-weights[..., first:end], axis=-1, kind="stable")[..., :top_k]
    return keys, np.take_along_axis(weights, keys, -1)


def mean_blocks(weights, block):
    """Returns sums over the keys and means over the rows of each block: [H, rows / block, keys / block]."""
    rows = [weights[:, i:i + block].mean(1) for i in range(0, weights.shape[1], block)]
    return np.stack([np.stack([row[:, j:j + block].sum(-1) for j in range(0, row.shape[-1], block)], -1)
                     for row in rows], 1)
