# SPDX-License-Identifier: Apache-2.0
"""Clients of a server: docs/clients.md shows their use.

Requests and replies are safetensors; docs/protocol.md has their form, and every option."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import hashlib
import http.client
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from ._errors import Error, InvalidError, NoAnswer, NoReply, warn
from ._fields import (RESULTS, SAFETENSORS, Fields, Results, choose_results, dot_product_fields, encode, is_ragged, need_words,
                      sequence_rank, split_sequences, swap_results)
from ._safetensors import from_safetensors

BUSY = (429, 503)  # with Retry-After: sent again then
MAX_RETRIES = 5  # of a request that attnd is too busy for
MAX_WAIT = 30  # seconds before each; attnd asks for no more
MAX_REPLY = (1 << 30) + (1 << 16)
PLAIN = {"Accept-Encoding": "identity"}  # attnd compresses no results, and what is unpacked has no limit
PIECE = 1 << 20  # bytes that are sent or read at once
MAX_CONNECTIONS = 100  # of an AsyncClient

Source = str | os.PathLike[str] | bytes | bytearray | memoryview  # the path of a file, or what it has
Headers = Any  # a mapping whose names may have capitals or not
Reply = tuple[int, Headers, bytearray]


class AttentionError(Error):
    """`problem` is the server's own account: status, title, field, expected, got, detail. Its
    log has the request_id, too."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(f"{problem['title']}: {problem['detail']}")
        self.problem = problem


