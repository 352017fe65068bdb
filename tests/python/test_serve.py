# SPDX-License-Identifier: Apache-2.0
"""attnd.serve: a server for as long as a block lasts, and what is said when it is not there."""

import os
import signal
import tempfile

import numpy as np
import pytest

import attnd
from programs import BINARY
from attnd._safetensors import to_safetensors
from attnd.server import Server

ROWS = np.ones((3, 100), np.float32)


def serve(*models, **options):
    return attnd.serve(*models, program=str(BINARY), **options)


def is_running(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_block_has_a_client_of_a_server_that_ends_with_it():
    server = serve(demo=True, capture_memory="1MiB")
    with server as client:
        process = server._process.pid
        assert client.address == server.url and client.attend("d2l", ROWS)[0].shape == (3, 100)
        assert client.captures() == []
    assert not is_running(process)
    with pytest.raises(attnd.Error, match="no answer from .*; it ended with status 0"):
        client.attend("d2l", ROWS)


def test_models_are_named_as_their_files(tmp_path):
    for name, size in (("plain", 4), ("other", 8)):
        tensors = {f"W_{part}.weight": np.eye(size, dtype=np.float32) for part in "qkvo"}
        (tmp_path / f"{name}.safetensors").write_bytes(to_safetensors(tensors, {"num_heads": "2"}))
    with serve(tmp_path / "plain.safetensors", f"named={tmp_path}/other.safetensors,causal=true") as client:
        assert client.attend("plain", ROWS[:, :4])[0].shape == (3, 4)
        assert client.attend("named", ROWS[:, :8])[0].shape == (3, 8)


def test_second_server_on_one_socket_says_what_its_log_says():
    folder = tempfile.TemporaryDirectory()  # whose path is short, as those of sockets must be
    address = f"unix:{folder.name}/a socket"
    with folder, serve(demo=True, listen=address) as client:
        with pytest.raises(attnd.Error, match="(?s)attnd did not start: it ended with status 1; its log ends with.*socket"):
            serve(demo=True, listen=address).start()
        assert client.attend("d2l", ROWS)[1] is None


def test_server_that_was_killed_is_named():
    with (server := serve(demo=True)) as client:
        os.kill(server._process.pid, signal.SIGKILL)
        server._process.wait()
        with pytest.raises(ConnectionError, match="it was killed by signal 9") as caught:
            client.attend("d2l", ROWS)
        assert isinstance(caught.value, attnd.Error)
    server.close()


def test_server_that_cannot_start_shows_its_log(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)attnd did not start: .*none\.safetensors"):
        serve(tmp_path / "none.safetensors").start()
    with pytest.raises(RuntimeError, match="(?s)did not start.*--no-such"):
        serve(no_such_option=True).start()


def test_program_that_is_not_there_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(attnd.Error, match=r"neither beside this package nor on PATH; .*program="):
        attnd.serve(demo=True)
    with pytest.raises(OSError, match="cannot be started: No such file"):
        attnd.serve(program=str(tmp_path / "attnd")).start()


def test_server_starts_once():
    with (server := serve(demo=True)), pytest.raises(attnd.Error, match="was started already"):
        server.start()


def test_child_of_a_fork_leaves_the_server_alone():
    with serve(demo=True) as client:
        child = os.fork()
        if child == 0:
            try:
                status = int(client.attend("d2l", ROWS)[0].shape != (3, 100))
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert client.attend("d2l", ROWS)[0].shape == (3, 100)


def test_variables_of_a_server_are_not_of_this_one(monkeypatch):
    monkeypatch.setenv("ATTND_LISTEN", "127.0.0.1:1")
    with serve(demo=True) as client:
        assert client.attend("d2l", ROWS)[1] is None


def test_options_are_flags_values_and_lists():
    server = serve(demo=True, cors_origin=["http://a", "http://b"], max_memory=None, access_log=False)
    assert isinstance(server, Server) and server.command[1:] == [
        "--log-level", "warn", "--listen", "127.0.0.1:0", "--demo", "--cors-origin", "http://a", "--cors-origin", "http://b"]
