# SPDX-License-Identifier: Apache-2.0
"""Masks of attention functions as words of a request."""

import numpy as np


def cut(queries, keys, values, visible, bias, is_self):
    """Returns the fields of one sequence [T, H, D] without its padding. `visible` is [H or 1, Tq, Tk], or
    whether the mask is causal. A mask that causal and window explain is sent as these, any other as bias."""
    num_queries, num_keys = len(queries), len(keys)
    if isinstance(visible, bool):  # sdpa aligns at the first key, and later ones are not seen
        num_keys = min(num_queries, num_keys) if visible else num_keys
        words, rows, columns = {"causal": visible}, slice(None), slice(num_keys)
    else:
        words, rows, columns = explain(visible, is_self)
    request = {"queries": queries[rows], "keys": keys[columns]} | words
    if values is not None:
        request["values"] = values[columns]
    if bias is not None:
        bias = bias[..., rows if bias.shape[-2] > 1 else slice(None), columns]
    if "bias" in words:
        bias = words["bias"] if bias is None else np.where(np.isneginf(words["bias"]), -np.inf, bias)
    if bias is not None and np.any(bias):
        request["bias"] = np.asarray(bias, np.float32)
    if request["causal"] and len(request["queries"]) != len(request["keys"]):
        shift = len(request["keys"]) - len(request["queries"])
        request["positions"] = np.arange(len(request["queries"])) + shift
    return request


def explain(visible, is_self):
    """Returns the words for a mask [H or 1, Tq, Tk], and the rows and columns that are not padding. In
    self-attention the last query is the last key."""
    num_queries, num_keys = visible.shape[-2:]
    seen = np.flatnonzero(visible.any(axis=(0, 1)))
    if seen.size == 0:
        return {"causal": False, "bias": np.where(visible, 0, -np.inf)}, slice(None), slice(None)
    shift, end = num_keys - num_queries, seen[-1] + 1
    for start in sorted({0, seen[0]}):
        rows = slice(max(start - shift, 0), max(end - shift, 1)) if is_self and shift >= 0 else slice(None)
        inner = visible[:, rows, start:end]
        words = find_words(inner, rows.start + shift - start if rows.start is not None else 0)
        if words is not None:
            break
    else:
        words = {"causal": False, "bias": np.where(inner, 0, -np.inf)}
    return words, rows, slice(start, end)


def find_words(visible, shift):
    """Returns causal and window if these explain a mask [H or 1, Tq, Tk] whose query i is at i + shift."""
    if visible.all():
        return {"causal": False}
    distance = np.arange(visible.shape[-2])[:, None] + shift - np.arange(visible.shape[-1])
    is_causal = not visible[:, distance < 0].any()
    farthest = int(np.abs(distance[visible.any(axis=0)]).max(initial=0))
    for window in (None, farthest + is_causal) if farthest + is_causal else (None,):
        expected = distance >= 0 if is_causal else np.ones_like(distance, bool)
        if window is not None:  # attnd's: the last W positions, or at most W away on both sides
            expected &= distance < window if is_causal else np.abs(distance) <= window
        if (visible == expected).all():
            return {"causal": is_causal} | ({"window": window} if window else {})
    return None