class Client:
    """A connection to one attnd. Not for several threads at once; make one for each.

    Parameters
    ----------
    url : str
        http://HOST:PORT, https://HOST:PORT, or unix:PATH for ``attnd --listen unix:PATH``.
    json : bool
        Sends and asks for JSON, for proxies that pass nothing else. Large requests take many times as long.
    timeout : float
        Seconds without a byte. A request that gets no reply in time is not sent again.
    max_reply : int
        Bytes; a longer reply is an error.
    headers : dict, optional
        More headers of each request, such as {"Authorization": "Bearer KEY"}.
    """

    _connection: http.client.HTTPConnection | None = None
    _process = 0  # whose connection that is
    _is_cancelled = False  # its request

    def __init__(self, url: str = "http://127.0.0.1:8080", json: bool = False, timeout: float = 60,
                 max_reply: int = MAX_REPLY, headers: Mapping[str, str] | None = None) -> None:
        self.url, self.path = split_address(url)
        self.address, self.json = url if self.path else self.url, json
        self.timeout, self.max_reply = timeout, max_reply
        self.headers = {**PLAIN, **(headers or {})}
        self.kept: dict[str, tuple[Any, float | None]] = {}  # what to put again, by the name of a capture
        self.explain: Callable[[], str] = lambda: "start attnd there, or give its address"

    def no_reply(self) -> NoReply:
        return NoReply(f"no reply from {self.address} within {self.timeout} s; if it computes for longer, "
                       f"use Client(timeout={10 * self.timeout:g})")

    def attend(self, model: str | None = None, queries: Any = None, capture: str | None = None, **options: Any) -> Any:
        """Asks a model for attention, or with `capture` a capture of that name, see `put_capture`.

        Parameters
        ----------
        model : str
        queries : array [Tq, width] or [B, Tq, width]
            A list of arrays [Tq, width] is a ragged batch: each result is then a list, with an
            array for each sequence. float16 and bfloat16 are sent as they are, other numbers as float32.
        **options
            keys, values, valid_lens, prefix_lens, bias, attn_mask, causal, window, positions, key_positions
            (for three axes [3, T] or [B, 3, T]), need, need_weights (True or "mean"), weights_heads and
            weights_queries (lists, or one index), head_mask, timeout_ms, priority.

        Returns
        -------
        tuple or dict
            Outputs [Tq, out_size] or [B, Tq, out_size] and weights [H, Tq, Tk] or [B, H, Tq, Tk], without H for
            "mean", or None. With `need`, a list of words such as "outputs" and "lse", and of a capture: a
            dict with an array for each word.

        Raises
        ------
        AttentionError
            What the server refused. Of the server itself: NoAnswer, a ConnectionError, and NoReply, a TimeoutError.
        """
        fields = {"model": model, "queries": queries, **options}
        if capture is None:
            return decode(*self._post("/v1/attention", fields), fields)
        return decode_words(*self._ask(capture, "attention", fields), fields, sequence_rank(fields))

    def dot_product(self, queries: Any, keys: Any, values: Any = None, *, heads_first: bool = False,
                    **options: Any) -> Results:
        """Asks for attention of queries and keys that are projected already. Takes and returns what
        `attnd.dot_product` does, which computes in the process."""
        fields = dot_product_fields(queries, keys, values, heads_first, options)
        rank = sequence_rank(fields)
        results = decode_words(*self._post("/v1/attention/dot-product", fields, rank), fields, rank)
        return swap_results(results) if heads_first else results

    def heads(self, model: str | None = None, queries: Any = None, capture: str | None = None,
              **options: Any) -> tuple[list[dict[str, Any]], Any]:
        """Returns what each head attends to: a list of H dicts, such as {"importance": 0.2,
        "entropy": 1.3, ...}, and gram, an array [H, H]. docs/heads.md says what they mean. Takes
        what `attend` takes. Heads of a `capture` have no importance, and for gram None."""
        fields = {"model": model, "queries": queries, **options}
        reply = self._post("/v1/heads", fields) if capture is None else self._ask(capture, "heads", fields)
        found = decode_json(*reply)
        return found["heads"], np.array(found["gram"]) if "gram" in found else None

    def put_capture(self, name: str | None, data: Any, ttl: float | None = None) -> dict[str, Any]:
        """Keeps a file of queries and keys, as `Captured.save` writes it, on the server.
        `data` is its path, its bytes, or a function that returns either. Without a name (None)
        it is named by its SHA-256. Returns its description, a dict with "name", "layers" and more.

        `attend(capture=name, layer=14, need=["received"])` then asks for its attention, as often as
        one likes, and returns a dict as `dot_product` does. It takes the options of `dot_product`, but
        keys and values are stored. So are queries: `query_rows` is a range [first, end] of them, or
        `queries` are others. `layer` may be left out where there is one.

        The server forgets a capture `ttl` seconds after its last use, and when it ends. A client that
        has put it puts it again then, so a file that may be asked for must stay where it is."""
        source = data() if callable(data) else data
        name = hash_of(source) if name is None else name
        description: dict[str, Any] = decode_json(*self.request("PUT", capture_path(name, ttl), source, SAFETENSORS))
        self.kept[name] = data, ttl
        return description

    def captures(self) -> Any:
        """Returns the descriptions of all captures that the server has, without their layers: a list of dicts."""
        return decode_json(*self.request("GET", "/v1/captures"))["captures"]

    def delete_capture(self, name: str) -> None:
        """Lets the server, and this client, forget a capture."""
        self.kept.pop(name, None)
        check_status(*self.request("DELETE", capture_path(name)))

    def _ask(self, capture: str, question: str, fields: Fields) -> Reply:
        """Asks a capture, which is put once more if its server was lost, or restarted."""
        path, rank = f"{capture_path(capture)}/{question}", sequence_rank(fields)
        reply = self._post(path, fields, rank)
        if is_unknown_capture(*reply) and capture in self.kept:
            self.put_capture(capture, *self.kept[capture])
            reply = self._post(path, fields, rank)
        return reply

    def _post(self, path: str, fields: Fields, rank: int = 2) -> Reply:
        return self.request("POST", path, *encode(fields, self.json, rank))

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()

    def request(self, method: str, path: str, source: Source = b"", headers: Mapping[str, str] | None = None) -> Reply:
        """Returns the status, the headers and the bytes of a reply. `source` is the body, or the path
        of a file that has it."""
        for retries in range(MAX_RETRIES + 1):
            reply = self._exchange(method, path, source, {**self.headers, **(headers or {})})
            seconds = seconds_to_wait(*reply[:2])
            if retries == MAX_RETRIES or seconds is None:
                break
            time.sleep(seconds)
        return reply

    def _exchange(self, method: str, path: str, source: Source, headers: Mapping[str, str]) -> Reply:
        """Sends one request, and a question once more when its connection was closed before the reply: that
        changes nothing on the server. Not when the reply takes long: attnd would compute it twice."""
        if self._connection is None or self._process != os.getpid():  # after a fork it is the parent's
            self._connection, self._process = connect(self.url, self.path, self.timeout), os.getpid()
        connection, is_last = self._connection, method not in ("GET", "POST")
        while True:
            if self._is_cancelled:
                raise NoAnswer("the request was cancelled")
            try:
                response = send(connection, method, urlsplit(self.url).path + path, source, headers)
                break
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if isinstance(error, NoReply):
                    raise self.no_reply() from None
                if not isinstance(error, OSError):
                    raise not_understood(0, f"{self.address} does not speak HTTP: {error!r}") from None
                if is_last or not isinstance(error, ConnectionError):
                    raise NoAnswer(f"no answer from {self.address}; {self.explain()}: {error}") from None
                is_last = True
        return self._read(response)

    def _cancel(self) -> None:
        """Ends the request that another thread waits for: the server sees that nobody wants its reply."""
        self._is_cancelled = True
        if self._connection is not None and self._connection.sock is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._connection.sock, socket.SHUT_RDWR)  # also below TLS

    def _read(self, response: http.client.HTTPResponse) -> Reply:
        data, is_whole = bytearray(), False
        try:
            if "Content-Encoding" in response.headers:
                raise not_understood(response.status, f"it is encoded as {response.headers['Content-Encoding']}, which was not "
                                     "asked for")
            while piece := response.read(PIECE):
                data += piece
                if len(data) > self.max_reply:
                    raise not_understood(response.status, f"it has more than {self.max_reply} bytes; raise max_reply, or "
                                         "select rows or heads")
            if response.length:
                raise NoAnswer(f"the reply of {self.address} ended {response.length} bytes early; {self.explain()}")
            is_whole = True
        except TimeoutError:
            raise self.no_reply() from None
        except (OSError, http.client.HTTPException) as error:
            raise error if isinstance(error, Error) else \
                NoAnswer(f"the reply of {self.address} ended early; {self.explain()}: {error!r}") from None
        finally:
            response.close()
            if not is_whole:
                self.close()
        return response.status, response.headers, data


