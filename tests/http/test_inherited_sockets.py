# SPDX-License-Identifier: Apache-2.0
"""Sockets that a service manager has opened: deploy/attnd.socket."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest

from http1 import Connection, get_bytes, post_bytes
from server import BINARY, ROOT, clean_environment, is_sanitized

BODY = json.dumps({"model": "journey", "queries": [[0.43, 0.15, 0.89]]}).encode()
CONNECTIONS = 1000 if is_sanitized() else 4000
THREADS = 8


class Manager:
    """Has a socket, and starts attnd with it as systemd does: as descriptor 3."""

    def __init__(self, listener, listen, *arguments):
        self.listener, self.arguments = listener, (*arguments, "--listen", listen)
        self.log = tempfile.TemporaryFile("w+")

    def start(self):
        """Starts attnd and waits until it serves."""
        command = ["sh", "-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"", BINARY, "--demo", *map(str, self.arguments)]

        def as_third():
            os.dup2(self.listener.fileno(), 3, inheritable=True)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True, close_fds=False,
                                        preexec_fn=as_third, env=clean_environment())
        readable, _, _ = select.select([self.process.stdout], [], [], 120)
        assert readable
        return self.process.stdout.readline()

    def read_log(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.stdout.read()
        assert self.process.wait(timeout=120) == 0, self.read_log()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.log.close()


@pytest.fixture(params=["tcp", "unix"])
def manager(request, tmp_path):
    if request.param == "tcp":
        listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        listen, at = f"127.0.0.1:{listener.getsockname()[1]}", listener.getsockname()[1]
    else:
        listener, at = socket.socket(socket.AF_UNIX), str(tmp_path / "attnd.sock")
        listener.bind(at)
        listener.listen(4096)
        listen = f"unix:{at}"
    with listener, Manager(listener, listen, "--http-threads", 2) as found:
        found.at = at
        yield found


def test_no_connection_is_refused_or_lost_over_restarts(manager):
    assert "listening on" in manager.start()
    statuses = []

    def ask():
        for number in range(CONNECTIONS // THREADS):
            with Connection(manager.at, timeout=120) as connection:
                connection.send(post_bytes(BODY, "Connection: close") if number % 8 == 0 else
                                get_bytes("/v2/health/live", "Connection: close"))
                reply = connection.read_reply()
                statuses.append(reply.status if reply else None)
    threads = [threading.Thread(target=ask) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    restarts = 0
    while any(thread.is_alive() for thread in threads):
        before = len(statuses)
        while len(statuses) - before < CONNECTIONS // 20 and any(thread.is_alive() for thread in threads):
            time.sleep(0.01)
        manager.stop()
        manager.start()
        restarts += 1
    assert statuses == [200] * CONNECTIONS
    assert restarts >= 5
    manager.stop()


def test_file_of_an_inherited_socket_stays(tmp_path):
    path = tmp_path / "attnd.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with Manager(listener, f"unix:{path}") as manager:
            assert manager.start() == f"listening on unix:{path}\n"
            manager.stop()
        assert path.is_socket() and not (tmp_path / "attnd.sock.lock").exists()


def test_socket_that_no_listen_names_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as listener, Manager(listener, "127.0.0.1:0") as manager:
        assert manager.start() == ""
        assert manager.process.wait(timeout=60) == 2
        port = listener.getsockname()[1]
        assert (f"the service manager has opened 127.0.0.1:{port}, which no --listen names; write the address of "
                "ListenStream= there, too") in manager.read_log()


def test_descriptor_that_does_not_listen_is_refused():
    with socket.socket() as idle, Manager(idle, "127.0.0.1:0") as manager:
        assert manager.start() == ""
        assert manager.process.wait(timeout=60) == 2
        assert "descriptor 3 of LISTEN_FDS is not a socket that listens" in manager.read_log()


def test_sockets_of_another_process_are_not_taken(start_server):
    assert start_server("--demo", LISTEN_FDS="1", LISTEN_PID="1").get("/v2/health/live").status_code == 200


def test_units_name_one_address():
    [stream] = re.findall(r"(?m)^ListenStream=(.*)$", (ROOT / "deploy/attnd.socket").read_text())
    assert f"ATTND_LISTEN={stream} " in (ROOT / "deploy/attnd.service").read_text()
