# SPDX-License-Identifier: Apache-2.0
"""Arrays of a caller as arrays of numpy, which share their memory wherever they can."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._errors import InvalidError, TypeRefused

Array = NDArray[Any]

BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # its bits, for arrays that are not of ml_dtypes
DTYPES: dict[str, Any] = {
    "F32": "<f4", "F16": "<f2", "BF16": BFLOAT16, "F64": "<f8", "I64": "<i8", "I32": "<i4", "I16": "<i2",
    "I8": "<i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "?"}  # as safetensors calls them
TYPES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
CPUS = (1, 3, 11)  # kDLCPU, and memory of the CPU that a GPU reads: kDLCUDAHost, kDLROCMHost


def is_array(value: object) -> bool:
    """Whether that is an array or a scalar of numpy, torch, jax, ..."""
    return isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "__dlpack__")


def to_array(name: str, value: Any) -> Array:
    """Returns an array of a caller, or what numpy makes of lists. It shares memory with `value`
    if that is an array, whatever its strides. `name` is for errors."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeRefused(f"{name} is a masked array, whose mask attnd does not read; send {name}.filled(), and attn_mask")
    if isinstance(value, (list, tuple)) and any(is_array(item) for item in value):
        value = [to_array(name, item) for item in value]
        if len({item.dtype for item in value}) == len({item.shape for item in value}) == 1:
            value = np.stack(value)  # also of bits, which np.asarray() does not take
    try:
        if type(value).__module__.partition(".")[0] == "torch" or hasattr(value, "resolve_neg"):
            array: Array = _of_torch(name, value)
        elif not isinstance(value, np.ndarray) and hasattr(value, "__dlpack_device__"):
            if value.__dlpack_device__()[0] not in CPUS:
                raise TypeRefused(f"{name} is not in the memory of the CPU, where attnd computes; copy it there first")
            array = np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)
        else:
            array = np.asarray(value)
    except ValueError as error:  # of lists that are no array
        raise InvalidError(f"{name} cannot be one array; rows of different lengths are a list of arrays: {error}") from None
    if array.dtype.name == "bfloat16":  # of ml_dtypes
        array = array.view(BFLOAT16)
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in TYPES:
        raise TypeRefused(f"{name} is {array.dtype}, which attnd does not read; send float32, or int64 for whole numbers")
    return array


def _of_torch(name: str, tensor: Any) -> Any:
    """Returns a tensor of torch on the CPU as numpy sees it, without its gradient."""
    torch: Any = sys.modules["torch"]
    if tensor.device.type == "meta":
        raise TypeRefused(f"{name} is on meta: it has a shape, but no numbers; send a tensor of a model that has its weights")
    if tensor.device.type != "cpu":
        raise TypeRefused(f"{name} is on {tensor.device}, but attnd computes on the CPU; send {name}.cpu()")
    try:
        tensor = tensor.detach().resolve_conj().resolve_neg()
        if tensor.dtype == torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(BFLOAT16)
        return tensor.numpy()
    except (TypeError, RuntimeError) as error:  # sparse, quantized, of 8 bits
        raise TypeRefused(f"{name} is a tensor of {tensor.dtype} that numpy cannot read; use {name}.float(): {error}") from None


def to_numbers(name: str, value: Any, integers: bool = False) -> Array:
    """Returns numbers as they are. Integers are taken from lists, and from arrays if `integers` says so:
    they become float32."""
    array = to_array(name, value)
    if array.dtype == bool:  # which JSON would take for 0 and 1
        raise TypeRefused(f"{name} is bool, but must be numbers; send booleans as attn_mask, True where a query sees a key")
    if array.dtype.kind == "i" and (integers or not is_array(value)):
        return array.astype("<f4")
    if array.dtype.kind in "iu":
        other = "bits of bfloat16 as .view(attnd.BFLOAT16)" if array.itemsize == 2 else \
            "if they are ids of tokens, the rows that a model makes of these"
        raise TypeRefused(f"{name} is {array.dtype}, but must be floats; send {name}.astype('float32'), or {other}")
    return array


def to_integers(name: str, value: Any) -> Array:
    """Returns lengths, positions or indices as int64. Floats stay, for attnd to see whether they are whole."""
    array = to_array(name, value)
    if array.dtype == bool:  # of any shape: the library would say that of the lengths
        raise TypeRefused(f"{name} is bool, but must be integers; the lengths of a mask are mask.sum(-1), its places "
                          "mask.nonzero()[0]")
    if array.size == 0 or array.dtype.kind in "iu":  # [] has numpy's default type
        return array.astype("<i8", copy=False)
    return array.astype("<f8", copy=False) if array.dtype.kind == "f" else array


def widen(array: Array) -> Array:
    """Returns the float32 of bits of bfloat16, and any other array as it is."""
    return (array.view("<u2").astype("<u4") << np.uint32(16)).view("<f4") if array.dtype == BFLOAT16 else array
