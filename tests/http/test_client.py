# SPDX-License-Identifier: Apache-2.0
"""The clients of the Python package: what it sends, what it returns, and when it tries again."""

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes  # tritonclient needs it, too
import numpy as np
import pytest
import safetensors.numpy

from http1 import Connection, post_bytes

import attnd.client
from attnd import BFLOAT16, AsyncClient, AttentionError, Client
from attnd._fields import encode

RNG = np.random.default_rng(0)


def rows(*shape):
    return RNG.normal(size=(*shape, 100)).astype(np.float32)


def attend_safetensors(url, *arguments, method="attend", **options):
    return getattr(Client(url), method)(*arguments, **options)


def attend_json(url, *arguments, method="attend", **options):
    return getattr(Client(url, json=True), method)(*arguments, **options)


def attend_asyncio(url, *arguments, method="attend", **options):
    async def attend():
        async with AsyncClient(url) as client:
            return await getattr(client, method)(*arguments, **options)
    return asyncio.run(attend())


each_way = pytest.mark.parametrize("attend", [attend_safetensors, attend_json, attend_asyncio])

RAGGED = [rows(4), rows(7)]
REQUESTS = {
    "unbatched": {"queries": rows(3), "need_weights": True, "valid_lens": 2},
    "unbatched lists": {"queries": rows(3).tolist(), "valid_lens": [1, 2, 3]},
    "lengths as floats": {"queries": rows(2, 3), "valid_lens": [3.0, 2.0]},
    "batch": {"queries": rows(2, 3), "need_weights": True},
    "float64": {"queries": rows(2, 3).astype(np.float64), "valid_lens": np.uint8([1, 2])},
    "not contiguous": {"queries": RNG.normal(size=(100, 3)).astype(np.float32).T},
    "all options": {"queries": rows(2, 3), "keys": rows(2, 4), "values": rows(2, 4),
                    "valid_lens": [[1, 2, 3], [4, 4, 0]], "need_weights": True, "causal": False,
                    "weights_heads": [3, 0], "weights_queries": [2, 1], "timeout_ms": 60000,
                    "head_mask": [1, 0, 0.5, 1, 1], "priority": 1},
    "mean": {"queries": rows(2, 3), "need_weights": "mean"},
    "ragged": {"queries": RAGGED, "need_weights": True},
    "ragged without weights": {"queries": RAGGED},
    "ragged with equal lengths": {"queries": [rows(4), rows(4)], "need_weights": True},
    "ragged with one sequence": {"queries": [rows(4)], "need_weights": "mean"},
    "ragged mean": {"queries": RAGGED, "need_weights": "mean", "weights_queries": [3, 0]},
    "ragged selection": {"queries": RAGGED, "need_weights": True, "weights_heads": [2, 4],
                         "weights_queries": [0], "valid_lens": [4, 5]},
    "ragged valid_lens": {"queries": [rows(2), rows(3)], "need_weights": True,
                          "valid_lens": [[1, 2], [1, 2, 3]]},
    "ragged keys": {"queries": RAGGED, "keys": [rows(5), rows(2)], "values": [rows(5), rows(2)],
                    "need_weights": True},
    "ragged keys only": {"queries": rows(2, 3), "keys": [rows(5), rows(2)], "need_weights": True},
    "positions": {"queries": rows(2, 3), "positions": [4, 1, 7], "causal": True, "window": 3},
    "ragged positions": {"positions": [[3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6]], "queries": RAGGED,
                         "causal": True, "window": 2},
    "ragged key positions": {"key_positions": [range(4, -1, -1), [7, 3]], "causal": True,
                             "queries": RAGGED, "keys": [rows(5), rows(2)]},
    "one index": {"queries": rows(2, 3), "need_weights": True, "weights_heads": 2,
                  "weights_queries": np.int64(1)},
    "ragged with one index": {"queries": RAGGED, "need_weights": True, "weights_heads": 2,
                              "weights_queries": 0},
    "bias": {"queries": rows(2, 3), "need_weights": True,
             "bias": np.where(RNG.random((2, 1, 3, 3)) < 0.3, -np.inf, RNG.normal(size=(2, 5, 3, 3))).astype(np.float32)},
    "attn_mask": {"queries": rows(3), "need_weights": True, "attn_mask": np.float16([0.5, -2, -np.inf])},
    "attn_mask of booleans": {"queries": rows(2, 3), "need_weights": True, "attn_mask": RNG.random((5, 3, 3)) < 0.6},
    "attn_mask of lists": {"queries": rows(3), "need_weights": True, "attn_mask": [True, False, True]},
    "ragged prefixes": {"queries": RAGGED, "need_weights": True, "causal": True, "prefix_lens": [3, 5]},
    "numpy's numbers": {"queries": rows(3), "need_weights": np.bool_(True), "priority": np.int64(1),
                        "causal": np.bool_(True), "valid_lens": np.int64(2),
                        "weights_heads": [np.int64(2), np.int32(0)], "weights_queries": range(2)},
}


