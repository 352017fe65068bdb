# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch as arrays, for what a capture keeps."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ._arrays import BFLOAT16, Array


def to_numpy(tensor: Any) -> Array:
    """Return a tensor as an array: bfloat16 by its bits, float64 as float32."""
    tensor = tensor.detach().cpu().contiguous()
    if str(tensor.dtype) == "torch.bfloat16":
        bits: Array = tensor.view(importlib.import_module("torch").uint16).numpy()
        return bits.view(BFLOAT16)
    array: Array = tensor.numpy()
    return array.astype("<f4") if array.dtype == np.float64 else array


def to_float(array: Array) -> Array:
    """Return float32; bfloat16 is its upper half."""
    if array.dtype == BFLOAT16:
        return (array.view("<u2").astype("<u4") << 16).view("<f4")
    return np.asarray(array, np.float32)
