# SPDX-License-Identifier: Apache-2.0
"""POST /v2/repository/models/NAME/load and unload."""

import json
import signal
import threading
import time
from pathlib import Path

import pytest
import requests
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from checkpoints import write_layer
from http1 import Connection, send_unfinished
from reload import index, names, replace, wait_for_log, wait_until, write_huge_layer, write_wide_layer
from scrape import Scrape

ROW = {"queries": [[1, 2, 3]]}


@pytest.fixture
def folder(tmp_path):
    """Returns a folder with the models a and b."""
    for seed, name in enumerate("ab"):
        write_layer(tmp_path / f"{name}.safetensors", 1, 4, 3, seed=seed)
    return tmp_path


@pytest.fixture
def server(start_server, folder):
    return start_server("--model-dir", folder, "--model-control", "explicit")


def change(server, verb, name, body=""):
    return requests.post(f"{server.url}/v2/repository/models/{name}/{verb}", data=body, timeout=60)


def assert_error(reply, status, *texts):
    assert reply.status_code == status, reply.text
    assert all(text in reply.json()["error"] for text in texts), reply.text


def test_all_models_are_loaded_at_start(server):
    assert names(server) == ["a", "b"]
    assert index(server) == {"a": ("READY", ""), "b": ("READY", "")}


def test_second_model_of_a_name_is_never_loaded(start_server, folder, tmp_path_factory):
    first = tmp_path_factory.mktemp("first") / "first.safetensors"
    write_layer(first, 1, 4, 3, seed=7)
    server = start_server("--model", f"a={first}", "--model-dir", folder, "--skip-bad-models",
                          "--model-control", "explicit")
    for seed in 8, 9:
        before = server.attention(ROW | {"model": "a"}).content
        replace(first, lambda path, seed=seed: write_layer(path, 1, 4, 3, seed=seed))
        assert change(server, "load", "a").status_code == 200
        assert server.attention(ROW | {"model": "a"}).content != before
    assert change(server, "unload", "a").status_code == 200
    assert names(server) == ["b"]
    assert change(server, "load", "a").status_code == 200
    assert names(server) == ["a", "b"]


def test_model_is_unloaded_and_loaded_again(server):
    before = server.attention(ROW | {"model": "a"}).content
    reply = change(server, "unload", "a")
    assert (reply.status_code, reply.content) == (200, b"")
    assert names(server) == ["b"]
    assert index(server) == {"a": ("UNAVAILABLE", "unloaded"), "b": ("READY", "")}
    assert server.attention(ROW | {"model": "a"}).status_code == 404
    assert server.get("/v2/models/a/ready").status_code == 404
    assert change(server, "unload", "a").status_code == 200  # it is unloaded already
    assert change(server, "load", "a").status_code == 200
    assert server.attention(ROW | {"model": "a"}).content == before
    assert index(server) == {"a": ("READY", ""), "b": ("READY", "")}


