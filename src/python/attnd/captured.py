# SPDX-License-Identifier: Apache-2.0
"""Queries and keys of a model that ran elsewhere, of which attnd computes attention weights."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from . import attention
from ._arrays import Array, to_array, to_numbers
from ._errors import CaptureError, naming
from ._fields import without_nulls
from ._safetensors import PathLike, Tensors, describe_tensors, read_safetensors, to_safetensors, write_file
from ._runs import tower_of
from .client import Client
from .drawing import MOST_CELLS, Picture
from .head_table import HeadTable

TENSORS = ("queries", "keys", "values", "bias", "sinks", "slopes", "positions", "key_positions")
OPTIONS = ("scale", "softcap", "causal", "window")
MARKS = ("self_attention", "token_ids")  # what `Captured.request` adds
COMMON = ("token_ids", "targets", "hidden_states")  # tensors of all layers together
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

    Attributes
    ----------
    hidden_states : array [tokens, layers, width] or [layers, tokens, width], or sequence of arrays, optional
        What enters the layers of one sequence before their norms, such as ``model(..., output_hidden_states=True)`` has it:
        ``attnd.load(folder).heads(c)`` says what the heads of the folder's layers do with it.
    hidden_ids : list of int, optional
        The layers that `hidden_states` enter, in their order. Of a sequence of arrays they are 0, 1, 2, and so on.
    token_ids : array [tokens], optional
        Of one sequence; a capture of a model has those of all.
    targets : array [tokens, 2], optional
        For each token a range of keys, or two zeros: for the column ``target`` of `heads`.
    """

    def __init__(self, layers: dict[str, list[Request]] | None = None, tokens: list[str] | None = None) -> None:
        self._layers: dict[str, list[Request]] = {} if layers is None else layers
        self._runs: list[Captured] = []
        self.tokens = tokens
        self.place = "the capture"  # for errors
        self.hidden_states: Any = None
        self.hidden_ids: list[int] | None = None
        self.token_ids: Any = None
        self.targets: Any = None
        self.tokenizer: Any = None  # makes labels of token ids
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

    def replace(self, runs: list[Captured]) -> None:
        """Have the layers of these runs from now on, each of the last run that has it."""
        self._layers, self._runs = {}, runs
        for run in runs:
            self._layers |= run.layers

    def __repr__(self) -> str:
        states = "" if self.hidden_states is None else ", hidden_states"
        return f"<captured layers {', '.join(self.layers) or '(none)'}{states}>"

    def request(self, layer: int | str, sequence: int = 0) -> Mapping[str, Any]:
        """Return the queries, keys and options of a layer, as `attnd.dot_product` and `attnd.heads` take them.

        It also says what is known of the tokens: `self_attention` and `token_ids`. Change ``layers``, not this.
        """
        own = self.find(layer, sequence)
        ids = self.known_ids(layer, sequence)
        marks: Request = {} if is_cross(layer) else {"self_attention": True}
        if ids is not None and len(own["queries"]) == len(own["keys"]):  # they are those of the rows, too
            marks["token_ids"] = ids
        return types.MappingProxyType({name: own[name] for name in own if name not in MARKS} | marks)

    def find(self, layer: int | str, sequence: int = 0) -> Request:
        """Return the request of a layer itself."""
        found = self.layers.get(str(layer))
        if found is None and not self.layers and self.hidden_states is not None:
            raise CaptureError(f"{self.place} has hidden_states alone, no queries and keys; the folder of the model makes "
                               "weights of them: attnd.load(FOLDER).heads(...), python3 -m attnd heads FOLDER --data ...")
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
        request = dict(self.find(layer, sequence))
        words = need.split(",") if isinstance(need, str) else list(need)
        if "heads" not in words:
            request.pop("values", None)
        elif "values" not in request:
            raise CaptureError("heads are sums of values, which were not kept; use capture(..., values=True)")
        options |= {"need": words, "weights_heads": heads, "weights_queries": queries}
        with naming(weights_heads="heads", weights_queries="queries"):
            if client is None and sequence in self.kept:
                kept, name, before = self.kept[sequence]
                now = self.snapshot(sequence)
                if before.keys() != now.keys() or any(now[key] is not before[key] for key in now):
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
        attnd.AttentionError
            If the server keeps no captures.
        """
        client = as_client(client)
        self.find(next(iter(self.layers), ""), sequence)
        for layer in self.layers:
            request = self.find(layer, sequence)
            for name in request.keys() & set(TENSORS):
                request[name] = np.asarray(request[name]).view()
                request[name].flags.writeable = False
        name = str(client.put_capture(None, lambda: self.to_bytes(sequence))["name"])
        self.kept[sequence] = client, name, self.snapshot(sequence)
        return name

    def snapshot(self, sequence: int) -> dict[tuple[str, str], Any]:
        """Return what a sequence has now, which others are once it was changed."""
        return {(layer, name): value for layer in self.layers for name, value in self.find(layer, sequence).items()}

    def heads(self, targets: Any = None, sequence: int = 0, layers: int | str | Iterable[int | str] | None = None) -> HeadTable:
        """Say what each head of all layers attends to, as one table that sorts and prints itself.

        Parameters
        ----------
        targets : array [Tq, 2], optional
            For each query a range of keys, or None: the column ``target`` has the weight on them.
        sequence : int
        layers : int, str or list of them, optional
            A selection; by default all.

        Returns
        -------
        attnd.HeadTable
            ``c.heads(targets=...).sort("target")`` has the best head first. docs/heads.md explains the numbers.
        """
        self.find(next(iter(self.layers), ""), sequence)  # which says so where there is none
        replies = {}
        for layer in self.layers if layers is None else [layers] if isinstance(layers, (int, str)) else layers:
            request = {name: value for name, value in self.request(layer, sequence).items() if name != "values"}
            wanted = self.targets if targets is None and self.is_of_text(layer, self.targets, request["queries"]) else targets
            if "bias" in request:
                found = describe_biased(request, wanted)
            else:
                found = attention.describe({**request, "targets": wanted})["heads"]
            for field, back in (("mass_on_self", 0), ("mass_on_previous", 1)) if not is_cross(layer) else ():
                if found[0].get(field) is None:
                    own = [place - back for place in self.positions(layer, sequence)]
                    fill_masses(found, field, request, [None if place < 0 else [place, place + 1] for place in own])
            replies[str(layer)] = {"model": str(layer), "heads": found}
        return HeadTable(replies)

    def last_layer(self) -> str:
        """Return the last layer that is of one text."""
        return next((name for name in reversed(self.layers) if not is_cross(name)), "")

    def is_of_text(self, layer: int | str, marks: Any, rows: Array) -> bool:
        """Whether marks of the text of the last layer are those of the rows of a layer."""
        is_same = not is_cross(layer) and tower_of(str(layer)) == tower_of(self.last_layer())
        return is_same and marks is not None and len(marks) == len(rows)

    def known_ids(self, layer: int | str, sequence: int = 0) -> Array | None:
        """Return the token ids of the keys of a layer, where all are known."""
        ids = self.captured_ids(str(layer), sequence)
        if ids is not None:
            return None if (ids < 0).any() else ids
        ids = None if self.token_ids is None else to_array("token_ids", self.token_ids).reshape(-1)
        return ids if self.is_of_text(layer, ids, self.find(layer, sequence)["keys"]) else None

    def captured_ids(self, name: str, sequence: int) -> Array | None:
        """Return the ids of the keys of a layer as a model got them, -1 where one is not known."""
        requests = self.layers.get(name)
        return requests[sequence].get("token_ids") if requests else None

    def positions(self, layer: int | str, sequence: int) -> Any:
        """Return the list of which key each query of self-attention is."""
        request = self.find(layer, sequence)
        shift = max(len(request["keys"]) - len(request["queries"]), 0)
        return np.asarray(request.get("positions", np.arange(len(request["queries"])) + shift)).ravel().tolist()

    def show(self, layer: int | str | None = None, head: int = 0, *, client: Any = None, sequence: int = 0) -> Picture:
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
        layer = next(iter(self.layers), 0) if layer is None else layer
        request = self.find(layer, sequence)
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
        request, name = self.find(layer, sequence), str(layer)
        columns = self.known_labels(name, sequence, len(request["keys"]))
        if is_cross(layer):
            return self.known_labels(name.removesuffix(".cross"), sequence, len(request["queries"])), columns
        return [columns[each] if 0 <= each < len(columns) else str(each) for each in self.positions(layer, sequence)], columns

    def known_labels(self, name: str, sequence: int, count: int) -> list[str]:
        """Return labels of `count` keys of a layer."""
        known = self.decoded(name, sequence) or ([] if is_cross(name) or sequence > 0 else self.tokens or [])
        return [*map(str, known[:count]), *map(str, range(len(known), count))]

    def decoded(self, name: str, sequence: int) -> list[str]:
        """Return labels of the keys of a layer where a tokenizer makes them, or none."""
        ids = self.captured_ids(name, sequence)
        if self.tokenizer is None or ids is None:
            return []
        return [self.tokenizer.decode([each]) if each >= 0 else str(place) for place, each in enumerate(ids.tolist())]

    def save(self, path: PathLike, sequence: int = 0, *, overwrite: bool = False) -> None:
        """Write one sequence as safetensors: ``LAYER.queries`` and so on, and options as JSON texts.

        A file that exists is an error, unless `overwrite` says that it is replaced.
        """
        write_file(path, self.to_bytes(sequence), overwrite)

    def to_bytes(self, sequence: int = 0) -> bytes:
        """Return what `save` writes: the same bytes for the same capture, also when it was loaded."""
        last = self.last_layer()
        ids = self.captured_ids(last, sequence)
        ids = self.token_ids if ids is None or (ids < 0).any() else ids
        tensors: Tensors = {}
        metadata = {"layers": json.dumps(list(self.layers)), "tokens": json.dumps(self.decoded(last, sequence) or self.tokens)}
        for layer in self.layers:
            request = self.find(layer, sequence)
            if other := request.keys() - {*TENSORS, *OPTIONS, *MARKS}:
                raise CaptureError(f"layer {layer} has {', '.join(sorted(other))}, which a file does not keep; leave it out")
            tensors |= {f"{layer}.{name}": np.ascontiguousarray(request[name]) for name in TENSORS if name in request}
            metadata |= {f"{layer}.{name}": json.dumps(request[name]) for name in OPTIONS if name in request}
        if ids is not None:
            tensors["token_ids"] = to_array("token_ids", ids).astype("<i8").reshape(-1)
        if self.targets is not None:
            tensors["targets"] = to_array("targets", without_nulls(self.targets)).astype("<i8").reshape(-1, 2)
        if self.hidden_states is not None:
            states, hidden_ids = self.stacked_states()
            tensors["hidden_states"] = np.ascontiguousarray(states)
            metadata |= {} if hidden_ids is None else {"hidden_ids": json.dumps(list(hidden_ids))}
        return to_safetensors(tensors, metadata)

    def stacked_states(self) -> tuple[Array, list[int] | None]:
        """Return `hidden_states` as one array, and the layers that they enter, if these are known."""
        states = self.hidden_states
        if not isinstance(states, (list, tuple)):
            return to_numbers("hidden_states", states), self.hidden_ids
        rows = [to_numbers("hidden_states", state) for state in states]
        stacked = np.stack([row[0] if row.ndim == 3 and len(row) == 1 else row for row in rows])
        return stacked, list(range(len(stacked))) if self.hidden_ids is None else self.hidden_ids

    def states(self, ids: Sequence[int] | None = None) -> dict[int, Array]:
        """Return [tokens, width] for the id of each layer, of which `hidden_ids` are the usual ones.

        The axis of `hidden_states` that is as long as the ids counts layers; of both, that of vLLM.
        """
        array, known = self.stacked_states()
        ids = known if ids is None else ids
        if ids is None:
            raise CaptureError(f"{self.place}: ids are missing: hidden_states are {list(array.shape)}, and do not say which "
                               "layers they enter; give the ids of these, as in 0,8,16 or 0-29")
        if array.ndim != 3:
            raise CaptureError(f"{self.place}: hidden_states have {array.ndim} axes; save [tokens, layers, width]")
        if len(ids) not in array.shape[:2]:
            raise CaptureError(f"{self.place}: hidden_states are {list(array.shape)}, but ids are {len(ids)}; list one "
                               "for each layer, in the order of the file")
        rows = array.swapaxes(0, 1) if array.shape[1] == len(ids) else array
        num_ids = 0 if self.token_ids is None else len(self.token_ids)
        if num_ids > rows.shape[1]:
            raise CaptureError(f"{self.place}: hidden_states have {rows.shape[1]} rows, but there are {num_ids} token_ids: "
                               "vLLM took the beginning of the prompt from its cache; start vllm with "
                               "--no-enable-prefix-caching")
        return dict(zip(ids, rows))


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


def is_cross(layer: int | str) -> bool:
    return str(layer).endswith(".cross")


def as_client(client: Any) -> Any:
    """Return a client, which may be given as an address, or as None for the usual one."""
    return client if hasattr(client, "dot_product") else Client(*[client] if client else [])


def open_capture(path: PathLike) -> Captured:
    """Return the capture that `Captured.save` wrote, or hidden states of vLLM: ``attnd.open("text.safetensors")``.

    Raises
    ------
    CaptureError
        If the file is no capture.
    """
    tensors, metadata = read_safetensors(path)
    if not is_capture(tensors, metadata):
        raise CaptureError(f"{path} is no capture: it has no 'layers' in its metadata, no hidden_states, but "
                           f"{describe_tensors(tensors)}")
    return to_captured(os.fspath(path), tensors, metadata)


def is_capture(tensors: Tensors, metadata: dict[str, str]) -> bool:
    """Whether a file is one for `to_captured`."""
    return "layers" in metadata or "hidden_states" in tensors


def to_captured(path: str, tensors: Tensors, metadata: dict[str, str]) -> Captured:
    """Return the capture of a file that has these tensors and this metadata."""
    names = metadata if "layers" in metadata else metadata.keys() & {"hidden_ids", "tokens"}  # of vLLM's others are its own
    fields = {key: json.loads(metadata[key]) for key in names if key != "format"}
    layers: dict[str, list[Request]] = {str(layer): [{}] for layer in fields.pop("layers", [])}
    captured = Captured(layers, fields.pop("tokens", None))
    captured.place, captured.hidden_ids = path, fields.pop("hidden_ids", None)
    for key, value in (tensors | fields).items():
        layer, _, name = key.rpartition(".")
        if key in COMMON:
            setattr(captured, key, value)
        elif layer in layers and name in (TENSORS if key in tensors else OPTIONS):
            layers[layer][0][name] = value
        else:
            raise CaptureError(f"{path} has {key!r}, which is nothing of its layers {', '.join(layers) or '(none)'}; beside "
                               f"these it may have {', '.join(COMMON)}")
    return captured


open = open_capture  # as attnd.open
