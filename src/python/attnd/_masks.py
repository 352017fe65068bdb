# SPDX-License-Identifier: Apache-2.0
"""Masks of attention functions as words of a request, without padding.

A mask is the range of keys that each query sees, or where these are no ranges, booleans.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._arrays import Array

WHOLE = slice(None)


def to_ranges(visible: Array) -> Array | None:
    """Return the first key and the end of the keys that each query sees, [..., Tq, 2], of booleans [..., H or 1, Tq, Tk].

    A query that sees none has (0, 0). Where heads differ, or a query sees no range, return None.
    """
    rows = visible[..., 0, :, :]
    if visible.shape[-3] > 1 and not (visible == visible[..., :1, :, :]).all():
        return None
    count = rows.sum(-1)
    first = rows.argmax(-1)
    if (rows.shape[-1] - rows[..., ::-1].argmax(-1) - first != count)[count > 0].any():
        return None
    return np.stack([first, first + count], -1).astype(np.int32)


def to_visible(ranges: Array, num_keys: int) -> Array:
    """Return the booleans [1, Tq, Tk] of ranges [Tq, 2]."""
    keys = np.arange(num_keys)
    visible: Array = ((keys >= ranges[:, :1]) & (keys < ranges[:, 1:]))[np.newaxis]
    return visible


def causal_ranges(num_queries: int, num_keys: int, is_causal: bool) -> Array:
    """Return the ranges [Tq, 2] where no mask is given: a causal one begins at the first key."""
    end = np.minimum(np.arange(1, num_queries + 1), num_keys) if is_causal else np.full(num_queries, num_keys)
    return np.stack([np.zeros_like(end), end], -1).astype(np.int32)


def cut(queries: Array, keys: Array, values: Array | None, mask: Array, bias: Array | None, is_self: bool,
        ids: Array | None = None) -> dict[str, Any]:
    """Return the fields of one sequence without its padding.

    Parameters
    ----------
    queries, keys, values : array [T, H, D]
        In self-attention the last query is the last key.
    mask : array
        Ranges [Tq, 2], or booleans [H or 1, Tq, Tk]. What causal and window explain becomes these, any other bias.
    bias : array [H or 1, Tq or 1, Tk], optional
        What is added to the scores.
    ids : array [Tk], optional
        Of the tokens of the keys, which are cut in the same way.
    """
    num_keys = len(keys)
    ranges = to_ranges(mask) if mask.dtype == bool else mask
    seen = np.flatnonzero(mask.any(axis=(0, 1))) if ranges is None else ranges[ranges[:, 1] > ranges[:, 0]]
    if seen.size == 0:
        words, rows, columns = None, WHOLE, WHOLE
    elif ranges is None:
        words, columns = None, slice(int(seen[0]), int(seen[-1]) + 1)
        rows = rows_of(columns, num_keys - len(queries), is_self)
    else:
        words, rows, columns = explain(ranges, num_keys, seen, is_self)
    request: dict[str, Any] = {"queries": queries[rows], "keys": keys[columns]} | (words or {"causal": False})
    if values is not None:
        request["values"] = values[columns]
    if ids is not None:
        request["token_ids"] = ids[columns]
    if bias is not None:
        bias = bias[..., rows if bias.shape[-2] > 1 else WHOLE, columns]
    if words is None:
        visible = (to_visible(ranges, num_keys) if ranges is not None else mask)[:, rows, columns]
        bias = np.where(visible, 0 if bias is None else bias, -np.inf)
    if bias is not None and np.any(bias):
        request["bias"] = np.asarray(bias, np.float32)
    shift = len(request["keys"]) - len(request["queries"])
    if request["causal"] and shift:
        request["positions"] = np.arange(len(request["queries"])) + shift
    return request


def explain(ranges: Array, num_keys: int, seen: Array, is_self: bool) -> tuple[dict[str, Any] | None, slice, slice]:
    """Return the words for ranges [Tq, 2], or None, and the rows and columns that are not padding.

    One row alone does not tell a window from padding: it has no window.
    """
    first, end = int(seen[:, 0].min()), int(seen[:, 1].max())
    shift = num_keys - len(ranges)
    for begin in sorted({0, first} if len(ranges) > 1 else {first}):
        columns = slice(begin, end)
        rows = rows_of(columns, shift, is_self)
        positions = np.arange(len(ranges))[rows] + (shift - begin if is_self and shift >= 0 else 0)
        words = find_words(ranges[rows, 0] - begin, ranges[rows, 1] - begin, end - begin, positions)
        if words is not None:
            break
    return words, rows, columns


def rows_of(columns: slice, shift: int, is_self: bool) -> slice:
    """Return the queries that are among these keys, where query i is key i + shift."""
    return slice(max(columns.start - shift, 0), max(columns.stop - shift, 1)) if is_self and shift >= 0 else WHOLE


def find_words(first: Array, end: Array, num_keys: int, positions: Array) -> dict[str, Any] | None:
    """Return causal and window if these explain the ranges of queries at their positions, else None."""
    if (first == 0).all() and (end == num_keys).all():
        return {"causal": False}
    is_causal = bool((end == positions + 1).all())
    before = int((positions - first).max())
    if is_causal and (first == 0).all():
        return {"causal": True}
    if is_causal:  # attnd's window: the last W positions, or at most W away on both sides
        return {"causal": True, "window": before + 1} if (first == np.maximum(positions - before, 0)).all() else None
    window = max(before, int((end - 1 - positions).max()))
    is_window = window > 0 and (first == np.maximum(positions - window, 0)).all() \
        and (end == np.minimum(positions + window + 1, num_keys)).all()
    return {"causal": False, "window": window} if is_window else None