def test_log_says_who_asked(start_server, folder, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("alice:0123456789abcdef0123456789abcdef\n")
    server = start_server("--model-dir", folder, "--model-control", "explicit", "--access-log", "--api-key-file", keys)
    bearer = {"Authorization": "Bearer 0123456789abcdef0123456789abcdef"}
    for verb in ("unload", "load"):
        reply = requests.post(f"{server.url}/v2/repository/models/a/{verb}", headers=bearer, timeout=60)
        assert reply.status_code == 200, reply.text
        wait_for_log(server, f"/{verb} model=a client=127.0.0.1 key=alice status=200")
        time.sleep(1)  # only the first change in a second has lines
    for verb in ("unload", "load"):
        assert f"info model {verb}ed model=a client=127.0.0.1 key=alice\n" in server.read_log()


def test_unloaded_model_stays_so_when_the_others_are_read_again(server, folder):
    change(server, "unload", "a")
    write_layer(folder / "c.safetensors", 1, 4, 3)
    server.process.send_signal(1)
    wait_for_log(server, "models reloaded kept=1 added=1 replaced=0 removed=0 failed=0 unloaded=1")
    assert names(server) == ["b", "c"]
    assert index(server)["a"] == ("UNAVAILABLE", "unloaded")


def test_load_reads_a_file_that_has_changed_and_one_that_is_new(server, folder):
    before = server.attention(ROW | {"model": "a"}).content
    assert change(server, "load", "a").status_code == 200  # nothing to do
    assert server.attention(ROW | {"model": "a"}).content == before
    assert server.read_log().count("info model name=a") == 1
    replace(folder / "a.safetensors", lambda path: write_layer(path, 1, 4, 3, seed=7))
    write_layer(folder / "new.safetensors", 1, 4, 3)
    assert change(server, "load", "a").status_code == 200
    assert server.attention(ROW | {"model": "a"}).content != before
    assert change(server, "load", "new").status_code == 200
    assert names(server) == ["a", "b", "new"]


def test_last_model_may_be_unloaded(server):
    for name in "ab":
        assert change(server, "unload", name).status_code == 200
    reply = server.get("/v2/health/ready")
    assert (reply.status_code, reply.json()) == (503, {"ready": False, "reason": "no model is loaded"})
    assert server.get("/v1/models").json() == {"models": []}
    assert server.get("/v2/models/stats").json() == {"model_stats": []}
    reply = server.attention(ROW)
    assert reply.status_code == 404 and "no model is loaded" in reply.json()["detail"]
    change(server, "load", "b")
    assert server.get("/v2/health/ready").status_code == 200
    assert server.attention(ROW).status_code == 200


def test_counters_of_a_model_begin_again_when_it_was_unloaded(server):
    def count():
        return Scrape(server).sum("attnd_requests_total", route="/v1/attention", model="b", status="200")
    assert server.attention(ROW | {"model": "b"}).status_code == 200
    assert count() == 1
    change(server, "unload", "b")
    assert count() == 0
    change(server, "load", "b")
    assert count() == 0
    assert server.attention(ROW | {"model": "b"}).status_code == 200
    assert count() == 1


@pytest.mark.parametrize("verb", ["load", "unload"])
@pytest.mark.parametrize("name", ["unknown", "a.safetensors", "a.new", "%2e%2e", "..%2fa", "x" * 65,
                                  "x" * 300])
def test_name_that_is_not_configured_is_unknown(server, folder, verb, name):
    write_layer(folder.parent / "outside.safetensors", 1, 4, 3)
    write_layer(folder / "a.new", 1, 4, 3)
    assert_error(change(server, verb, name), 404, "name" if len(name) > 64 else "--model-dir")
    assert_error(change(server, verb, "..%2foutside"), 404)
    assert names(server) == ["a", "b"]


def test_paths_are_not_names(server):
    for path in ("a/b", "../a", "/etc/passwd", ""):
        with Connection(server.port) as connection:
            connection.send(f"POST /v2/repository/models/{path}/load HTTP/1.1\r\nHost: x\r\n"
                            "Content-Length: 0\r\n\r\n".encode())
            assert connection.read_reply().status == 404


@pytest.mark.parametrize("write, reason", [
    (lambda path: path.write_bytes(b"x"), "a.safetensors"),
    (write_huge_layer, "it needs 2748"),
    (lambda path: path.mkdir(), "is a directory")], ids=("garbage", "huge", "folder"))
def test_file_that_cannot_be_loaded_is_an_error_and_leaves_the_model(server, folder, write, reason):
    before = server.attention(ROW | {"model": "a"}).content
    (folder / "a.safetensors").unlink()
    write(folder / "a.safetensors")
    reply = change(server, "load", "a")
    assert_error(reply, 409, "failed to load 'a'", reason)
    assert str(folder) not in reply.text, "clients are told of no path"
    assert server.attention(ROW | {"model": "a"}).content == before
    state, why = index(server)["a"]
    assert state == "READY" and reason in why
    change(server, "unload", "a")
    assert_error(change(server, "load", "a"), 409, reason)
    state, why = index(server)["a"]
    assert state == "UNAVAILABLE" and reason in why


def test_file_that_is_gone_is_unknown(server, folder):
    (folder / "a.safetensors").unlink()
    assert_error(change(server, "load", "a"), 404)
    assert names(server) == ["a", "b"]  # it is served until it is unloaded, or SIGHUP


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_models_are_not_controlled_by_default(start_server, verb):
    server = start_server("--demo")
    for name in ("d2l", "unknown"):
        assert_error(change(server, verb, name), 403, "explicit model load / unload is not allowed",
                     "--model-control explicit")
    assert server.get("/v1/models/d2l").status_code == 200


@pytest.mark.parametrize("body, status", [
    ("{}", 200), ('{"parameters": {}}', 200), ('{"parameters": null}', 200),
    ('{"parameters": {"unload_dependents": true}}', 200),
    ('{"parameters": {"config": "{}"}}', 400), ('{"config": 1}', 400), ("[]", 400), ("{", 400),
    ('{"parameters": {"unload_dependents": 1}}', 400), ('{"parameters": 1}', 400),
    (" " * 70000, 413)])
def test_body_may_ask_for_nothing_else(server, body, status):
    assert change(server, "unload", "b", body).status_code == status
    assert names(server) == (["a"] if status == 200 else ["a", "b"])


def test_built_in_models_are_loaded_and_unloaded(start_server):
    server = start_server("--demo", "--model-control", "explicit")
    assert change(server, "unload", "d2l").status_code == 200
    assert server.get("/v1/models/d2l").status_code == 404
    assert change(server, "load", "d2l").status_code == 200
    assert server.get("/v1/models/d2l").status_code == 200


def test_other_requests_go_on_while_a_model_loads(server, folder):
    """The layer takes some 0.3 s to load, and a request 1 ms. There is one HTTP thread."""
    write_wide_layer(folder / "wide.safetensors")
    with Connection(server.port, timeout=60) as loads:
        loads.send(b"POST /v2/repository/models/wide/load HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        assert server.attention(ROW | {"model": "a"}).status_code == 200
        assert server.get("/v2/health/ready").status_code == 200
        assert names(server) == ["a", "b"], "it was loaded before, so nothing is tested"
        assert loads.read_reply().status == 200
    assert names(server) == ["a", "b", "wide"]


def test_client_that_leaves_does_not_stop_the_load(server, folder):
    write_wide_layer(folder / "wide.safetensors")
    with Connection(server.port) as loads:
        loads.send(b"POST /v2/repository/models/wide/load HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        server.get("/v2/health/live")
    wait_for_log(server, "info model name=wide")
    assert server.is_alive()


def test_loads_and_unloads_from_many_clients_take_turns(server, folder):
    """Each model is loaded at the end, since that is the last that its client asks for."""
    errors = []

    def toggle(name):
        for verb in ("unload", "load") * 10:
            reply = change(server, verb, name)
            if reply.status_code != 200:
                errors.append(reply.text)

    for i in range(8):
        write_layer(folder / f"m{i}.safetensors", 1, 4, 3)
        change(server, "load", f"m{i}")
    threads = [threading.Thread(target=toggle, args=(f"m{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert names(server) == ["a", "b"] + [f"m{i}" for i in range(8)]


def test_requests_that_do_not_end_hold_few_generations(server):
    """Each began with other models. A change is refused until some of them have ended; SIGHUP is not."""
    held, verbs = [], ("unload", "load") * 40
    for verb in verbs:
        reply = change(server, verb, "b")
        if reply.status_code != 200:
            break
        held.append(Connection(server.port, timeout=60))
        send_unfinished(held[-1], json.dumps(ROW | {"model": "a"}).encode())
    assert_error(reply, 409, "have not ended", "SIGHUP")
    assert 8 <= len(held) <= 40
    server.process.send_signal(signal.SIGHUP)
    wait_for_log(server, "models reloaded")
    assert change(server, verb, "b").status_code == 409
    for connection in held[:2]:
        connection.send(b"}")
        assert connection.read_reply().status == 200
    assert change(server, verb, "b").status_code == 200
    for connection in held:
        connection.socket.close()


def test_stop_waits_for_the_model_that_loads_and_refuses_the_next(start_server, folder):
    server = start_server("--model-dir", folder, "--model-control", "explicit", "--grace", 300)
    write_wide_layer(folder / "w.safetensors")
    (folder / "v.safetensors").symlink_to(folder / "w.safetensors")
    status = Path(f"/proc/{server.process.pid}/statm")
    before = int(status.read_text().split()[1])
    with Connection(server.port, timeout=180) as first, Connection(server.port, timeout=180) as next_one:
        for connection, name in ((first, "w"), (next_one, "v")):
            connection.send(f"POST /v2/repository/models/{name}/load HTTP/1.1\r\nHost: x\r\n"
                            "Content-Length: 0\r\n\r\n".encode())
            server.get("/v2/health/live")
            # The thread that loads is nice, and has 64 MiB to read.
            wait_until(lambda: int(status.read_text().split()[1]) > before + 1000, "pages of the first model")
        server.process.send_signal(15)
        assert first.read_reply().status == 200
        reply = next_one.read_reply()
        assert reply.status == 409 and "attnd is stopping" in reply.json()["error"]
    server.wait()


def test_triton_client(server):
    client = triton.InferenceServerClient(server.url.removeprefix("http://"))
    client.unload_model("a")
    assert not client.is_model_ready("a") and client.is_model_ready("b")
    assert {entry["name"]: entry["state"] for entry in client.get_model_repository_index()} == {
        "a": "UNAVAILABLE", "b": "READY"}
    client.load_model("a")
    assert client.is_model_ready("a")
    with pytest.raises(InferenceServerException, match="'config' is not a key"):
        client.load_model("a", config=json.dumps({"max_batch_size": 8}))
    with pytest.raises(InferenceServerException, match="--model-dir"):
        client.load_model("unknown")
