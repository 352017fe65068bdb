# SPDX-License-Identifier: Apache-2.0
"""SIGHUP: models are read again, and no request is lost or sees two generations at one time."""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_layer
from http1 import Connection, get_bytes, post_bytes
from reload import (context_lengths, index, names, reload, replace, wait_for_log, wait_until,
                    write_huge_layer, write_wide_layer)
from safetensors_file import write_safetensors
from scrape import wait_for_counters
from server import BINARY, clean_environment, is_sanitized

NUM_RELOADS = 30
WIDTH = 64
ROWS = np.random.default_rng(5).normal(size=(8, WIDTH)).round(2).tolist()


def write_generation(folder, number):
    """Writes x and y, whose context lengths say which generation they are of; the weights are one of
    two sets."""
    for seed, name in enumerate("xy"):
        replace(folder / f"{name}.safetensors", lambda path: write_layer(
            path, num_heads=4, head_size=16, query_size=WIDTH, seed=seed + 2 * (number % 2),
            context_length=str(1000 + number)))


def resident_bytes(server):
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


class Client(threading.Thread):
    """Sends one request after the other until it is told to end; checks each reply."""

    def __init__(self, port, request, check):
        super().__init__()
        self.connection = Connection(port, timeout=60)
        self.request, self.check = request, check
        self.count, self.error, self.ends = 0, None, False

    def run(self):
        try:
            with self.connection as connection:
                while not self.ends:
                    connection.send(self.request)
                    reply = connection.read_reply()
                    assert reply is not None, "closed without a reply"
                    assert reply.status == 200, reply
                    self.check(reply.body)
                    self.count += 1
                    time.sleep(0.002)  # seven clients without a pause would be most of the load of the machine
        except Exception as error:  # pylint: disable=broad-except
            self.error = error


def one_of(answers):
    def check(body):
        assert body in answers, "an answer of neither generation"
    return check


def check_list(body):
    lengths = {model["context_length"] for model in json.loads(body)["models"]}
    assert len(lengths) == 1, f"models of two generations: {lengths}"


@pytest.mark.alone
@pytest.mark.timeout(600)  # signals are obeyed ten times a second at most, and a sanitizer is slow
def test_reloads_under_load_lose_nothing_and_mix_nothing(start_server, tmp_path):
    write_generation(tmp_path, 0)
    server = start_server("--model-dir", tmp_path, "--http-threads", 2, "--workers", 2)
    long_rows = np.random.default_rng(6).normal(size=(300, WIDTH)).round(2).tolist()
    kinds = {  # the third is streamed
        name: post_bytes(json.dumps({"model": model, "queries": rows} | fields).encode())
        for name, model, rows, fields in (("x", "x", ROWS, {}), ("y", "y", ROWS[:1], {}),
                                          ("long", "x", long_rows, {"need_weights": True}))}
    answers = {name: [] for name in kinds}
    for number in range(2):
        for name, request in kinds.items():
            with Connection(server.port, timeout=60) as connection:
                connection.send(request)
                answers[name].append(connection.read_reply().body)
        write_generation(tmp_path, number + 1)
        reload(server)
        wait_until(lambda: set(context_lengths(server).values()) == {1001 + number}, "reload")
    assert all(len(set(pair)) == 2 for pair in answers.values())

    clients = [Client(server.port, request, one_of(answers[name]))
               for name, request in kinds.items() for _ in range(2)]
    clients.append(Client(server.port, get_bytes("/v1/models"), check_list))
    before = resident_bytes(server)
    for client in clients:
        client.start()
    for number in range(3, 3 + NUM_RELOADS):
        write_generation(tmp_path, number)
        reload(server)
        wait_until(lambda: set(context_lengths(server).values()) == {1000 + number}, "reload")
    for client in clients:
        client.ends = True
    for client in clients:
        client.join()
    assert [client.error for client in clients] == [None] * len(clients)
    assert min(client.count for client in clients) > 0
    # The counters of a model go on from generation to generation.
    sent = {name: 2 + sum(client.count for client in clients if client.request == kinds[name])
            for name in kinds}
    wait_for_counters()
    stats = {entry["name"]: entry["inference_stats"]["success"]["count"]
             for entry in server.get("/v2/models/stats").json()["model_stats"]}
    assert stats == {"x": sent["x"] + sent["long"], "y": sent["y"]}
    print(f"{sum(client.count for client in clients)} requests in {NUM_RELOADS} reloads")
    if not is_sanitized():
        assert resident_bytes(server) < before + 64e6
    assert server.read_log().count("models reloaded") == NUM_RELOADS + 2


