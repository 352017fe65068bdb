# SPDX-License-Identifier: Apache-2.0
"""Captures that a server keeps: random files, how they are put and asked, and what the same question is when
its tensors are sent."""

import hashlib
import json
from dataclasses import dataclass, field

import numpy as np
import pytest

import dot_product
from dot_product import SAFETENSORS
from http1 import Connection
from safetensors_file import as_stored, make_safetensors
from scrape import wait_for_scrape

PATH = "/v1/captures"
MIB = 1 << 20
LEAST = 65536  # bytes that each capture counts at least
FLOATS = ("queries", "keys", "values", "bias", "attn_mask", "sinks", "slopes", "row_weights")
POSITIONS = ("positions", "key_positions")
OPTIONS = ("scale", "softcap", "causal", "window")
FLOAT_TYPES = ("F32", "BF16", "F16", "F64")
INTEGER_TYPES = ("I64", "I32")
INTEGER_FIELDS = (*dot_product.INTEGERS, "spans", "top_in", "targets", "query_rows")


# --- files ---

@dataclass
class Layer:
    """One layer of a capture: arrays by their names, the type of each in the file, and options. `heads` is H of
    the queries that it has or that may be sent."""
    tensors: dict
    dtypes: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    heads: int = 1

    def numbers(self):
        """Returns the tensors as a reader of the file has them: float32, and positions as integers."""
        return {name: np.asarray(array, np.int64) if name in POSITIONS else
                as_stored(array, self.dtypes.get(name, "F32")).reshape(np.shape(array))
                for name, array in self.tensors.items()}


def random_layer(rng, keys=None):
    """Returns a layer of a few heads. `keys` is Tk; it is random without."""
    num_keys = keys or int(rng.choice([rng.integers(1, 12), rng.integers(12, 120), 96, 97, rng.integers(120, 330)],
                                      p=[0.5, 0.3, 0.05, 0.05, 0.1]))
    num_queries = num_keys if rng.random() < 0.5 and num_keys < 100 else int(rng.integers(1, 14))
    kv_heads, group = (int(rng.integers(1, 4)) for _ in range(2))
    heads, size, value_size = kv_heads * group, int(rng.choice([1, 2, 3, 8, 16, 20, 33])), int(rng.integers(1, 12))
    layer = Layer({"queries": rng.normal(size=(num_queries, heads, size)),
                   "keys": rng.normal(size=(num_keys, kv_heads, size))}, heads=heads)
    if rng.random() < 0.6:
        layer.tensors["values"] = rng.normal(size=(num_keys, kv_heads, value_size))
    if rng.random() < 0.2:
        del layer.tensors["queries"]
    for name, share in (("sinks", 0.3), ("slopes", 0.3)):
        if rng.random() < share:
            layer.tensors[name] = rng.normal(size=heads)
    if rng.random() < 0.4:
        layer.tensors["bias"] = random_bias(rng, heads, num_queries, num_keys, "queries" in layer.tensors)
    add_options(rng, layer, num_queries, num_keys)
    choose_types(rng, layer)
    return layer


def random_bias(rng, heads, num_queries, num_keys, has_rows=True):
    """Returns [Tq, Tk] or [H, Tq, Tk], where H and Tq may be 1, with a few -inf."""
    rows = num_queries if has_rows and rng.random() < 0.6 else 1
    shape = [(rows, num_keys), (1, rows, num_keys), (heads, rows, num_keys)][rng.integers(3)]
    bias = rng.normal(size=shape)
    bias[rng.random(shape) < 0.1] = -np.inf
    return bias


def add_options(rng, layer, num_queries, num_keys):
    """Adds options, positions and key positions; a causal layer of few queries needs positions."""
    options, has_queries = layer.options, "queries" in layer.tensors
    if rng.random() < 0.5:
        options["scale"] = float(rng.normal())
    if rng.random() < 0.3:
        options["softcap"] = float(rng.uniform(0.5, 30))
    if rng.random() < 0.6:
        options["causal"] = bool(rng.random() < 0.7)
    if rng.random() < 0.4:
        options["window"] = int(rng.integers(0, num_keys + 2))
    if has_queries and (rng.random() < 0.3 or options.get("causal") and num_queries != num_keys):
        layer.tensors["positions"] = random_positions(rng, num_queries, num_keys)
    if rng.random() < 0.3:
        layer.tensors["key_positions"] = rng.integers(0, 2 * num_keys, num_keys)


