# SPDX-License-Identifier: Apache-2.0
"""Writes safetensors files: 8 bytes of header length, a JSON header, the tensors end to end."""

import json
import struct

import numpy as np


def to_bfloat16(array):
    """The upper halves of float32, rounded to the nearest, ties to even; as uint16."""
    bits = np.asarray(array, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def stored_bytes(array, dtype):
    if dtype == "BF16":
        return to_bfloat16(array).astype("<u2").tobytes()
    return np.asarray(array).astype({"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]).tobytes()


def as_stored(array, dtype):
    """What a reader gets back from `dtype` once it has made it float32."""
    if dtype == "BF16":
        return (to_bfloat16(array).astype(np.uint32) << 16).view(np.float32)
    return np.asarray(array).astype({"F16": "f2", "F32": "f4", "F64": "f8"}[dtype]).astype("f4")


def write_safetensors(path, tensors, dtype="F32", metadata=None):
    """Writes `tensors`, a dict of name to array. `dtype` is one name, or one for each tensor."""
    header, data, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name, array in tensors.items():
        its_dtype = dtype if isinstance(dtype, str) else dtype[name]
        raw = stored_bytes(array, its_dtype)
        header[name] = {"dtype": its_dtype, "shape": list(np.shape(array)),
                        "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        data.append(raw)
    write_raw(path, json.dumps(header).encode(), b"".join(data))


def write_raw(path, header, data):
    """Writes any header bytes before any data: broken files are made with this."""
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def read_safetensors(path):
    """The float32 tensors of a file that we trust; for the golden cases."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", f"{path}: {name} is {entry['dtype']}"
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(raw[begin:end], "<f4").reshape(entry["shape"])
    return tensors
