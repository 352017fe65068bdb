# SPDX-License-Identifier: Apache-2.0
"""How the calls of attention layers become runs.

A call continues a run where the keys before its own are those that the run has: a step of generate(), the
next part of a prompt, the step of a beam that another beam began, or a step after drafts were rejected.
Any other call begins a run. Few rows of each layer are compared, and all layers that run together must
agree, so that the cost of a step does not grow with the text. Rows are appended with their padding, which
is cut off when the requests of a run are made.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ._arrays import Array
from ._masks import cut, to_visible

NUM_RECENT = 4  # runs that a call may continue: guidance has two at one time
MOST_REJECTED = 64  # rows of drafts, in layers whose cache has a window


class Rows:
    """Rows [B, n, ...] that grow at their end."""

    def __init__(self, rows: Array) -> None:
        self.buffer, self.count = np.array(rows), rows.shape[1]

    @property
    def rows(self) -> Array:
        """All rows, as a view."""
        return self.buffer[:, :self.count]

    def append(self, rows: Array) -> None:
        end = self.count + rows.shape[1]
        if end > self.buffer.shape[1]:
            room = np.empty((len(self.buffer), end + end // 2, *self.buffer.shape[2:]), self.buffer.dtype)
            room[:, :self.count] = self.rows
            self.buffer = room
        self.buffer[:, self.count:end] = rows
        self.count = end


@dataclasses.dataclass
class Patch:
    """A part of a matrix [H or 1, queries, keys] for each sequence: its place, and [B or 1, H or 1, Tq, Tk]."""

    row: int
    column: int
    array: Array


@dataclasses.dataclass(eq=False)
class Call:
    """One call of the attention function of a layer. Without `queries` it only tells what belongs together.

    `rows` are those of the call itself, [B, T, H, D]: of `queries`, `keys` and `values`, and `marks`, a few numbers of each
    key, [B, T, 8].
    """

    layer: str
    is_cross: bool
    rows: dict[str, Array]
    num_past: int  # keys before these; in cross-attention all
    read_past: Callable[[], dict[str, Array]]  # `marks`, `keys` and `values` of these
    num_queries: int
    num_keys: int  # that the function got, which may have room for later ones
    matches: Matches
    ids: Array | None = None  # [B, Tq]
    mask: Array | None = None  # ranges [B or 1, Tq, 2], or booleans [B or 1, H or 1, Tq, num_keys]
    bias: Array | None = None  # [B or 1, H or 1, Tq or 1, num_keys]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


class Layer:
    """What one layer computed in one run."""

    def __init__(self, call: Call) -> None:
        past = call.read_past() if call.num_past else {}
        self.rows = {name: Rows(np.concatenate([past[name], rows], 1) if name in past else rows)
                     for name, rows in call.rows.items()}
        self.is_cross, self.options, self.num_calls, self.num_dropped = call.is_cross, call.options, 0, 0
        self.visible: list[Patch] = []
        self.biases: list[Patch] = []
        self.add_mask(call, 0)

    def add(self, call: Call, num_past: int) -> None:
        """Append a call whose keys come after the first `num_past` keys; in cross-attention after all."""
        self.keep(num_past)
        for name, rows in call.rows.items():
            self.rows[name].append(rows)
        self.options = call.options
        self.add_mask(call, 0 if self.is_cross else num_past - call.num_past)

    def add_mask(self, call: Call, column: int) -> None:
        """Append the mask of a call whose first key is at this column."""
        self.num_calls += 1
        if call.mask is None:
            return
        last = self.rows["queries"].count
        first, shape = last - call.num_queries, (len(call.rows["marks"]), call.num_queries, 2)
        is_dense = call.mask.dtype == bool
        ranges = np.zeros(shape, np.int32) if is_dense else np.broadcast_to(call.mask, shape) + np.int32(column)
        if first and "ranges" in self.rows:
            self.rows["ranges"].append(ranges)
        else:
            self.rows["ranges"] = Rows(ranges)
        for array, patches in ((call.mask if is_dense else None, self.visible), (call.bias, self.biases)):
            if array is not None:
                size = (*array.shape[:2], call.num_queries, call.num_keys)
                patches.append(Patch(first, column, np.broadcast_to(array, size)))

    def keep(self, num_keys: int) -> None:
        """Drop the keys behind the first `num_keys`, and their queries; a draft that was rejected, for example."""
        if self.is_cross:
            return
        num_dropped = self.rows["marks"].count - num_keys
        if num_dropped <= 0:
            return
        self.num_dropped += num_dropped
        for name in ("marks", "keys", "values"):
            if name in self.rows:
                self.rows[name].count = num_keys
        self.keep_queries(-num_dropped)

    def keep_queries(self, count: int) -> None:
        """Keep the first `count` queries, or drop the last -count."""
        if "queries" not in self.rows:
            return
        had = self.rows["queries"].count
        count = max(had + count, 0) if count < 0 else min(had, count)
        for name in ("queries", "ranges"):
            self.rows[name].count = count
        for patches in (self.visible, self.biases):
            patches[:] = [Patch(each.row, each.column, each.array[:, :, :count - each.row])
                          for each in patches if each.row < count]

    def take(self, items: Array) -> None:
        """Let sequence i be what sequence items[i] was."""
        for rows in self.rows.values():
            rows.buffer = rows.buffer[items]
        for patches in (self.visible, self.biases):
            for each in patches:
                each.array = each.array[items] if len(each.array) > 1 else each.array

    def make_request(self, item: int, ids: Array | None) -> dict[str, Any]:
        """Return the request of one sequence, without padding; `ids` are those of its keys."""
        queries, keys, ranges = (self.rows[name].rows[item] for name in ("queries", "keys", "ranges"))
        mask = ranges
        if self.visible:
            mask = assemble(self.visible, item, to_visible(ranges, len(keys)))
        bias = assemble(self.biases, item, np.zeros((1, len(queries), len(keys)), np.float32)) if self.biases else None
        values = self.rows["values"].rows[item] if "values" in self.rows else None
        return self.options | cut(queries, keys, values, mask, bias, not self.is_cross, ids)


def assemble(patches: list[Patch], item: int, matrix: Array) -> Array:
    """Return a matrix [1, Tq, Tk] with the parts of one sequence in it, for as many heads as these have."""
    num_heads = max(each.array.shape[1] for each in patches)
    matrix = np.repeat(matrix, num_heads, 0)
    for each in patches:
        part = each.array[min(item, len(each.array) - 1)]
        place = matrix[:, each.row:each.row + part.shape[1], each.column:each.column + part.shape[2]]
        place[:] = part[:, :place.shape[1], :place.shape[2]]
    return matrix


class Run:
    """Layers that ran together, and what continued them. `ids` are those of tokens, by tower; -1 is not known."""

    def __init__(self) -> None:
        self.layers: dict[str, Layer] = {}
        self.ids: dict[str, Rows] = {}
        self.num_reordered = 0

    def begin(self, tower: str, calls: list[Call]) -> None:
        for call in calls:
            self.layers[call.layer] = Layer(call)
        call = first_of(calls)
        past = np.full((len(call.rows["marks"]), 0 if call.is_cross else call.num_past), -1)
        self.ids[tower] = Rows(np.concatenate([past, ids_of(call)], 1))

    def add(self, tower: str, calls: list[Call], num_past: int, matches: Array) -> None:
        """Append calls; `matches` says which sequence of the run, [B, B'], each of theirs may continue."""
        items = matches.argmax(1)
        if len(items) <= matches.shape[1]:
            items = np.where(matches.diagonal(), np.arange(len(items)), items) if len(items) else items
        layers = [layer for name, layer in self.layers.items() if tower_of(name) == tower]
        if not np.array_equal(items, np.arange(matches.shape[1])):
            self.num_reordered += 1
            self.ids[tower].buffer = self.ids[tower].buffer[items]
            for layer in layers:
                layer.take(items)
        num_dropped = self.layers[first_of(calls).layer].rows["marks"].count - num_past
        for layer in layers:
            if layer.is_cross and num_dropped > 0:
                layer.keep_queries(-num_dropped)
        for call in calls:
            if call.layer in self.layers:
                self.layers[call.layer].add(call, num_past)
        self.ids[tower].count = min(self.ids[tower].count, num_past)
        self.ids[tower].append(ids_of(first_of(calls)))

    def make_requests(self) -> dict[str, list[dict[str, Any]]]:
        """Return for each layer that is kept the request of each sequence, with the ids of its keys if these are known."""
        found: dict[str, list[dict[str, Any]]] = {}
        for name, layer in self.layers.items():
            if "queries" in layer.rows:
                known = self.ids.get("encoder." if layer.is_cross else tower_of(name))
                queries, keys = (layer.rows[each].rows for each in ("queries", "keys"))
                has_ids = known is not None and known.rows.shape == keys.shape[:2] and (known.rows >= 0).any()
                found[name] = [layer.make_request(item, known.rows[item] if known is not None and has_ids else None)
                               for item in range(len(queries))]
        return found


def tower_of(layer: str) -> str:
    """Return what layers that run together have before their number, such as `decoder.`."""
    return re.sub(r"\d.*", "", layer)


def first_of(calls: list[Call]) -> Call:
    """Return a call of self-attention, or where there is none any."""
    return next((call for call in calls if not call.is_cross), calls[0])


def ids_of(call: Call) -> Array:
    """Return the ids of a call's tokens, or -1."""
    return np.full((len(call.rows["marks"]), call.num_queries), -1) if call.ids is None else call.ids


# By run, and the number of its rows that come before a call: which of its B' sequences continue, [B, B'].
Matches = dict[tuple[Run, int], Array]


class Runs:
    """All runs of a captured model, in the order in which they began."""

    def __init__(self) -> None:
        self.all: list[Run] = []
        self.recent: list[Run] = []  # the last that was touched first
        self.calls: list[Call] = []  # since the model was last called

    def find_matches(self, layer: str, num_queries: int, num_keys: int, end: int, is_cross: bool, is_alone: bool,
                     read_marks: Callable[[Any], Array]) -> tuple[Matches, int]:
        """Return what a call may continue, as `Call.matches` has it, and how many keys are before its own.

        `end` is behind the last key that is seen: a static cache has room for more. `is_alone` says that no
        other layer can tell sequences of a batch apart, so that all rows are compared.
        """
        places = [num_keys] if is_cross else [num_keys - num_queries, end - num_queries]
        place = places[0] if end >= num_keys or is_cross else max(places[1], 0)
        found: Matches = {}
        for num_past in dict.fromkeys(places[:1 + (end < num_keys)]):
            if num_past < 1 or not any(layer in run.layers for run in self.recent):
                continue
            sample = np.arange(num_past) if is_alone else sample_rows(num_past)
            marks = read_marks(sample)
            for run in self.recent:
                if layer not in run.layers:
                    continue
                known = run.layers[layer].rows["marks"]
                for count in counts_before(num_past, known.count, is_cross, num_past == num_keys - num_queries):
                    same = (marks[:, np.newaxis] == known.rows[np.newaxis, :, sample + count - num_past]).all((2, 3))
                    if same.any(1).all():
                        found.setdefault((run, -1 if is_cross else count), same)
                        place = num_past
            if found:
                break
        return found, place

    def finish(self) -> None:
        """Let the calls since the last time continue a run, or begin one."""
        calls, self.calls = self.calls, []
        for tower in dict.fromkeys(tower_of(call.layer) for call in calls):
            self.place(tower, [call for call in calls if tower_of(call.layer) == tower])

    def place(self, tower: str, calls: list[Call]) -> None:
        """Let the calls of layers that run together continue a run, if all agree, or begin one."""
        witness = first_of(calls)
        for run, count in {} if witness.is_cross else witness.matches:
            known = [call for call in calls if call.layer in run.layers]
            found = [call.matches.get((run, -1 if call.is_cross else count)) for call in known]
            agreed = [same for same in found if same is not None]
            if len(agreed) == len(found) and all(call in known or "queries" not in call.rows for call in calls):
                same = np.logical_and.reduce(agreed)
                if same.any(1).all():
                    run.add(tower, known, count, same)
                    self.touch(run)
                    return

        run = self.all[-1] if self.all and tower not in self.all[-1].ids else Run()
        if not self.all or run is not self.all[-1]:
            self.all.append(run)
        run.begin(tower, calls)
        self.touch(run)

    def touch(self, run: Run) -> None:
        self.recent = [run, *(each for each in self.recent if each is not run)][:NUM_RECENT]


def sample_rows(count: int) -> Array:
    """Return the first of `count` rows, and those 1, 2, 4, 8, ... before their end."""
    before = 2 ** np.arange(count.bit_length())
    rows: Array = np.unique(np.append(count - before[before <= count], 0))
    return rows


def counts_before(num_past: int, count: int, is_cross: bool, may_slide: bool) -> Iterable[int]:
    """Return how many of a run's `count` rows may be before a call that has `num_past` of them, likely ones first."""
    if is_cross:
        return [count] if num_past == count else []
    if num_past > count or not may_slide:
        return [num_past] if num_past <= count else []
    last = max(num_past, count - MOST_REJECTED)
    return [*range(count, last - 1, -1), *([num_past] if num_past < last else [])]
