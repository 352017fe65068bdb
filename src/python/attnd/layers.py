# SPDX-License-Identifier: Apache-2.0
"""Attention layers of files and folders, in this process."""

from __future__ import annotations

import json
import logging
import os
import re
import weakref
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_void_p
from pathlib import Path
from typing import Any

from . import _native
from ._analysis import requests_of, run_heads
from ._arrays import to_array
from ._errors import InvalidError, UnsupportedError, naming
from ._fields import without_nulls
from ._rows import Request
from ._safetensors import PathLike
from .attention import compute
from .captured import Captured
from .captured import open as open_capture
from .head_table import HeadTable
from .prune import Pruned, prune

THREADS_MAX = 8  # layers at one time, since each may need much memory


def load(path: PathLike, /, **options: Any) -> Model:
    """Open a safetensors file of one layer, or a folder of Hugging Face.

    Parameters
    ----------
    path : path
        Descriptions are read now, and the weights of a layer when it is first used.
    **options
        The keys of ``attnd --model``: ``num_heads``, ``causal``, ``precision``, ``pre_norm`` and others. docs/models.md and
        docs/checkpoints.md list them.

    Raises
    ------
    attnd.Error
        Also a ValueError, an OSError, a MemoryError or a NotImplementedError.
    """
    return Model(path, **options)


