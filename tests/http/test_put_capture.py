# SPDX-License-Identifier: Apache-2.0
"""Captures that are put once and asked by name: by the client, and by the capture kit."""

import asyncio
import contextlib
import functools
import hashlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from server import ROOT, Server, steady_address

sys.path.insert(0, str(ROOT / "docs/examples"))

from attnd import captured as captured_module
from attnd import BFLOAT16, AsyncClient, AttentionError, Client
from attnd._safetensors import CaptureError
from attnd.captured import Captured, open_capture

FILE = ROOT / "docs/examples/tiny-gpt2/capture.safetensors"
HASH = hashlib.sha256(FILE.read_bytes()).hexdigest()
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


class Waiting:
    """An AsyncClient whose methods are called as those of a Client."""

    def __init__(self, url):
        self.runner = asyncio.Runner()
        self.client = self.runner.run(AsyncClient(url).__aenter__())

    def __getattr__(self, name):
        async def call(*arguments, **options):
            return await getattr(self.client, name)(*arguments, **options)
        return lambda *arguments, **options: self.runner.run(call(*arguments, **options))

    def close(self):
        self.runner.run(self.client.__aexit__())
        self.runner.close()


WAYS = {"safetensors": Client, "json": functools.partial(Client, json=True), "asyncio": Waiting}


@pytest.fixture(params=WAYS)
def make_client(request):
    with contextlib.ExitStack() as stack:
        def make(url):
            client = WAYS[request.param](url)
            if hasattr(client, "close"):
                stack.callback(client.close)
            return client
        yield make


@pytest.fixture(scope="module")
def server():
    with Server("--demo", "--capture-memory", "16MiB") as running:
        yield running


@pytest.fixture(autouse=True)
def empty(server):
    """Every test begins without captures."""
    for found in Client(server.url).captures():
        Client(server.url).delete_capture(found["name"])


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for word in got:
        for array, wanted in zip(*([each] if word != "top" else each for each in (got[word], expected[word])), strict=True):
            assert array.dtype == wanted.dtype and array.shape == wanted.shape and array.tobytes() == wanted.tobytes()


# The client


@pytest.mark.parametrize("options", [
    {"need": ["weights", "lse"]}, {"need": "received", "weights_heads": 2}, {"causal": False},
    {"need": ["top", "spans"], "top_k": 3, "spans": [[0, 5], [5, 31]], "weights_queries": [-1, 1]}])
def test_capture_is_asked_as_if_its_tensors_were_sent(server, make_client, options):
    client = make_client(server.url)
    client.put_capture("text", FILE)
    request = open_capture(FILE).request(1)
    assert_same(client.attend(capture="text", layer=1, **options), client.dot_product(**request | options))
    rows = request | {"queries": request["queries"][5:9], "positions": np.arange(5, 9)} | options
    assert_same(client.attend(capture="text", layer="1", query_rows=[5, 9], **options), client.dot_product(**rows))
    rows["queries"] = normal(4, 4, 16)
    sent = {"queries": rows["queries"], "positions": rows["positions"]}
    assert_same(client.attend(capture="text", layer=1, **sent | options), client.dot_product(**rows))


@pytest.mark.parametrize("data", [FILE, str(FILE), FILE.read_bytes(), bytearray(FILE.read_bytes()), lambda: FILE,
                                  FILE.read_bytes], ids=["path", "text", "bytes", "array", "function", "read"])
def test_capture_without_a_name_has_that_of_its_bytes(server, make_client, data):
    client = make_client(server.url)
    for _ in range(2):  # 201, then 200
        described = client.put_capture(None, data, ttl=60)
        assert (described["name"], described["sha256"], described["ttl"]) == (HASH, HASH, 60)
        assert [layer["queries"] for layer in described["layers"]] == [[31, 4, 16]] * 2
    found, = client.captures()
    assert (found["name"], found["num_layers"]) == (HASH, 2)


def test_deleted_capture_is_gone(server, make_client):
    client = make_client(server.url)
    client.put_capture("a", FILE)
    client.put_capture("b", FILE)
    assert client.delete_capture("a") is None
    assert [found["name"] for found in client.captures()] == ["b"]
    for ask in (lambda: client.attend(capture="a", layer=0), lambda: client.delete_capture("a")):
        with pytest.raises(AttentionError, match="^Unknown capture: ") as caught:
            ask()
        assert caught.value.problem["status"] == 404 and len(caught.value.problem["request_id"]) == 32


