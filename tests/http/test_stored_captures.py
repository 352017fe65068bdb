# SPDX-License-Identifier: Apache-2.0
"""Captures that are kept (docs/protocol.md): names, replies, the list, questions, and how long they are kept."""

import re
import time

import numpy as np
import pytest

from dot_product import SAFETENSORS
from http1 import Connection
from reload import wait_until
from safetensors_file import make_safetensors, parse_safetensors
from scrape import Scrape, wait_for_value
from server import Server
from stored import (LEAST, MIB, PATH, Asker, Layer, ask, assert_refused, delete, encode, get, hash_of, head_bytes,
                    list_names, make_file, put, random_capture, send, server, small_file)

JSON = "application/json"
FILE, OTHER = small_file(0), small_file(1)
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def shared():
    with Server("--capture-memory", 8 * MIB, "--capture-ttl", 600) as running:
        yield running


def etag(file):
    return f'"{hash_of(file)}"'


# --- put, get, delete ---

def test_capture_is_put_once(server):
    created = put(server, "text", FILE)
    assert (created.status, created.headers["etag"]) == (201, etag(FILE)), created
    again = put(server, "text", FILE)
    assert (again.status, again.headers["etag"]) == (200, etag(FILE)), again
    assert_refused(put(server, "text", OTHER), 409, "Capture exists")
    assert get(server, "text").headers["etag"] == etag(FILE)
    assert list_names(server) == ["text"]


def test_other_bytes_of_the_same_numbers_are_other_bytes(server):
    """The hash is that of the file, with its labels."""
    layers = random_capture(np.random.default_rng(1))
    assert put(server, "a", make_file(layers, tokens=["x"])).status == 201
    assert_refused(put(server, "a", make_file(layers, tokens=["y"])), 409, "Capture exists")
    assert put(server, "b", make_file(layers, tokens=["y"])).status == 201


def test_deleted_capture_is_gone(server):
    assert put(server, "text", FILE).status == 201
    reply = delete(server, "text")
    assert (reply.status, reply.body) == (204, b"") and "content-type" not in reply.headers
    for reply in (delete(server, "text"), get(server, "text"), ask(server, "text")):
        assert_refused(reply, 404, "Unknown capture")
    assert send(server, "HEAD", f"{PATH}/text").status == 404
    assert put(server, "text", OTHER).status == 201, "the name may have other bytes then"


def test_names_of_captures_that_were_never_put(server):
    for reply in (get(server, "never"), delete(server, "never"), ask(server, "never"), get(server, "a" * 128)):
        assert_refused(reply, 404, "Unknown capture")


@pytest.mark.parametrize("method, path, allowed", [
    ("POST", f"{PATH}/text", {"GET", "HEAD", "PUT", "DELETE"}), ("GET", f"{PATH}/text/attention", {"POST"}),
    ("PUT", f"{PATH}/text/attention", {"POST"}), ("DELETE", f"{PATH}/text/attention", {"POST"}),
    ("PUT", PATH, {"GET", "HEAD"}), ("DELETE", PATH, {"GET", "HEAD"}), ("POST", PATH, {"GET", "HEAD"})])
def test_other_methods_are_not_allowed(server, method, path, allowed):
    reply = send(server, method, path, b"{}" if method != "DELETE" else None)
    assert_refused(reply, 405, "Method not allowed")
    assert set(re.split(", *", reply.headers["allow"])) == allowed


# --- names ---

@pytest.mark.parametrize("name", ["a", "Z-9_.", "a..b", "x" * 128, "0", "-", "_", "f" * 63, "F" * 65, "attention", "ui-1"])
def test_good_names(server, name):
    assert put(server, name, FILE).status == 201
    assert get(server, name).json()["name"] == name
    assert ask(server, name).status == 200
    assert list_names(server) == [name]
    assert delete(server, name).status == 204


@pytest.mark.parametrize("name", ["x" * 129, "x" * 300, ".", "..", ".a", "...", "a%61", "%61", "a%2Fb", "a%00b", "%",
                                  "a%", "a+b", "a:b", "a@b", "a~b", "a,b", "a;b", "a=b", "a'b", "(a)", "a*",
                                  "a\\b", "[a]", "{a}", "a|b"])