def random_positions(rng, count, num_keys):
    """Returns those of the last tokens, or any."""
    first = max(num_keys - count, 0)
    return np.arange(first, first + count) if rng.random() < 0.5 else rng.integers(0, 2 * num_keys, count)


def choose_types(rng, layer):
    """Keys and values in BF16 or F32 are kept as they are; others are widened."""
    for name in layer.tensors:
        types = INTEGER_TYPES if name in POSITIONS else FLOAT_TYPES
        layer.dtypes[name] = types[rng.integers(len(types))]


def random_capture(rng, count=None):
    """Returns a dict from names to layers."""
    names = ["0", "1", "0.1", "encoder.3", "decoder.3.cross", "a b", "höhe"]
    count = count or int(rng.integers(1, 4))
    return {str(name): random_layer(rng) for name in rng.choice(names, count, replace=False)}


def make_file(layers, tokens=None, metadata=None, **common):
    """Returns the file that Captured.save() of the package would write of these layers, and of tensors in
    `common` to all of them."""
    tensors = {f"{name}.{key}": array for name, layer in layers.items() for key, array in layer.tensors.items()}
    dtypes = {f"{name}.{key}": layer.dtypes.get(key, "I64" if key in POSITIONS else "F32")
              for name, layer in layers.items() for key in layer.tensors}
    texts = {f"{name}.{key}": json.dumps(value) for name, layer in layers.items()
             for key, value in layer.options.items()}
    texts |= {"layers": json.dumps(list(layers)), "tokens": json.dumps(tokens)} | (metadata or {})
    types = {name: "F32" if name == "hidden_states" else "I64" for name in common}
    return make_safetensors(tensors | common, dtypes | types, texts)


def small_layer(seed=0, tokens=4, heads=2, size=8):
    rng = np.random.default_rng(seed)
    return Layer({name: rng.normal(size=(tokens, heads, size)) for name in ("queries", "keys")}, {}, {"causal": True})


def small_file(seed=0, **sizes):
    """Returns a capture of one layer `0`, which counts 64 KiB; that of another seed has other bytes."""
    return make_file({"0": small_layer(seed, **sizes)})


def file_of_size(size, seed=0):
    """Returns a capture of exactly `size` bytes, a multiple of 8: keys, and blanks after the header."""
    rows = (size - 1024) // 256
    file = make_file({"0": Layer({"keys": np.random.default_rng(seed).standard_normal((rows, 1, 64), np.float32)})})
    left, end = size - len(file), 8 + int.from_bytes(file[:8], "little")
    return b"".join([(end - 8 + left).to_bytes(8, "little"), file[8:end], b" " * left, memoryview(file)[end:]])


# --- requests ---

def hash_of(file):
    return hashlib.sha256(file).hexdigest()


def send(server, method, path, body=None, source="127.0.0.1", headers=()):
    """Sends one request on a connection of its own, from `source`. Returns the reply."""
    with Connection(server.port, timeout=60, source=source) as connection:
        connection.send(head_bytes(method, path, None if body is None else len(body), *headers) + (body or b""))
        return connection.read_reply(head_only=method == "HEAD")