@pytest.mark.parametrize("data", [FILE, FILE.read_bytes])
def test_client_puts_again_what_the_server_has_lost(server, make_client, data):
    client, other = make_client(server.url), make_client(server.url)
    client.put_capture("text", data, ttl=50)
    before = client.attend(capture="text", layer=0)
    for _ in range(2):
        other.delete_capture("text")
        with pytest.raises(AttentionError, match="^Unknown capture: "):
            other.attend(capture="text", layer=0)
        assert_same(client.attend(capture="text", layer=0), before)
        assert [found["ttl"] for found in client.captures()] == [50]


def test_client_puts_again_after_a_restart(start_server, make_client):
    options = {"listen": steady_address()}
    first = start_server("--capture-memory", "1MiB", **options)
    client = make_client(first.url)
    client.put_capture(None, FILE)
    before = client.attend(capture=HASH, layer=0)
    first.stop()
    start_server("--capture-memory", "1MiB", **options)
    assert_same(client.attend(capture=HASH, layer=0), before)


@pytest.mark.parametrize("ask, message", [
    (lambda client: client.put_capture("text", b"x"), "^Capture exists: "),
    (lambda client: client.put_capture("te/xt?", FILE), "^Bad capture name: "),
    (lambda client: client.put_capture("0" * 64, FILE), "^Bad capture name: "),
    (lambda client: client.put_capture("large", bytes(9 << 20)), "^Capture too large: "),
    (lambda client: client.attend(capture="text"), "^Unknown layer: "),
    (lambda client: client.attend(capture="text", layer=2), "^Unknown layer: "),
    (lambda client: client.attend("d2l", capture="text", layer=1), "^Unknown key: .*model"),
    (lambda client: client.attend(capture="text", layer=1, need="heads"), "values")])
def test_errors_of_captures_are_raised(server, make_client, ask, message):
    client = make_client(server.url)
    client.put_capture("text", FILE)
    with pytest.raises(AttentionError, match=message):
        ask(client)
    assert client.attend(capture="text", layer=1)["weights"].shape == (4, 31, 31)


# What the client does when replies fail


class Replies(ThreadingHTTPServer):
    """Replies to each request as it is told: a status and headers, or None to hang up."""

    def __init__(self, *replies):
        super().__init__(("127.0.0.1", 0), Handler)
        self.replies, self.requests = list(replies), []
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.thread = threading.Thread(target=self.serve_forever, args=[0.05])
        self.thread.start()

    def __exit__(self, *_):
        self.shutdown()
        self.thread.join()
        super().__exit__()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.command, self.path, body))
        reply = self.server.replies.pop(0)
        if reply is None:
            self.close_connection = True
            return
        status, headers = reply
        titles = {404: "Unknown capture", 503: "Overloaded", 429: "Too many requests", 507: "Captures full"}
        text = json.dumps({"status": status, "title": titles.get(status), "detail": "it is", "name": "text"}).encode()
        self.send_response(status)
        for name, value in ({"Content-Type": "application/problem+json", "Content-Length": len(text)} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    do_PUT = do_POST = reply

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("busy", [503, 429])
def test_put_waits_while_the_server_is_busy(make_client, busy):
    with Replies((busy, {"Retry-After": "0"}), (busy, {"Retry-After": "1"}), (201, {})) as replies:
        assert make_client(replies.url).put_capture("text", FILE)["name"] == "text"
        assert replies.requests == [("PUT", "/v1/captures/text", FILE.read_bytes())] * 3


@pytest.mark.parametrize("reply, error", [
    ((507, {"Retry-After": "1"}), AttentionError), ((503, {}), AttentionError), (None, Exception),
    ((503, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}), AttentionError)])
def test_put_that_may_have_been_read_is_not_sent_again(reply, error):
    with Replies(reply, (201, {})) as replies:
        with pytest.raises(ConnectionError if reply is None else error):
            Client(replies.url).put_capture("text", FILE)
        assert len(replies.requests) == 1


def test_problem_of_a_full_server_is_raised_at_once(make_client):
    with Replies((507, {"Retry-After": "1"}), (201, {})) as replies:
        with pytest.raises(AttentionError, match="^Captures full: it is"):
            make_client(replies.url).put_capture("text", FILE)
        assert len(replies.requests) == 1


def test_capture_that_stays_unknown_is_put_once(make_client):
    with Replies((201, {}), (404, {}), (201, {}), (404, {})) as replies:
        client = make_client(replies.url)
        client.put_capture("text", FILE, ttl=7)
        with pytest.raises(AttentionError, match="^Unknown capture: "):
            client.attend(capture="text")
        assert [request[:2] for request in replies.requests] == [
            ("PUT", "/v1/captures/text?ttl=7"), ("POST", "/v1/captures/text/attention")] * 2


