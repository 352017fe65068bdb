# SPDX-License-Identifier: Apache-2.0
"""Rows for layers from files: requests of the server, or captures."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

from ._errors import InvalidError
from ._safetensors import PathLike, Tensors, is_safetensors, read_safetensors
from .captured import Captured, is_capture, to_captured

REMEDY = ("give the JSON of one POST /v1/attention on each line, or safetensors with queries, hidden_states "
          "or a capture")
WANTED = ("model", "need", "need_weights", "weights_heads", "weights_queries")  # of a server, and what it shall send


@dataclasses.dataclass
class Request:
    """One body of POST /v1/attention: its place in the file for errors, options, and arrays."""

    place: str
    options: dict[str, Any]
    arrays: Tensors

    def __post_init__(self) -> None:
        for name in WANTED:
            self.options.pop(name, None)
            self.arrays.pop(name, None)


def read_rows(path: PathLike) -> Iterator[Request] | Captured:
    """Return what the file at `path` has, or what a pipe brings. Requests are read when they are used."""
    name = os.fspath(path)
    file = open(path, "rb")  # which requests are read from later
    begin = file.read(9)
    if begin.startswith((b"PK\3\4", b"\x93NUMPY")) or begin[:1] == b"\x80" and not is_safetensors(begin):
        raise InvalidError(f"{name} is a file of torch.save(), of NumPy or a pickle; give its rows to "
                           "attnd.load(...)[0].heads(rows), or write them with save_file() of safetensors")
    if not is_safetensors(begin):
        return read_lines(file, begin, name)
    tensors, metadata = read_safetensors(path, begin, file)
    if is_capture(tensors, metadata):
        return to_captured(name, tensors, metadata)
    return iter([Request(name, {key: parse_text(text) for key, text in metadata.items() if key != "format"}, tensors)])


def parse_text(text: str) -> Any:
    """Return what a text of the metadata means: JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_lines(file: BinaryIO, begin: bytes, name: str) -> Iterator[Request]:
    """Return the requests on the lines of a file, or the only one, which may have many lines."""
    count = 0
    with file:
        lines = itertools.chain((begin + file.readline()).splitlines(True), file)
        for number, line in enumerate(lines, 1):
            if not line.strip(b" \t\r\n"):
                continue
            count += 1
            place = f"{name}:{number}"
            try:
                request = parse_object(line.rstrip(b"\r\n"))
            except ValueError as error:
                try:
                    request = parse_object(line + b"".join(lines) if count == 1 else b"")
                except ValueError:
                    raise InvalidError(f"{place}: {error}; {REMEDY}") from None
            yield Request(place, request, {})
    if count == 0:
        raise InvalidError(f"{name} has no request; {REMEDY}")


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the object that is JSON; a ValueError says why it is none."""
    found = json.loads(text, object_pairs_hook=to_object)
    if not isinstance(found, dict):
        raise ValueError("it must be an object")
    return found


def to_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these pairs, whose names must differ."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found
