# SPDX-License-Identifier: Apache-2.0
"""Queries and keys of a model that ran elsewhere, of which attnd computes attention weights."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from . import attention
from ._arrays import Array
from ._files import CaptureError, describe, read_safetensors
from ._safetensors import to_safetensors
from .client import AttentionError, Client
from .head_table import HeadTable

TENSORS = ("queries", "keys", "values", "bias", "sinks", "slopes", "positions", "key_positions")
OPTIONS = ("scale", "softcap", "causal", "window")
Request = dict[str, Any]


class Captured:
    """Attention layers of one model, as requests.

    Parameters
    ----------
    layers : dict
        For each name, for each sequence, the arguments of `attnd.dot_product`: ``queries`` [Tq, H, D], ``keys``
        [Tk, KV, D], and so on.
    tokens : list of str, optional
        Labels of the keys of one sequence.
    """

    def __init__(self, layers: dict[str, list[Request]] | None = None, tokens: list[str] | None = None) -> None:
        self._layers: dict[str, list[Request]] = {} if layers is None else layers
        self._runs: list[Captured] = []
        self.tokens = tokens
        self.key_labels: dict[str, list[list[str]]] = {}  # by layer and sequence, where a tokenizer made them
        self.source: Callable[[], None] | None = None  # brings layers up to date, while a model is captured
        self.kept: dict[int, tuple[Any, str, Any]] = {}  # by sequence: the client that has put it, its name, what it was

    @property
    def layers(self) -> dict[str, list[Request]]:
        """The requests of each layer, one for each sequence."""
        if self.source is not None:
            self.source()
        return self._layers

    @property
    def runs(self) -> list[Captured]:
        """All runs of the model, as they began; `layers` are those of the last."""
        if self.source is not None:
            self.source()
        return self._runs or [self]

    def replace(self, layers: dict[str, list[Request]], runs: list[Captured], key_labels: dict[str, list[list[str]]]) -> None:
        """Have other layers from now on."""
        self._layers, self._runs, self.key_labels = layers, runs, key_labels

    def request(self, layer: int | str, sequence: int = 0) -> Request:
        """Return the queries, keys and options of a layer, which may be given as its number."""
        found = self.layers.get(str(layer))
        if found is None:
            raise CaptureError(f"layer {layer} was not captured; these were: {', '.join(self.layers) or 'none'}")
        if not -len(found) <= sequence < len(found):
            raise CaptureError(f"there is no sequence {sequence}; layer {layer} has {len(found)}, which begin at 0")
        return found[sequence]

    def attend(self, layer: int | str, need: str | Iterable[str] = "weights", heads: Any = None, queries: Any = None,
               client: Any = None, sequence: int = 0, **options: Any) -> Any:
        """Compute attention of a layer.

        It is computed in the process, or where a client is given or has been `put`, by its server.

        Parameters
        ----------
        layer : int or str
        need : str or list of str
            Words of `attnd.dot_product`.
        heads, queries : int or list of int, optional
            Which ones; -1 is the last query.
        client : attnd.Client or str, optional
            Or the address of a server.
        sequence : int
        **options
            Others of `attnd.dot_product`, such as ``spans``.

        Returns
        -------
        array or dict
            Such as [H, Tq, Tk] of weights; for a list of words a dict.

        Raises
        ------
        CaptureError
            If the layer, the sequence or the values were not kept.
        attnd.Error
        """
        request = dict(self.request(layer, sequence))
        words = need.split(",") if isinstance(need, str) else list(need)
        if "heads" not in words:
            request.pop("values", None)
        elif "values" not in request:
            raise CaptureError("heads are sums of values, which were not kept; use capture(..., values=True)")
        options |= {"need": words, "weights_heads": heads, "weights_queries": queries}
        if client is None and sequence in self.kept:
            kept, name, before = self.kept[sequence]
            if is_changed(before, self.snapshot(sequence)):
                name = self.put(kept, sequence)
            results = kept.attend(capture=name, layer=layer, **options)
        else:
            ask = attention.dot_product if client is None else as_client(client).dot_product
            results = ask(**request, **options)
        return results[need] if isinstance(need, str) and need in words else results

    def put(self, client: Any = None, sequence: int = 0) -> str:
        """Put one sequence on a server, which `attend` then asks by name, without sending tensors.

        A capture that has changed since is put again. Arrays of it are read-only from now on: give a layer
        another array to change it.

        Returns
        -------
        str
            The name: the SHA-256 of what `save` writes.

        Raises
        ------
        CaptureError
            If the server keeps no captures.
        """
        client = as_client(client)
        for layer in self.layers:
            request = self.request(layer, sequence)
            for name in request.keys() & set(TENSORS):
                request[name] = np.asarray(request[name]).view()
                request[name].flags.writeable = False
        try:
            name = str(client.put_capture(None, lambda: self.to_bytes(sequence))["name"])
        except AttentionError as error:
            if error.problem["title"] != "Captures are off":
                raise
            raise CaptureError(f"{client.address} keeps no captures; start attnd with --capture-memory 4GiB") from error
        self.kept[sequence] = client, name, self.snapshot(sequence)
        return name

    def snapshot(self, sequence: int) -> dict[str, Request]:
        """Return what tells whether a sequence was changed."""
        return {layer: dict(self.request(layer, sequence)) for layer in self.layers}

    def heads(self, targets: Any = None, sequence: int = 0, layers: Iterable[int | str] | None = None) -> HeadTable:
        """Say what each head of all layers attends to, as one table that sorts and prints itself.

        Parameters
        ----------
        targets : array [Tq, 2], optional
            For each query a range of keys, or None: the column ``target`` has the weight on them.
        sequence : int
        layers : list of int or str, optional
            By default all.

        Returns
        -------
        attnd.HeadTable
            ``c.heads(targets=...).sort("target")`` has the best head first. docs/heads.md explains the numbers.
        """
        replies = {}
        for layer in self.layers if layers is None else layers:
            request = {name: value for name, value in self.request(layer, sequence).items() if name != "values"}
            if "bias" in request:
                found = describe_biased(request, targets)
            else:
                found = attention.heads(**request, **({} if targets is None else {"targets": targets}))
            if not str(layer).endswith(".cross"):
                for field, back in (("mass_on_self", 0), ("mass_on_previous", 1)):
                    own = [place - back for place in self.positions(layer, sequence)]
                    fill_masses(found, field, request, [None if place < 0 else [place, place + 1] for place in own])
            replies[str(layer)] = {"model": str(layer), "heads": found}
        return HeadTable(replies)

    def positions(self, layer: int | str, sequence: int) -> list[int]:
        """Return which key each query of self-attention is."""
        request = self.request(layer, sequence)
        shift = max(len(request["keys"]) - len(request["queries"]), 0)
        places: list[int] = np.asarray(request.get("positions", np.arange(len(request["queries"])) + shift)).ravel().tolist()
        return places

    def show(self, layer: int | str | None = None, head: int = 0, *, client: Any = None, sequence: int = 0) -> Any:
        """Draw the weights of one layer, for a notebook: each head by choice, each weight by pointing at it.

        Parameters
        ----------
        layer : int or str, optional
            By default the first.
        head : int
            The one that is shown first.
        client, sequence
            As in `attend`.

        Returns
        -------
        attnd.Picture
            Drawn by a notebook as HTML without network; ``save("head.svg")``, ``.png`` or ``.html`` writes one head,
            or all. Long texts are drawn in blocks: sums over keys, means over queries.
        """
        from .drawing import MOST_CELLS, Picture
        layer = next(iter(self.layers), 0) if layer is None else layer
        request = self.request(layer, sequence)
        block = -(-max(len(request["queries"]), len(request["keys"])) // MOST_CELLS)
        word, options = ("weights", {}) if block == 1 else ("blocks", {"block": block})
        weights = self.attend(layer, word, client=client, sequence=sequence, **options)
        rows, columns = self.labels(layer, sequence)
        name = f"{word} of layer {layer}" + (f", {block} x {block} tokens" if block > 1 else "")
        return Picture(weights, rows[::block], columns[::block], name, head)

    def bertviz(self, layers: Iterable[int | str] | None = None, **options: Any) -> dict[str, Any]:
        """Return what BertViz's head_view and model_view take: ``head_view(**c.bertviz())``."""
        names = list(layers or self.layers)
        attention_ = [self.attend(layer, **options)[None] for layer in names]
        with contextlib.suppress(ImportError):
            attention_ = [importlib.import_module("torch").from_numpy(weights) for weights in attention_]
        return {"attention": attention_, "tokens": self.labels(names[0], options.get("sequence", 0))[1]}

    def circuitsvis(self, layer: int | str, **options: Any) -> dict[str, Any]:
        """Return what CircuitsVis takes: ``circuitsvis.attention.attention_heads(**c.circuitsvis(3))``."""
        return {"attention": self.attend(layer, **options), "tokens": self.labels(layer, options.get("sequence", 0))[1]}

    def labels(self, layer: int | str, sequence: int = 0) -> tuple[list[str], list[str]]:
        """Return labels of the queries and of the keys of a layer; numbers follow the labels that are known."""
        request, name = self.request(layer, sequence), str(layer)
        columns = self.known_labels(name, sequence, len(request["keys"]))
        own = name.removesuffix(".cross")
        if own != name:
            numbers = range(len(request["queries"]))
            return self.known_labels(own, sequence, len(numbers)), columns
        return [columns[each] if 0 <= each < len(columns) else str(each) for each in self.positions(layer, sequence)], columns

    def known_labels(self, name: str, sequence: int, count: int) -> list[str]:
        """Return labels of `count` keys of a layer."""
        made = self.key_labels.get(name) or [[]]
        known = made[sequence] or ([] if name.endswith(".cross") else self.tokens or []) if sequence < len(made) else []
        return [*map(str, known[:count]), *map(str, range(len(known), count))]

    def save(self, path: str | os.PathLike[str], sequence: int = 0) -> None:
        """Write one sequence as safetensors: ``LAYER.queries`` and so on, and options as JSON texts."""
        pathlib.Path(path).write_bytes(self.to_bytes(sequence))

    def to_bytes(self, sequence: int = 0) -> bytes:
        """Return what `save` writes: the same bytes for the same capture, also when it was loaded."""
        made = next((labels[sequence] for layer, labels in reversed(self.key_labels.items())
                     if not layer.endswith(".cross")), None)
        tensors: dict[str, Array] = {}
        metadata = {"layers": json.dumps(list(self.layers)), "tokens": json.dumps(made or self.tokens)}
        for layer in self.layers:
            for name, value in sorted(self.request(layer, sequence).items(), key=lambda item: place(item[0])):
                if name in TENSORS:
                    tensors[f"{layer}.{name}"] = np.ascontiguousarray(value)
                else:
                    metadata[f"{layer}.{name}"] = json.dumps(value)
        return to_safetensors(tensors, metadata)


