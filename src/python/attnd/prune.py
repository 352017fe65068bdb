# SPDX-License-Identifier: Apache-2.0
"""Layers without some of their heads: which these are, what changes, and the file of the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ._analysis import measure_change, requests_of, run_heads
from ._arrays import Array
from ._errors import InvalidError, UnsupportedError
from ._safetensors import PathLike, Tensors, read_safetensors, to_safetensors, write_file

if TYPE_CHECKING:
    from .layers import Layer

# what the description of a layer has where a tensor cannot be cut by heads, and how errors call it
UNCUT = {"latent": "latent rows", "distance_bias": "a bias by distance", "out_norm": "a norm of the heads' outputs"}


class Pruned:
    """A layer without some of its heads.

    Attributes
    ----------
    kept, removed : list of int
        The heads, counted from 0; `removed` in the order in which they went.
    head_mask : numpy.ndarray
        [H], float32: 0 for the heads that went. Any request takes it.
    changes : list of float
        The relative change of the outputs without the first 1, 2, ... heads of `order`, predicted from all requests; empty
        where no rows were given.
    order : list of int
        All heads, each time the one whose loss changes the outputs least.
    predicted, measured : float or None
        The relative change of the outputs (Frobenius norms) without `removed`, from one analysis of the whole layer, and
        by computing both.
    """

    def __init__(self, layer: Layer, removed: list[int]) -> None:
        self.layer, self.removed = layer, removed
        self.kept = [head for head in range(layer.num_heads) if head not in removed]
        self.head_mask = np.array([head in self.kept for head in range(layer.num_heads)], np.float32)
        self.order: list[int] = []
        self.changes: list[float] = []
        self.predicted: float | None = None
        self.measured: float | None = None

    def __repr__(self) -> str:
        lines = []
        if self.changes:
            lines = ["kept  removed    change", *(f"{len(self.order) - 1 - i:>4}  {head:>7}  {change:8.6f}"
                                                  for i, (head, change) in enumerate(zip(self.order, self.changes))), ""]
        if self.predicted is not None:
            lines += [f"predicted change  {self.predicted:.6g}", f"measured change   {self.measured:.6g}"]
        return "\n".join([*lines, f"layer {self.layer.name}: {len(self.kept)} of {self.layer.num_heads} heads"])

    def save(self, path: PathLike, *, overwrite: bool = False) -> None:
        """Write the layer's own tensors without the rows and columns of the removed heads.

        Names, types and orientation stay. Of a single file, all other tensors are copied, and options become metadata, so
        that attnd serves the new one without options. Of a folder only the layer's tensors are written; they take the place
        of the model's own.

        Parameters
        ----------
        path : path
        overwrite : bool
            Replaces a file that exists, which is an error otherwise.

        Raises
        ------
        attnd.Error
            Also a NotImplementedError, where heads that share a key head do not all go or stay, or where the layer has
            something that cannot be cut, such as a bias by distance; an OSError.
        """
        refuse_uncut(self.layer, self.removed)
        cuts = self.layer.info["tensors"]
        folder = self.layer.model.family is not None
        tensors: Tensors = {}
        metadata: Mapping[str, str] = {}
        for source in dict.fromkeys(cut["file"] for cut in cuts):
            read, metadata = read_safetensors(source, wanted={cut["name"] for cut in cuts} if folder else None)
            tensors |= read
        options = {} if folder else {key: str(value).lower() if isinstance(value, bool) else str(value)
                                     for key, value in self.layer.model.options.items() if key != "precision"}
        metadata = {} if folder else {**metadata, **options, "num_heads": str(len(self.kept))}
        tensors = {name: np.ascontiguousarray(tensor) for name, tensor in cut_tensors(tensors, cuts, self).items()}
        try:
            write_file(path, to_safetensors(tensors, metadata), overwrite, None if folder else type(self.layer.model))
        except (InvalidError, UnsupportedError) as error:  # as where a layout has square weights only
            raise UnsupportedError(f"layout {self.layer.info['layout']} cannot have {len(self.kept)} of these heads, so "
                                   f"nothing was written; send head_mask ({error})") from None


def prune(layer: Layer, rows: Any, keep: int | None, remove: Iterable[int] | None, groups: bool,
          fields: Mapping[str, Any]) -> Pruned:
    """Return a layer without the heads `remove`, or with `keep` heads; see `Layer.prune`."""
    size = layer.num_heads // layer.num_kv_heads if groups else 1
    if (keep is None) == (remove is None):
        raise InvalidError("give either keep, how many heads to keep, or remove, the heads to remove")
    if keep is not None and rows is None:
        raise InvalidError("keep needs rows to choose by: an array, or a file of requests")
    if keep is not None and (not 0 < keep < layer.num_heads or keep % size):
        raise InvalidError(f"keep is {keep}, but must be at least 1 and less than the {layer.num_heads} heads"
                           + (f", and a multiple of {size}, which share a key head" if size > 1 else ""))
    removed = list(remove or [])
    if keep is None and not 0 < len(set(removed) & set(range(layer.num_heads))) == len(removed) < layer.num_heads:
        raise InvalidError(f"remove is {removed}; name at least one of the heads 0 to {layer.num_heads - 1}, each once, and "
                           "leave one")
    if rows is None:
        return Pruned(layer, removed)

    requests = list(requests_of(rows, fields))
    reply = run_heads(requests, layer.handle())
    gram = np.array(reply["gram"])
    most = int(gram.diagonal().argmax())
    importance = reply["heads"][most]["importance"]
    norm = gram[most, most] ** 0.5 / importance if importance > 0 else np.inf
    order, changes = order_heads(gram, norm, size)
    pruned = Pruned(layer, removed if keep is None else order[:layer.num_heads - keep])
    pruned.order, pruned.changes = order, changes
    pruned.predicted = float(max(gram[np.ix_(pruned.removed, pruned.removed)].sum(), 0) ** 0.5 / norm)
    pruned.measured = measure_change(requests, layer.handle(), pruned.head_mask)
    return pruned


def order_heads(gram: Array, norm: float, size: int) -> tuple[list[int], list[float]]:
    """Return all heads, first those whose loss changes the outputs least, and the relative change after each.

    Heads go in groups of `size`.
    """
    num_units = len(gram) // size
    blocks = gram.reshape(num_units, size, num_units, size).sum((1, 3))
    order: list[int] = []
    changes: list[float] = []
    left, shared, square = list(range(num_units)), np.zeros(num_units), 0.0
    while left:
        squares = square + 2 * shared[left] + blocks.diagonal()[left]
        at = int(squares.argmin())
        square = float(squares[at])
        unit = left.pop(at)
        shared = shared + blocks[unit]
        order += range(unit * size, (unit + 1) * size)
        changes += [max(square, 0.0) ** 0.5 / norm] * size
    return order, changes


def refuse_uncut(layer: Layer, removed: list[int]) -> None:
    """Raise the error of a layer whose file cannot be without these heads."""
    info, size = layer.info, layer.num_heads // layer.num_kv_heads
    arrays = {cut["array"] for cut in info["tensors"]}
    norms = info["norms"]
    reasons = [words for key, words in UNCUT.items() if info[key]]
    if norms and (norms["over"] == "row" or norms["per_head"]):
        reasons.append("norms of all heads")
    if any(other.info["kind"] == "borrowed" for other in layer.model):
        reasons.append("keys that layers share")
    reasons += [word for word, array in (("sinks", "sinks"), ("a gate", "gate.weight"))
                if info[array.split(".")[0]] and array not in arrays]
    if not info["output_projection"]:
        reasons.append("no output projection, so that outputs of other heads would move")
    if reasons:
        raise UnsupportedError(f"layer {layer.name} has {reasons[0]}, which cannot be cut by heads; send head_mask")
    for group in range(layer.num_kv_heads):
        heads = range(group * size, (group + 1) * size)
        gone = [head for head in heads if head in removed]
        if gone and len(gone) < size:
            raise UnsupportedError(f"heads {heads[0]} to {heads[-1]} share a key head, and {gone} of them would go; "
                                   "remove whole groups, as prune(groups=True) does, or send head_mask")


def cut_tensors(tensors: Tensors, cuts: list[dict[str, Any]], pruned: Pruned) -> Tensors:
    """Return tensors without the rows or columns of the removed heads, or without the tensors that these have alone."""
    layer = pruned.layer
    size = layer.num_heads // layer.num_kv_heads
    gone: dict[tuple[str, int], set[int]] = defaultdict(set)  # rows or columns, by tensor and axis
    own: dict[str, dict[int, str]] = defaultdict(dict)  # names of tensors of one head, by array and head
    for cut in cuts:
        array, name = cut["array"], cut["name"]
        if name not in tensors or list(tensors[name].shape) != cut["shape"]:
            raise InvalidError(f"{cut['file']} was replaced after it was opened; load it again")
        shared = array.startswith(("key.", "value."))
        heads = {head // size if shared else head for head in pruned.removed}
        if cut.get("head") is not None:
            own[array][cut["head"]] = name
            continue
        axis = int(array == "output.weight") ^ int(cut["transposed"] and len(cut["shape"]) == 2)
        for head in heads:
            begin = cut["first"] + head // cut["group_heads"] * cut["group_rows"] + head % cut["group_heads"] * cut["rows"]
            gone[name, axis].update(range(begin, begin + cut["rows"]))

    names = {name: name for name in tensors}  # what each tensor of the new file is in the old one
    for of_head in own.values():  # heads are numbered anew
        for new, head in enumerate(pruned.kept):
            names[of_head[new]] = of_head[head]
        for new in range(len(pruned.kept), layer.num_heads):
            del names[of_head[new]]
    for (name, axis), rows in gone.items():
        tensors[name] = np.delete(tensors[name], sorted(rows), axis)
    return {name: tensors[old] for name, old in names.items()}
