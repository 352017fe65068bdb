# SPDX-License-Identifier: Apache-2.0
"""The heads of one layer or of many, one in a row: a table that sorts and prints itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ._errors import InvalidError

# name, field of a head in the reply of POST /v1/heads, width and decimals in print
COLUMNS = (
    ("importance", "importance", 10, 6),
    ("residual", "residual_importance", 8, 6),
    ("entropy", "entropy", 7, 4),
    ("distance", "mean_distance", 8, 4),
    ("self", "mass_on_self", 8, 4),
    ("first", "mass_on_first", 8, 4),
    ("previous", "mass_on_previous", 8, 4),
    ("sink", "mass_on_sink", 8, 4),
    ("target", "mass_on_target", 8, 4),
    ("largest", "target_is_largest", 8, 4),
)
OPTIONAL = ("importance", "residual", "sink", "target", "largest")  # columns that not every layer or request has


class HeadTable:
    """What each head of some layers attends to, and how much the outputs depend on it.

    `table["entropy"]` is a column, `table[:5]` the first five rows, `table.where("induction")` those of a tag, and
    `numpy.asarray(table)` a structured array of all. docs/protocol.md explains the numbers, and docs/heads.md the tags.

    Attributes
    ----------
    rows : numpy.ndarray
        [heads], with the fields `layer`, a text such as ``3`` or ``decoder.3``, `head`, those of `columns`, and `tags`, a
        text with shares; weak ones are in brackets. NaN stands for what has no meaning, such as `sink` without sinks.
    replies : dict
        For each layer what `POST /v1/heads` replies: `heads`, and `gram`, [H, H], where there is a model.
    """

    def __init__(self, replies: Mapping[str, Mapping[str, Any]], rows: npt.NDArray[Any] | None = None) -> None:
        self.replies = dict(replies)
        self.rows = make_rows(self.replies) if rows is None else rows

    @property
    def columns(self) -> list[str]:
        """The columns that have numbers, and those that every layer has."""
        return [name for name, *_ in COLUMNS if name not in OPTIONAL or not np.isnan(self.rows[name]).all()]

    def sort(self, column: str = "layer") -> HeadTable:
        """Return the same rows in another order.

        Parameters
        ----------
        column : str
            One of `columns`: the largest number comes first, rows without one last. `layer` is the order of
            layers and heads.

        Raises
        ------
        attnd.Error
            A ValueError, if the table has no such column.
        """
        if column != "layer" and column not in self.columns:
            reason = ": no query has a target; send targets that are not all empty" if column in ("target", "largest") else ""
            raise InvalidError(f"there is no column {column!r} to sort by{reason}; "
                               f"there are layer, {', '.join(self.columns)}")
        order = np.argsort(-self.rows[column], kind="stable") if column != "layer" else np.lexsort(  # argsort puts NaN last
            (self.rows["head"], np.array([*map(list(self.replies).index, self.rows["layer"])])))
        return HeadTable(self.replies, self.rows[order])

    def where(self, tag: str | None = None, *, layer: int | str | None = None, weak: bool = False) -> HeadTable:
        """Return the rows of a tag, such as ``induction`` or ``3 before``, of a layer, or of both.

        With `weak` heads count that have the tag weakly, too.
        """
        def is_wanted(row: Any) -> bool:
            head = self.replies[row["layer"]]["heads"][row["head"]]
            tags = [name for name, is_weak in zip(head["tags"], head.get("weak", ())) if weak or not is_weak]
            return (tag is None or tag in tags) and (layer is None or str(layer) == row["layer"])
        return HeadTable(self.replies, self.rows[[place for place, row in enumerate(self.rows) if is_wanted(row)]])

    def to_json(self) -> str:
        """Return `{"layers": [...]}` with the reply of each layer."""
        return '{"layers":[' + ",\n".join(json.dumps(dict(reply), separators=(",", ":"))
                                          for reply in self.replies.values()) + "]}"

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __array__(self, dtype: npt.DTypeLike = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.rows, dtype) if copy else np.asarray(self.rows, dtype)

    def __getitem__(self, key: Any) -> Any:
        """Return a column by its name, a row by its number, or a table of some rows."""
        found = self.rows[key]
        return HeadTable(self.replies, found) if not isinstance(key, str) and found.ndim == 1 else found

    def __repr__(self) -> str:
        shown = [column for column in COLUMNS if column[0] in self.columns]
        width = max([5, *map(len, self.replies)]) if len(self.replies) > 1 else 0
        before = f"{'layer':<{width}}  " if width else ""
        lines = [f"{before}head" + "".join(f"  {name:>{size}}" for name, _, size, _ in shown) + "  tags"]
        for row in self.rows:
            before = f"{row['layer']:<{width}}  " if width else ""
            numbers = "".join(f"  {'-' if np.isnan(row[name]) else format(row[name], f'.{digits}f'):>{size}}"
                              for name, _, size, digits in shown)
            lines.append(f"{before}{row['head']:>4}{numbers}" + (f"  {row['tags']}" if row["tags"] else ""))
        return "\n".join(lines)


def print_tags(head: Mapping[str, Any]) -> str:
    """Return the tags of a head with their shares; weak ones in brackets."""
    tags = zip(head["tags"], head.get("shares", ()), head.get("weak", ()))
    return ", ".join(f"({name} {share:.2f})" if weak else f"{name} {share:.2f}" for name, share, weak in tags)


def make_rows(replies: Mapping[str, Mapping[str, Any]]) -> npt.NDArray[Any]:
    """Return the structured array of all heads, in the order of layers."""
    rows = [(layer, number, *[np.nan if head.get(field) is None else head[field] for _, field, *_ in COLUMNS], print_tags(head))
            for layer, reply in replies.items() for number, head in enumerate(reply["heads"])]
    return np.array(rows, [("layer", f"U{max([1, *map(len, replies)])}"), ("head", np.int64),
                           *[(name, np.float64) for name, *_ in COLUMNS],
                           ("tags", f"U{max([1, *[len(str(row[-1])) for row in rows]])}")])