class UnixConnection(http.client.HTTPConnection):
    """Reaches the Unix socket at `socket_path`, whatever its host."""

    def __init__(self, socket_path: str, **options: Any) -> None:
        super().__init__("localhost", **options)
        self.socket_path = socket_path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.socket_path)


def connect(url: str, path: str | None, timeout: float) -> http.client.HTTPConnection:
    """Returns a connection that opens when it is used."""
    options: dict[str, Any] = {"timeout": timeout, "blocksize": PIECE}
    if path is not None:
        return UnixConnection(path, **options)
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, **options)


def send(connection: http.client.HTTPConnection, method: str, path: str, source: Source,
         headers: Mapping[str, str]) -> http.client.HTTPResponse:
    """Sends one request and returns the head of its reply. Raises NoReply when that does not come in time."""
    if connection.sock is not None and is_readable(connection.sock.fileno(), 0):
        connection.close()  # the server has closed it
    if connection.sock is None:
        connection.connect()
    try:
        with open_source(source) as body:
            size = os.fstat(body.fileno()).st_size if hasattr(body, "fileno") else len(body)
            with contextlib.suppress(BrokenPipeError):  # of a server that replied before it had all, and closed
                connection.request(method, path, body, {**headers, "Content-Length": str(size)})
            return connection.getresponse()
    except TimeoutError as error:
        raise NoReply from error


def is_readable(file: int, seconds: float) -> bool:
    """Whether a descriptor has bytes, or its end, within this time."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def awaited(method: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a method of `Client` one that is awaited, and runs on a thread."""
    @functools.wraps(method)
    async def ask(self: AsyncClient, *arguments: Any, **options: Any) -> Any:
        lent: list[Client] = []

        def run() -> Any:
            client = self._idle.pop()  # there are as many as threads
            client._is_cancelled = False
            lent.append(client)
            try:
                return method(client, *arguments, **options)
            finally:
                with self._lock:  # from here on it is another's
                    self._idle.append(lent.pop())
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except asyncio.CancelledError:
            with self._lock:
                for client in lent:
                    client._cancel()
            raise
    return ask


