# SPDX-License-Identifier: Apache-2.0
"""Fields of a request as tensors and options, and results by the words of `need`. The client sends
them, and calls in the process pass them on, so both mean the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ._arrays import BFLOAT16, Array, is_array, to_array, to_integers, to_numbers, widen
from ._errors import InvalidError, TypeRefused
from ._safetensors import to_safetensors

SAFETENSORS = {"Content-Type": "application/vnd.safetensors"}

Fields = Mapping[str, Any]
Results = dict[str, Any]

SEQUENCES = ("queries", "keys", "values")
INDICES = ("weights_heads", "weights_queries")
INTEGERS = ("valid_lens", "prefix_lens", "positions", "key_positions", "spans", "targets", "token_ids", "top_in",
            "query_rows", *INDICES)
NUMBERS = ("head_mask", "bias", "attn_mask", "sinks", "slopes", "row_weights")
RESULTS = {"outputs": "outputs", "weights": "attention_weights", "heads": "heads", "lse": "lse",
           "scores": "scores", "spans": "span_weights", "top": "top_weights", "target": "target_weights",
           "received": "received", "entropy": "entropy", "blocks": "block_weights",
           "contributions": "contributions", "projections": "projected_queries"}  # by need
ROWS_FIRST = ("heads", "lse", "entropy", "target")  # results of dot-product whose queries come before heads


def dot_product_fields(queries: Any, keys: Any, values: Any, heads_first: bool, options: Fields) -> Fields:
    """Returns the fields of a request, without what a capture knows for its heads alone."""
    options = {name: value for name, value in options.items() if name != "token_ids"}
    return turn_fields({"queries": queries, "keys": keys, "values": values, **options}, heads_first)


def turn_fields(fields: Fields, heads_first: bool) -> Fields:
    """Returns fields whose arrays, with `heads_first`, were [H, T, D] or [B, H, T, D]."""
    if not heads_first:
        return fields
    if fields.get("num_heads") is not None:
        raise InvalidError("num_heads is for heads that lie side by side; leave it out with heads_first")
    return {**fields, **{name: swap(name, fields[name]) for name in SEQUENCES if fields.get(name) is not None}}


def swap(name: str, value: Any) -> Any:
    """Returns arrays with heads and tokens changed about, as views."""
    if is_list_of(value, 3):
        return [swap(name, item) for item in value]
    array = to_array(name, value)
    if array.ndim not in (3, 4):
        raise InvalidError(f"{name} has {array.ndim} axes; with heads_first it is [H, T, D] or [B, H, T, D]")
    return array.swapaxes(-3, -2)


def swap_results(results: Results) -> Results:
    """Returns results of a request with heads first with heads first, too."""
    def turn(word: str, array: Any) -> Any:
        if isinstance(array, list):
            return [turn(word, item) for item in array]
        return array.swapaxes(-3, -2) if word == "heads" else array.swapaxes(-2, -1)
    return {word: turn(word, array) if word in ROWS_FIRST else array for word, array in results.items()}


def prepare(fields: Fields) -> dict[str, Any]:
    """Returns the fields that are sent, with lists where one index or word may be given."""
    known = {name: value for name, value in fields.items() if value is not None}
    for name in INDICES:
        if name in known:
            known[name] = np.atleast_1d(to_array(name, known[name]))
    if "need" in known:
        known["need"] = need_words(fields)
    if "targets" in known:
        known["targets"] = without_nulls(known["targets"])
    return known


def split_fields(fields: Fields, rank: int, integers: bool) -> tuple[dict[str, Array], dict[str, Any]]:
    """Returns the tensors and the options of fields that `prepare` returned. `rank` counts the axes of
    one sequence. Tensors are views of what the caller has, but for a ragged batch, whose rows are joined.
    `integers` says whether arrays of integers may be queries, keys and values."""
    tensors: dict[str, Array] = {}
    options: dict[str, Any] = {}
    for name in sorted(fields, key=lambda name: name not in SEQUENCES):  # lengths are in these
        value, lens_name = fields[name], "query_lens"
        if name in ("keys", "values") or name == "key_positions" and "key_lens" in tensors:
            lens_name = "key_lens"
        is_per_row = name in INTEGERS and lens_name in tensors and \
            is_list_of(value, 2 if name == "targets" else 1) and name not in ("spans", "top_in")
        if is_per_row or name in SEQUENCES and is_list_of(value, rank):
            value = join(name, value, lens_name, tensors, integers)

        if name == "attn_mask" and (mask := to_array(name, value)).dtype == bool:
            tensors[name] = mask
        elif name in SEQUENCES or name in NUMBERS:
            tensors[name] = to_numbers(name, value, integers or name in NUMBERS)
        elif name in INTEGERS:
            tensors[name] = to_integers(name, value)
        else:
            options[name] = to_lists(name, value)
    return tensors, options


def need_words(fields: Fields) -> list[str] | None:
    """Returns the list of what the reply shall have, which may be one word, or None."""
    need = fields.get("need")
    if need is None:
        return None
    if not isinstance(need, Iterable):
        raise TypeRefused(f"need is of the type {type(need).__name__}, but must be a word or a list of words")
    return need.split(",") if isinstance(need, str) else [str(word) for word in need]


def sequence_rank(fields: Fields) -> int:
    """Returns the axes of one sequence without a model: with num_heads its heads lie side by side."""
    return 3 if fields.get("num_heads") is None else 2


def without_nulls(targets: Any) -> Any:
    """Returns the targets with [0, 0] for the rows that have none."""
    if targets is None:
        return [0, 0]
    return targets if is_array(targets) or np.isscalar(targets) else [without_nulls(item) for item in targets]


def join(name: str, sequences: Any, lens_name: str, tensors: dict[str, Array], integers: bool) -> Array:
    """Returns the rows of all sequences, one after another. `tensors` gets their lengths."""
    lens = np.array([len(sequence) for sequence in sequences], "<i8")
    expected = tensors.setdefault(lens_name, lens)
    if not np.array_equal(lens, expected):
        raise InvalidError(f"{name} has sequences of {lens} rows, but needs {expected} rows")
    rows = [to_numbers(name, sequence, integers) if name in SEQUENCES else to_integers(name, sequence)
            for sequence in sequences]
    if len({(row.shape[1:], row.dtype == BFLOAT16) for row in rows}) > 1:
        raise InvalidError(f"{name} has sequences of {[(row.shape, str(row.dtype)) for row in rows]}; all but the rows must "
                           "agree, and bfloat16 goes with no other type")
    return np.concatenate(rows)


def choose_results(results: Results, fields: Fields) -> Results:
    """Returns results by the words of `need`, or without it all that there are."""
    if "top_weights" in results:
        results["top_weights"] = results["top_keys"], results["top_weights"]
    if "projected_queries" in results:
        results["projected_queries"] = tuple(results[f"projected_{name}"] for name in SEQUENCES)
    words = need_words(fields) or [word for word, name in RESULTS.items() if name in results]
    return {word: results[RESULTS.get(word, word)] for word in words}


def is_ragged(fields: Fields, rank: int) -> bool:
    return any(is_list_of(fields.get(name), rank) for name in SEQUENCES)


def split_sequences(tensors: Results, fields: Fields) -> Results:
    """Returns the results of each sequence in the reply to a ragged batch, whose lengths are taken out. Rows are split
    where a sequence ends; what is one row of numbers has each sequence's array after the other."""
    query_lens: Array = tensors.pop("query_lens")
    key_lens: Array = tensors.pop("key_lens", query_lens)
    selected = fields.get("weights_queries")
    num_rows = query_lens if selected is None else np.full_like(query_lens, np.size(selected))
    results: Results = {}
    for name, tensor in tensors.items():
        if tensor.ndim > 1:
            lens = num_rows if len(tensor) == num_rows.sum() else query_lens
            lens = key_lens if name in ("projected_keys", "projected_values") else lens
            results[name] = np.split(tensor, np.cumsum(lens)[:-1])
            continue
        shapes = [shape_of_result(name, rows, keys, fields) for rows, keys in zip(num_rows, key_lens)]
        num_heads = tensor.size // max(sum(int(np.prod(shape)) for shape in shapes), 1)
        sizes = [num_heads * int(np.prod(shape)) for shape in shapes]
        results[name] = [piece.reshape(num_heads, *shape) for piece, shape in
                         zip(np.split(tensor, np.cumsum(sizes)[:-1]), shapes)]
        if name in ("entropy", "target_weights"):
            results[name] = [piece.reshape(-1, num_heads) for piece in results[name]]
    if fields.get("need_weights") == "mean":
        results["attention_weights"] = [piece[0] for piece in results["attention_weights"]]
    return results


