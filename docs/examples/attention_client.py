# SPDX-License-Identifier: Apache-2.0
"""A client of attnd in one file: copy it beside your program. docs/clients.md shows its use.

`Client` needs numpy and requests, `AsyncClient` numpy and aiohttp. Requests and replies are
safetensors; docs/protocol.md has their form, and every option."""

import asyncio
import contextlib
import functools
import hashlib
import json
import os
import socket
import struct
import time
from urllib.parse import quote

import numpy as np
import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ReadTimeoutError
from urllib3.util import Retry

SEQUENCES = ("queries", "keys", "values")
INDICES = ("weights_heads", "weights_queries")
INTEGERS = ("valid_lens", "prefix_lens", "positions", "key_positions", "spans", "targets", "top_in", "query_rows", *INDICES)
NUMBERS = ("head_mask", "bias", "attn_mask", "sinks", "slopes", "row_weights")
RESULTS = {"outputs": "outputs", "weights": "attention_weights", "heads": "heads", "lse": "lse",
           "scores": "scores", "spans": "span_weights", "top": "top_weights", "target": "target_weights",
           "received": "received", "entropy": "entropy", "blocks": "block_weights",
           "contributions": "contributions"}  # by need
BFLOAT16 = np.dtype([("bfloat16", "<u2")])  # its bits, for arrays that are not of ml_dtypes
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": BFLOAT16, "I64": "<i8"}  # of safetensors
SAFETENSORS = {"Content-Type": "application/vnd.safetensors"}
BUSY = (429, 503)  # with Retry-After: sent again then
MAX_RETRIES = 5  # of a request that attnd is too busy for
MAX_WAIT = 30  # seconds before each; attnd asks for no more
PLAIN = {"Accept-Encoding": "identity"}  # attnd compresses no results, and what is unpacked has no limit


class AttentionError(Exception):
    """`problem` is the daemon's own account: status, title, field, expected, got, detail. Its
    log has the request_id, too."""

    def __init__(self, problem):
        super().__init__(f"{problem['title']}: {problem['detail']}")
        self.problem = problem


