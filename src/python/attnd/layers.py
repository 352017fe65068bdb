# SPDX-License-Identifier: Apache-2.0
"""Attention layers of files and folders, in this process."""

from __future__ import annotations

import json
import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from . import _native
from ._analysis import naming, requests_of, run_heads
from ._arrays import Array, to_array, to_numbers
from ._errors import InvalidError, UnsupportedError
from ._rows import PathLike, Request, States, read_rows
from .attention import compute
from .head_table import HeadTable
from .prune import Pruned, prune

THREADS_MAX = 8  # layers at one time, since each may need much memory


class Opened:
    """An opened file or folder."""

    def __init__(self, path: PathLike, options: Mapping[str, Any]) -> None:
        handle, error = c_void_p(), _native._Error()
        text = json.dumps(dict(options)).encode()
        _native.check(_native.library().attn_layers_open(os.fsencode(path), text, byref(handle), byref(error)), error)
        self.handle = handle
        weakref.finalize(self, _native.library().attn_layers_destroy, handle).atexit = False
        self.text: dict[str, Any] = json.loads(_native.library().attn_layers_text(handle))

    def get(self, index: int) -> c_void_p:
        """Return layer `index`, which is read when it is first got."""
        model, error = c_void_p(), _native._Error()
        _native.check(_native.library().attn_layers_get(self.handle, index, byref(model), byref(error)), error)
        return model


def load(path: PathLike, **options: Any) -> Model:
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

    def __init__(self, path: PathLike, **options: Any) -> None:
        self.path, self.options = os.fspath(path), options
        self.opened = Opened(path, options)
        self.family: str | None = self.opened.text["family"]
        self._places = {info["name"]: place for place, info in enumerate(self.opened.text["layers"])}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Layer]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, key: int | str) -> Layer:
        """Return a layer by its name, or by its place among all layers."""
        if isinstance(key, str) and key not in self._places:
            raise KeyError(f"{self.path} has no layer {key!r}; it has {', '.join(self._places)}")
        return Layer(self, range(len(self))[self._places[key] if isinstance(key, str) else key])

    def __repr__(self) -> str:
        return f"<{self.family or 'file'} {self.path}: {', '.join(self._places)}>"

    def heads(self, hidden_states: Any, *, layers: str | Iterable[int] | None = None, targets: Any = None) -> HeadTable:
        """Say what the heads of many layers attend to, in one table.

        Parameters
        ----------
        hidden_states : array [tokens, layers, width] or [layers, tokens, width], sequence of arrays, or path
            What enters each layer, before its norm, which is applied. A sequence, such as that of
            ``model(..., output_hidden_states=True)``, has an array [tokens, width] or [1, tokens, width] for each layer.
            A path is that of a file with ``hidden_states``.
        layers : str or iterable of int, optional
            The ids of the layers, in the order of `hidden_states`: ``"0-29"``, ``[0, 8, 16]``. A sequence needs none: state i
            enters layer i, and the one after the last layer enters none.
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
        states = take_states(hidden_states)
        if targets is not None:
            states.targets = to_array("targets", targets)
        if layers is None and isinstance(hidden_states, (list, tuple)):
            last = len(self._fed())
            states.states = states.states[: last] if len(states.states) == last + 1 else states.states
            layers = range(len(states.states))
        if layers is None:
            raise InvalidError(f"{states.place}: layers is missing: hidden_states are {list(states.states.shape)}, and do not "
                               "say of which layers they are; give their ids, as in 0,8,16 or 0-29")
        ids = read_ids(layers)
        rows = find_rows(states, ids)
        fed = [self._find_fed(number) for number in ids]
        replies = run_on_threads(lambda item: self._analyse(item[0][0], item[0][1], item[1], states), list(zip(fed, rows)))
        return HeadTable({name: reply for (name, _), reply in zip(fed, replies)})

    def _analyse(self, name: str, layer: Layer, rows: Array, states: States) -> dict[str, Any]:
        """Return what the heads of a layer do, called `name`. It is read for this alone."""
        request = Request(states.place, {}, {"queries": rows})
        if states.targets is not None:
            request.arrays["targets"] = states.targets
        with naming(f"layer {name}"):
            options = {key: value for key, value in self.options.items() if key not in ("layers", "pre_norm")}
            opened = Opened(self.path, options | {"layer": layer.name})
            return run_heads([request], opened.get(0)) | {"model": name}

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
        if number not in fed:
            raise InvalidError(f"layers: state {number} enters no layer of {self.path}, whose last one is "
                               f"{self[-1].name}; the state after the last layer, whose id is num_hidden_layers, enters "
                               "none")
        name, layer = fed[number]
        if layer.info["kind"] == "borrowed":  # its keys are made of another state
            raise UnsupportedError(f"layers: layer {name} takes the keys of layer {layer.info['borrows']}, which state "
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
        self.info: dict[str, Any] = model.opened.text["layers"][index]
        self.name: str = self.info["name"]
        self.num_heads: int = self.info["num_heads"]
        self.num_kv_heads: int = self.info["num_kv_heads"]

    def __repr__(self) -> str:
        return f"<layer {self.name} of {self.model.path}: {self.num_heads} heads>"

    def handle(self) -> c_void_p:
        """Return the layer as libattnd has it."""
        return self.model.opened.get(self.index)

    def __call__(self, queries: Any, *, need: Any = None, **options: Any) -> Any:
        """Compute the layer as ``POST /v1/attention`` does: docs/protocol.md.

        Parameters
        ----------
        queries : array [Tq, query_size] or [B, Tq, query_size]
            The rows that enter the layer, before its norm unless it was loaded with ``pre_norm=False``: ``info["queries"]``. A
            list of arrays is a batch of different lengths, and each result is a list, too.
        need : str or list of str, optional
            ``outputs``, ``weights``, ``heads``, ``lse``, ``contributions``, ``received``, ``entropy`` and others.
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