def test_question_that_is_cut_off_is_sent_again():
    with Replies(None, (503, {"Retry-After": "0"}), (404, {})) as replies:
        with pytest.raises(AttentionError, match="^Unknown capture: "):
            Client(replies.url).attend(capture="text")
        assert len(replies.requests) == 3


# Captured.put()


def make_request(**options):
    return {"queries": normal(6, 4, 8), "keys": normal(9, 2, 8), "scale": 0.25, "causal": False} | options


BF16 = (normal(9, 2, 8).view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)
REQUESTS = {
    "plain": {},
    "values": {"values": normal(9, 2, 6)},
    "causal": {"causal": True, "window": 3, "positions": np.arange(3, 9), "softcap": 2.0},
    "key positions": {"causal": True, "positions": np.arange(8, 2, -1), "key_positions": np.arange(0, 18, 2)},
    "slopes and sinks": {"slopes": normal(4), "sinks": normal(4), "positions": np.arange(3, 9)},
    "bias": {"bias": np.where(normal(1, 6, 9) > 1, -np.inf, normal(1, 6, 9)).astype(np.float32)},
    "bfloat16": {"keys": BF16, "values": BF16},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_put_changes_no_result(server, name):
    captured = Captured({"encoder.0": [make_request(), make_request(**REQUESTS[name])], "text.1": [make_request()] * 2})
    words = ["weights", "lse", "received"] + ["heads"] * ("values" in REQUESTS[name])
    for options in ({}, {"heads": [3, 0], "queries": -1}):
        ask = functools.partial(captured.attend, "encoder.0", words, sequence=1, **options)
        assert_same(captured.put(server.url, sequence=1) and ask(), ask(client=server.url))
        assert_same(ask(client=Client(server.url, json=True)), ask())
    assert "1" not in captured.kept and len(Client(server.url).captures()) == 1


def test_what_was_put_is_asked_without_its_tensors(server):
    captured, client = Captured({"7": [make_request(), make_request()]}), Client(server.url)
    captured.put(client)
    assert captured.attend(7, "lse").shape == (6, 4)
    client.dot_product = None  # which sends them
    assert captured.attend(7, "received", queries=range(2)).shape == (4, 9)
    assert captured.bertviz()["attention"][0].shape == (1, 4, 6, 9)
    with pytest.raises(CaptureError, match="heads are sums of values"):
        captured.attend(7, "heads")


@pytest.mark.parametrize("name", REQUESTS)
def test_loaded_capture_has_the_name_of_its_file(server, name, tmp_path):
    Captured({"3": [make_request(**REQUESTS[name])]}, ["a"]).save(tmp_path / "file")
    for path in (tmp_path / "file", FILE):
        assert open_capture(path).put(server.url) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_capture_that_the_server_lost_is_put_again(server):
    captured = open_capture(FILE)
    captured.put(server.url)
    before = captured.attend(1)
    Client(server.url).delete_capture(HASH)
    assert np.array_equal(captured.attend(1), before)
    assert [found["name"] for found in Client(server.url).captures()] == [HASH]


@pytest.mark.parametrize("change", [
    lambda request: request.update(window=4), lambda request: request.update(keys=request["keys"] * 2),
    lambda request: request.update(scale=0.75)])
def test_capture_that_has_changed_since_is_put_again(server, change):
    captured = open_capture(FILE)
    name = captured.put(server.url)
    before = captured.attend(1)
    with pytest.raises(ValueError, match="read-only"):
        captured.request(1)["keys"][0] = 0
    change(captured.layers["1"][0])
    after = captured.attend(1)
    assert not np.array_equal(after, before)
    assert np.array_equal(after, captured.attend(1, client=server.url))
    assert len(Client(server.url).captures()) == 2 and captured.kept[0][1] != name


def test_server_that_keeps_none_is_an_error_that_tells_the_option(demo_server):
    captured = open_capture(FILE)
    with pytest.raises(AttentionError, match="^Captures are off: this server keeps no captures; .* --capture-memory 4GiB"):
        captured.put(demo_server.url)
    assert captured.attend(1, client=demo_server.url).shape == (4, 31, 31)
    with pytest.raises(AttentionError, match="^Captures are off: "):
        Client(demo_server.url).captures()


def test_other_errors_of_put_are_raised_as_they_are(server):
    captured = Captured({"0": [make_request(window=-1)]})
    with pytest.raises(AttentionError, match="window"):
        captured.put(server.url)
    assert not captured.kept


# docs/inspect.md


def test_page_shows_what_put_and_attend_print(server, monkeypatch, capsys):
    page = (ROOT / "docs/inspect.md").read_text().split("## Ask the same capture often")[1]
    code, shown = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", page, re.S).groups()
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(captured_module, "Client", lambda: Client(server.url))
    exec(code, {})
    assert capsys.readouterr().out == shown