def shape_of_result(name: str, rows: int, keys: int, fields: Fields) -> tuple[int, ...]:
    """Returns the shape of one head's result for a sequence of these rows and keys."""
    if name in ("attention_weights", "scores"):
        return rows, keys
    if name == "span_weights":
        return rows, np.shape(fields["spans"])[-2]
    if name in ("top_keys", "top_weights"):
        ranges = np.shape(fields["top_in"])[:-1] if fields.get("top_in") is not None else ()
        return (rows, *ranges, int(fields["top_k"]))
    if name == "block_weights":
        block = int(fields["block"])
        return -(-rows // block), -(-keys // block)
    return (keys if name == "received" else rows,)


def to_lists(name: str, value: Any) -> Any:
    """Returns what json can print: arrays, tensors and numpy's numbers become Python's."""
    if isinstance(value, (list, tuple, range)):
        return [to_lists(name, item) for item in value]
    if is_array(value):
        value = widen(to_array(name, value)).tolist()
    elif value is not None and not isinstance(value, (str, int, float)):
        raise TypeRefused(f"{name} is of the type {type(value).__name__}; attnd takes numbers, text, arrays, and lists of them")
    return value


def is_list_of(value: Any, rank: int) -> bool:
    """Whether a value is a list of arrays or lists of this rank, one for each sequence."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and np.ndim(value[0]) == rank


def encode(fields: Fields, as_json: bool, rank: int = 2) -> tuple[bytes, dict[str, str]]:
    """Returns the body of a request and its headers. `rank` counts the axes of one sequence."""
    known = prepare(fields)
    tensors, options = split_fields(known, rank, integers=True)  # which refuses what is not meant as numbers
    if as_json:
        for name in tensors.keys() & {"bias", "attn_mask"}:  # JSON has no -inf
            array = widen(tensors[name])
            known[name] = np.where(array == -np.inf, np.array(None), array).tolist()
        return json.dumps({name: to_lists(name, value) for name, value in known.items()}).encode(), \
            {"Content-Type": "application/json"}

    texts = {name: ",".join(value) if name == "need" else value if isinstance(value, str) else json.dumps(value)
             for name, value in options.items()}
    return to_safetensors({name: to_sent(name, tensor) for name, tensor in tensors.items()}, texts), SAFETENSORS


def to_sent(name: str, tensor: Array) -> Array:
    """Returns a tensor as it is sent: numbers of 64 bits become float32."""
    is_wide = tensor.dtype.kind == "f" and tensor.itemsize > 4 and name not in INTEGERS
    return np.asarray(tensor, "<f4" if is_wide else tensor.dtype.newbyteorder("<"), order="C")