class AsyncClient:
    """The same for asyncio, for many requests at once: ``async with AsyncClient() as client: await client.attend(...)``.

    Takes what `Client` takes. Up to 100 requests have a thread and a connection each while they last. The connection of one
    that is cancelled ends.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        client = Client(*arguments, **options)
        self._idle = [copy.copy(client) for _ in range(MAX_CONNECTIONS)]  # which share what to put again
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(MAX_CONNECTIONS, "attnd")

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        for client in self._idle:
            client.close()

    attend, dot_product, heads = awaited(Client.attend), awaited(Client.dot_product), awaited(Client.heads)
    put_capture, captures = awaited(Client.put_capture), awaited(Client.captures)
    delete_capture = awaited(Client.delete_capture)


def split_address(address: str) -> tuple[str, str | None]:
    """Returns the URL of a server, which may be given as `host:port`, and the path of its Unix
    socket, or None."""
    if address.startswith("unix:"):
        return "http://localhost", address[len("unix:"):]
    url = (address if "://" in address else "http://" + address).rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise InvalidError(f"{address!r} is no address of attnd; use http://HOST:PORT, https://HOST:PORT or unix:PATH, "
                           "and headers={'Authorization': ...} for a key")
    return url, None


def capture_path(name: str, ttl: float | None = None) -> str:
    return f"/v1/captures/{quote(str(name), safe='')}" + (f"?ttl={ttl}" if ttl is not None else "")


def open_source(source: Any) -> Any:
    """Returns what `with` opens: the file of a path, or else the body itself."""
    return open(source, "rb") if isinstance(source, (str, os.PathLike)) else contextlib.nullcontext(source)


def hash_of(source: Any) -> str:
    """Returns the SHA-256 of a file, or of bytes, as the name of a capture."""
    digest = hashlib.sha256()
    with open_source(source) as body:
        for piece in iter(lambda: body.read(PIECE), b"") if hasattr(body, "read") else [body]:
            digest.update(piece)
    return digest.hexdigest()


def seconds_to_wait(status: int, headers: Headers) -> int | None:
    """Returns after how long a busy server asks for the request again, within reason, or None."""
    after = headers.get("Retry-After", "")
    return min(int(after[:9]), MAX_WAIT) if status in BUSY and after.isascii() and after.isdigit() else None


def not_understood(status: int, detail: str) -> AttentionError:
    """Returns the error of a reply that no attnd writes."""
    return AttentionError({"status": status, "title": "Reply not understood", "detail": detail})


def reading_reply(function: Callable[..., Any]) -> Callable[..., Any]:
    """What is wrong with the form of a reply is an error of the server at that address."""
    @functools.wraps(function)
    def read(status: int, *arguments: Any) -> Any:
        try:
            return function(status, *arguments)
        except (KeyError, IndexError, AttributeError, TypeError, ValueError, RecursionError) as error:
            raise not_understood(status, f"it has another form than attnd's: {error!r}") from error
    return read


@reading_reply
def is_unknown_capture(status: int, headers: Headers, data: bytearray) -> bool:
    return (status == 404 and headers.get("Content-Type") == "application/problem+json"
            and json.loads(data)["title"] == "Unknown capture")


@reading_reply
def decode(status: int, headers: Headers, data: bytearray, fields: Fields) -> Any:
    """Returns the results of a reply of a layer, or raises its error."""
    results = decode_words(status, headers, data, fields)
    return results if need_words(fields) is not None else (results["outputs"], results.get("weights"))


@reading_reply
def decode_words(status: int, headers: Headers, data: bytearray, fields: Fields, rank: int = 2) -> Results:
    """Returns the results of a reply by the words of `need`, or raises its error."""
    check_status(status, headers, data)
    ragged = is_ragged(fields, rank)
    if headers["Content-Type"] == "application/json":
        reply = json.loads(data)
        results = {name: to_arrays(reply[name], ragged, name == "top_keys")
                   for name in (*RESULTS.values(), "top_keys") if name in reply}
    else:
        results = dict(from_safetensors(data))
        if ragged:
            results = split_sequences(results, fields)
    return choose_results(results, fields)


@reading_reply
def decode_json(status: int, headers: Headers, data: bytearray) -> Any:
    check_status(status, headers, data)
    return json.loads(data)


@reading_reply
def check_status(status: int, headers: Headers, data: bytearray) -> None:
    """Raises the error of a reply that is one, and warns of what the server notes on the rows that were sent."""
    warn([headers["Attnd-Note"]] if "Attnd-Note" in headers else [])
    if status in (200, 201, 204):
        return
    if headers.get("Content-Type") == "application/problem+json":
        raise AttentionError(json.loads(data) | {"request_id": headers.get("X-Request-Id")})
    # of a proxy, or of another server
    raise AttentionError({"status": status, "title": f"Status {status}", "detail": data[:1000].decode(errors="replace")})


def to_arrays(value: Any, ragged: bool, are_keys: bool = False) -> Any:
    """float32, as it was computed: attnd prints what reads back to the same number. null is -inf in
    safetensors, and of keys, which are integers, -1."""
    if ragged:
        return [to_arrays(item, False, are_keys) for item in value]
    array = np.array(value, np.float64 if are_keys else np.float32)
    array[np.isnan(array)] = -1 if are_keys else -np.inf
    return array.astype(np.int64) if are_keys else array