def test_earlier_generations_are_freed(start_server, tmp_path):
    """Each has 16 MiB of weights."""
    def write(seed):
        replace(tmp_path / "x.safetensors", lambda path: write_layer(
            path, num_heads=16, head_size=64, query_size=1024, seed=seed))

    write(0)
    server = start_server("--model-dir", tmp_path)
    idle = resident_bytes(server)
    for seed in range(1, 9):
        write(seed)
        reload(server)
        wait_for_log(server, "models reloaded", seed)
    wait_until(lambda: resident_bytes(server) < idle + 40e6 or is_sanitized(), "freed")


def test_files_are_added_and_removed_and_the_others_kept(start_server, tmp_path):
    for name in "ab":
        write_layer(tmp_path / f"{name}.safetensors", 1, 4, 3)
    fixed = tmp_path / "fixed"
    write_layer(fixed, 1, 4, 3)
    server = start_server("--model-dir", tmp_path, "--model", f"m={fixed}", "--demo")
    assert names(server) == ["a", "b", "d2l", "journey", "m", "patterns", "stacked"]
    (tmp_path / "a.safetensors").unlink()
    write_layer(tmp_path / "c.safetensors", 1, 4, 3)
    reload(server)
    wait_for_log(server, "models reloaded kept=6 added=1 replaced=0 removed=1 failed=0 unloaded=0")
    assert names(server) == ["b", "c", "d2l", "journey", "m", "patterns", "stacked"]
    assert "model removed name=a" in server.read_log()
    assert server.attention({"model": "a", "queries": [[1, 2, 3]]}).status_code == 404
    assert server.attention({"model": "c", "queries": [[1, 2, 3]]}).status_code == 200
    os.utime(fixed, ns=(1, 1))  # the file of --model, too, is read again when it was touched
    reload(server)
    wait_for_log(server, "models reloaded kept=6 added=0 replaced=1 removed=0 failed=0 unloaded=0")


def test_new_models_are_warm_on_every_worker_before_they_are_served(start_server, tmp_path):
    path = tmp_path / "a.safetensors"
    write_layer(path, 1, 4, 3, seed=1)
    server = start_server("--model-dir", tmp_path, "--workers", 3, "--log-level", "debug")
    assert server.read_log().count("worker warmed up models=1") == 3
    replace(path, lambda new: write_layer(new, 1, 4, 3, seed=2))
    reload(server)
    wait_for_log(server, "models reloaded kept=0 added=0 replaced=1")
    before_it = server.read_log().split("models reloaded")[0]
    assert before_it.count("worker warmed up models=1") == 6
    reload(server)  # nothing is new
    wait_for_log(server, "models reloaded kept=1")
    assert server.read_log().count("worker warmed up") == 6


def test_unchanged_models_are_not_loaded_again(start_server, tmp_path):
    write_layer(tmp_path / "a.safetensors", 1, 4, 3)
    server = start_server("--model-dir", tmp_path)
    for count in range(1, 4):
        reload(server)
        wait_for_log(server, "models reloaded kept=1 added=0 replaced=0 removed=0 failed=0 unloaded=0", count)


