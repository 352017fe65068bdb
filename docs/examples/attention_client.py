# SPDX-License-Identifier: Apache-2.0
"""A client of attnd in one file: copy it beside your program. docs/clients.md shows its use.

`Client` needs numpy and requests, `AsyncClient` numpy and aiohttp. Requests and replies are
safetensors; docs/protocol.md has their form, and every option."""

import asyncio
import json
import struct

import numpy as np
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

SEQUENCES = ("queries", "keys", "values")
INDICES = ("weights_heads", "weights_queries")
INTEGERS = ("valid_lens", *INDICES)
MAX_RETRIES = 5  # of a request whose reply has Retry-After: attnd is busy (429, 503)


class AttentionError(Exception):
    """`problem` is the daemon's own account: status, title, field, expected, got, detail. Its
    log has the request_id, too."""

    def __init__(self, problem):
        super().__init__(f"{problem['title']}: {problem['detail']}")
        self.problem = problem


class Client:
    """Connections to one attnd. Not for several threads at once; make one for each.

    `timeout` is in seconds without a byte. `json` sends and asks for JSON, for proxies that pass
    nothing else; large requests then take many times as long."""

    def __init__(self, url="http://127.0.0.1:8080", json=False, timeout=60):
        self.url, self.json, self.timeout = complete_url(url), json, timeout
        self.session = requests.Session()  # keeps the connection
        # A request changes nothing on the server, so it may always be sent again.
        retry = Retry(total=MAX_RETRIES, connect=1, read=1, allowed_methods=["POST"],
                      raise_on_status=False)
        self.session.mount("http://", HTTPAdapter(max_retries=retry))
        self.session.mount("https://", HTTPAdapter(max_retries=retry))

    def attend(self, model, queries, **options):
        """Returns outputs, and attention weights or None, as float32.

        `queries` is an array [Tq, width] or [B, Tq, width]. Outputs are [Tq, out_size] or
        [B, Tq, out_size], weights [H, Tq, Tk] or [B, H, Tq, Tk], without H for "mean". A list of
        arrays [Tq, width] is a ragged batch: the reply is then two lists, with an array for each
        sequence. Options: keys, values, valid_lens, causal, need_weights (True or "mean"),
        weights_heads and weights_queries (lists, or one index), head_mask, timeout_ms, priority."""
        fields = {"model": model, "queries": queries, **options}
        body, headers = encode(fields, self.json)
        data = bytearray()
        with self.session.post(self.url + "/v1/attention", data=body, headers=headers,
                               timeout=self.timeout, stream=True) as reply:
            for piece in reply.iter_content(1 << 20):
                data += piece
        return decode(reply.status_code, reply.headers, data, fields)


class AsyncClient:
    """The same for asyncio, for any number of requests at once: `async with AsyncClient() as
    client: outputs, weights = await client.attend(...)`."""

    def __init__(self, url="http://127.0.0.1:8080", json=False, timeout=60):
        self.url, self.json, self.timeout = complete_url(url), json, timeout

    async def __aenter__(self):
        import aiohttp  # only here, so that Client does not need it
        timeout = aiohttp.ClientTimeout(total=None, sock_read=self.timeout)
        self.session = aiohttp.ClientSession(timeout=timeout)
        return self

    async def __aexit__(self, *_):
        await self.session.close()

    async def attend(self, model, queries, **options):
        fields = {"model": model, "queries": queries, **options}
        body, headers = encode(fields, self.json)
        for retries in range(MAX_RETRIES + 1):
            data = bytearray()
            async with self.session.post(self.url + "/v1/attention", data=body,
                                         headers=headers) as reply:
                async for piece in reply.content.iter_any():
                    data += piece
            if "Retry-After" not in reply.headers or retries == MAX_RETRIES:
                return decode(reply.status, reply.headers, data, fields)
            await asyncio.sleep(int(reply.headers["Retry-After"]))


def complete_url(url):
    """Returns the URL of a server, which may be given as `host:port`."""
    return (url if "://" in url else "http://" + url).rstrip("/")


