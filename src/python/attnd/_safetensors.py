# SPDX-License-Identifier: Apache-2.0
"""The format safetensors: 8 bytes with the size of a header, the header, and tensors one after another."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ._arrays import DTYPES, TYPES, Array
from ._errors import CaptureError, FileError

HEADER_MAX = 100 << 20  # bytes, as in safetensors itself
PathLike = str | os.PathLike[str]
Tensors = dict[str, Array]


def to_safetensors(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Returns the bytes of a file. Tensors are little-endian and contiguous."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": TYPES[tensor.dtype], "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # where tensors are aligned, attnd does not copy them
    return b"".join([len(text).to_bytes(8, "little"), text, *(tensor.data for tensor in tensors.values())])


def make_tensors(header: Mapping[str, Any], data: bytes | bytearray, begin: int = 0) -> Tensors:
    """Returns the tensors of a header as views of `data`, where the first one lies at `begin`."""
    tensors: Tensors = {}
    for name, entry in header.items():
        (first, end), shape, dtype = entry["data_offsets"], entry["shape"], np.dtype(DTYPES[entry["dtype"]])
        if first < 0 or end - first != dtype.itemsize * math.prod(shape):
            raise ValueError(f"{name!r} has other bytes than its shape")
        tensors[name] = np.ndarray(shape, dtype, data, begin + first)
    return tensors


def from_safetensors(data: bytes | bytearray) -> Tensors:
    """Returns the tensors, which are views of `data`."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return make_tensors(header, data, 8 + size)


def is_safetensors(begin: bytes) -> bool:
    """Returns whether a file that begins with these bytes, 9 at least, is safetensors, and no text."""
    return begin[5:9] == b"\0\0\0{"  # a header has less than 2^40 bytes


def read_safetensors(path: PathLike, begin: bytes = b"", file: BinaryIO | None = None,
                     wanted: Iterable[str] | None = None) -> tuple[Tensors, dict[str, str]]:
    """Returns the tensors of a file, or those that are `wanted`, and its metadata, once its writer has finished.

    `file` is the file if it is open, and `begin` what was read from it already.
    """
    with contextlib.ExitStack() as stack:
        guard = Path(f"{os.fspath(path)}.lock")  # of vLLM
        if guard.exists():
            fcntl.flock(stack.enter_context(guard.open()), fcntl.LOCK_SH)
        file = stack.enter_context(open(path, "rb") if file is None else file)
        try:
            begin += file.read(max(8 - len(begin), 0))
            size = int.from_bytes(begin[:8], "little")
            header = json.loads(begin[8:] + file.read(max(8 + min(size, HEADER_MAX) - len(begin), 0)))
            metadata: dict[str, str] = header.pop("__metadata__", {})
            if wanted is None:
                return make_tensors(header, bytearray(file.read())), metadata
            tensors: Tensors = {}
            for name in header.keys() & set(wanted):
                first, end = header[name]["data_offsets"]
                file.seek(8 + size + first)
                tensors |= make_tensors({name: header[name]}, bytearray(file.read(end - first)), -first)
            return tensors, metadata
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CaptureError(f"{path} is not safetensors, is damaged, or has a type that numpy lacks: it begins with "
                               f"{begin[:8]!r} ({error!r})") from None


def write_file(path: PathLike, data: bytes, overwrite: bool, check: Callable[[Path], object] | None = None) -> None:
    """Creates a file, whole or not at all: not when `check` raises an error of what was written."""
    if os.path.lexists(path) and not overwrite:
        raise FileError(f"{os.fspath(path)} exists already; choose another name, or say overwrite=True")
    part = Path(f"{os.fspath(path)}.part")
    with open(part, "xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if check is not None:
                check(part)
            (os.replace if overwrite else rename_to_new)(part, path)
        finally:
            part.unlink(missing_ok=True)


def rename_to_new(part: Path, path: PathLike) -> None:
    """Gives a file another name, at which there is nothing."""
    try:
        os.link(part, path)  # which, unlike a rename, replaces nothing
    except FileExistsError:
        raise
    except OSError:  # of a file system without links, such as exFAT
        open(path, "xb").close()
        os.replace(part, path)


def describe_tensors(tensors: Mapping[str, Array]) -> str:
    """Returns the names and shapes of what a file has."""
    shapes = [f"{name} {list(tensor.shape)}" for name, tensor in tensors.items()]
    return ", ".join(shapes[:8]) + (", ..." if len(shapes) > 8 else "") or "no tensors"