@pytest.mark.parametrize("write, reason", [
    (lambda path: path.write_bytes(b"not safetensors"), "it is a text"),
    (lambda path: write_safetensors(path, {"W_q.weight": np.full((4, 3), np.nan)}), "a.safetensors"),
    (lambda path: path.unlink(), "No such file"),
    (lambda path: (path.unlink(), path.mkdir()), "is a directory"),
], ids=("garbage", "incomplete", "gone", "folder"))
def test_bad_file_leaves_the_model_that_is_served(start_server, tmp_path, write, reason):
    path = tmp_path / "a.safetensors"
    write_layer(path, 1, 4, 3, seed=1)
    write_layer(tmp_path / "b.safetensors", 1, 4, 3)
    server = start_server("--model", f"a={path}", "--model", f"b={tmp_path}/b.safetensors")
    request = {"model": "a", "queries": [[1, 2, 3]]}
    before = server.attention(request).content
    write(path)
    reload(server)
    wait_for_log(server, "models reloaded kept=1 added=0 replaced=0 removed=0 failed=1 unloaded=0")
    log = server.read_log()
    assert "warn model not loaded name=a reason=" in log and reason in log
    assert server.attention(request).content == before
    state, why = index(server)["a"]
    assert state == "READY" and reason in why and index(server)["b"] == ("READY", "")
    if path.is_dir():
        path.rmdir()
    replace(path, lambda new: write_layer(new, 1, 4, 3, seed=2))
    reload(server)
    wait_for_log(server, "models reloaded", 2)
    assert server.attention(request).content != before
    assert index(server)["a"] == ("READY", "")


def test_bad_file_that_is_new_is_unavailable(start_server, tmp_path):
    write_layer(tmp_path / "a.safetensors", 1, 4, 3)
    server = start_server("--model-dir", tmp_path)
    (tmp_path / "bad.safetensors").write_bytes(b"x")
    reload(server)
    wait_for_log(server, "models reloaded kept=1 added=0 replaced=0 removed=0 failed=1 unloaded=0")
    state, reason = index(server)["bad"]
    assert state == "UNAVAILABLE" and "bad.safetensors" in reason
    assert server.get("/v2/models/bad/ready").status_code == 404


def test_two_files_with_one_name_leave_the_first(start_server, tmp_path):
    path = tmp_path / "one"
    write_layer(path, 1, 4, 3, context_length="11")
    write_layer(tmp_path / "b.safetensors", 1, 4, 3, context_length="22")
    server = start_server("--model", f"a={path}", "--model-dir", tmp_path)
    write_layer(tmp_path / "a.safetensors", 1, 4, 3, context_length="33")
    reload(server)
    wait_for_log(server, "models reloaded")
    assert "models reloaded kept=2 added=0 replaced=0 removed=0 failed=1 unloaded=0" in server.read_log()
    assert "model not loaded name=a reason=\"another model has this name" in server.read_log()
    assert context_lengths(server) == {"a": 11, "b": 22}