def test_bad_names(server, name):
    """They keep nothing, and find nothing: `%61` is not another name of `a`."""
    assert put(server, "a", FILE).status == 201
    for method, path in (("PUT", name), ("GET", name), ("DELETE", name), ("POST", f"{name}/attention")):
        body = FILE if method == "PUT" else b"{}" if method == "POST" else None
        head = head_bytes(method, "\0", None if body is None else len(body))
        if method == "POST":
            head = head.replace(SAFETENSORS.encode(), JSON.encode())
        with Connection(server.port) as connection:
            connection.send(head.replace(b"\0", f"{PATH}/{path}".encode("latin-1")) + (body or b""))
            reply = connection.read_reply()
        if method == "PUT":
            assert_refused(reply, 400, "Bad capture name")
        else:
            assert (reply.status, reply.json()["title"]) in ((400, "Bad capture name"), (404, "Unknown capture")), reply
    assert list_names(server) == ["a"]


@pytest.mark.parametrize("path", ["/v1/capture", f"{PATH}/a/b", f"{PATH}//", f"{PATH}/a/attention/", f"{PATH}/a/attention/b",
                                  f"{PATH}//attention", f"{PATH}s"])
def test_paths_that_are_no_route(server, path):
    reply = send(server, "PUT", path, FILE)
    assert reply.status in (400, 404) and reply.json()["title"] in ("Unknown route", "Bad capture name"), reply


def test_name_that_is_a_hash_must_be_that_of_the_file(server):
    right, wrong = hash_of(FILE), hash_of(OTHER)
    assert put(server, right, FILE).status == 201
    assert put(server, right, FILE).status == 200
    assert_refused(put(server, wrong, FILE), 400, "Bad capture name")
    assert_refused(put(server, hash_of(FILE)[::-1], FILE), 400, "Bad capture name")
    assert_refused(put(server, right.upper(), FILE), 400, "Bad capture name")
    assert list_names(server) == [right]
    assert put(server, wrong, OTHER).status == 201
    assert ask(server, right).body != ask(server, wrong).body


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 127, 1000])
def test_hash_is_right_whatever_the_size(server, size):
    """The padding of SHA-256 depends on the size modulo 64."""
    file = padded_file(size)
    assert put(server, hash_of(file), file).status == 201


def padded_file(size):
    """Returns a file whose header has `size` more blanks at its end, so the file may have any length."""
    raw = make_file({"0": Layer({"keys": np.ones((1, 1, 1))})})
    length = int.from_bytes(raw[:8], "little")
    return (length + size).to_bytes(8, "little") + raw[8:8 + length] + b" " * size + raw[8 + length:]


# --- descriptions ---

def describe_layer(name, layer):
    """Returns what GET has of a layer."""
    shapes = {key: list(np.shape(layer.tensors[key])) if key in layer.tensors else None
              for key in ("queries", "keys", "values", "bias")}
    flags = {key: key in layer.tensors for key in ("sinks", "slopes", "positions", "key_positions")}
    return {"name": name, **shapes, **flags, "dtype": "BF16" if layer.dtypes["keys"] == "BF16" else "F32"}


@pytest.mark.parametrize("seed", range(12))
def test_description_has_layers_and_no_numbers(server, seed):
    layers = random_capture(np.random.default_rng(seed))
    file = make_file(layers)
    put_reply, before = put(server, "text", file), time.time()
    description = get(server, "text").json()
    assert put_reply.json() == description
    found = description.pop("layers")
    for got, (name, layer) in zip(found, layers.items(), strict=True):
        assert got.items() >= describe_layer(name, layer).items()
        assert set(got) - set(describe_layer(name, layer)) == {"scale", "softcap", "causal", "window", "token_ids", "targets"}
        options = layer.options | {"window": layer.options.get("window") or None}
        assert got["causal"] == options.get("causal", False) and got["window"] == options["window"]
        for key in ("scale", "softcap"):
            assert got[key] == (None if key not in options else pytest.approx(options[key], rel=1e-6))
    (listed,) = send(server, "GET", PATH).json()["captures"]
    assert description.pop("left_out") == [] and listed.pop("num_layers") == len(layers) and listed == description
    assert (description["name"], description["sha256"], description["ttl"]) == ("text", hash_of(file), 600)
    assert before - 60 <= description["created"] <= description["last_use"] <= before + 60
    assert description["expires"] == description["last_use"] + 600
    assert description["bytes"] > 0


def test_head_has_the_headers_of_get(server):
    assert put(server, "text", FILE).status == 201
    for path in (PATH, f"{PATH}/text"):
        head, reply = send(server, "HEAD", path), send(server, "GET", path)
        assert (head.status, head.body) == (200, b"")
        for name in ("content-type", "content-length", "etag"):
            assert head.headers.get(name) == reply.headers.get(name)
        assert reply.headers["content-type"] == JSON


