# SPDX-License-Identifier: Apache-2.0
"""Attention of queries and keys that a program has, in its own process."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import _native
from ._arrays import Array, to_array, to_numbers
from ._errors import InvalidError, TypeRefused, naming
from ._fields import (Fields, Results, choose_results, dot_product_fields, is_ragged, prepare,
                      sequence_rank, split_fields, split_sequences, swap_results, turn_fields)
from .head_table import HeadTable


def set_threads(num_threads: int | None = None) -> None:
    """Sets how many threads compute, for all calls that begin from now on.

    Parameters
    ----------
    num_threads : int or None
        None, the default, is as many as the process may use cores.
    """
    if isinstance(num_threads, bool) or not isinstance(num_threads, (int, np.integer, type(None))):
        raise TypeRefused(f"num_threads is of the type {type(num_threads).__name__}, but must be an integer or None")
    if num_threads is not None and num_threads < 1:
        raise InvalidError(f"num_threads is {num_threads}, but must be at least 1, or None for all cores")
    _native.state.set_threads(int(num_threads or 0))


def dot_product(queries: Any, keys: Any, values: Any = None, *, need: Any = None, heads_first: bool = False,
                **options: Any) -> Results:
    """Computes attention of queries and keys after all projections and rotations.

    It means what ``POST /v1/attention/dot-product`` of the server means: docs/protocol.md.

    Parameters
    ----------
    queries : array [Tq, H, D] or [B, Tq, H, D]
        Of numpy, of torch on the CPU (a gradient is left out), or another with DLPack; float32, float64,
        float16 or bfloat16. A list of arrays [Tq, H, D] is a batch of different lengths, and each
        result is a list, too.
    keys : array [Tk, KV, D] or [B, Tk, KV, D]
        KV divides H.
    values : array [Tk, KV, Dv] or [B, Tk, KV, Dv], optional
    need : str or list of str, optional
        ``heads``, ``weights``, ``scores``, ``lse``, ``spans``, ``top``, ``target``, ``received``, ``entropy``,
        ``blocks``. By default ``heads`` with values, else ``weights``.
    heads_first : bool
        Arrays are [H, T, D] or [B, H, T, D], as in torch, and so are the results of ``heads``; ``lse``,
        ``entropy`` and ``target`` are [H, Tq] or [B, H, Tq].
    **options
        scale, softcap, causal, window, positions, key_positions, valid_lens, prefix_lens, sinks, slopes,
        bias or attn_mask (booleans are True where a query sees a key), spans, top_k, top_in, targets,
        block, row_weights, weights_heads, weights_queries, num_heads, num_kv_heads. self_attention and token_ids,
        which are for `heads`, change nothing.

    Returns
    -------
    dict
        An array of float32 for each word: ``heads`` [B, Tq, H, Dv], ``weights`` and ``scores``
        [B, H, Tq, Tk], ``lse``, ``entropy`` (in nats) and ``target`` [B, Tq, H], ``received`` [B, H, Tk],
        ``top`` a pair of keys and weights [B, H, Tq, top_k]; without B when the arrays have none. A
        query that sees no key attends to all keys alike, and its ``lse`` is -inf.

    Raises
    ------
    attnd.Error
        Also a ValueError, a TypeError or a MemoryError.
    """
    fields = dot_product_fields(queries, keys, values, heads_first, {"need": need, **options})
    results = compute(fields, sequence_rank(fields))
    return swap_results(results) if heads_first else results


def heads(queries: Any, keys: Any, *, heads_first: bool = False, **options: Any) -> HeadTable:
    """Says what each head attends to, as a table that sorts and prints itself.

    Parameters
    ----------
    queries, keys, heads_first
        As in `dot_product`. `Captured.request` has these, and the options below.
    self_attention : bool
        Row i of queries and keys is one token. Without this or `token_ids`, two arrays have no neighbours: the columns
        ``self``, ``previous`` and ``distance`` have no numbers, and tags such as ``previous`` are not given.
    token_ids : array [T] or [B, T], optional
        Of the rows of queries and keys, for tags such as ``induction``.
    targets : array [Tq, 2], optional
        A range of keys for each query, for the column ``target``.
    **options
        Others of `dot_product`.

    Returns
    -------
    HeadTable
        docs/heads.md says what the numbers mean. Heads of given queries have no ``importance``.
    """
    return HeadTable({"": describe({"queries": queries, "keys": keys, **options}, heads_first)})


def describe(fields: Fields, heads_first: bool = False) -> Any:
    """Returns what POST /v1/heads would reply for given queries and keys."""
    fields = turn_fields(fields, heads_first)
    tensors, options = split_fields(prepare(fields), sequence_rank(fields), integers=False)
    return _native.call(options, tensors, heads=True).text


def sdpa(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, *,
         scale: float | None = None, enable_gqa: bool = False, need: Any = None) -> Any:
    """Computes what ``torch.nn.functional.scaled_dot_product_attention`` computes, on the CPU.

    Parameters
    ----------
    query : array [..., H, Tq, D], or [Tq, D]
        Of numpy, of torch on the CPU, or another with DLPack.
    key : array [..., KV, Tk, D], or [Tk, D]
    value : array [..., KV, Tk, Dv], or [Tk, Dv]
    attn_mask : array that broadcasts to [..., H, Tq, Tk], optional
        Booleans are True where a query sees a key; floats are added to the scores.
    dropout_p : float
        Must be 0: attention is computed as in evaluation.
    is_causal : bool
        Query i sees keys 0 to i, also where Tq and Tk differ. Not together with `attn_mask`.
    scale : float, optional
        1 / sqrt(D) by default.
    enable_gqa : bool
        Allows KV to be a divisor of H.
    need : str or list of str, optional
        As in `dot_product`: ``weights``, ``lse``, ``received``, ...

    Returns
    -------
    array [..., H, Tq, Dv], or dict
        float32 of numpy. With `need` a dict with an array for each word, whose axes begin with those of
        `query`: ``weights`` [..., H, Tq, Tk], ``lse`` [..., H, Tq]. A query whose mask leaves no key attends to
        all keys alike, so it gets the mean of all values; torch returns zeros there, or NaN before 2.5.

    Raises
    ------
    attnd.Error
        Also a ValueError, a TypeError or a MemoryError.
    """
    if dropout_p:
        raise InvalidError(f"dropout_p is {dropout_p}, but attnd computes without dropout; send 0, as in evaluation")
    if is_causal and attn_mask is not None:
        raise InvalidError("attn_mask and is_causal=True exclude each other, as in torch; combine both in attn_mask")
    q, k, v = to_numbers("query", query), to_numbers("key", key), to_numbers("value", value)
    if min(q.ndim, k.ndim, v.ndim) < 2 or not q.ndim == k.ndim == v.ndim:
        raise InvalidError(f"query, key and value have the shapes {q.shape}, {k.shape} and {v.shape}; each must be "
                           "[T, D], [H, T, D] or [B, H, T, D]")
    num_heads, num_kv_heads = (array.shape[-3] if q.ndim > 2 else 1 for array in (q, k))
    if num_heads != num_kv_heads and not enable_gqa:
        raise InvalidError(f"query has {num_heads} heads and key {num_kv_heads}; enable_gqa=True shares them")

    try:
        lead = np.broadcast_shapes(*(array.shape[:-3] for array in (q, k, v)))
    except ValueError:
        raise InvalidError(f"the first axes of query {q.shape}, key {k.shape} and value {v.shape} do not broadcast") from None
    options: dict[str, Any] = {"causal": bool(is_causal), "scale": scale, "need": need or ["heads"]}
    if attn_mask is not None:
        options["attn_mask"] = to_batch_mask(to_array("attn_mask", attn_mask), lead, k.shape[-2])
    if is_causal and q.shape[-2] != k.shape[-2]:
        options["positions"] = np.arange(q.shape[-2])
    with naming(queries="query", keys="key", values="value", causal="is_causal"):
        results = dot_product(*(to_batch(array, lead) for array in (q, k, v)), heads_first=True, **options)
    axes = lead + q.shape[-3:-2]
    shaped = {word: tuple(x.reshape(axes + x.shape[2:]) for x in array) if word == "top" else
              array.reshape(axes + array.shape[2:]) for word, array in results.items()}
    return shaped if need is not None else shaped["heads"]


def to_batch(array: Array, lead: tuple[int, ...]) -> Array:
    """Returns [..., H, T, D] or [T, D] as [B, H, T, D], as a view where there are at most four axes."""
    if array.ndim == 2:
        array = array[np.newaxis]
    array = np.broadcast_to(array, lead + array.shape[-3:])
    return array.reshape(math.prod(lead), *array.shape[-3:])


def to_batch_mask(mask: Array, lead: tuple[int, ...], num_keys: int) -> Array:
    """Returns a mask whose axes are [B, H, Tq, Tk] or the last of these."""
    if mask.ndim and mask.shape[-1] == 1:
        mask = np.broadcast_to(mask, (*mask.shape[:-1], num_keys))
    if mask.ndim <= 3 or len(lead) <= 1:
        return mask
    mask = np.broadcast_to(mask, lead + mask.shape[-3:])
    return mask.reshape(math.prod(lead), *mask.shape[-3:])


def compute(fields: Fields, rank: int, model: Any = None) -> Results:
    """Returns the results of a request by the words of `need`, computed in this process."""
    tensors, options = split_fields(prepare(fields), rank, integers=False)
    results: Results = dict(_native.call(options, tensors, model).arrays())
    if is_ragged(fields, rank):
        results = split_sequences(results, fields)
    return choose_results(results, fields)
