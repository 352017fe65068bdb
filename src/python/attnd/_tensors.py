# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch as arrays, for what a capture keeps."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ._arrays import Array, to_array, widen


def to_numpy(tensor: Any) -> Array:
    """Return a tensor as an array: bfloat16 by its bits, float64 as float32."""
    array = to_array("a captured tensor", tensor.detach().cpu().contiguous())
    return array.astype("<f4") if array.dtype == np.float64 else array


def to_float(array: Array) -> Array:
    """Return float32, also of bits of bfloat16."""
    return np.asarray(widen(array), np.float32)


def tower_of(layer: str) -> str:
    """Return what layers that run together have before their number, such as `decoder.`."""
    return re.sub(r"\d.*", "", layer)