def test_list_has_every_capture(server):
    names = [f"c{i}" for i in range(20)]
    for i, name in enumerate(names):
        assert put(server, name, small_file(i)).status == 201
    assert sorted(list_names(server)) == sorted(names)
    for name in names[::2]:
        assert delete(server, name).status == 204
    assert sorted(list_names(server)) == sorted(names[1::2])
    assert Scrape(server).value("attnd_captures") == 10


# --- questions ---

def test_layer_must_be_named_where_there_are_several(server):
    layers = random_capture(np.random.default_rng(3), count=3)
    assert put(server, "three", make_file(layers)).status == 201
    assert_refused(ask(server, "three"), 400, "Unknown layer", "layer")
    for layer in ("nowhere", "", "0.", 7):
        problem = assert_refused(ask(server, "three", {"layer": layer}), 400, "Unknown layer", "layer")
        assert list(layers)[0] in problem["detail"], "the layers that there are"
    assert put(server, "one", FILE).status == 201
    assert ask(server, "one", {}).body == ask(server, "one", {"layer": 0}).body == ask(server, "one", {"layer": "0"}).body
    assert_refused(ask(server, "one", {"layer": "1"}), 400, "Unknown layer", "layer")
    assert_refused(ask(server, "one", {"layer": [0]}), 400, "Wrong rank", "layer")
    assert_refused(ask(server, "one", {"layer": True}), 400, "Wrong type", "layer")


@pytest.mark.parametrize("rows", [[0, 5], [4, 5], [2, 2], [3, 1], [-1, 2], [0, 2**40]])
def test_rows_that_are_not_there_are_refused(server, rows):
    assert put(server, "text", FILE).status == 201
    assert_refused(ask(server, "text", {"query_rows": rows}), 400, "Out of range", "query_rows")
    body = encode({"query_rows": rows}, SAFETENSORS)
    assert_refused(Asker(server).post(f"{PATH}/text/attention", body, SAFETENSORS), 400, "Out of range", "query_rows")


@pytest.mark.parametrize("rows", [[0], [0, 1, 2], 3, "0,1", [[0, 1]], [0, 1.5], [0, "1"]])
def test_rows_are_a_first_and_an_end(server, rows):
    assert put(server, "text", FILE).status == 201
    reply = ask(server, "text", {"query_rows": rows})
    assert reply.status == 400 and reply.json()["field"] == "query_rows", reply


def test_rows_are_of_stored_queries_only(server):
    queries = np.ones((4, 2, 8))
    assert put(server, "text", FILE).status == 201
    reply = ask(server, "text", {"query_rows": [0, 2], "queries": queries})
    assert reply.status == 400 and reply.json()["field"] == "query_rows", reply
    assert put(server, "keys", make_file({"0": Layer({"keys": np.ones((4, 2, 8))})})).status == 201
    for question in ({}, {"query_rows": [0, 1]}):
        reply = ask(server, "keys", question)
        assert reply.status == 400 and reply.json()["field"] in ("queries", "query_rows"), reply
    assert ask(server, "keys", {"queries": queries}).status == 200


@pytest.mark.parametrize("field, value", [("keys", [[[1.0] * 8] * 2] * 4), ("values", [[[1.0]] * 2] * 4), ("num_kv_heads", 2),
                                          ("capture", "text"), ("ttl", 1), ("query_lens", [4])])
def test_what_is_stored_is_not_sent(server, field, value):
    assert put(server, "text", FILE).status == 201
    assert_refused(ask(server, "text", {field: value}), 400, "Unknown key", field)


def test_sent_queries_need_their_own_positions_and_bias(server):
    """Stored ones belong to stored queries; a bias of one row belongs to all."""
    rng = np.random.default_rng(0)
    tensors = {"queries": rng.normal(size=(4, 2, 8)), "keys": rng.normal(size=(6, 2, 8)), "positions": np.arange(4)}
    question = {"queries": rng.normal(size=(4, 2, 8)).astype(np.float32)}
    assert put(server, "causal", make_file({"0": Layer(tensors, {}, {"causal": True})})).status == 201
    assert_refused(ask(server, "causal", question), 400, "Missing key", "positions")
    assert ask(server, "causal", question | {"positions": [0, 1, 2, 3]}).status == 200
    assert put(server, "rows", make_file({"0": Layer(tensors | {"bias": rng.normal(size=(4, 6))})})).status == 201
    reply = ask(server, "rows", question)
    assert reply.status == 400 and reply.json()["field"] == "bias", reply
    assert ask(server, "rows", question | {"bias": rng.normal(size=(1, 6))}).status == 200
    assert put(server, "row", make_file({"0": Layer(tensors | {"bias": rng.normal(size=(1, 6))})})).status == 201
    assert ask(server, "row", question).status == 200


