# SPDX-License-Identifier: Apache-2.0
"""Files of safetensors that captures come in."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import struct
from collections.abc import Mapping

from ._arrays import Array
from ._errors import Error
from ._safetensors import from_safetensors


class CaptureError(Error):
    """What could not be captured or read, and what to do."""


def read_safetensors(path: str | os.PathLike[str], lock: bool = False) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the tensors and the metadata of a file; with `lock` once its writer has finished."""
    with contextlib.ExitStack() as stack:
        guard = pathlib.Path(f"{path}.lock")
        if lock and guard.exists():
            fcntl.flock(stack.enter_context(guard.open()), fcntl.LOCK_SH)
        data = pathlib.Path(path).read_bytes()
    try:
        size, = struct.unpack_from("<Q", data)
        metadata = json.loads(data[8:8 + size]).get("__metadata__", {})
        return from_safetensors(bytearray(data)), metadata
    except (struct.error, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CaptureError(f"{path} is not safetensors that this program reads: it begins with {data[:8]!r} and has "
                           f"{len(data)} bytes") from error


def describe(tensors: Mapping[str, Array]) -> str:
    """Return the names and shapes of what a file has."""
    shapes = [f"{name} {list(tensor.shape)}" for name, tensor in tensors.items()]
    return ", ".join(shapes[:8]) + (", ..." if len(shapes) > 8 else "") or "no tensors"