def describe_biased(request: Request, targets: Any) -> list[dict[str, Any]]:
    """Return what `attention.heads` would say of a request that has a bias, without tags."""
    entropy = attention.dot_product(**request, need="entropy")["entropy"].mean(0, np.float64).tolist()
    found: list[dict[str, Any]] = [{"entropy": each, "tags": []} for each in entropy]
    fill_masses(found, "mass_on_first", request, [[0, 1]] * len(request["queries"]))
    if targets is not None:
        fill_masses(found, "mass_on_target", request, targets)
    return found


def fill_masses(found: list[dict[str, Any]], field: str, request: Request, targets: Any) -> None:
    """Set for each head the mean weight on a range of keys of each query; queries whose range is None do not count."""
    ranges = [[0, 0] if each is None else each for each in targets]
    counts = [first < end for first, end in ranges]
    if any(counts):
        masses = attention.dot_product(**request, need="target", targets=ranges)["target"][counts]
        for head, mass in zip(found, masses.mean(0, np.float64).tolist()):
            head[field] = mass


def is_changed(before: dict[str, Request], now: dict[str, Request]) -> bool:
    """Whether a layer has another array, or another option."""
    def same(old: Request, new: Request) -> bool:
        return old.keys() == new.keys() and all(
            old[name] is new[name] if name in TENSORS else old[name] == new[name] for name in old)
    return before.keys() != now.keys() or not all(same(before[layer], now[layer]) for layer in now)


