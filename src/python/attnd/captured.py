# SPDX-License-Identifier: Apache-2.0
"""Queries and keys of a model that ran elsewhere, for attnd to compute their attention weights."""

import contextlib
import importlib
import json
import pathlib

import numpy as np

from ._safetensors import to_safetensors
from .client import AttentionError, Client

from ._files import CaptureError, describe, read_safetensors

TENSORS = ("queries", "keys", "values", "bias", "sinks", "slopes", "positions", "key_positions")
OPTIONS = ("scale", "softcap", "causal", "window")


class Captured:
    """The calls of the attention layers of one model: `layers` has for each name the options of a
    request, as `Client.dot_product` takes them, for each sequence. `tokens` are labels, if one has them."""

    def __init__(self, layers=None, tokens=None):
        self.layers, self.tokens = {} if layers is None else layers, tokens
        self.kept = {}  # by sequence: the client that has put it, and its name

    def request(self, layer, sequence=0):
        """Returns the queries, keys and options of a layer, which may be given as its number."""
        found = self.layers.get(str(layer))
        if found is None:
            raise CaptureError(f"layer {layer} was not captured; these were: {', '.join(self.layers) or 'none'}")
        if not -len(found) <= sequence < len(found):
            raise CaptureError(f"there is no sequence {sequence}; layer {layer} has {len(found)}, which begin at 0")
        return found[sequence]

    def attend(self, layer, need="weights", heads=None, queries=None, client=None, sequence=0, **options):
        """Returns what attnd computes for a layer: an array, such as [H, Tq, Tk] of weights, or for a
        list of words a dict. `heads` and `queries` select; -1 is the last query. `client` is a
        Client, or the address of an attnd. Without one, what has been `put` is asked by its name.
        Other options are those of `Client.dot_product`."""
        request = dict(self.request(layer, sequence))
        words = need.split(",") if isinstance(need, str) else list(need)
        if "heads" not in words:
            request.pop("values", None)
        elif "values" not in request:
            raise CaptureError("heads are sums of values, which were not kept; use capture(..., values=True)")
        options |= {"need": words, "weights_heads": heads, "weights_queries": queries}
        if client is None and sequence in self.kept:
            kept, name = self.kept[sequence]
            results = kept.attend(capture=name, layer=layer, **options)
        else:
            results = as_client(client).dot_product(**request, **options)
        return results[need] if need in words else results

    def put(self, client=None, sequence=0):
        """Puts one sequence on the server, so that `attend` sends no tensors any more. Returns its name,
        the SHA-256 of what `save` writes. After a change of `layers`, put it again."""
        client = as_client(client)
        try:
            name = client.put_capture(None, lambda: self.to_bytes(sequence))["name"]
        except AttentionError as error:
            if error.problem["title"] != "Captures are off":
                raise
            raise CaptureError(f"{client.address} keeps no captures; start attnd with --capture-memory 4GiB") from error
        self.kept[sequence] = client, name
        return name

    def bertviz(self, layers=None, **options):
        """Returns what BertViz's head_view and model_view take: `head_view(**captured.bertviz())`."""
        attention = [self.attend(layer, **options)[None] for layer in layers or self.layers]
        with contextlib.suppress(ImportError):
            attention = [importlib.import_module("torch").from_numpy(weights) for weights in attention]
        return {"attention": attention, "tokens": self.labels(attention[0].shape[-1])}

    def circuitsvis(self, layer, **options):
        """Returns what CircuitsVis takes: `circuitsvis.attention.attention_heads(**...)`."""
        weights = self.attend(layer, **options)
        return {"attention": weights, "tokens": self.labels(weights.shape[-1])}

    def labels(self, count):
        """Returns the first `count` tokens, or their numbers."""
        return [str(each) for each in (range(count) if self.tokens is None else list(self.tokens)[:count])]

    def save(self, path, sequence=0):
        """Writes one sequence as safetensors: `LAYER.queries` and so on, and options as JSON texts."""
        pathlib.Path(path).write_bytes(self.to_bytes(sequence))

    def to_bytes(self, sequence=0):
        """Returns what `save` writes: the same bytes for the same capture, also when it was loaded."""
        tensors, metadata = {}, {"layers": json.dumps(list(self.layers)), "tokens": json.dumps(self.tokens)}
        for layer in self.layers:
            for name, value in sorted(self.request(layer, sequence).items(), key=lambda item: place(item[0])):
                if name in TENSORS:
                    tensors[f"{layer}.{name}"] = np.ascontiguousarray(value)
                else:
                    metadata[f"{layer}.{name}"] = json.dumps(value)
        return to_safetensors(tensors, metadata)


def place(name):
    """Returns where a field is in a file: in the order of `load`, so that a file is saved as it was."""
    return (*TENSORS, *OPTIONS, name).index(name)


def as_client(client):
    """Returns a client, which may be given as an address, or as None for the usual one."""
    return client if hasattr(client, "dot_product") else Client(*[client] if client else [])


def load(path):
    """Returns the Captured that `save` wrote."""
    tensors, metadata = read_safetensors(path)
    if "layers" not in metadata:
        raise CaptureError(f"{path} is no capture: it has no 'layers' in its metadata, but {describe(tensors)}")
    layers = {}
    for layer in json.loads(metadata["layers"]):
        request = {name: tensors[f"{layer}.{name}"] for name in TENSORS if f"{layer}.{name}" in tensors}
        request |= {name: json.loads(metadata[f"{layer}.{name}"]) for name in OPTIONS
                    if f"{layer}.{name}" in metadata}
        layers[layer] = [request]
    return Captured(layers, json.loads(metadata.get("tokens", "null")))
