# SPDX-License-Identifier: Apache-2.0
"""Files that are no captures, and clients that send them badly: a clear answer, nothing half stored, and not a byte
lost from the budget. PROPERTY_SEED, which every run prints first, repeats the random mutations."""

import json
import os
import struct
import threading

import numpy as np
import pytest

from http1 import Connection
from safetensors_file import make_raw, make_safetensors
from scrape import wait_for_value
from server import Server
from stored import (LEAST, MIB, PATH, Layer, ask, assert_nothing_kept, assert_refused, begin_put, delete, get, hash_of,
                    head_bytes, list_names, make_file, put, random_capture, small_file, small_layer)

SEED = int(os.environ["PROPERTY_SEED"])  # conftest.py sets it
MUTATIONS = 400
FILE = small_file()
HUGE = 1 << 62
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def shared():
    with Server("--capture-memory", 32 * MIB, "--idle-timeout", 1, "--workers", 2) as running:
        yield running


@pytest.fixture
def server(shared):
    """The server of this file, of which each test must leave nothing."""
    yield shared
    assert shared.is_alive()
    left = list_names(shared)
    for name in left:  # of a test that failed, so that the next one does not
        delete(shared, name)
    assert_nothing_kept(shared)
    assert left == []


# --- parts of files ---

def parts_of(file):
    """Returns the header as a dict, and the data."""
    (size,) = struct.unpack("<Q", file[:8])
    return json.loads(file[8:8 + size]), file[8 + size:]


def with_header(change, file=FILE):
    """Returns a file whose header `change` has edited."""
    header, data = parts_of(file)
    change(header)
    return make_raw(json.dumps(header).encode(), data)


def with_metadata(**texts):
    """Names have dots as `0__causal`; None leaves a text out."""
    def change(header):
        for name, text in texts.items():
            header["__metadata__"][name.replace("__", ".")] = text
        header["__metadata__"] = {name: text for name, text in header["__metadata__"].items() if text is not None}
    return with_header(change)


def with_entry(name, **changes):
    return with_header(lambda header: header[name].update(changes))


def with_tensors(dtypes=None, options=None, **tensors):
    """Returns a capture of one layer that has these tensors besides, or in the place of, its own. None leaves one out."""
    layer = small_layer()
    layer.tensors |= {name: None if tensor is None else np.asarray(tensor) for name, tensor in tensors.items()}
    layer.tensors = {name: tensor for name, tensor in layer.tensors.items() if tensor is not None}
    return make_file({"0": Layer(layer.tensors, dtypes or {}, layer.options | (options or {}))})


def ones(*shape):
    return np.ones(shape)


def with_number(number, name, shape, dtype="F32"):
    tensor = ones(*shape)
    tensor.flat[-1] = number
    return with_tensors({name: dtype}, **{name: tensor})


