# SPDX-License-Identifier: Apache-2.0
"""Writes and reads safetensors: 8 bytes of header length, a JSON header, tensors end to end."""

import json
import struct

import numpy as np


def to_bfloat16(array):
    """Returns the upper halves of float32 as uint16, rounded to nearest, ties to even."""
    bits = np.asarray(array, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def stored_bytes(array, dtype):
    if dtype == "BF16":
        return to_bfloat16(array).astype("<u2").tobytes()
    return np.asarray(array).astype({"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8",
                                     "U8": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1",
                                     "BOOL": "?"}[dtype], copy=False).tobytes()


def as_stored(array, dtype):
    """Returns the float32 that a reader makes of `array` when it is stored as `dtype`."""
    if dtype == "BF16":
        return (to_bfloat16(array).astype(np.uint32) << 16).view(np.float32)
    return np.asarray(array).astype({"F16": "f2", "F32": "f4", "F64": "f8"}[dtype]).astype("f4")


def pieces_of(tensors, dtype, metadata):
    """Returns the header, and the bytes of each tensor."""
    header, data, offset = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name, array in tensors.items():
        tensor_dtype = dtype if isinstance(dtype, str) else dtype[name]
        raw = stored_bytes(array, tensor_dtype)
        header[name] = {"dtype": tensor_dtype, "shape": list(np.shape(array)),
                        "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        data.append(raw)
    return [make_raw(json.dumps(header).encode(), b""), *data]


def make_safetensors(tensors, dtype="F32", metadata=None):
    """Returns `tensors`, a dict of name to array, as bytes. `dtype` is one name for all tensors,
    or a dict with one for each."""
    return b"".join(pieces_of(tensors, dtype, metadata))


def write_safetensors(path, tensors, dtype="F32", metadata=None):
    with path.open("wb") as file:
        file.writelines(pieces_of(tensors, dtype, metadata))


def make_raw(header, data):
    """Returns any header bytes before any data; broken bodies are made with this."""
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + data


def write_raw(path, header, data):
    """Writes any header bytes before any data: broken files are made with this."""
    path.write_bytes(make_raw(header, data))


def read_safetensors(path):
    """Returns the tensors of a file that we trust, such as a golden case."""
    return parse_safetensors(path.read_bytes())[0]


def parse_safetensors(raw):
    """Returns the F32 and I64 tensors of bytes that we trust, and their metadata. The tensors
    must be aligned, and the last one must end where the bytes end."""
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + size])
    metadata = header.pop("__metadata__", {})
    tensors, last = {}, 8 + size
    for name, entry in header.items():
        dtype = np.dtype({"F32": "<f4", "I64": "<i8"}[entry["dtype"]])
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        assert begin % dtype.itemsize == 0, name
        tensors[name] = np.frombuffer(raw[begin:end], dtype).reshape(entry["shape"])
        last = max(last, end)
    assert last == len(raw)
    return tensors, metadata
