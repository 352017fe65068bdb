# SPDX-License-Identifier: Apache-2.0
"""The formulas of POST /v1/attention/dot-product in numpy and float64, and its requests in both formats."""

import numpy as np
import orjson
import requests

from safetensors_file import as_stored, make_safetensors, parse_safetensors

PATH = "/v1/attention/dot-product"
SAFETENSORS = "application/vnd.safetensors"
TENSORS = ("queries", "keys", "values", "bias", "sinks", "slopes", "row_weights")
INTEGERS = ("valid_lens", "prefix_lens", "positions", "key_positions", "weights_heads", "weights_queries", "query_lens", "key_lens")


def find_visible(queries, keys, causal=False, window=0, positions=None, key_positions=None, valid_lens=None):
    """[Tq, Tk] of one sequence: which keys each query sees."""
    at = np.arange(queries) if positions is None else np.asarray(positions)
    key_at = np.arange(keys) if key_positions is None else np.asarray(key_positions)
    visible = np.arange(keys) < np.reshape(keys if valid_lens is None else valid_lens, (-1, 1))
    distance = key_at - at[:, None]
    visible = visible & ((distance <= 0) | (not causal))
    near = distance > -window if causal else np.abs(distance) <= window
    return visible & (near | (window == 0)), distance


def attend(q, k, v=None, scale=None, softcap=None, sinks=None, slopes=None, bias=None, **mask):
    """Of one sequence with heads as an axis: weights [H, Tq, Tk], heads [Tq, H, Dv] or None, lse [Tq, H]."""
    q, k = np.asarray(q, np.float64), np.asarray(k, np.float64)
    heads, group = q.shape[1], q.shape[1] // k.shape[1]
    k = np.repeat(k, group, axis=1)
    visible, distance = find_visible(len(q), len(k), **mask)
    scores = np.einsum("qhd,khd->hqk", q, k) * (1 / np.sqrt(q.shape[2]) if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if slopes is not None:
        scores = scores + np.reshape(slopes, (-1, 1, 1)) * distance
    visible = np.broadcast_to(visible, scores.shape)
    if bias is not None:
        bias = np.broadcast_to(np.asarray(bias, np.float64), scores.shape)
        visible = visible & (bias > -np.inf)
        scores = scores + np.where(visible, bias, 0)
    scores = np.where(visible, scores, -np.inf)
    any_key = visible.any(axis=-1)

    sink = np.full((heads, 1), -np.inf) if sinks is None else np.reshape(sinks, (-1, 1)).astype(np.float64)
    largest = np.maximum(scores.max(axis=-1), sink)
    largest = np.where(np.isfinite(largest), largest, 0)
    powers = np.exp(scores - largest[..., None])
    total = powers.sum(axis=-1) + np.exp(sink - largest)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights, lse = powers / total[..., None], largest + np.log(total)
    weights[~any_key] = 1 / len(k) if sinks is None else 0
    lse = np.where(any_key, lse, -np.inf)
    out = None if v is None else np.einsum("hqk,khd->qhd", weights, np.repeat(np.asarray(v, np.float64), group, axis=1))
    return {"weights": weights, "heads": out, "lse": lse.T}


def post(url, body, headers=None, content_type="application/json"):
    return requests.post(url + PATH, data=body, headers={"Content-Type": content_type} | (headers or {}), timeout=60)


def to_json(fields):
    """A request's fields with lists for arrays, and null where a bias is -inf, as orjson writes it."""
    return orjson.dumps(fields, default=lambda array: array.tolist())


def to_safetensors(fields, dtype="F32"):
    """The same fields as safetensors; `dtype` is that of the floats."""
    tensors = {name: np.asarray(fields[name]) for name in TENSORS + INTEGERS if name in fields}
    dtypes = {name: dtype if name in TENSORS else "I64" for name in tensors}
    words = {name: ",".join(value) if isinstance(value, list) else str(value).lower()
             for name, value in fields.items() if name not in tensors}
    return make_safetensors(tensors, dtypes, words)


def ask_json(url, fields):
    """The numbers of a reply as arrays, or as lists where sequences differ; -inf for null."""
    reply = post(url, to_json(fields))
    assert reply.status_code == 200, reply.text

    def convert(value):
        if isinstance(value, list):
            return [convert(each) for each in value]
        return float("-inf") if value is None else value
    numbers = {name: convert(value) for name, value in reply.json().items() if name != "model"}
    return {name: np.asarray(value) if has_one_shape(value) else value for name, value in numbers.items()}


def has_one_shape(value):
    try:
        return np.asarray(value).dtype != object
    except ValueError:
        return False


def ask_safetensors(url, fields, dtype="F32"):
    reply = post(url, to_safetensors(fields, dtype), content_type=SAFETENSORS)
    assert reply.status_code == 200, reply.text
    return parse_safetensors(reply.content)[0]


def rounded(array, dtype):
    return as_stored(array, dtype).reshape(np.shape(array))