class Client:
    """Connections to one attnd. Not for several threads at once; make one for each.

    `url` is http://HOST:PORT, or unix:PATH for attnd --listen unix:PATH. `timeout` is in seconds without
    a byte. `json` sends and asks for JSON, for proxies that pass nothing else; large requests then take
    many times as long. A reply of more than `max_reply` bytes is an error."""

    def __init__(self, url="http://127.0.0.1:8080", json=False, timeout=60, max_reply=(1 << 30) + (1 << 16)):
        self.url, self.path = split_address(url)
        self.address, self.json, self.timeout = url if self.path else self.url, json, timeout
        self.max_reply = max_reply
        self.kept = {}  # what to put again, by the name of a capture
        self.session = requests.Session()  # keeps the connection
        self.session.headers.update(PLAIN)
        # A question changes nothing on the server, so it may always be sent again.
        retry = RetryClosed(connect=1, read=1, allowed_methods=["GET", "POST"], respect_retry_after_header=False)
        self.session.mount("http://", HTTPAdapter(max_retries=retry))
        self.session.mount("https://", HTTPAdapter(max_retries=retry))
        if self.path:
            self.session.trust_env = False  # which may name a proxy for http
            self.session.mount("http://", UnixAdapter(self.path, max_retries=retry))

    def attend(self, model=None, queries=None, capture=None, **options):
        """Returns outputs, and attention weights or None, as float32. With `need`, a list of
        words such as "outputs" and "lse", returns a dict with an array for each word.
        With `capture`, the name of a capture instead of a model, see `put_capture`.

        `queries` is an array [Tq, width] or [B, Tq, width]. Outputs are [Tq, out_size] or
        [B, Tq, out_size], weights [H, Tq, Tk] or [B, H, Tq, Tk], without H for "mean". Heads are
        [Tq, H, head_size], lse [Tq, H], and with B before them. A list of arrays [Tq, width] is a
        ragged batch: each result is then a list, with an array for each sequence.

        Options: keys, values, valid_lens, prefix_lens, bias, attn_mask, causal, window, positions, key_positions (for three axes
        [3, T] or [B, 3, T]), need, need_weights (True or "mean"), weights_heads and weights_queries (lists, or one index),
        head_mask, timeout_ms, priority. float16 and bfloat16 are sent as they are, other numbers
        as float32."""
        fields = {"model": model, "queries": queries, **options}
        if capture is None:
            return decode(*self.post("/v1/attention", fields), fields)

        path, rank = f"{capture_path(capture)}/attention", sequence_rank(fields)
        reply = self.post(path, fields, rank)
        if is_unknown_capture(*reply) and capture in self.kept:  # its server was lost, or restarted
            self.put_capture(capture, *self.kept[capture])
            reply = self.post(path, fields, rank)
        return decode_words(*reply, fields, rank)

    def dot_product(self, queries, keys, values=None, **options):
        """Attention of queries and keys that are projected already, without a model. Returns a dict
        with an array for each word of `need`, as `attend` does. By default that is "heads" with
        values and else "weights". The word "top" has a pair: the keys, and their weights.

        `queries` is [Tq, H, D] or [B, Tq, H, D], `keys` [Tk, KV, D] and `values` [Tk, KV, Dv]. With
        num_heads (and num_kv_heads) heads lie side by side instead: [Tq, H·D]. PyTorch has H before
        Tq, so transpose first. A list of arrays is a ragged batch.

        Options: scale, softcap, causal, window, positions, key_positions, valid_lens, prefix_lens, sinks, slopes,
        bias or attn_mask, need and what its words need (spans, top_k, top_in, targets, block, row_weights), weights_heads,
        weights_queries, num_heads, num_kv_heads, timeout_ms, priority."""
        fields = {"queries": queries, "keys": keys, "values": values, **options}
        rank = sequence_rank(fields)
        return decode_words(*self.post("/v1/attention/dot-product", fields, rank), fields, rank)

    def heads(self, model, queries, **options):
        """Returns what each head attends to: a list of H dicts, such as {"importance": 0.2,
        "entropy": 1.3, ...}, and gram, an array [H, H]. docs/heads.md says what they mean. Takes
        what `attend` takes."""
        return decode_heads(*self.post("/v1/heads", {"model": model, "queries": queries, **options}))

    def put_capture(self, name, data, ttl=None):
        """Keeps a file of queries and keys, as `Captured.save` of capture.py writes it, on the server.
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
        description = decode_json(*self.request("PUT", capture_path(name, ttl), source, SAFETENSORS))
        self.kept[name] = data, ttl
        return description

    def captures(self):
        """Returns the descriptions of all captures that the server has, without their layers."""
        return decode_json(*self.request("GET", "/v1/captures"))["captures"]

    def delete_capture(self, name):
        """Lets the server, and this client, forget a capture."""
        self.kept.pop(name, None)
        check_status(*self.request("DELETE", capture_path(name)))

    def post(self, path, fields, rank=2):
        return self.request("POST", path, *encode(fields, self.json, rank))

    def request(self, method, path, source=None, headers=None):
        """Returns the status, the headers and the bytes of a reply. `source` is the body, or the path
        of a file that has it."""
        for retries in range(MAX_RETRIES + 1):
            data = bytearray()
            try:
                with open_source(source) as body:
                    reply = self.session.request(method, self.url + path, data=body, headers=headers,
                                                 timeout=self.timeout, stream=True, allow_redirects=False)
            except requests.ReadTimeout as error:
                raise type(error)(f"no reply from {self.address} within {self.timeout} s; if it computes for longer, "
                                  f"use Client(timeout={10 * self.timeout:g})") from None
            except requests.ConnectionError as error:
                raise type(error)(f"no answer from {self.address}; start attnd there, or give its address: {error}") from None
            with reply:
                refuse_encoding(reply.status_code, reply.headers)
                for piece in reply.iter_content(1 << 20):
                    add_piece(reply.status_code, data, piece, self.max_reply)
            if retries == MAX_RETRIES or not is_busy(reply.status_code, reply.headers):
                return reply.status_code, reply.headers, data
            time.sleep(wait_of(reply.headers))


class RetryClosed(Retry):
    """Sends a request again when its connection was closed, but not when the reply takes long: attnd
    would compute it twice."""

    def increment(self, method=None, url=None, response=None, error=None, _pool=None, _stacktrace=None):
        if isinstance(error, ReadTimeoutError):
            raise error
        return super().increment(method, url, response, error, _pool, _stacktrace)


class AsyncClient:
    """The same for asyncio, for any number of requests at once: `async with AsyncClient() as
    client: outputs, weights = await client.attend(...)`."""

    def __init__(self, url="http://127.0.0.1:8080", json=False, timeout=60, max_reply=(1 << 30) + (1 << 16)):
        self.url, self.path = split_address(url)
        self.address, self.json, self.timeout = url if self.path else self.url, json, timeout
        self.max_reply = max_reply
        self.kept = {}

    async def __aenter__(self):
        import aiohttp  # only here, so that Client does not need it
        timeout = aiohttp.ClientTimeout(total=None, sock_read=self.timeout)
        connector = aiohttp.UnixConnector(self.path) if self.path else None
        self.session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=PLAIN, auto_decompress=False)
        return self

    async def __aexit__(self, *_):
        await self.session.close()

    async def attend(self, model=None, queries=None, capture=None, **options):
        fields = {"model": model, "queries": queries, **options}
        if capture is None:
            return decode(*await self.post("/v1/attention", fields), fields)

        path, rank = f"{capture_path(capture)}/attention", sequence_rank(fields)
        reply = await self.post(path, fields, rank)
        if is_unknown_capture(*reply) and capture in self.kept:
            await self.put_capture(capture, *self.kept[capture])
            reply = await self.post(path, fields, rank)
        return decode_words(*reply, fields, rank)

    async def dot_product(self, queries, keys, values=None, **options):
        fields = {"queries": queries, "keys": keys, "values": values, **options}
        rank = sequence_rank(fields)
        return decode_words(*await self.post("/v1/attention/dot-product", fields, rank), fields, rank)

    async def heads(self, model, queries, **options):
        fields = {"model": model, "queries": queries, **options}
        return decode_heads(*await self.post("/v1/heads", fields))

    async def put_capture(self, name, data, ttl=None):
        source = data() if callable(data) else data
        name = hash_of(source) if name is None else name
        description = decode_json(*await self.request("PUT", capture_path(name, ttl), source, SAFETENSORS))
        self.kept[name] = data, ttl
        return description

    async def captures(self):
        return decode_json(*await self.request("GET", "/v1/captures"))["captures"]

    async def delete_capture(self, name):
        self.kept.pop(name, None)
        check_status(*await self.request("DELETE", capture_path(name)))

    async def post(self, path, fields, rank=2):
        return await self.request("POST", path, *encode(fields, self.json, rank))

    async def request(self, method, path, source=None, headers=None):
        for retries in range(MAX_RETRIES + 1):
            data = bytearray()
            with open_source(source) as body:
                async with self.session.request(method, self.url + path, data=body, headers=headers,
                                                allow_redirects=False) as reply:
                    refuse_encoding(reply.status, reply.headers)
                    async for piece in reply.content.iter_any():
                        add_piece(reply.status, data, piece, self.max_reply)
            if retries == MAX_RETRIES or not is_busy(reply.status, reply.headers):
                return reply.status, reply.headers, data
            await asyncio.sleep(wait_of(reply.headers))


class UnixAdapter(HTTPAdapter):
    """Sends requests to the Unix socket at `path`, whatever host their URL has."""

    def __init__(self, path, **options):
        self.path = path
        super().__init__(**options)

    def init_poolmanager(self, *sizes, **options):
        path = self.path

        class UnixConnection(HTTPConnection):
            def _new_conn(self):
                connection = socket.socket(socket.AF_UNIX)
                connection.settimeout(self.timeout)
                connection.connect(path)
                return connection

        class UnixPool(HTTPConnectionPool):
            ConnectionCls = UnixConnection

        super().init_poolmanager(*sizes, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": UnixPool}


def split_address(address):
    """Returns the URL of a server, which may be given as `host:port`, and the path of its Unix
    socket, or None."""
    if address.startswith("unix:"):
        return "http://localhost", address[len("unix:"):]
    return (address if "://" in address else "http://" + address).rstrip("/"), None


def capture_path(name, ttl=None):
    return f"/v1/captures/{quote(str(name), safe='')}" + (f"?ttl={ttl}" if ttl is not None else "")


def open_source(source):
    """Returns what `with` opens: the file of a path, or else the body itself."""
    return open(source, "rb") if isinstance(source, (str, os.PathLike)) else contextlib.nullcontext(source)


def hash_of(source):
    """Returns the SHA-256 of a file, or of bytes, as the name of a capture."""
    digest = hashlib.sha256()
    with open_source(source) as body:
        for piece in iter(lambda: body.read(1 << 20), b"") if hasattr(body, "read") else [body]:
            digest.update(piece)
    return digest.hexdigest()


def is_busy(status, headers):
    """Whether a reply asks to send the request again later."""
    after = headers.get("Retry-After", "")
    return status in BUSY and after.isascii() and after.isdigit()


def wait_of(headers):
    """Returns the seconds that a busy server asks for, within reason."""
    return min(int(headers["Retry-After"][:9]), MAX_WAIT)


def refuse_encoding(status, headers):
    if "Content-Encoding" in headers:
        raise not_understood(status, f"it is encoded as {headers['Content-Encoding']}, which was not asked for")


def add_piece(status, data, piece, most):
    if len(data) + len(piece) > most:
        raise not_understood(status, f"it has more than {most} bytes; raise max_reply, or select rows or heads")
    data += piece


def not_understood(status, detail):
    """Returns the error of a reply that no attnd writes."""
    return AttentionError({"status": status, "title": "Reply not understood", "detail": detail})


def reading_reply(function):
    """What is wrong with the form of a reply is an error of the server at that address."""
    @functools.wraps(function)
    def read(status, *arguments):
        try:
            return function(status, *arguments)
        except (KeyError, IndexError, AttributeError, TypeError, ValueError, RecursionError, struct.error) as error:
            raise not_understood(status, f"it has another form than attnd's: {error!r}") from error
    return read


@reading_reply
def is_unknown_capture(status, headers, data):
    return (status == 404 and headers.get("Content-Type") == "application/problem+json"
            and json.loads(data)["title"] == "Unknown capture")


def encode(fields, as_json, rank=2):
    """Returns the body of a request and its headers. `rank` counts the axes of one sequence."""
    fields = {name: np.atleast_1d(value) if name in INDICES else value
              for name, value in fields.items() if value is not None}
    if "need" in fields:
        fields["need"] = need_words(fields)
    if "targets" in fields:
        fields["targets"] = without_nulls(fields["targets"])
    if as_json:
        for name in (*SEQUENCES, *NUMBERS):
            value = None if is_mask(name, fields.get(name)) else fields.get(name)
            for array in value if isinstance(value, list) else [value]:
                if hasattr(array, "dtype"):
                    to_rows(array)  # which refuses what is not meant as numbers
        for name in ("bias", "attn_mask"):
            if name in fields and not is_mask(name, fields[name]):
                fields[name] = with_nulls(fields[name])
        return json.dumps(to_lists(fields)).encode(), {"Content-Type": "application/json"}

    tensors, options = {}, {}
    for name in sorted(fields, key=lambda name: name not in SEQUENCES):  # lengths are in these
        value, lens_name = fields[name], "query_lens"
        if name in ("keys", "values") or name == "key_positions" and "key_lens" in tensors:
            lens_name = "key_lens"
        is_per_row = name in INTEGERS and lens_name in tensors and \
            is_list_of(value, 2 if name == "targets" else 1) and name not in ("spans", "top_in")
        if is_per_row or name in SEQUENCES and is_list_of(value, rank):
            value = join(name, value, lens_name, tensors)

        if is_mask(name, value):
            tensors[name] = np.asarray(value, bool, order="C")
        elif name in SEQUENCES or name in NUMBERS:
            tensors[name] = to_rows(value)
        elif name in INTEGERS:
            value = np.asarray(value)
            if value.dtype.kind == "b":
                raise TypeError(f"{name} are booleans, but attnd takes numbers; the lengths of a mask are mask.sum(-1)")
            is_float = value.dtype.kind == "f" and value.size > 0  # [] has numpy's default type
            tensors[name] = np.asarray(value, "<f8" if is_float else "<i8", order="C")
        elif name == "need":
            options[name] = ",".join(value)
        else:
            value = to_lists(value)
            options[name] = value if isinstance(value, str) else json.dumps(value)
    return to_safetensors(tensors, options), SAFETENSORS


def need_words(fields):
    """Returns the list of what the reply shall have, which may be one word, or None."""
    need = fields.get("need")
    if need is None:
        return None
    return need.split(",") if isinstance(need, str) else list(need)


def sequence_rank(fields):
    """Returns the axes of one sequence without a model: with num_heads its heads lie side by side."""
    return 3 if fields.get("num_heads") is None else 2


def without_nulls(targets):
    """Returns the targets with [0, 0] for the rows that have none."""
    if targets is None:
        return [0, 0]
    return targets if hasattr(targets, "dtype") or np.isscalar(targets) else [without_nulls(x) for x in targets]


def is_mask(name, value):
    """Whether that is a mask of booleans."""
    return name == "attn_mask" and np.asarray(to_lists(value)).dtype == bool


def with_nulls(bias):
    """Returns a bias whose -inf JSON can have."""
    bias = np.asarray(to_lists(bias), np.float64)
    return np.where(np.isneginf(bias), None, bias)


def to_rows(value):
    """Returns numbers as they are sent: 16 bits as they are, all others as float32."""
    array = np.asarray(value)
    if array.dtype.name == "bfloat16":  # of ml_dtypes
        array = array.view(BFLOAT16)
    if array.dtype != BFLOAT16 and array.dtype.kind not in "fi":
        raise TypeError(f"numbers are {array.dtype}, but attnd takes floats and integers; send bits of bfloat16 as "
                        ".view(BFLOAT16), and booleans as attn_mask, True where a query sees a key")
    is_half = array.dtype == BFLOAT16 or array.dtype.kind == "f" and array.itemsize == 2
    return np.asarray(array, array.dtype.newbyteorder("<") if is_half else "<f4", order="C")


def join(name, sequences, lens_name, tensors):
    """Returns the rows of all sequences, one after another. `tensors` gets their lengths."""
    lens = np.array([len(sequence) for sequence in sequences], "<i8")
    expected = tensors.setdefault(lens_name, lens)
    if not np.array_equal(lens, expected):
        raise ValueError(f"{name} has sequences of {lens} rows, but needs {expected} rows")
    return np.concatenate(sequences)


@reading_reply
def decode(status, headers, data, fields):
    """Returns the results of a reply of a layer, or raises its error."""
    results = decode_words(status, headers, data, fields)
    return results if need_words(fields) is not None else (results["outputs"], results.get("weights"))


@reading_reply
def decode_words(status, headers, data, fields, rank=2):
    """Returns the results of a reply by the words of `need`, or raises its error."""
    check_status(status, headers, data)
    is_ragged = any(is_list_of(fields.get(name), rank) for name in SEQUENCES)
    if headers["Content-Type"] == "application/json":
        reply = json.loads(data)
        results = {name: to_arrays(reply[name], is_ragged, name == "top_keys")
                   for name in (*RESULTS.values(), "top_keys") if name in reply}
    else:
        results = from_safetensors(data)
        if is_ragged:
            results = split_sequences(results, fields)

    if "top_weights" in results:
        results["top_weights"] = results["top_keys"], results["top_weights"]
    words = need_words(fields) or [word for word, name in RESULTS.items() if name in results]
    return {word: results[RESULTS[word]] for word in words}


@reading_reply
def decode_heads(status, headers, data):
    """Returns the heads and gram of a reply, or raises its error."""
    reply = decode_json(status, headers, data)
    return reply["heads"], np.array(reply["gram"])


@reading_reply
def decode_json(status, headers, data):
    check_status(status, headers, data)
    return json.loads(data)


@reading_reply
def check_status(status, headers, data):
    """Raises the error of a reply that is one."""
    if status in (200, 201, 204):
        return
    if headers.get("Content-Type") == "application/problem+json":
        raise AttentionError(json.loads(data) | {"request_id": headers.get("X-Request-Id")})
    detail = data[:1000].decode(errors="replace")  # from a proxy, or from another server
    raise AttentionError({"status": status, "title": f"Status {status}", "detail": detail})


def to_safetensors(tensors, metadata):
    """Returns 8 bytes with the size of the header, the header, and the tensors one after another."""
    header, end = {"__metadata__": metadata}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        dtype = "BF16" if tensor.dtype == BFLOAT16 else "BOOL" if tensor.dtype == bool else \
            f"{tensor.dtype.kind}{8 * tensor.itemsize}".upper()
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # where tensors are aligned, attnd does not copy them
    return b"".join([struct.pack("<Q", len(text)), text, *tensors.values()])


def from_safetensors(data):
    """Returns the tensors, which are views of `data`."""
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    begin = {name: entry["data_offsets"][0] for name, entry in header.items() if name != "__metadata__"}
    if any(offset < 0 for offset in begin.values()):
        raise ValueError("a tensor begins before the data")
    return {name: np.ndarray(header[name]["shape"], DTYPES[header[name]["dtype"]], data, 8 + size + offset)
            for name, offset in begin.items()}


def split_sequences(tensors, fields):
    """Returns the results of each sequence in the reply to a ragged batch. Rows are split where a
    sequence ends; what is one row of numbers has each sequence's array after the other."""
    query_lens = tensors["query_lens"]
    key_lens = tensors.get("key_lens", query_lens)
    selected = fields.get("weights_queries")
    num_rows = query_lens if selected is None else np.full_like(query_lens, np.size(selected))
    results = {}
    for name, tensor in tensors.items():
        if name in ("query_lens", "key_lens"):
            continue
        if tensor.ndim > 1:
            lens = num_rows if len(tensor) == num_rows.sum() else query_lens
            results[name] = np.split(tensor, np.cumsum(lens)[:-1])
            continue
        shapes = [shape_of_result(name, rows, keys, fields) for rows, keys in zip(num_rows, key_lens)]
        num_heads = tensor.size // max(sum(int(np.prod(shape)) for shape in shapes), 1)
        sizes = [num_heads * int(np.prod(shape)) for shape in shapes]
        results[name] = [piece.reshape(num_heads, *shape) for piece, shape in
                         zip(np.split(tensor, np.cumsum(sizes)[:-1]), shapes)]
        if name in ("entropy", "target_weights"):
            results[name] = [piece.reshape(-1, num_heads) for piece in results[name]]
    if fields.get("need_weights") == "mean":
        results["attention_weights"] = [piece[0] for piece in results["attention_weights"]]
    return results