LIES = {  # what is wrong with a file; the layer has 4 queries and keys of 2 heads of 8
    "nothing": b"",
    "seven bytes": b"\1\0\0\0\0\0\0",
    "no header": struct.pack("<Q", 0),
    "no header, but data": struct.pack("<Q", 0) + bytes(100),
    "a huge header": struct.pack("<Q", HUGE) + FILE[8:],
    "the largest header": b"\xff" * 8 + FILE[8:],
    "a header beyond the end": struct.pack("<Q", len(FILE)) + FILE[8:],
    "not JSON": make_raw(b"{", b""),
    "a list": make_raw(b"[]", b""),
    "deep": make_raw(b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", b""),
    "not UTF-8": make_raw(b'{"__metadata__":{"layers":"[\\"\xff\\"]"}}', b""),
    "a key twice": make_raw(b'{"__metadata__":{"layers":"[]","layers":"[]"}}', b""),
    "no metadata": with_header(lambda header: header.pop("__metadata__")),
    "metadata that is a list": with_header(lambda header: header.update(__metadata__=[])),
    "metadata of numbers": with_header(lambda header: header["__metadata__"].update(layers=1)),
    "no layers": with_metadata(layers=None),
    "an empty list of layers": make_safetensors({}, {}, {"layers": "[]"}),
    "an empty list of layers, but tensors": with_metadata(layers="[]"),
    "layers that are no JSON": with_metadata(layers="0"),
    "layers that are no list": with_metadata(layers='{"0":1}'),
    "layers that are numbers": with_metadata(layers="[0]"),
    "a layer twice": with_metadata(layers='["0","0"]'),
    "a layer without tensors": with_metadata(layers='["0","1"]'),
    "a layer that is not listed": with_metadata(layers='["1"]'),
    "a layer without a name": with_metadata(layers='["0",""]'),
    "layers that go on": with_metadata(layers='["0"] ["1"]'),
    "no keys": with_tensors(keys=None),
    "an unknown tensor": with_tensors(mask=ones(4, 4)),
    "weights": with_tensors(weights=ones(2, 4, 4)),
    "a tensor of no layer": with_header(lambda header: header.update({"keys": header.pop("0.keys")})),
    "an unknown option": with_metadata(**{"0__head_mask": "[1,1]"}),
    "an option of no layer": with_metadata(causal="true"),
    "an option of another layer": with_metadata(**{"1__causal": "true"}),
    "causal that is a number": with_metadata(**{"0__causal": "1"}),
    "causal of Python": with_metadata(**{"0__causal": "True"}),
    "a window below 0": with_metadata(**{"0__window": "-1"}),
    "half a window": with_metadata(**{"0__window": "1.5"}),
    "a large window": with_metadata(**{"0__window": str(2**31)}),
    "a softcap of 0": with_metadata(**{"0__softcap": "0"}),
    "a softcap that is a text": with_metadata(**{"0__softcap": '"1"'}),
    "a large scale": with_metadata(**{"0__scale": "1e39"}),
    "a scale that is not a number": with_metadata(**{"0__scale": "NaN"}),
    "a scale that is a list": with_metadata(**{"0__scale": "[1]"}),
    "a scale that is empty": with_metadata(**{"0__scale": ""}),
    "keys of one row": with_tensors(keys=ones(2, 8)),
    "keys of a batch": with_tensors(keys=ones(1, 4, 2, 8)),
    "queries side by side": with_tensors(queries=ones(4, 16)),
    "no rows of keys": with_tensors(keys=np.zeros((0, 2, 8)), queries=None),
    "no heads of keys": with_tensors(keys=np.zeros((4, 0, 8)), queries=None),
    "keys without numbers": with_tensors(keys=np.zeros((4, 2, 0)), queries=None),
    "no rows of queries": with_tensors(queries=np.zeros((0, 2, 8))),
    "key heads that do not divide": with_tensors(queries=ones(4, 3, 8)),
    "fewer heads than key heads": with_tensors(queries=ones(4, 1, 8)),
    "another head size": with_tensors(queries=ones(4, 2, 7)),
    "values of other rows": with_tensors(values=ones(5, 2, 8)),
    "values of other heads": with_tensors(values=ones(4, 1, 8)),
    "values without numbers": with_tensors(values=np.zeros((4, 2, 0))),
    "a bias of other keys": with_tensors(bias=ones(4, 5)),
    "a bias of other rows": with_tensors(bias=ones(3, 4)),
    "a bias of other heads": with_tensors(bias=ones(3, 4, 4)),
    "a bias of a batch": with_tensors(bias=ones(1, 2, 4, 4)),
    "a bias of one row": with_tensors(bias=ones(4)),
    "sinks of other heads": with_tensors(sinks=ones(3)),
    "sinks of rows": with_tensors(sinks=ones(2, 1)),
    "slopes of other heads": with_tensors(slopes=ones(1)),
    "positions of other rows": with_tensors(positions=[0, 1, 2]),
    "positions below 0": with_tensors(positions=[0, 1, 2, -1]),
    "large positions": with_tensors(positions=[0, 1, 2, 2**31]),
    "key positions in F64": with_tensors({"key_positions": "F64"}, key_positions=[0, 1, 2, 0.5]),
    "positions in U8": with_tensors({"positions": "U8"}, positions=[0, 1, 2, 3]),
    "positions in F32": with_tensors({"positions": "F32"}, positions=[0, 1, 2, 3]),
    "key positions of other rows": with_tensors(key_positions=[0]),
    "keys in I64": with_tensors({"keys": "I64"}),
    "queries in I32": with_tensors({"queries": "I32"}),
    "a bias in U8": with_tensors({"bias": "U8"}, bias=ones(4, 4)),
    "an unknown type": with_entry("0.keys", dtype="F8_E4M3"),
    "a type that is a number": with_entry("0.keys", dtype=32),
    "another type": with_entry("0.keys", dtype="F64"),
    "a shape that is too large": with_entry("0.keys", shape=[5, 2, 8]),
    "a shape that is too small": with_entry("0.keys", shape=[3, 2, 8]),
    "a shape that overflows": with_entry("0.keys", shape=[1 << 32, 1 << 32, 8]),
    "a shape that wraps around": with_entry("0.keys", shape=[(1 << 63) + 4, 2, 8]),
    "a shape below 0": with_entry("0.keys", shape=[-4, 2, 8]),
    "half a shape": with_entry("0.keys", shape=[4.5, 2, 8]),
    "a shape that is a text": with_entry("0.keys", shape="4,2,8"),
    "no shape": with_header(lambda header: header["0.keys"].pop("shape")),
    "offsets that are reversed": with_entry("0.keys", data_offsets=[512, 256]),
    "offsets that overlap": with_entry("0.keys", data_offsets=[0, 256]),
    "offsets with a hole": with_entry("0.keys", data_offsets=[260, 516]),
    "offsets beyond the end": with_entry("0.keys", data_offsets=[HUGE, HUGE + 256]),
    "offsets below 0": with_entry("0.keys", data_offsets=[-256, 0]),
    "one offset": with_entry("0.keys", data_offsets=[256]),
    "more than a tensor has": with_entry("0.keys", extra=1),
    "a byte too many": FILE + b"\0",
    "many bytes too many": FILE + bytes(100000),
    "a byte too few": FILE[:-1],
    "no data": FILE[:-512],
    "half a header": FILE[:40],
}
for number_name, number in (("NaN", np.nan), ("infinity", np.inf), ("-infinity", -np.inf)):
    for tensor_name, shape in (("queries", (4, 2, 8)), ("keys", (4, 2, 8)), ("values", (4, 2, 3)), ("sinks", (2,)),
                               ("slopes", (2,)), ("bias", (4, 4))):
        if (tensor_name, number_name) != ("bias", "-infinity"):
            for type_name in ("F32", "F16", "BF16", "F64"):
                LIES[f"{number_name} in {tensor_name} of {type_name}"] = \
                    with_number(number, tensor_name, shape, type_name)
for tensor_name, shape in (("queries", (4, 2, 8)), ("keys", (4, 2, 8)), ("bias", (4, 4)), ("sinks", (2,))):
    LIES[f"a float64 in {tensor_name} that no float32 holds"] = with_number(1e39, tensor_name, shape, "F64")


@pytest.mark.parametrize("name", LIES)
def test_file_that_is_no_capture_is_refused(server, name):
    reply = put(server, "lie", LIES[name])
    assert reply.status == 400, reply
    problem = reply.json()
    assert problem["status"] == 400 and problem["title"] and problem["detail"], problem
    assert get(server, "lie").status == 404 and list_names(server) == []
    assert put(server, "lie", FILE).status == 201, "the next one is read as ever"
    assert delete(server, "lie").status == 204


@pytest.mark.parametrize("name, field", [("an unknown tensor", "0.mask"), ("keys in I64", "0.keys"), ("no keys", "0.keys"),
                                         ("another head size", "0."), ("NaN in keys of F32", "0.keys"),
                                         ("an unknown option", "0.head_mask"), ("a softcap of 0", "0.softcap"),
                                         ("values of other rows", "0.values"), ("no layers", "layers"),
                                         ("positions below 0", "0.positions")])
def test_refusal_names_the_tensor_or_the_option(server, name, field):
    assert put(server, "lie", LIES[name]).json()["field"].startswith(field)


@pytest.mark.parametrize("name", ["a bias of -infinity", "many blanks", "format", "an F16 zero", "no causal"])
def test_file_that_looks_odd_is_a_capture(server, name):
    file = {"a bias of -infinity": with_number(-np.inf, "bias", (4, 4), "F16"),
            "many blanks": with_header(lambda header: None, with_metadata(tokens=None)),
            "format": with_metadata(format="pt"),
            "an F16 zero": with_tensors({"keys": "F16"}, keys=-np.zeros((4, 2, 8))),
            "no causal": with_metadata(**{"0__causal": None})}[name]
    assert put(server, "odd", file).status == 201
    assert ask(server, "odd").status == 200
    assert delete(server, "odd").status == 204


# --- headers of a file ---

def file_with_header(size):
    """Returns a capture whose header has `size` bytes, nearly all of them labels."""
    header, data = parts_of(FILE)
    header["__metadata__"]["tokens"] = json.dumps(["label"] * 1000)
    left = size - len(json.dumps(header))
    header["__metadata__"]["tokens"] = header["__metadata__"]["tokens"][:-1] + " " * left + "]"
    file = make_raw(json.dumps(header).encode(), data)
    assert struct.unpack("<Q", file[:8]) == (size,)
    return file


def test_header_may_have_1_mib(server):
    file = file_with_header(MIB)
    assert put(server, hash_of(file), file).status == 201
    assert ask(server, hash_of(file)).body == ask_small(server)
    assert get(server, hash_of(file)).json()["bytes"] <= len(file), "labels are not kept besides"
    assert delete(server, hash_of(file)).status == 204
    assert put(server, "lie", file_with_header(MIB + 8)).status == 400


def ask_small(server):
    assert put(server, "small", FILE).status == 201
    body = ask(server, "small").body
    assert delete(server, "small").status == 204
    return body


@pytest.mark.parametrize("size", [16, 1000, 65528, 65536, 131072, MIB - 8, MIB])
def test_header_is_read_wherever_it_is_cut(server, size):
    """It arrives in pieces of our choice."""
    file = file_with_header(max(size, 16384))
    with Connection(server.port) as connection:
        connection.send(head_bytes("PUT", f"{PATH}/text", len(file)))
        for at in range(0, len(file), max(size // 3, 999)):
            connection.send(file[at:at + max(size // 3, 999)])
        assert connection.read_reply().status == 201
    assert delete(server, "text").status == 204


def test_file_may_arrive_byte_by_byte(server):
    with Connection(server.port) as connection:
        connection.send(head_bytes("PUT", f"{PATH}/text", len(FILE)))
        for byte in FILE:
            connection.send(bytes([byte]))
        assert connection.read_reply().status == 201
    assert delete(server, "text").status == 204


def test_many_layers(server):
    """As many as a header of 1 MiB has room for, each of a key of one number."""
    layers = {str(i): Layer({"keys": np.full((1, 1, 1), i)}) for i in range(8000)}
    file = make_file(layers)
    assert len(file) < MIB
    assert put(server, "many", file).status == 201
    assert len(get(server, "many").json()["layers"]) == 8000
    reply = ask(server, "many", {"layer": "7999", "queries": [[[2.0]]], "scale": 1, "need": ["scores"]})
    assert reply.json()["scores"] == [[[pytest.approx(2 * 7999, rel=1e-6)]]]
    assert delete(server, "many").status == 204


# --- bodies that end early, or not at all ---

@pytest.mark.parametrize("sent", [0, 1, 8, 100, len(FILE) - 1])
def test_client_that_leaves_loses_its_room(server, sent):
    with begin_put(server, "text", len(FILE)) as connection:
        connection.send(FILE[:sent])
        wait_for_value(server, LEAST, "attnd_capture_bytes")
    wait_for_value(server, 0, "attnd_capture_bytes")
    assert get(server, "text").status == 404


@pytest.mark.parametrize("sent", [0, 8, 100, len(FILE) - 1])
def test_client_that_hangs_is_cut_off(server, sent):
    """After --idle-timeout, as with other bodies."""
    with begin_put(server, "text", len(FILE)) as connection:
        connection.send(FILE[:sent])
        reply = connection.read_reply()
        assert reply is None or reply.status == 408, reply
    assert put(server, "text", FILE).status == 201
    assert delete(server, "text").status == 204


def test_client_that_drips_is_cut_off(start_server):
    """It sends fewer bytes than --min-rate."""
    server = start_server("--capture-memory", 32 * MIB, "--min-rate", 100000, "--idle-timeout", 1000)
    with begin_put(server, "text", MIB) as connection:
        dripper = threading.Thread(target=drip, args=(connection,))
        dripper.start()
        reply = connection.read_reply()
        assert reply is None or reply.status == 408, reply
    dripper.join()
    assert_nothing_kept(server)
    assert server.is_alive()


def drip(connection):
    """Sends a byte at a time until the server closes the connection, at most for 20 s."""
    stop = threading.Event()
    try:
        for _ in range(2000):
            connection.socket.sendall(b"{")
            if stop.wait(0.01):
                break
    except OSError:
        pass


def test_body_of_another_length_is_refused(server):
    """What follows it is not read as a request."""
    for length in (len(FILE) - 8, 64, 8, 7, 1, 0):
        with Connection(server.port) as connection:
            connection.send(head_bytes("PUT", f"{PATH}/text", length) + FILE)
            assert connection.read_reply().status == 400
    assert get(server, "text").status == 404


def test_connection_is_kept_after_a_refused_file(server):
    """Its rest is read, or the connection is closed: the next reply is never that of the file."""
    with Connection(server.port) as connection:
        connection.send(head_bytes("PUT", f"{PATH}/text", len(LIES["an unknown tensor"])) + LIES["an unknown tensor"])
        first = connection.read_reply()
        assert first.status == 400
        connection.send(head_bytes("PUT", f"{PATH}/text", len(FILE)) + FILE)
        second = connection.read_reply()
        assert (second is None and first.headers.get("connection") == "close") or second.status == 201, second
    if second is not None:
        assert delete(server, "text").status == 204


def test_bodies_are_not_encoded(server):
    with Connection(server.port) as connection:
        connection.send(head_bytes("PUT", f"{PATH}/text", len(FILE), "Content-Encoding: gzip") + FILE)
        assert_refused(connection.read_reply(), 415, "Unsupported media type")


# --- two writers ---

@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("first_ends_first", [True, False])
def test_two_writers_of_one_name(server, same, first_ends_first):
    """One of them creates it, and the other one learns that it is there."""
    files = [small_file(0), small_file(0 if same else 1)]
    writers = [begin_put(server, "text", len(file), f"127.0.0.{i + 1}") for i, file in enumerate(files)]
    for writer, file in zip(writers, files):
        writer.send(file[:-5])
    order = [0, 1] if first_ends_first else [1, 0]
    statuses = []
    for i in order:
        writers[i].send(files[i][-5:])
        statuses.append(writers[i].read_reply().status)
        writers[i].socket.close()
    assert statuses == [201, 200 if same else 409]
    assert get(server, "text").json()["sha256"] == hash_of(files[order[0]])
    wait_for_value(server, LEAST, "attnd_capture_bytes")
    assert delete(server, "text").status == 204


def test_many_writers_of_one_name(server):
    """One creates it; all that have its bytes learn so."""
    files = [small_file(i % 2) for i in range(12)]
    replies = [None] * len(files)

    def write(number):
        replies[number] = put(server, "text", files[number], f"127.0.0.{number + 1}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(files))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = get(server, "text").json()["sha256"]
    for file, reply in zip(files, replies):
        assert reply.status in ((200, 201) if hash_of(file) == kept else (409,)), reply
    assert [reply.status for reply in replies].count(201) == 1
    wait_for_value(server, LEAST, "attnd_capture_bytes")
    assert delete(server, "text").status == 204


def test_capture_is_deleted_while_it_is_put_again(server):
    """That PUT was only compared with it, so it keeps nothing: it has to be sent again."""
    assert put(server, "text", FILE).status == 201
    with begin_put(server, "text", len(FILE), "127.0.0.2") as writer:
        writer.send(FILE[:-5])
        assert delete(server, "text").status == 204
        writer.send(FILE[-5:])
        reply = writer.read_reply()
        assert_refused(reply, 429, "Too many requests")
        assert int(reply.headers["retry-after"]) >= 1
    assert put(server, "text", FILE, "127.0.0.2").status == 201
    assert delete(server, "text").status == 204


# --- random mutations ---

def mutate(rng, file):
    """Returns a file with a few changes: of bytes, of the header's text, of its end."""
    data = bytearray(file)
    (size,) = struct.unpack("<Q", file[:8])
    for _ in range(rng.integers(1, 4)):
        kind = rng.integers(7)
        at = int(rng.integers(8, 8 + size) if kind in (0, 1, 2) else rng.integers(0, len(data)))
        at = min(at, len(data) - 1)
        if kind in (0, 3):
            data[at] = int(rng.integers(256))
        elif kind == 1:
            data[at:at + 1] = rng.choice(list(b'0123456789[]{}",:.-eE')).item().to_bytes(1, "little")
        elif kind == 2:
            data[at:at] = data[8:8 + int(rng.integers(1, 40))]
        elif kind == 4:
            del data[at:at + int(rng.integers(1, 40))]
        elif kind == 5:
            data[at:at + 4] = struct.pack("<f", rng.choice([np.nan, np.inf, 1e38, 0]))
        else:
            data += bytes(int(rng.integers(1, 9)))
    if rng.random() < 0.3:
        data[:8] = struct.pack("<Q", int(rng.choice([size - 1, size + 1, size + 8, len(data), len(data) - 8])))
    return bytes(data)


def test_random_mutations_are_captures_or_refused(server):
    statuses = set()
    for case in range(MUTATIONS):
        rng = np.random.default_rng([SEED, case])
        file = mutate(rng, make_file(random_capture(rng), tokens=["a"] * 3))
        reply = put(server, "text", file)
        assert reply.status == 201 or 400 <= reply.status < 500, f"PROPERTY_SEED={SEED}, case {case}: {reply}"
        statuses.add(reply.status)
        if reply.status == 201:
            for layer in reply.json()["layers"]:
                if layer["queries"] is not None:
                    assert ask(server, "text", {"layer": layer["name"], "need": ["lse"]}).status in (200, 400, 422)
            assert delete(server, "text").status == 204
        if case % 40 == 0:
            assert_nothing_kept(server)
    assert statuses == {201, 400}


def test_random_cuts_keep_the_numbers(server):
    """Pieces end anywhere, also within a number: the answer is that of a file that came at once."""
    rng = np.random.default_rng(SEED)
    layers = {str(i): Layer({"keys": rng.normal(size=(200, 2, 33)), "values": rng.normal(size=(200, 2, 5))},
                            {"keys": dtype, "values": dtype}) for i, dtype in enumerate(("F32", "BF16", "F16", "F64"))}
    file = make_file(layers)
    question = {"queries": rng.normal(size=(3, 4, 33)).astype(np.float32), "need": ["heads", "weights"]}
    assert put(server, "whole", file).status == 201
    expected = [ask(server, "whole", question | {"layer": layer}).body for layer in layers]
    for case in range(20):
        cuts = sorted(rng.integers(0, len(file), 30).tolist())
        with Connection(server.port) as connection:
            connection.send(head_bytes("PUT", f"{PATH}/cut", len(file)))
            for begin, end in zip([0, *cuts], [*cuts, len(file)]):
                connection.send(file[begin:end])
            assert connection.read_reply().status == 201
        assert [ask(server, "cut", question | {"layer": layer}).body for layer in layers] == expected
        assert delete(server, "cut").status == 204
    assert delete(server, "whole").status == 204