def test_a_question_is_one_sequence(server):
    assert put(server, "text", FILE).status == 201
    reply = ask(server, "text", {"queries": np.ones((2, 4, 2, 8))})
    assert reply.status == 400 and reply.json()["field"] == "queries", reply


def test_accept_and_content_type_are_as_in_replay(server):
    assert put(server, "text", FILE).status == 201
    asker, path = Asker(server), f"{PATH}/text/attention"
    assert asker.post(path, b"{}", JSON).headers["content-type"] == JSON
    reply = asker.post(path, b"{}", JSON, [f"Accept: {SAFETENSORS}"])
    assert parse_safetensors(reply.body)[0]["attention_weights"].shape == (2, 4, 4)
    assert_refused(asker.post(path, b"{}", JSON, ["Accept: text/html"]), 406, "Not acceptable")
    assert_refused(asker.post(path, b"{}", "text/plain"), 415, "Unsupported media type")
    assert_refused(asker.post(path, b"{", JSON), 400, "Malformed JSON")
    assert_refused(asker.post(path, make_safetensors({"a": [1]}, "F32"), SAFETENSORS), 400, "Unknown key", "a")


# --- how long a capture is kept ---

def test_capture_expires_after_its_last_question(server):
    assert put(server, "short", FILE, query="?ttl=1").json()["ttl"] == 1
    assert put(server, "long", FILE).status == 201
    wait_until(lambda: get(server, "short").status == 404, "GET does not renew it")
    assert_refused(ask(server, "short"), 404, "Unknown capture")
    assert list_names(server) == ["long"]
    wait_for_value(server, 1, "attnd_captures")
    wait_for_value(server, LEAST, "attnd_capture_bytes")


def test_question_renews_a_capture(server):
    assert put(server, "text", FILE, query="?ttl=5").status == 201
    begin, asker = time.monotonic(), Asker(server)
    while time.monotonic() < begin + 7:
        assert asker.post(f"{PATH}/text/attention", b"{}", JSON).status == 200
        time.sleep(0.1)
    description = get(server, "text").json()
    assert description["last_use"] > description["created"]
    assert description["expires"] == description["last_use"] + 5
    wait_until(lambda: get(server, "text").status == 404, "the capture does not expire")


def test_same_bytes_again_set_the_time(server):
    """The last PUT says how long it is kept; without a word, as long as may be."""
    for query, ttl in (("?ttl=500", 500), ("?ttl=5", 5), ("", 600), ("?ttl=1", 1)):
        reply = put(server, "text", FILE, query=query)
        assert reply.status == (201 if ttl == 500 else 200)
        assert reply.json()["ttl"] == ttl == get(server, "text").json()["ttl"]
    wait_until(lambda: get(server, "text").status == 404, "the capture does not expire")


@pytest.mark.parametrize("ttl", ["0", "-1", "601", "86401", "1e2", "x", "", "1.5", "99999999999999999999"])
def test_ttl_that_is_not_allowed_is_refused(server, ttl):
    reply = put(server, "text", FILE, query=f"?ttl={ttl}")
    assert reply.status == 400 and reply.json()["field"] == "ttl", reply
    assert list_names(server) == []


@pytest.mark.parametrize("ttl", [1, 599, 600])
def test_ttl_that_is_allowed(server, ttl):
    assert put(server, "text", FILE, query=f"?ttl={ttl}").json()["ttl"] == ttl


def test_default_ttl_is_an_hour(start_server):
    server = start_server("--capture-memory", MIB)
    assert put(server, "text", FILE).json()["ttl"] == 3600


def test_name_of_an_expired_capture_can_have_other_bytes(server):
    assert put(server, "text", FILE, query="?ttl=1").status == 201
    wait_until(lambda: put(server, "text", OTHER).status in (200, 201), "the capture does not expire")
    assert get(server, "text").json()["sha256"] == hash_of(OTHER)


# --- off ---

def test_captures_are_off_by_default(demo_server):
    question = encode({}, JSON)
    for method, path, body in (("GET", PATH, None), ("HEAD", PATH, None), ("PUT", f"{PATH}/a", FILE),
                               ("GET", f"{PATH}/a", None), ("DELETE", f"{PATH}/a", None),
                               ("POST", f"{PATH}/a/attention", question)):
        reply = send(demo_server, method, path, body)
        if method == "HEAD":
            assert reply.status == 404
            continue
        problem = assert_refused(reply, 404, "Captures are off")
        assert "--capture-memory" in problem["detail"]
    scrape = Scrape(demo_server)
    assert scrape.sum("attnd_capture_limit_bytes") == scrape.sum("attnd_capture_bytes") == 0
