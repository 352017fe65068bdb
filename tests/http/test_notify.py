# SPDX-License-Identifier: Apache-2.0
"""What attnd tells a service manager: the datagrams of sd_notify(3)."""

import contextlib
import ctypes
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from checkpoints import write_layer
from http1 import Connection, get_bytes
from reload import reload, wait_for_log, wait_until
from test_process import full_pipe, start_with_output


class Manager:
    """The socket of a service manager, of a path or an abstract name."""

    def __init__(self, name):
        self.name = str(name)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + self.name[1:] if self.name.startswith("@") else self.name)
        self.socket.settimeout(60)

    def read(self):
        return self.socket.recv(4096).decode()

    def read_for(self, seconds):
        """Returns what arrives within that time."""
        messages, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                messages.append(self.read())
            except TimeoutError:
                break
        self.socket.settimeout(60)
        return messages


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    manager = Manager(tmp_path / "notify" if request.param == "path" else f"@attnd-test-{os.getpid()}")
    yield manager
    manager.socket.close()


def monotonic_usec():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def test_start_reload_and_stop_are_told(start_server, manager):
    server = start_server("--demo", NOTIFY_SOCKET=manager.name)
    assert manager.read() == "READY=1"
    assert server.is_alive()
    for _ in range(3):
        before = monotonic_usec()
        reload(server)
        reloading, time_line = manager.read().split("\n")
        assert reloading == "RELOADING=1" and time_line.startswith("MONOTONIC_USEC=")
        assert before <= int(time_line.removeprefix("MONOTONIC_USEC=")) <= monotonic_usec()
        assert manager.read() == "READY=1"
    server.process.send_signal(signal.SIGTERM)
    assert manager.read() == "STOPPING=1"
    server.wait()
    assert manager.read_for(0.1) == []


def test_full_standard_output_delays_nothing(tmp_path, manager):
    """Who has started attnd may never read the line with its address."""
    reader, writer = full_pipe()
    log = tmp_path / "log"
    process = start_with_output(writer, log, NOTIFY_SOCKET=manager.name)
    assert manager.read() == "READY=1"
    process.send_signal(signal.SIGHUP)
    assert manager.read().startswith("RELOADING=1")
    assert manager.read() == "READY=1"
    process.send_signal(signal.SIGUSR1)
    wait_until(lambda: "log level changed level=debug" in log.read_text(), "debug")
    process.terminate()
    assert manager.read() == "STOPPING=1"
    assert process.wait(60) == 0
    os.close(reader)
    os.close(writer)


def test_nothing_is_ready_before_the_models_are_loaded(start_server, tmp_path, manager):
    """A file that cannot be loaded ends the start, and nothing is told."""
    (tmp_path / "bad.safetensors").write_bytes(b"x")
    with pytest.raises(AssertionError, match="did not start"):
        start_server("--model-dir", tmp_path, NOTIFY_SOCKET=manager.name)
    assert manager.read_for(0.1) == []


def test_bad_file_ends_a_reload_too(start_server, tmp_path, manager):
    write_layer(tmp_path / "a.safetensors", 1, 4, 3)
    server = start_server("--model-dir", tmp_path, NOTIFY_SOCKET=manager.name)
    assert manager.read() == "READY=1"
    (tmp_path / "a.safetensors").write_bytes(b"x")
    reload(server)
    assert manager.read().startswith("RELOADING=1")
    assert manager.read() == "READY=1"


def test_life_signs_come_twice_in_the_time_that_is_allowed(start_server, manager):
    server = start_server("--demo", "--http-threads", 3, NOTIFY_SOCKET=manager.name,
                          WATCHDOG_USEC="400000")
    assert manager.read() == "READY=1"
    messages = manager.read_for(4)
    assert set(messages) == {"WATCHDOG=1"} and 5 <= len(messages) <= 21
    assert "does not run" not in server.read_log()


def test_life_signs_of_another_process_are_not_sent(start_server, manager):
    start_server("--demo", NOTIFY_SOCKET=manager.name, WATCHDOG_USEC="20000",
                 WATCHDOG_PID=str(os.getpid()))
    assert manager.read() == "READY=1"
    assert manager.read_for(1) == []


def test_socket_that_cannot_be_used_is_a_warning(start_server, tmp_path):
    for name, reason in ((tmp_path / "missing", "No such file"), ("vsock:2:1", "not supported"),
                         ("/" + "x" * 200, "not supported")):
        server = start_server("--demo", NOTIFY_SOCKET=str(name))
        assert "warn cannot use NOTIFY_SOCKET" in server.read_log() and reason in server.read_log()
        assert server.is_alive()
        server.stop()


def test_manager_that_is_gone_delays_nothing(start_server, tmp_path):
    manager = Manager(tmp_path / "notify")
    server = start_server("--demo", NOTIFY_SOCKET=manager.name)
    manager.socket.close()
    reload(server)
    wait_for_log(server, "warn the service manager was not told")
    assert server.is_alive()


def test_manager_that_does_not_read_delays_nothing(start_server, tmp_path):
    """Its queue is full after some ten messages. Each message then waits for a second at most."""
    manager = Manager(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                other.sendto(b"STATUS=full", manager.name)
    server = start_server("--demo", NOTIFY_SOCKET=manager.name)
    with Connection(server.port) as connection:
        connection.send(get_bytes("/v2/health/ready"))
        assert connection.read_reply().status == 200
    server.stop()


PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
EPOLL_WAITS = {"x86_64": ("232", "281"), "aarch64": ("22",)}


def find_http_threads(pid):
    """Returns the threads that wait for epoll, which only HTTP threads do."""
    numbers = EPOLL_WAITS[os.uname().machine]
    return [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()
            if (task / "syscall").read_text().split()[0] in numbers]


@contextlib.contextmanager
def stopped_thread(thread):
    """Stops one thread of another process, as a debugger does."""
    libc = ctypes.CDLL(None, use_errno=True)
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(request, thread, None, None) != 0:
            pytest.skip("ptrace: " + os.strerror(ctypes.get_errno()))
    os.waitpid(thread, 0x40000000)  # __WALL
    yield
    assert libc.ptrace(PTRACE_DETACH, thread, None, None) == 0


@pytest.mark.parametrize("options", [("--http-threads", 2), ("--admin-listen", "127.0.0.1:0")])
def test_no_life_sign_while_one_http_thread_does_not_run(start_server, manager, options):
    server = start_server("--demo", "--http-threads", 1, *options, NOTIFY_SOCKET=manager.name,
                          WATCHDOG_USEC="200000")
    assert [manager.read() for _ in range(3)] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]
    wait_until(lambda: len(find_http_threads(server.process.pid)) == 2, "both threads wait")
    with stopped_thread(max(find_http_threads(server.process.pid))):  # that started last
        manager.read_for(0.5)  # one that was on its way
        assert manager.read_for(1) == []
        assert "error an HTTP thread does not run" in server.read_log()
    assert manager.read() == "WATCHDOG=1"