def to_plain(value):
    """The JSON of a field, by a way of its own: every array and number through tolist(), with null for -inf."""
    if isinstance(value, (list, range)):
        return [to_plain(item) for item in value]
    array = np.asarray(value)
    return (np.where(np.isneginf(array), None, array) if array.dtype.kind == "f" else array).tolist()


def assert_same(got, expected, is_list):
    """Compares shapes and float32, to the bit, of an array or of one for each sequence. What has no
    number in JSON, null in lse, is -inf."""
    if expected is None:
        assert got is None
        return
    assert isinstance(got, list) == is_list
    for array, wanted in zip(got if is_list else [got], expected if is_list else [expected],
                             strict=True):
        wanted = np.array(wanted, np.float32)
        wanted[np.isnan(wanted)] = -np.inf
        assert array.dtype == np.float32 and array.shape == wanted.shape
        assert array.tobytes() == wanted.tobytes()
        array += 1  # readers may change what they got


@each_way
@pytest.mark.parametrize("name", REQUESTS)
def test_client_returns_the_numbers_of_plain_json(demo_server, attend, name):
    options = dict(REQUESTS[name])
    fields = {key: to_plain(value) for key, value in options.items()}
    for key in ("weights_heads", "weights_queries"):
        if isinstance(fields.get(key), int):
            fields[key] = [fields[key]]
    reply = demo_server.attention({"model": "d2l"} | fields).json()
    outputs, weights = attend(demo_server.url + "/", "d2l", **options)
    is_list = "ragged" in name
    assert_same(outputs, reply["outputs"], is_list)
    assert_same(weights, reply.get("attention_weights"), is_list)


NEEDS = {
    "every word": {"queries": rows(2, 3), "need": ["outputs", "weights", "heads", "lse"]},
    "unbatched": {"queries": rows(3), "need": ("lse", "outputs"), "valid_lens": [0, 1, 3]},
    "without outputs": {"queries": rows(2, 3), "need": ["weights"], "weights_heads": 2},
    "one word": {"queries": rows(3), "need": "lse"},
    "ragged": {"queries": RAGGED, "need": ["heads", "weights", "lse"], "valid_lens": [0, 5]},
    "ragged lse": {"queries": RAGGED, "need": ["lse"]},
    "ragged weights": {"queries": RAGGED, "need": ["weights"], "weights_queries": [3, 0]},
}


@each_way
@pytest.mark.parametrize("name", NEEDS)
def test_client_returns_what_is_needed(demo_server, attend, name):
    options = dict(NEEDS[name])
    fields = {key: to_plain(value) for key, value in options.items()}
    words = [options["need"]] if isinstance(options["need"], str) else list(options["need"])
    fields |= {key: [fields[key]] for key in ("weights_heads",) if key in fields} | {"need": words}
    reply = demo_server.attention({"model": "d2l"} | fields).json()
    got = attend(demo_server.url, "d2l", **options)
    assert list(got) == words
    for word in words:
        assert_same(got[word], reply["attention_weights" if word == "weights" else word],
                    "ragged" in name)


@each_way
def test_heads_returns_what_the_server_says(demo_server, attend):
    options = {"queries": rows(2, 3), "causal": True, "need": ["lse"]}
    fields = {key: to_plain(value) for key, value in options.items()}
    reply = demo_server.heads({"model": "d2l"} | fields).json()
    heads, gram = attend(demo_server.url, "d2l", method="heads", **options)
    assert heads == reply["heads"] and len(heads) == 5
    assert gram.shape == (5, 5) and gram.tolist() == reply["gram"]


@each_way
def test_heads_raises_its_error(demo_server, attend):
    with pytest.raises(AttentionError, match="^Shape mismatch: queries are 99 wide"):
        attend(demo_server.url, "d2l", np.zeros((4, 99)), method="heads")