def head_bytes(method, path, length, *headers):
    """Returns a request up to its body. Without `length` it has no Content-Length."""
    lines = [f"{method} {path} HTTP/1.1", "Host: attnd",
             *([] if length is None else [f"Content-Type: {SAFETENSORS}", f"Content-Length: {length}"]), *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def put(server, name, file, source="127.0.0.1", headers=(), query=""):
    return send(server, "PUT", f"{PATH}/{name}{query}", file, source, headers)


def get(server, name, source="127.0.0.1", headers=()):
    return send(server, "GET", f"{PATH}/{name}", None, source, headers)


def delete(server, name, source="127.0.0.1", headers=()):
    return send(server, "DELETE", f"{PATH}/{name}", None, source, headers)


def ask(server, name, question=None, source="127.0.0.1", headers=()):
    """Asks a question in JSON."""
    body = dot_product.to_json(question or {})
    return Asker(server, source).post(f"{PATH}/{name}/attention", body, "application/json", headers)


def list_names(server, source="127.0.0.1", headers=()):
    reply = send(server, "GET", PATH, None, source, headers)
    assert reply.status == 200, reply
    return [capture["name"] for capture in reply.json()["captures"]]


def begin_put(server, name, length, source="127.0.0.1", headers=()):
    """Sends the headers of a PUT. Returns the connection when the server wants the body: it is reserved then."""
    connection = Connection(server.port, timeout=60, source=source)
    connection.send(head_bytes("PUT", f"{PATH}/{name}", length, "Expect: 100-continue", *headers))
    reply = connection.read_reply()
    assert reply.status == 100, reply
    return connection


def assert_refused(reply, status, title, field_name=None):
    """Returns the problem of a reply."""
    assert reply.status == status, reply
    assert reply.headers["content-type"] == "application/problem+json", reply
    problem = reply.json()
    assert (problem["status"], problem["title"]) == (status, title), problem
    assert problem["detail"], problem
    assert field_name is None or problem["field"] == field_name, problem
    return problem


def assert_nothing_kept(server, source="127.0.0.1"):
    """Waits until the memory of what was refused or deleted is released; checks that all of it is."""
    assert list_names(server, source) == []
    wait_for_scrape(server, lambda scrape: scrape.sum("attnd_capture_bytes") == scrape.sum("attnd_captures") == 0)


@pytest.fixture
def server(shared):
    """The server `shared` of a file of tests, which each test leaves empty."""
    yield shared
    for name in list_names(shared):
        assert delete(shared, name).status == 204
    assert_nothing_kept(shared)


class Asker:
    """POSTs on a connection that is kept."""

    def __init__(self, server, source="127.0.0.1"):
        self.connection = Connection(server.port, timeout=120, source=source)

    def post(self, path, body, content_type, headers=()):
        lines = [f"POST {path} HTTP/1.1", "Host: attnd", f"Content-Type: {content_type}",
                 f"Content-Length: {len(body)}", *headers, "", ""]
        self.connection.send("\r\n".join(lines).encode() + body)
        return self.connection.read_reply()


# --- questions ---

def as_sent(layer, question):
    """Returns the fields that POST /v1/attention/dot-product takes for the same question: stored tensors, cut to
    query_rows, and what the question puts in their place."""
    numbers, fields = layer.numbers(), {name: value for name, value in question.items() if value is not None}
    fields.pop("layer", None)
    rows = fields.pop("query_rows", None)
    sent = {name: numbers[name] for name in ("keys", "values", "sinks", "slopes", "key_positions") if name in numbers}
    bias = numbers.get("bias")
    if "queries" not in fields:
        first, end = (0, len(numbers["queries"])) if rows is None else rows
        sent["queries"] = numbers["queries"][first:end]
        if "positions" in numbers:
            sent["positions"] = numbers["positions"][first:end]
        elif rows is not None:
            sent["positions"] = np.arange(first, end)
        if bias is not None and bias.shape[-2] > 1:
            bias = bias[..., first:end, :]
    if bias is not None and "attn_mask" not in fields:
        sent["bias"] = bias
    if "num_heads" in fields:  # then heads lie side by side in every tensor
        sent["num_kv_heads"] = numbers["keys"].shape[1]
        sent |= {name: sent[name].reshape(len(sent[name]), -1) for name in ("keys", "values") if name in sent}
    return sent | layer.options | fields


def to_safetensors(fields, dtypes=None):
    """The fields of a question or of a request as safetensors; `dtypes` has the types that are not F32 or I64."""
    tensors = {name: np.asarray(fields[name]) for name in (*FLOATS, *INTEGER_FIELDS)
               if name in fields and name != "targets"}
    if "targets" in fields:
        tensors["targets"] = np.array([pair or [0, 0] for pair in fields["targets"]])
    types = {name: (dtypes or {}).get(name, "I64" if name in INTEGER_FIELDS else
                                      "BOOL" if array.dtype == bool else "F32") for name, array in tensors.items()}
    words = {name: ",".join(value) if isinstance(value, list) else str(value).lower() if name != "layer" else str(value)
             for name, value in fields.items() if name not in tensors and value is not None}
    return make_safetensors(tensors, types, words)


def encode(fields, content_type, dtypes=None):
    """Returns the body of these fields in a type."""
    return to_safetensors(fields, dtypes) if content_type == SAFETENSORS else dot_product.to_json(fields)