def take_states(hidden_states: Any) -> States:
    """Return the states of a file, an array or a sequence of arrays."""
    found = read_rows(hidden_states) if isinstance(hidden_states, (str, os.PathLike)) else hidden_states
    if isinstance(found, States):
        return found
    if found is not hidden_states:
        raise InvalidError(f"{os.fspath(hidden_states)} has no hidden_states")
    if not isinstance(hidden_states, (list, tuple)):
        return States("hidden_states", to_numbers("hidden_states", hidden_states))
    rows = [to_numbers("hidden_states", state) for state in hidden_states]
    return States("hidden_states", np.stack([row[0] if row.ndim == 3 and len(row) == 1 else row for row in rows]))


def read_ids(layers: str | Iterable[int]) -> list[int]:
    """Return ids, also of a text such as ``0,8,16-20``."""
    if not isinstance(layers, str):
        ids = [int(number) for number in layers]
    elif re.fullmatch(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", layers, re.ASCII):
        ranges = [[int(number) for number in part.split("-")] for part in layers.split(",")]
        ids = [number for each in ranges for number in range(each[0], each[-1] + 1)]
    else:
        raise InvalidError(f"layers: {layers!r} is not a list of ids, such as 0,8,16 or 0-29")
    if len(set(ids)) < len(ids):
        raise InvalidError(f"layers: {layers!r} has an id twice; list each layer once")
    return ids


def find_rows(states: States, ids: list[int]) -> Array:
    """Return [layers, tokens, width]. The axis that is as long as the ids counts layers; of both, that of vLLM."""
    array, place = states.states, states.place
    if array.ndim != 3:
        raise InvalidError(f"{place}: hidden_states have {array.ndim} axes; save [tokens, layers, width]")
    if len(ids) not in array.shape[:2]:
        raise InvalidError(f"{place}: hidden_states are {list(array.shape)}, but layers has {len(ids)} ids; list one for each "
                           "layer, in the order of the file")
    rows = array.swapaxes(0, 1) if array.shape[1] == len(ids) else array
    if states.num_ids > rows.shape[1]:
        raise InvalidError(f"{place}: hidden_states have {rows.shape[1]} rows, but there are {states.num_ids} token_ids: the "
                           "first part of the prompt came from the prefix cache; start vllm with --no-enable-prefix-caching")
    return rows


def run_on_threads(work: Callable[[Any], Any], items: list[Any]) -> list[Any]:
    """Return what `work` returns for each item. The first error, by item, is raised."""
    with ThreadPoolExecutor(min(THREADS_MAX, len(os.sched_getaffinity(0)), max(len(items), 1))) as threads:
        futures = [threads.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
