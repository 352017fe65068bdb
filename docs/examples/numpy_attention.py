# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention in numpy, as the textbooks write it, to compare attnd with.

B sequences, H heads, Tq queries, Tk keys, D numbers of a head."""

import numpy as np


def split_heads(rows, num_heads):
    """[B, T, H·D] becomes [B, H, T, D]."""
    return rows.reshape(*rows.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)


def join_heads(heads):
    """[B, H, T, D] becomes [B, T, H·D]."""
    heads = heads.transpose(0, 2, 1, 3)
    return heads.reshape(*heads.shape[:2], -1)


def dot_product(queries, keys):
    return queries @ keys.transpose(0, 1, 3, 2) / np.sqrt(queries.shape[-1])


def softmax(scores):
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def attend(queries, keys, values, num_heads, valid_lens=None, score=dot_product):
    """Attention of rows that are projected already, each [B, T, H·D]. `valid_lens` is [B] or [B, Tq].
    Returns the heads' outputs side by side [B, Tq, H·D], and the weights [B, H, Tq, Tk]."""
    queries, keys, values = (split_heads(rows, num_heads) for rows in (queries, keys, values))
    scores = score(queries, keys)
    if valid_lens is not None:
        lens = np.reshape(valid_lens, (len(scores), 1, -1, 1))
        scores = np.where(np.arange(scores.shape[-1]) < lens, scores, -1e6)
    weights = softmax(scores)
    return join_heads(weights @ values), weights


def difference(got, expected):
    """The largest difference, relative to the largest number expected."""
    return np.abs(got - expected).max() / np.abs(expected).max()