@each_way
@pytest.mark.parametrize("name", ["float16", "big-endian", "bits", "ml_dtypes"])
def test_numbers_of_16_bits_are_sent_as_they_are(demo_server, attend, name):
    queries = rows(2, 4)[:, ::-1]
    if name == "bits":
        sent = (queries.view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)
        plain = (sent.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        dtypes = {"float16": "<f2", "big-endian": ">f2", "ml_dtypes": ml_dtypes.bfloat16}
        sent = queries.astype(dtypes[name])
        plain = sent.astype(np.float32)
    body, _ = encode({"queries": sent}, False)
    assert len(body) < 300 + 2 * queries.size
    for given, is_list in ((sent, False), ([sent[0], sent[1, :3]], True)):
        expected = [plain[0], plain[1, :3]] if is_list else plain
        outputs, _ = attend(demo_server.url, "d2l", given)
        assert_same(outputs, Client(demo_server.url).attend("d2l", expected)[0], is_list)


@each_way
def test_address_may_lack_its_scheme(demo_server, attend):
    outputs, _ = attend(demo_server.url.removeprefix("http://"), "d2l", rows(3))
    assert outputs.shape == (3, 100)


def test_requests_are_read_by_the_safetensors_package():
    """Also where a tensor of 8 bytes a number begins at 36."""
    queries = RNG.normal(size=(3, 3)).astype(np.float32)
    body, headers = encode({"model": "journey", "queries": queries.T, "valid_lens": [1.0, 2.5],
                            "weights_heads": (1, 0), "weights_queries": [],
                            "need_weights": "mean", "causal": np.bool_(False), "timeout_ms": 1.5,
                            "priority": None, "head_mask": None}, False)
    assert headers == {"Content-Type": "application/vnd.safetensors"}
    tensors = safetensors.numpy.load(body)
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        "queries": queries.T.tolist(), "valid_lens": [1.0, 2.5], "weights_heads": [1, 0],
        "weights_queries": []}
    assert {name: str(tensor.dtype) for name, tensor in tensors.items()} == {
        "queries": "float32", "valid_lens": "float64", "weights_heads": "int64",
        "weights_queries": "int64"}
    size = int.from_bytes(body[:8], "little")
    assert size % 8 == 0  # so that attnd uses the queries in place
    header = json.loads(body[8:8 + size])
    assert header["__metadata__"] == {"model": "journey", "need_weights": "mean", "causal": "false",
                                      "timeout_ms": "1.5"}


@pytest.mark.parametrize("name, options", [
    ("values", {"keys": RAGGED, "values": RAGGED[::-1]}),
    ("valid_lens", {"queries": RAGGED, "valid_lens": [[1] * 7, [1] * 4]})])
def test_lengths_that_only_agree_in_their_sum_are_refused(name, options):
    """attnd sees all rows in one tensor, and cannot know."""
    with pytest.raises(ValueError, match=rf"{name} has sequences of \[7 4\] rows, .* \[4 7\] rows"):
        encode({"queries": RAGGED} | options, False)


@each_way
def test_error_has_the_problem(demo_server, attend):
    with pytest.raises(AttentionError, match="^Shape mismatch: queries are 99 wide") as caught:
        attend(demo_server.url, "d2l", np.zeros((4, 99)))
    assert caught.value.problem["field"] == "queries"
    assert len(caught.value.problem["request_id"]) == 32
    assert caught.value.problem["expected"] == [4, 100]


def test_error_that_is_not_json_has_its_status_and_text(demo_server):
    """libmicrohttpd itself refuses headers of this size, with a page."""
    client = Client(demo_server.url)
    client.headers["X-Large"] = "x" * 100_000
    with pytest.raises(AttentionError, match="Status 4.*: .*<html>") as caught:
        client.attend("d2l", rows(3))
    assert caught.value.problem["status"] in (413, 431)


def wait_for_refusals(server, count):
    """Waits until the log, which has a line for every request, has `count` replies of 503."""
    deadline = time.monotonic() + 30
    while server.read_log().count("status=503") < count:
        assert time.monotonic() < deadline, server.read_log()
        time.sleep(0.01)


def read_slowly(connection):
    """Reads until the connection is closed: who reads nothing for two seconds is ended for others."""
    with contextlib.suppress(OSError):
        while connection.socket.recv(1 << 16):
            time.sleep(0.2)


