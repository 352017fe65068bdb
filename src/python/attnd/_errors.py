# SPDX-License-Identifier: Apache-2.0
"""What attnd raises: each error is an `Error`, and the one of Python that it is a kind of."""

import contextlib
import re
import sys
import warnings
from collections.abc import Iterator


class Error(Exception):
    """Whatever attnd refuses or cannot do. Its text says what is wrong, and the remedy."""


class InvalidError(Error, ValueError):
    """Sizes, numbers or options that disagree, or a file that does not follow its format."""


class TypeRefused(Error, TypeError):
    """An argument of a type that has no meaning there."""


class CaptureError(InvalidError):
    """What could not be captured or read, and what to do."""


class OutOfMemory(Error, MemoryError):
    """Memory that could not be had, or a size that cannot be addressed."""


class UnsupportedError(Error, NotImplementedError):
    """Well formed, but this machine or this library cannot do it."""


class FileError(Error, OSError):
    """The operating system refused a read or a write."""


class NoAnswer(Error, ConnectionError):
    """No server took the request, or the connection ended."""


class NoReply(Error, TimeoutError):
    """A server took the request, and did not reply within the timeout."""


class Stopped(Error, TimeoutError):
    """A call ended before it was done, since its timeout_ms was over."""


@contextlib.contextmanager
def naming(place: str = "", **names: str) -> Iterator[None]:
    """Lets errors of a block begin with a place, and name arguments as their caller wrote them.

    `names` has what the caller wrote for each field of a request.
    """
    try:
        yield
    except Error as error:
        text = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(error))
        error.args = (f"{place}: {text}" if place else text,)
        raise


def warn(notes: list[str]) -> None:
    """Warns of what a reply notes, where this package was called."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        level, frame = level + 1, frame.f_back
    for note in notes:
        warnings.warn(note, stacklevel=level)