def encode(fields, as_json):
    """Returns the body of a request and its headers."""
    fields = {name: np.atleast_1d(value) if name in INDICES else value
              for name, value in fields.items() if value is not None}
    if as_json:
        return json.dumps(to_lists(fields)).encode(), {"Content-Type": "application/json"}

    tensors, options = {}, {}
    for name, value in fields.items():
        if name in SEQUENCES and is_list_of(value, 2):
            value = join(name, value, "query_lens" if name == "queries" else "key_lens", tensors)
        elif name == "valid_lens" and is_list_of(value, 1) and "query_lens" in tensors:
            value = join(name, value, "query_lens", tensors)
        if name in SEQUENCES or name == "head_mask":
            tensors[name] = np.asarray(value, "<f4", order="C")
        elif name in INTEGERS:
            value = np.asarray(value)
            is_float = value.dtype.kind == "f" and value.size > 0  # [] has numpy's default type
            tensors[name] = np.asarray(value, "<f8" if is_float else "<i8", order="C")
        else:
            value = to_lists(value)
            options[name] = value if isinstance(value, str) else json.dumps(value)
    return to_safetensors(tensors, options), {"Content-Type": "application/vnd.safetensors"}


def join(name, sequences, lens_name, tensors):
    """Returns the rows of all sequences, one after another. `tensors` gets their lengths."""
    lens = np.array([len(sequence) for sequence in sequences], "<i8")
    expected = tensors.setdefault(lens_name, lens)
    if not np.array_equal(lens, expected):
        raise ValueError(f"{name} has sequences of {lens} rows, but needs {expected} rows")
    return np.concatenate(sequences)


def decode(status, headers, data, fields):
    """Returns the outputs and weights of a reply, or raises its error."""
    if status != 200:
        if headers.get("Content-Type") == "application/problem+json":
            raise AttentionError(json.loads(data) | {"request_id": headers.get("X-Request-Id")})
        detail = data[:1000].decode(errors="replace")  # from a proxy, or from another server
        raise AttentionError({"status": status, "title": f"Status {status}", "detail": detail})

    is_ragged = any(is_list_of(fields.get(name), 2) for name in SEQUENCES)
    if headers["Content-Type"] == "application/json":
        reply = json.loads(data)
        return (to_arrays(reply["outputs"], is_ragged),
                to_arrays(reply.get("attention_weights"), is_ragged))
    tensors = from_safetensors(data)
    if is_ragged:
        return split_sequences(tensors, fields)
    return tensors["outputs"], tensors.get("attention_weights")


def to_safetensors(tensors, metadata):
    """Returns 8 bytes with the size of the header, the header, and the tensors one after another."""
    header, end = {"__metadata__": metadata}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        dtype = f"{tensor.dtype.kind}{8 * tensor.itemsize}".upper()  # F32, F64, I64
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # where tensors are aligned, attnd does not copy them
    return b"".join([struct.pack("<Q", len(text)), text, *tensors.values()])


def from_safetensors(data):
    """Returns the tensors, which are views of `data`."""
    size, = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    return {name: np.ndarray(entry["shape"], {"F32": "<f4", "I64": "<i8"}[entry["dtype"]], data,
                             8 + size + entry["data_offsets"][0])
            for name, entry in header.items() if name != "__metadata__"}


def split_sequences(tensors, fields):
    """Returns the outputs and weights of each sequence in the reply to a ragged batch."""
    query_lens, weights = tensors["query_lens"], tensors.get("attention_weights")
    outputs = np.split(tensors["outputs"], np.cumsum(query_lens)[:-1])
    if weights is None:
        return outputs, None

    key_lens, selected = tensors["key_lens"], fields.get("weights_queries")
    num_rows = query_lens if selected is None else np.full_like(query_lens, np.size(selected))
    sizes = num_rows * key_lens  # of one head
    num_heads = weights.size // sizes.sum()
    weights = [piece.reshape(num_heads, rows, keys) for piece, rows, keys in
               zip(np.split(weights, np.cumsum(num_heads * sizes)[:-1]), num_rows, key_lens)]
    return outputs, [piece[0] for piece in weights] if fields["need_weights"] == "mean" else weights


def to_lists(value):
    """Returns what json can print: arrays and numpy's numbers become Python's."""
    if isinstance(value, dict):
        return {name: to_lists(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [to_lists(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def to_arrays(value, is_ragged):
    """float32, as it was computed: attnd prints what reads back to the same number."""
    if value is None:
        return None
    return [np.float32(item) for item in value] if is_ragged else np.float32(value)


def is_list_of(value, rank):
    """Whether a value is a list of arrays or lists of this rank, one for each sequence."""
    return isinstance(value, (list, tuple)) and len(value) > 0 and np.ndim(value[0]) == rank