def test_folder_that_is_empty_or_gone_leaves_all_models(start_server, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    write_layer(folder / "a.safetensors", 1, 4, 3)
    server = start_server("--model-dir", folder)
    folder.rename(tmp_path / "elsewhere")
    reload(server)
    wait_for_log(server, "warn models not reloaded, the former ones are kept")
    folder.mkdir()
    reload(server)
    wait_for_log(server, "warn models not reloaded, the former ones are kept", 2)
    assert "No such file or directory" in server.read_log()
    assert "no model would be left" in server.read_log()
    assert names(server) == ["a"] and server.get("/v2/health/ready").status_code == 200


def test_server_that_starts_without_a_model_is_ready_once_it_has_one(start_server, tmp_path):
    server = start_server("--model-dir", tmp_path)
    for _ in range(2):
        reply = server.get("/v2/health/ready")
        assert (reply.status_code, reply.json()) == (503, {"ready": False, "reason": "no model is loaded"})
        assert names(server) == [] and server.get("/v2/health/live").status_code == 200
        reload(server)  # there is still none
        wait_for_log(server, "models reloaded kept=0 added=0")
    write_layer(tmp_path / "a.safetensors", 1, 4, 3)
    reload(server)
    wait_for_log(server, "models reloaded kept=0 added=1 replaced=0 removed=0 failed=0 unloaded=0")
    assert server.get("/v2/health/ready").status_code == 200
    assert server.attention({"queries": [[1, 2, 3]]}).status_code == 200


def test_file_without_memory_for_it_leaves_the_model_that_is_served(start_server, tmp_path):
    path = tmp_path / "a.safetensors"
    write_layer(path, 1, 4, 3)
    server = start_server("--model-dir", tmp_path)
    replace(path, write_huge_layer)
    reload(server)
    wait_for_log(server, "models reloaded kept=0 added=0 replaced=0 removed=0 failed=1 unloaded=0")
    assert "it needs 2748" in server.read_log() and "lower --max-memory" in server.read_log()
    assert server.attention({"queries": [[1, 2, 3]]}).status_code == 200


def test_request_keeps_the_generation_that_it_began_with(start_server, tmp_path):
    """A reply of some 20 MB is read slowly while its model is replaced, and then removed."""
    path = tmp_path / "a.safetensors"
    write_layer(path, 4, 4, 3, seed=1)
    write_layer(tmp_path / "b.safetensors", 1, 4, 3)
    server = start_server("--model-dir", tmp_path)
    rows = np.random.default_rng(1).normal(size=(700, 3)).round(2).tolist()
    body = {"model": "a", "queries": rows, "need_weights": True}
    request = post_bytes(json.dumps(body).encode())
    before = server.attention(body).content
    with Connection(server.port, timeout=60) as slow:
        slow.send(request)
        slow.receive()
        replace(path, lambda new: write_layer(new, 4, 4, 3, seed=2))
        reload(server)
        wait_for_log(server, "models reloaded kept=1 added=0 replaced=1")
        assert server.attention(body).content != before
        path.unlink()
        reload(server)
        wait_for_log(server, "models reloaded kept=1 added=0 replaced=0 removed=1")
        assert server.attention(body).status_code == 404
        time.sleep(1.5)  # longer than the loader takes to look for what nobody holds
        reply = slow.read_reply()
    assert reply.status == 200 and reply.body == before


def test_signals_during_a_reload_are_one_more_reload(start_server, tmp_path):
    path = tmp_path / "a.safetensors"
    write_layer(path, 1, 4, 3, context_length="1000")
    server = start_server("--model-dir", tmp_path)
    for number in range(1001, 1100):
        replace(path, lambda new: write_layer(new, 1, 4, 3, context_length=str(number)))
        reload(server)
    wait_until(lambda: context_lengths(server) == {"a": 1099}, "the last file is served")


def test_stop_does_not_wait_for_a_reload(start_server, tmp_path):
    """Twelve files of 64 MiB are one file with twelve names. Loading all would take seconds."""
    write_layer(tmp_path / "a.safetensors", 1, 4, 3)
    server = start_server("--model-dir", tmp_path, "--grace", 1000)
    write_wide_layer(tmp_path / "b.safetensors")
    for i in range(11):
        (tmp_path / f"b{i}.safetensors").symlink_to(tmp_path / "b.safetensors")
    reload(server)
    wait_until(lambda: "info model name=b" in server.read_log(), "the first is loaded", seconds=150)
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(60)
    log = server.read_log()
    assert log.count("info model name=b") < 12 and "models reloaded" not in log
    server.wait()


def test_signals_that_have_no_meaning_do_not_end_attnd(start_server):
    server = start_server("--demo")
    for number in (signal.SIGUSR2, signal.SIGHUP, signal.SIGPIPE):
        server.process.send_signal(number)
    wait_for_log(server, "models reloaded")
    assert server.is_alive()


def catches(pid, number):
    """Returns whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1


def test_signal_while_models_load_is_remembered(tmp_path):
    write_wide_layer(tmp_path / "a.safetensors")
    with open(tmp_path / "log", "wb") as log, subprocess.Popen(
            [BINARY, "--model-dir", tmp_path, "--listen", "127.0.0.1:0"], stderr=log,
            stdout=subprocess.DEVNULL, env=clean_environment()) as process:
        wait_until(lambda: catches(process.pid, signal.SIGHUP), "a handler")
        process.send_signal(signal.SIGHUP)
        assert "listening" not in (tmp_path / "log").read_text(), "it loaded faster than the test"
        wait_until(lambda: "models reloaded" in (tmp_path / "log").read_text(), "a reload")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