def fill(start_server):
    """Returns a server, and a connection whose reply holds 5 MB of its 11 MB, since it is read slowly."""
    server = start_server("--demo", "--max-memory", 11_100_000, "--log-level", "debug")
    holder = Connection(server.port)
    request = {"model": "d2l", "queries": [[0.5] * 100] * 500, "need_weights": True}
    holder.send(post_bytes(json.dumps(request).encode()))
    assert holder.receive()  # the reply has begun
    threading.Thread(target=read_slowly, args=[holder], daemon=True).start()
    return server, holder


@pytest.mark.alone
@each_way
def test_client_tries_again_after_503(start_server, attend):
    server, holder = fill(start_server)
    with holder, ThreadPoolExecutor(1) as thread:
        future = thread.submit(attend, server.url, "d2l", rows(1200))
        wait_for_refusals(server, 1)
        holder.socket.close()
        outputs, weights = future.result(timeout=60)
    assert outputs.shape == (1200, 100) and weights is None


@pytest.mark.alone
@each_way
def test_last_503_is_raised(start_server, attend, monkeypatch):
    monkeypatch.setattr(attnd.client, "MAX_RETRIES", 1)
    server, holder = fill(start_server)
    with holder, pytest.raises(AttentionError) as caught:
        attend(server.url, "d2l", rows(1200))
    assert caught.value.problem["status"] == 503
    wait_for_refusals(server, 2)
    assert server.read_log().count("status=503") == 2


def read_request(connection):
    """Reads one request to its end: who closes a connection with bytes unread resets it."""
    data, begin = b"", 0
    while not begin or len(data) < begin + int(re.search(rb"(?i)\ncontent-length: (\d+)|$", data)[1] or 0):
        piece = connection.recv(1 << 16)
        if not piece:
            break
        data += piece
        begin = data.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in data else 0
    return data


@contextlib.contextmanager
def one_server(*replies):
    """Yields the URL of a server that sends one of these texts on each connection, then nothing;
    and the list of requests that it got."""
    got = []

    def serve(listener):
        for reply in replies:
            with contextlib.suppress(OSError):  # nobody has come, or the client has left
                connection, _ = listener.accept()
                with connection:
                    got.append(read_request(connection))
                    connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", got
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def reply_of(body, status="200 OK", **headers):
    headers = {"Content_Type": "application/vnd.safetensors", "Content_Length": len(body)} | headers
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


def header_of(text):
    return len(text).to_bytes(8, "little") + text.encode()


NOT_A_REPLY = {
    "no safetensors": reply_of(b"hello, world"),
    "deep JSON": reply_of(header_of("[" * 100000)),
    "bytes of the header": reply_of(header_of('{"outputs":{"dtype":"F32","shape":[2],"data_offsets":[-9,9]}}') + bytes(64)),
    "tensors of another name": reply_of(header_of("{}")),
    "an encoding": reply_of(b"", Content_Encoding="gzip"),
    "a reply that is too long": reply_of(bytes(200000)),
    "an error of another form": reply_of(b"[]", "400 Bad", Content_Type="application/problem+json"),
}


@pytest.mark.parametrize("attend", [attend_safetensors, attend_asyncio])
@pytest.mark.parametrize("name", NOT_A_REPLY)
def test_reply_that_attnd_does_not_write_is_an_error_of_its_own(attend, name, monkeypatch):
    monkeypatch.setattr(Client.__init__, "__defaults__", (*Client.__init__.__defaults__[:-2], 100000, None))
    with one_server(NOT_A_REPLY[name]) as (url, _):
        with pytest.raises(AttentionError, match="^Reply not understood: ") as caught:
            attend(url, "d2l", rows(2))
    assert caught.value.problem["status"] == int(NOT_A_REPLY[name].split()[1])


@pytest.mark.parametrize("attend", [attend_safetensors, attend_asyncio])
def test_redirect_is_not_followed(attend):
    with one_server(reply_of(b"{}")) as (other, got_there):
        with one_server(reply_of(b"", "307 Temporary Redirect", Location=other)) as (url, got):
            with pytest.raises(AttentionError, match="307"):
                attend(url, "d2l", rows(2))
        assert len(got) == 1 and got_there == []


def attend_briefly(url):
    Client(url, timeout=0.3).attend("d2l", rows(2))


