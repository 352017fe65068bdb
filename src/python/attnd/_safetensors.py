# SPDX-License-Identifier: Apache-2.0
"""safetensors in memory: 8 bytes with the size of a header, the header, and tensors one after another."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from ._arrays import DTYPES, TYPES, Array


def to_safetensors(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Returns the bytes of a file. Tensors are little-endian and contiguous."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # where tensors are aligned, attnd does not copy them
    return b"".join([struct.pack("<Q", len(text)), text, *(tensor.data for tensor in tensors.values())])


def from_safetensors(data: bytes | bytearray) -> dict[str, Array]:
    """Returns the tensors, which are views of `data`."""
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    begin = {name: entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}
    if any(offset < 0 for offset in begin.values()):
        raise ValueError("a tensor begins before the data")
    return {name: np.ndarray(header[name]["shape"], DTYPES[header[name]["dtype"]], data, 8 + size + offset)
            for name, offset in begin.items()}
