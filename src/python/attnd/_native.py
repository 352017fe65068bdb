# SPDX-License-Identifier: Apache-2.0
"""libattnd in this process, by ctypes. include/attnd/program.h says what its functions do.

A call from the main thread computes on another thread, so that Ctrl-C is seen: it sets the flag that
ends the call between two tasks. Calls of other threads compute where they are, without the GIL."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_ssize_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from ._arrays import DTYPES, TYPES, Array
from ._errors import Error, FileError, InvalidError, OutOfMemory, Stopped, UnsupportedError, warn

LIBRARY = "libattnd.so.1"
STATUSES: tuple[type[Error], ...] = (
    Error, OutOfMemory, OutOfMemory, InvalidError, InvalidError, InvalidError, UnsupportedError, FileError,
    Stopped)  # of enum attn_status, from ATTN_OK on


class _Error(ctypes.Structure):
    _fields_ = [("status", c_int), ("text", c_char * 480)]


class _Array(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("type", c_char_p), ("rank", c_size_t), ("shape", POINTER(c_size_t)),
                ("strides", POINTER(c_ssize_t)), ("data", c_void_p)]


_ERROR, _HANDLE = POINTER(_Error), POINTER(c_void_p)
_CALL = (c_int, c_void_p, c_void_p, c_char_p, POINTER(_Array), c_size_t, POINTER(c_int), _HANDLE, _ERROR)
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "attn_version": (c_char_p,),
    "attn_pool_create": (c_int, c_size_t, _HANDLE, _ERROR),
    "attn_pool_destroy": (None, c_void_p),
    "attn_call": _CALL,
    "attn_call_heads": _CALL,
    "attn_reply_array": (POINTER(_Array), c_void_p, c_size_t),
    "attn_reply_text": (c_char_p, c_void_p),
    "attn_reply_destroy": (None, c_void_p),
    "attn_layers_open": (c_int, c_char_p, c_char_p, _HANDLE, _ERROR),
    "attn_layers_text": (c_char_p, c_void_p),
    "attn_layers_get": (c_int, c_void_p, c_size_t, _HANDLE, _ERROR),
    "attn_layers_destroy": (None, c_void_p),
}  # the type that is returned, and those of the arguments


class _Library(ctypes.CDLL):
    """libattnd, whose functions are found when they are first called."""

    def __getitem__(self, name_or_ordinal: Any) -> Any:
        try:
            function = super().__getitem__(name_or_ordinal)
        except AttributeError:
            raise ImportError(f"{self._name} has no {name_or_ordinal}(): it is older than this package; build both from "
                              "one source") from None
        function.restype, *function.argtypes = SIGNATURES[name_or_ordinal]
        return function


@functools.cache
def library() -> _Library:
    """Returns libattnd: that beside this package, that of ATTND_LIBRARY, or that of the system."""
    beside = Path(__file__).with_name(LIBRARY)
    path = str(beside) if beside.exists() else os.environ.get("ATTND_LIBRARY") or LIBRARY
    try:
        return _Library(path)
    except OSError as error:
        raise ImportError(f"{path} cannot be loaded ({error}); install attnd's wheel, or set ATTND_LIBRARY to the "
                          "libattnd.so of a build") from None


def version() -> str:
    """Returns the version of libattnd, such as 0.1.0."""
    return str(library().attn_version(), "ascii")


def check(status: int, error: _Error) -> None:
    """Raises the error of a function of libattnd that did not return ATTN_OK."""
    if status:
        kind = STATUSES[status] if status < len(STATUSES) else Error
        raise kind(error.text.decode(errors="replace"))


def make(function: str, *arguments: Any) -> c_void_p:
    """Returns the handle that a function of libattnd makes of its arguments, or raises its error."""
    handle, error = c_void_p(), _Error()
    check(library()[function](*arguments, byref(handle), byref(error)), error)
    return handle


class Pool:
    """Threads that share the work of calls; 0 are as many as the process may use cores."""

    def __init__(self, num_threads: int) -> None:
        self.handle = make("attn_pool_create", num_threads)
        weakref.finalize(self, library().attn_pool_destroy, self.handle).atexit = False


class _State:
    """The pool of this process, which the first call makes."""

    def __init__(self) -> None:
        self.lock, self.num_threads = threading.Lock(), 0
        self.pool: Pool | None = None

    def get(self) -> Pool:
        with self.lock:
            self.pool = self.pool or Pool(self.num_threads)
            return self.pool

    def set_threads(self, num_threads: int) -> None:
        with self.lock:  # calls that compute keep their pool
            self.num_threads, self.pool = num_threads, None

    def renew_lock(self) -> None:
        self.lock = threading.Lock()


state = _State()
os.register_at_fork(after_in_child=state.renew_lock)  # another thread of the parent may have held it


class Reply:
    """What one call returned. Its arrays keep it alive."""

    def __init__(self, handle: c_void_p) -> None:
        self.handle = handle
        weakref.finalize(self, library().attn_reply_destroy, handle).atexit = False
        self.text: Any = json.loads(library().attn_reply_text(handle))  # what is no array

    def arrays(self) -> dict[str, Array]:
        """Returns the arrays by name, without a copy."""
        arrays: dict[str, Array] = {}
        read = library().attn_reply_array
        while found := read(self.handle, len(arrays)):
            arrays[found.contents.name.decode()] = np.asarray(_View(self, found.contents))
        return arrays


class _View:
    """One array of a reply, as numpy takes it."""

    def __init__(self, reply: Reply, array: Any) -> None:
        dtype = np.dtype(DTYPES[array.type.decode()])
        shape = tuple(array.shape[: array.rank])
        strides = tuple(array.strides[: array.rank]) if array.strides else None
        self.reply = reply
        self.__array_interface__ = {"version": 3, "typestr": dtype.str, "descr": dtype.descr, "shape": shape,
                                    "strides": strides, "data": (array.data or ctypes.addressof(_NOTHING), False)}


_NOTHING = c_char()  # where an array without numbers lies


def describe_array(name: str, array: Array) -> _Array:
    """Returns an attn_array of the same memory, which `array` must outlive."""
    return _Array(name.encode(), TYPES[array.dtype].encode(), array.ndim, (c_size_t * array.ndim)(*array.shape),
                  (c_ssize_t * array.ndim)(*array.strides), array.ctypes.data)


def call(options: Mapping[str, Any], arrays: Mapping[str, Array], model: c_void_p | None = None,
         heads: bool = False) -> Reply:
    """Computes attention of a model, or without one of given queries and keys; with `heads` what each
    head attends to. `options` are printed as JSON. Raises `Error`, or what interrupts the main thread."""
    function = library().attn_call_heads if heads else library().attn_call
    sent = (_Array * len(arrays))(*(describe_array(name, array) for name, array in arrays.items()))
    handle, error, stop, pool, text = c_void_p(), _Error(), c_int(0), state.get(), json.dumps(options).encode()

    def compute(_: object = arrays) -> int:  # which must live until all is read
        status: int = function(pool.handle, model, text, sent, len(sent), byref(stop), byref(handle), byref(error))
        return status

    try:
        status = run_interruptible(compute, stop)
    except BaseException:
        library().attn_reply_destroy(handle)
        raise
    check(status, error)
    reply = Reply(handle)
    warn(reply.text.get("notes", []))
    return reply


def run_interruptible(compute: Callable[[], int], stop: c_int) -> int:
    """Returns what `compute` returns. An exception that a signal raises meanwhile sets `stop`."""
    if threading.current_thread() is not threading.main_thread():
        return compute()
    results: list[int] = []
    done = threading.Event()  # join() takes a thread for ended when an interrupt comes in it: bpo-45274

    def work() -> None:
        try:
            results.append(compute())
        finally:
            done.set()

    threading.Thread(target=work, name="attnd", daemon=True).start()
    try:
        done.wait()
    except BaseException:
        stop.value = 1
        while not done.is_set():
            with contextlib.suppress(KeyboardInterrupt):
                done.wait()
        raise
    return results[0]
