# SPDX-License-Identifier: Apache-2.0
"""Tensors of torch as arrays."""

import importlib

import numpy as np

from ._arrays import BFLOAT16


def add_bias(bias, other):
    """Returns the sum of two biases that may be None; `other` is a tensor."""
    other = None if other is None else to_float(to_numpy(other))
    return other if bias is None else bias if other is None else bias + other


def to_numpy(tensor):
    """Returns a tensor as an array; bfloat16 by its bits."""
    tensor = tensor.detach().cpu().contiguous()
    if str(tensor.dtype) == "torch.bfloat16":
        return tensor.view(importlib.import_module("torch").uint16).numpy().view(BFLOAT16)
    array = tensor.numpy()
    return array.astype("<f4") if array.dtype == np.float64 else array


def to_float(array):
    """Returns float32; bfloat16 is its upper half."""
    if array.dtype == BFLOAT16:
        return (array.view("<u2").astype("<u4") << 16).view("<f4")
    return np.asarray(array, np.float32)
