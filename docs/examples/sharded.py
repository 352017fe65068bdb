# SPDX-License-Identifier: Apache-2.0
"""One layer of a capture over any number of attnd, where its keys do not fit into one: docs/inspect.md.

    python sharded.py FILE LAYER URL [URL ...]

writes `heads` and `lse` of all its queries to sharded.npz. FILE has values, and each attnd --capture-memory."""

import functools
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from attnd import Client
from attnd.captured import Captured, open_capture

QUESTION = ("queries", "positions", "bias", "sinks")  # which no part keeps


def split(num_keys, count, interleaved=False):
    """Returns which keys each part has: neighbours, or every `count`-th."""
    keys, count = np.arange(num_keys), min(count, num_keys)
    return [keys[i::count] for i in range(count)] if interleaved else np.array_split(keys, count)


def take(request, part):
    """Returns the request of one part, whose keys keep their positions."""
    rows = {"key_positions": np.arange(len(request["keys"]))} | request
    return {name: np.asarray(rows[name])[part] if name in ("keys", "values", "key_positions") else rows[name]
            for name in rows if name not in QUESTION}


def put(request, client):
    """Returns the function that asks one part, which it has put."""
    return functools.partial(client.attend, capture=Captured({"0": [request]}).put(client))


def attend(asks, parts, queries, positions=None, bias=None, sinks=None, **options):
    """Returns heads [Tq, H, Dv] and lse [Tq, H] of queries [Tq, H, D] over the keys of all parts."""
    def ask_part(ask, part):
        return ask(queries=queries, positions=np.arange(len(queries)) if positions is None else positions,
                   bias=None if bias is None else np.asarray(bias)[..., part], need=["heads", "lse"], **options)
    with ThreadPoolExecutor(len(parts)) as threads:
        return merge(list(threads.map(ask_part, asks, parts)), parts, sinks)


def merge(replies, parts, sinks=None):
    """Returns heads and lse of the softmax over all keys, of those over the keys of each part."""
    lse = np.float64([reply["lse"] for reply in replies])  # [part, Tq, H]; -inf where a query sees no key
    is_empty = np.isneginf(lse).all(axis=0)
    if sinks is None:  # a query that sees no key has the mean of all values
        lse, sinks = np.where(is_empty, np.log([[[len(part)]] for part in parts]), lse), -np.inf
    largest = np.maximum(lse.max(axis=0), sinks)
    weights = np.exp(lse - largest)
    total = weights.sum(axis=0) + np.exp(sinks - largest)
    heads = sum(weight[..., None] * reply["heads"] for weight, reply in zip(weights / total, replies))
    return {"heads": heads, "lse": np.where(is_empty, -np.inf, largest + np.log(total))}


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    request = open_capture(sys.argv[1]).request(sys.argv[2])
    parts = split(len(request["keys"]), len(sys.argv[3:]))
    asks = [put(take(request, part), Client(url)) for part, url in zip(parts, sys.argv[3:])]
    question = {name: request[name] for name in QUESTION if name in request}
    np.savez("sharded.npz", **attend(asks, parts, **question))
