# SPDX-License-Identifier: Apache-2.0
"""A server of one's own: the program `attnd`, which ends with this process or before."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from typing import Any

from ._errors import Error, FileError
from .client import Client, is_readable

PROGRAM = "attnd"
STOP_SECONDS = 30  # for requests that are computed, when a server is asked to stop
LAST_LINES = 10  # of the log, in errors


class ServerError(Error, RuntimeError):
    """The program did not start, or has ended. The text has the end of its log."""


def serve(*models: str | os.PathLike[str], listen: str | None = None, program: str | None = None,
          timeout: float = 60, **options: Any) -> Server:
    """Starts a server for as long as a `with` block lasts: ``with attnd.serve("folder") as client:``.

    Parameters
    ----------
    *models : str or path
        As for ``attnd --model``: NAME=PATH or NAME=PATH,KEY=VALUE,... Without NAME a file or folder is named
        as it is called.
    listen : str, optional
        HOST:PORT, or unix:PATH. By default a free port of 127.0.0.1, where a browser finds the page.
    program : str, optional
        The path of `attnd`. By default the one beside this package, or else that of PATH.
    timeout : float
        Of the client, in seconds without a byte.
    **options
        Options of the program: ``demo=True`` is --demo, ``capture_memory="1GiB"`` is --capture-memory 1GiB.

    Returns
    -------
    Server
        Not started yet. `with` and ``start()`` start it and return a `Client`; ``close()`` stops it.

    Raises
    ------
    attnd.Error
        From ``start()``: a ServerError with the end of the log when the program does not start.
    """
    command = [program or find_program(), "--log-level", "warn", "--listen", listen or "127.0.0.1:0"]
    for model in [os.fspath(model) for model in models]:
        path = model.partition(",")[0]
        command += ["--model", model if "=" in path else f"{Path(path).stem}={model}"]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        for item in value if isinstance(value, (list, tuple)) else [value]:
            command += [] if item is None or item is False else [flag] if item is True else [flag, str(item)]
    return Server(command, timeout)


def find_program() -> str:
    """Returns the path of the program `attnd`."""
    beside = Path(__file__).with_name(PROGRAM)
    found = str(beside) if beside.is_file() else shutil.which(PROGRAM)
    if found is None:
        raise ServerError("the program attnd is neither beside this package nor on PATH; install it, or give "
                          "serve(program=...) its path")
    return found


class Server:
    """A program `attnd`, with the client that `start` returns."""

    def __init__(self, command: list[str], timeout: float = 60) -> None:
        self.command, self.timeout, self.url = command, timeout, ""
        self._process: subprocess.Popen[str] | None = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Client:
        """Starts the program and waits until it serves."""
        if self._process is not None:
            raise ServerError(f"{self.command[0]} was started already; serve() makes another")
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ATTND_")}
        try:
            self._process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self._log, text=True,
                                             env=environment)
        except OSError as error:
            raise FileError(f"{self.command[0]} cannot be started: {error.strerror}; give serve(program=...) its path") \
                from None
        self._finalizer = weakref.finalize(self, stop, self._process, os.getpid())
        try:
            client = Client(self._read_address(), timeout=self.timeout)
            client.explain = self.explain
        except BaseException:
            self.close()
            raise
        return client

    __enter__ = start

    def _read_address(self) -> str:
        """Returns where the program listens, which it prints when its models are loaded."""
        assert self._process is not None and self._process.stdout is not None
        while not is_readable(self._process.stdout.fileno(), 1):
            pass  # Ctrl-C ends the wait
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
            raise ServerError(f"attnd did not start: {self.explain()}")
        self.url = line.removeprefix("listening on ").strip()
        return self.url

    def explain(self) -> str:
        """Returns how the program is, and the end of its log: one text for an error."""
        if self._process is None:
            return "it was not started"
        status = self._process.poll()
        how = "it runs" if status is None else f"it was killed by signal {-status}" if status < 0 else \
            f"it ended with status {status}"
        lines = self.log().splitlines()[-LAST_LINES:]
        return "\n".join([f"{how}; its log ends with", *lines, ""]) if lines else how

    def log(self) -> str:
        """Returns what the program has logged."""
        return Path(f"/proc/self/fd/{self._log.fileno()}").read_text(errors="replace")

    def close(self) -> None:
        """Stops the program: it completes the requests that it has begun."""
        if self._process is not None:
            self._finalizer()


def stop(process: subprocess.Popen[str], owner: int) -> None:
    """Stops a program that process `owner` has started; a child of that leaves it alone."""
    if os.getpid() != owner:
        return
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
