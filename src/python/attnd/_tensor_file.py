# SPDX-License-Identifier: Apache-2.0
"""Files in the safetensors format, whose numbers stay as they are."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Container, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ._arrays import DTYPES, Array
from ._errors import FileError, InvalidError
from ._safetensors import to_safetensors

HEADER_MAX = 100 << 20  # bytes, as in safetensors itself
Tensors = dict[str, Array]


def is_safetensors(begin: bytes) -> bool:
    """Return whether a file that begins with these bytes, 9 at least, is safetensors, and no text."""
    return begin[5:9] == b"\0\0\0{"  # a header has less than 2^40 bytes


def read_tensors(file: BinaryIO, name: str, begin: bytes = b"",
                 wanted: Container[str] | None = None) -> tuple[Tensors, dict[str, str]]:
    """Return the tensors of a file, and its metadata.

    `begin` was read from the file already. With `wanted`, names of tensors, these alone are read. `name` is for errors.
    """
    tensors: Tensors = {}
    try:
        begin += file.read(max(8 - len(begin), 0))
        size, = struct.unpack_from("<Q", begin)
        header = json.loads(begin[8:] + file.read(max(8 + min(size, HEADER_MAX) - len(begin), 0)))
        metadata: dict[str, str] = header.pop("__metadata__", {})
        data = file.read() if wanted is None else b""
        for tensor, entry in header.items():
            if wanted is not None and tensor not in wanted:
                continue
            first, end = entry["data_offsets"]
            dtype, shape = np.dtype(DTYPES[entry["dtype"]]), entry["shape"]
            if first < 0 or end - first != dtype.itemsize * math.prod(shape):
                raise ValueError(f"{tensor!r} has other bytes than its shape")
            if wanted is not None:
                file.seek(8 + size + first)
                data, first = file.read(end - first), 0
            tensors[tensor] = np.ndarray(shape, dtype, data, first)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, struct.error) as error:
        raise InvalidError(f"{name} is not safetensors, is damaged, or has a type that numpy lacks: {error!r}") from None
    return tensors, metadata


def write_tensors(path: str | os.PathLike[str], tensors: Tensors, metadata: Mapping[str, str]) -> None:
    """Create a file, whole or not at all."""
    if os.path.lexists(path):
        raise FileError(f"{os.fspath(path)} exists already; remove it, or choose another name")
    part = Path(f"{os.fspath(path)}.part")
    data = to_safetensors({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, metadata)
    with open(part, "xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.link(part, path)  # which, unlike a rename, replaces nothing
        finally:
            part.unlink()