def place(name: str) -> int:
    """Return where a field is in a file: in the order of `open_capture`, so that a file is saved as it was."""
    return (*TENSORS, *OPTIONS, name).index(name)


def as_client(client: Any) -> Any:
    """Return a client, which may be given as an address, or as None for the usual one."""
    return client if hasattr(client, "dot_product") else Client(*[client] if client else [])


def open_capture(path: str | os.PathLike[str]) -> Captured:
    """Return the capture that `Captured.save` wrote: ``attnd.open("text.safetensors")``.

    Raises
    ------
    CaptureError
        If the file is no capture.
    """
    tensors, metadata = read_safetensors(path)
    if "layers" not in metadata:
        raise CaptureError(f"{path} is no capture: it has no 'layers' in its metadata, but {describe(tensors)}")
    return to_captured(os.fspath(path), tensors, metadata)


def to_captured(path: str, tensors: dict[str, Array], metadata: dict[str, str]) -> Captured:
    """Return the capture of a file that has these tensors and this metadata."""
    fields = {key: json.loads(text) for key, text in metadata.items() if key != "format"}
    layers: dict[str, list[Request]] = {str(layer): [{}] for layer in fields.pop("layers")}
    tokens = fields.pop("tokens", None)
    for key, value in (tensors | fields).items():
        layer, _, name = key.rpartition(".")
        if layer not in layers or name not in (TENSORS if key in tensors else OPTIONS):
            raise CaptureError(f"{path} has {key!r}, which is nothing of its layers {', '.join(layers)}")
        layers[layer][0][name] = value
    return Captured(layers, tokens)


open = open_capture  # as attnd.open
