# SPDX-License-Identifier: Apache-2.0
"""Calls of layers with requests, and what several requests together say."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from . import _native
from ._arrays import Array
from ._errors import InvalidError, naming
from ._fields import prepare, split_fields
from ._rows import Request, read_rows
from .captured import Captured

def requests_of(rows: Any, fields: Mapping[str, Any]) -> Iterable[Request]:
    """Return the requests of a file, or the one that has these rows and fields."""
    if not isinstance(rows, (str, os.PathLike)):
        arrays, options = split_fields(prepare({"queries": rows, **fields}), 2, integers=False)
        return [Request("", options, arrays)]
    if fields:
        raise InvalidError(f"{', '.join(fields)}: the requests of a file have options of their own; leave these out")
    found = read_rows(rows)
    if isinstance(found, Captured):
        raise InvalidError(f"{os.fspath(rows)} has rows of many layers; give a file of requests")
    return found


def run_heads(requests: Iterable[Request], model: Any) -> dict[str, Any]:
    """Return what POST /v1/heads would reply for all requests together."""
    arrays: dict[str, Array] = {}
    reply = None
    for request in requests:
        with naming(request.place):
            reply = _native.call(request.options, request.arrays | arrays, model, heads=True)
        arrays = {"sums": reply.arrays()["sums"]}
    return dict(reply.text) if reply is not None else {}


def measure_change(requests: Iterable[Request], model: Any, factors: Array) -> float:
    """Return the norm of the change of all outputs, divided by their norm, when heads get these factors."""
    change = norm = 0.0
    for request in requests:
        sent = request.arrays.pop("head_mask", request.options.pop("head_mask", None))
        own = np.ones(len(factors)) if sent is None else np.asarray(sent, np.float64)
        whole, less = (_native.call(request.options | {"head_mask": mask.tolist()}, request.arrays, model)
                       .arrays()["outputs"].astype(np.float64) for mask in (own, own * factors))
        norm += float(np.sum(whole ** 2))
        change += float(np.sum((less - whole) ** 2))
    return float(np.sqrt(change / norm)) if norm > 0 else 0.0
