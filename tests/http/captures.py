# SPDX-License-Identifier: Apache-2.0
"""The captures of tests/data/captures as requests, and their weights in float64."""

import json
import sys

import numpy as np

from server import ROOT

sys.path.insert(0, str(ROOT / "docs/examples"))

import capture
from attnd._files import read_safetensors
from attnd._masks import cut
from attnd._tensors import to_float

FOLDER = ROOT / "tests/data/captures"


def recorded_layers(folder=FOLDER):
    """Yields for each layer of each family its name, its request as the package makes it of what an
    attention function gets, eager's weights without padding, and the window that was recorded."""
    for path in sorted(folder.glob("*.safetensors")):
        tensors, metadata = read_safetensors(path)
        for layer in metadata["layers"].split():
            found = {name.removeprefix(f"{layer}."): tensor for name, tensor in tensors.items()
                     if name.startswith(f"{layer}.") and name.count(".") == layer.count(".") + 1}
            texts = {name: json.loads(metadata[f"{layer}.{name}"]) for name in ("scale", "softcap", "causal", "window",
                     "window_sides") if f"{layer}.{name}" in metadata}
            visible = found["mask"] > -1e30 if "mask" in found else texts["causal"]
            request = cut(found["queries"], found["keys"], found["values"], visible, found.get("bias"),
                                  is_self="cross" not in layer)
            request |= {name: texts[name] for name in ("scale", "softcap") if name in texts}
            request |= {name: found[name] for name in ("sinks",) if name in found}
            padding = int(metadata.get("padding_left", 0))
            window = texts.get("window")
            if window is not None and texts["window_sides"] == 2:
                window -= 1
            yield f"{path.stem} {layer}", request, found["weights"][:, padding:, padding:], window


def compute_weights(queries, keys, scale, values=None, causal=False, window=None, softcap=None, bias=None, sinks=None,
                    positions=None):
    """Returns the weights [H, Tq, Tk] of a request of one sequence, in float64."""
    queries, keys = (to_float(rows).astype(np.float64) for rows in (queries, keys))
    keys = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1)
    scores = scale * np.einsum("qhd,khd->hqk", queries, keys)
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