class Model:
    """The attention layers of a file or folder, in their order: ``model[3]``, ``model["decoder.3.cross"]``.

    Attributes
    ----------
    path : str
    family : str or None
        As config.json calls it; None for a file.
    """

    def __init__(self, path: PathLike, /, **options: Any) -> None:
        self.path, self.options, library = os.fspath(path), options, _native.library()
        self.opened = _native.make("attn_layers_open", os.fsencode(path), json.dumps(options).encode())
        weakref.finalize(self, library.attn_layers_destroy, self.opened).atexit = False
        self.info: dict[str, Any] = json.loads(library.attn_layers_text(self.opened))
        self.family: str | None = self.info["family"]
        self._places = {info["name"]: place for place, info in enumerate(self.info["layers"])}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Layer]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, key: int | str) -> Layer:
        """Return a layer by its name, or by its place among all layers."""
        try:
            place = range(len(self))[self._places[key] if isinstance(key, str) else key]
        except LookupError as error:
            raise type(error)(f"{self.path} has no layer {key!r}; it has {', '.join(self._places)}") from None
        return Layer(self, place)

    def __repr__(self) -> str:
        return f"<{self.family or 'file'} {self.path}: {', '.join(self._places)}>"

    def heads(self, hidden_states: Any, *, ids: str | Iterable[int] | None = None, targets: Any = None) -> HeadTable:
        """Say what the heads of many layers attend to, in one table.

        Parameters
        ----------
        hidden_states : array [tokens, layers, width] or [layers, tokens, width], sequence of arrays, Captured or path
            What enters each layer, before its norm, which is applied. A sequence, such as that of
            ``model(..., output_hidden_states=True)``, has an array [tokens, width] or [1, tokens, width] for each layer.
            A path is that of a file with ``hidden_states``, which `Captured.save` or vLLM wrote.
        ids : str or iterable of int, optional
            Which layers the states enter, in the order of `hidden_states`: ``"0-29"``, ``[0, 8, 16]``. A sequence needs none:
            state i enters layer i, and the one after the last layer enters none. Nor does a capture that has them.
        targets : array [tokens, 2], optional
            A range of keys for each token. ``.sort("target")`` then finds the heads that look there.

        Returns
        -------
        HeadTable

        Raises
        ------
        attnd.Error
            Also a ValueError, a MemoryError or a NotImplementedError.
        """
        captured = take_states(hidden_states)
        states = captured.states(None if ids is None else read_ids(ids))
        targets = captured.targets if targets is None else targets
        arrays = {} if targets is None else {"targets": to_array("targets", without_nulls(targets))}
        num_ids = len(next(iter(states.values()), ()))
        if captured.token_ids is not None and len(captured.token_ids) == num_ids:
            arrays["token_ids"] = to_array("token_ids", captured.token_ids)
        last = len(self._fed()) if ids is None else -1  # the id of what leaves the last layer
        fed = [(*self._find_fed(number), Request(captured.place, {}, {"queries": rows, **arrays}))
               for number, rows in states.items() if number != last]
        replies: dict[str, dict[str, Any]] = {}
        with ThreadPoolExecutor(min(THREADS_MAX, len(os.sched_getaffinity(0)))) as threads:
            for (name, *_), reply in zip(fed, threads.map(self._analyse, fed)):  # an error cancels those that have not begun
                replies[name] = reply
                logging.getLogger(__package__).info("%d of %d layers are done", len(replies), len(fed))
        return HeadTable(replies)

    def _analyse(self, item: tuple[str, Layer, Request]) -> dict[str, Any]:
        """Return what the heads of a layer do, which has a name. It is read for this alone."""
        name, layer, request = item
        with naming(f"layer {name}"):
            options = {key: value for key, value in self.options.items() if key not in ("layers", "pre_norm")}
            alone = load(self.path, **options | {"layer": layer.name})[0]
            return run_heads([request], alone.handle()) | {"model": name}

    def _fed(self) -> dict[int, tuple[str, Layer]]:
        """Return for each hidden state, by its id, the layer that it enters, and its name in a table."""
        if self.family == "albert":  # whose layers are passed several times; names are those of a capture
            config = json.loads(Path(self[0].info["tensors"][0]["file"]).with_name("config.json").read_text())
            passes = config.get("num_hidden_layers", 12) // config.get("num_hidden_groups", 1)
            return {int(layer.name) * passes + i: (f"{layer.name}.{i}".removesuffix(".0"), layer)
                    for layer in self for i in range(passes)}
        names = {name: name.removeprefix("text.") for name in self._places}
        return {int(number): (name, self[name]) for name, number in names.items() if number.isdecimal()}

    def _find_fed(self, number: int) -> tuple[str, Layer]:
        """Return the layer that state `number` enters."""
        fed = self._fed()
        if not fed:
            first = self[0].name
            raise UnsupportedError(f"layers: {self.path} names its layers by stack, such as {first}, and hidden states do not "
                                   f"say which they enter; send the rows of one as a request, to {self.path},layer={first}")
        if number not in fed:
            raise InvalidError(f"ids: state {number} enters no layer of {self.path}, whose last one is "
                               f"{self[-1].name}; the state after the last layer, whose id is num_hidden_layers, enters "
                               "none")
        name, layer = fed[number]
        if layer.info["kind"] == "borrowed":  # its keys are made of another state
            raise UnsupportedError(f"ids: layer {name} takes the keys of layer {layer.info['borrows']}, which state "
                                   f"{number} does not make; save the states of other layers, or send requests with keys")
        return name, layer