def attend_briefly_asyncio(url):
    async def attend():
        async with AsyncClient(url, timeout=0.3) as client:
            await client.attend("d2l", rows(2))
    asyncio.run(attend())


@pytest.mark.parametrize("attend", [attend_briefly, attend_briefly_asyncio])
def test_request_that_gets_no_reply_in_time_is_sent_once(attend):
    """The server accepts the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with pytest.raises(TimeoutError, match=r"within 0.3 s; .* Client\(timeout=3\)") as caught:
            attend(f"127.0.0.1:{listener.getsockname()[1]}")
        assert isinstance(caught.value, attnd.Error)
        listener.setblocking(False)
        listener.accept()[0].close()
        with pytest.raises(BlockingIOError):
            listener.accept()


@each_way
def test_address_where_nobody_listens_is_named(attend):
    with socket.socket() as bound:  # which has a port and does not listen
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionError, match="^no answer from http://127.0.0.1:.*; start attnd there, or give") as caught:
            attend(f"127.0.0.1:{bound.getsockname()[1]}", "d2l", rows(2))
    assert isinstance(caught.value, attnd.Error)


def test_reply_that_ends_early_is_an_error():
    with one_server(reply_of(b"half", Content_Length=8)) as (url, got):
        with pytest.raises(ConnectionError, match="ended 4 bytes early"):
            Client(url).attend("d2l", rows(2))
    assert len(got) == 1


def test_server_that_speaks_another_protocol_is_an_error():
    with one_server(b"220 mail.example.org ready\r\n") as (url, _):
        with pytest.raises(AttentionError, match="^Reply not understood: .* does not speak HTTP"):
            Client(url).attend("d2l", rows(2))


def test_connection_that_the_server_has_closed_is_opened_again():
    """Also for what is sent once only."""
    reply = reply_of(b'{"name": "text"}', Content_Type="application/json")
    with one_server(reply, reply) as (url, got):
        client = Client(url, headers={"Authorization": "Bearer KEY"})
        for _ in range(2):
            assert client.put_capture("text", b"file")["name"] == "text"
            assert attnd.client.is_readable(client._connection.sock.fileno(), 60)
    assert [request.count(b"Authorization: Bearer KEY\r\n") for request in got] == [1, 1]


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://user:password@host"])
def test_address_of_another_kind_is_refused(url):
    with pytest.raises(ValueError, match="is no address of attnd; use http://HOST:PORT"):
        Client(url)


@each_way
@pytest.mark.parametrize("options", [{"scale": object()}, {"causal": 1j}])
def test_options_of_a_type_that_json_lacks_are_refused(demo_server, attend, options):
    with pytest.raises(TypeError, match=f"^{next(iter(options))} is"):
        attend(demo_server.url, rows(3)[:, None], rows(3)[:, None], method="dot_product", **options)


@pytest.mark.parametrize("after", ["1000000000", "9" * 40])
def test_wait_is_within_reason(after):
    assert attnd.client.seconds_to_wait(503, {"Retry-After": after}) == attnd.client.MAX_WAIT
    assert attnd.client.seconds_to_wait(503, {"Retry-After": "2"}) == 2


@pytest.mark.parametrize("after", ["", "\u00b2", "-1", "Fri, 27 Nov 2026 12:00:00 GMT"])
def test_wait_that_is_no_number_is_none(after):
    assert attnd.client.seconds_to_wait(503, {"Retry-After": after}) is None


@pytest.mark.parametrize("fields, words", [
    ({"queries": np.zeros((2, 100), np.uint16)}, "BFLOAT16"),
    ({"queries": rows(2).astype(complex)}, "complex128"),
    ({"queries": rows(2), "bias": np.ones((2, 2), bool)}, "booleans as attn_mask"),
    ({"queries": rows(2), "valid_lens": np.ones((1, 2), bool)}, r"mask\.sum\(-1\)")])
def test_numbers_that_would_be_misread_are_refused(fields, words):
    with pytest.raises(TypeError, match=words):
        encode(fields, as_json=False)


@pytest.mark.parametrize("queries", [np.zeros((2, 100), np.uint16), [np.zeros((2, 100), np.uint16)]])
def test_json_of_numbers_that_would_be_misread_is_refused(queries):
    with pytest.raises(TypeError, match="BFLOAT16"):
        encode({"queries": queries}, as_json=True)