def shape_of_result(name, rows, keys, fields):
    """Returns the shape of one head's result for a sequence of these rows and keys."""
    if name in ("attention_weights", "scores"):
        return rows, keys
    if name == "span_weights":
        return rows, np.shape(fields["spans"])[-2]
    if name in ("top_keys", "top_weights"):
        ranges = np.shape(fields["top_in"])[:-1] if fields.get("top_in") is not None else ()
        return (rows, *ranges, fields["top_k"])
    if name == "block_weights":
        return -(-rows // fields["block"]), -(-keys // fields["block"])
    return (keys if name == "received" else rows,)


def to_lists(value):
    """Returns what json can print: arrays and numpy's numbers become Python's."""
    if isinstance(value, dict):
        return {name: to_lists(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [to_lists(item) for item in value]
    if hasattr(value, "dtype") and (value.dtype == BFLOAT16 or value.dtype.name == "bfloat16"):
        value = (to_rows(value).view("<u2").astype("<u4") << 16).view("<f4")
    return value.tolist() if hasattr(value, "tolist") else value


def to_arrays(value, is_ragged, are_keys=False):
    """float32, as it was computed: attnd prints what reads back to the same number. null is -inf in
    safetensors, and of keys, which are integers, -1."""
    if is_ragged:
        return [to_arrays(item, False, are_keys) for item in value]
    array = np.array(value, np.float64 if are_keys else np.float32)
    array[np.isnan(array)] = -1 if are_keys else -np.inf
    return array.astype(np.int64) if are_keys else array


def is_list_of(value, rank):
    """Whether a value is a list of arrays or lists of this rank, one for each sequence."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and np.ndim(value[0]) == rank