class Layer:
    """One attention layer. Its weights are read when it is first used.

    Attributes
    ----------
    name : str
        As attnd calls it: ``3``, ``decoder.3.cross``; of a file ``model``.
    info : dict
        What ``GET /v1/models`` says of it, and ``tensors``: where its weights are in the files.
    num_heads, num_kv_heads : int
    model : Model
    """

    def __init__(self, model: Model, index: int) -> None:
        self.model, self.index = model, index
        self.info: dict[str, Any] = model.info["layers"][index]
        self.name: str = self.info["name"]
        self.num_heads: int = self.info["num_heads"]
        self.num_kv_heads: int = self.info["num_kv_heads"]

    def __repr__(self) -> str:
        return f"<layer {self.name} of {self.model.path}: {self.num_heads} heads>"

    def handle(self) -> c_void_p:
        """Return the layer as libattnd has it, which is read when it is first asked for."""
        return _native.make("attn_layers_get", self.model.opened, self.index)

    def __call__(self, queries: Any, *, need: Any = None, **options: Any) -> Any:
        """Compute the layer as ``POST /v1/attention`` does: docs/protocol.md.

        Parameters
        ----------
        queries : array [Tq, query_size] or [B, Tq, query_size]
            The rows that enter the layer, before its norm unless it was loaded with ``pre_norm=False``: ``info["queries"]``. A
            list of arrays is a batch of different lengths, and each result is a list, too.
        need : str or list of str, optional
            ``outputs``, ``weights``, ``heads``, ``lse``, ``contributions``, ``projections``, ``received``, ``entropy`` and
            others.
        **options
            keys, values, causal, window, valid_lens, positions, head_mask, bias, weights_heads, ... By default `queries` are
            the keys, and keys the values.

        Returns
        -------
        array [B, Tq, out_size], or dict
            The outputs, as float32; with `need` a dict with an array for each word, such as ``weights`` [B, H, Tq, Tk]. Without
            B when `queries` have none.

        Raises
        ------
        attnd.Error
            Also a ValueError, a TypeError, a MemoryError or an OSError.
        """
        fields = {"queries": queries, "need": need, **options}
        found = compute(fields, 2, self.handle())
        return found["outputs"] if list(found) == ["outputs"] and need is None else found

    def heads(self, queries: Any, *, targets: Any = None, **options: Any) -> HeadTable:
        """Say what each head attends to, and how much the outputs depend on it.

        Parameters
        ----------
        queries : array [Tq, query_size] or [B, Tq, query_size], or path
            As in a call; or a file of requests, each a body of ``POST /v1/attention``: JSON on lines, or one in safetensors.
        targets : array [Tq, 2], optional
            A range of keys for each query. ``.sort("target")`` then finds the heads that look there.
        **options
            As in a call.

        Returns
        -------
        HeadTable

        Raises
        ------
        attnd.Error
            Also a ValueError, a TypeError, a MemoryError or an OSError.
        """
        fields = options if targets is None else {**options, "targets": targets}
        return HeadTable({self.name: run_heads(requests_of(queries, fields), self.handle()) | {"model": self.name}})

    def prune(self, queries: Any = None, *, keep: int | None = None, remove: Iterable[int] | None = None,
              groups: bool = False, **options: Any) -> Pruned:
        """Leave out heads: those that are named, or those whose loss changes the outputs least.

        Parameters
        ----------
        queries : array or path, optional
            Rows like those that the layer will get, as in `heads`. `keep` needs them.
        keep : int, optional
            How many heads stay. The others go one after the other, each time the one whose loss, with those before it, changes
            the outputs least.
        remove : iterable of int, optional
            The heads to leave out instead.
        groups : bool
            Heads that share a key head go together, so that `Pruned.save` can cut them.
        **options
            As in a call.

        Returns
        -------
        Pruned
            With the heads, a ``head_mask``, the predicted and the measured change, and ``save()``.

        Raises
        ------
        attnd.Error
            Also a ValueError, a TypeError, a MemoryError or an OSError.
        """
        return prune(self, queries, keep, remove, groups, options)


def take_states(hidden_states: Any) -> Captured:
    """Return the capture that has these hidden states, or those of a file."""
    captured = open_capture(hidden_states) if isinstance(hidden_states, (str, os.PathLike)) else hidden_states
    if not isinstance(captured, Captured):
        captured = Captured()
        captured.place, captured.hidden_states = "hidden_states", hidden_states
    if captured.hidden_states is None:
        raise InvalidError(f"{captured.place} has no hidden_states, which the layers of a folder take; its queries and keys "
                           "need no folder: leave it out")
    return captured


def read_ids(ids: str | Iterable[int]) -> list[int]:
    """Return ids, also of a text such as ``0,8,16-20``."""
    if not isinstance(ids, str):
        found = [int(number) for number in ids]
    elif re.fullmatch(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", ids, re.ASCII):
        ranges = [[int(number) for number in part.split("-")] for part in ids.split(",")]
        found = [number for each in ranges for number in range(each[0], each[-1] + 1)]
    else:
        raise InvalidError(f"ids: {ids!r} is not a list of ids, such as 0,8,16 or 0-29")
    if len(set(found)) < len(found):
        raise InvalidError(f"ids: {ids!r} has an id twice; list each layer once")
    return found
