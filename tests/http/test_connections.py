# SPDX-License-Identifier: Apache-2.0
"""Connections used in every allowed way, and closed by clients at any moment."""

import contextlib
import ctypes
import functools
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import tempfile
import time

import pytest

from http1 import Connection, get_bytes, post_bytes, send_unfinished
from scrape import Scrape
from server import BINARY, clean_environment, run_attnd

SMALL = {"model": "journey", "queries": [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66]]}


def request_of(tokens):
    return {"model": "journey", "queries": (SMALL["queries"] * 3)[:tokens]}


def as_bytes(request, *headers):
    return post_bytes(json.dumps(request).encode(), *headers)


def num_fds(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def wait_for_fds(server, at_most, timeout=60):
    deadline = time.monotonic() + timeout
    while num_fds(server) > at_most and time.monotonic() < deadline:
        time.sleep(0.05)
    assert num_fds(server) <= at_most, "connections stayed open"


def test_connection_is_kept_for_many_requests(demo_server):
    with Connection(demo_server.port) as connection:
        for i in range(100):
            tokens = i % 6 + 1
            connection.send(as_bytes(request_of(tokens)))
            reply = connection.read_reply()
            assert (reply.status, len(reply.json()["outputs"])) == (200, tokens)


def test_connection_is_kept_after_a_refusal(demo_server):
    """A problem in the body, not in the HTTP message, does not close the connection."""
    with Connection(demo_server.port) as connection:
        for _ in range(3):
            connection.send(as_bytes({"model": "nobody", "queries": [[1]]}))
            assert connection.read_reply().status == 404
            connection.send(as_bytes(SMALL))
            assert connection.read_reply().status == 200


def test_connection_is_closed_when_asked_to(demo_server):
    with Connection(demo_server.port) as connection:
        connection.send(as_bytes(SMALL, "Connection: close"))
        assert connection.read_reply().status == 200
        assert connection.read_to_end() == b""


def test_http_1_0_gets_a_reply_and_is_closed(demo_server):
    with Connection(demo_server.port) as connection:
        connection.send(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
        assert connection.read_reply().status == 200
        assert connection.read_to_end() == b""


def test_pipelined_requests_get_replies_in_order(demo_server):
    with Connection(demo_server.port) as connection:
        tokens = [i % 6 + 1 for i in range(30)]
        connection.send(b"".join(as_bytes(request_of(n)) + get_bytes("/v2/health/live")
                                 for n in tokens))
        for n in tokens:
            reply = connection.read_reply()
            assert (reply.status, len(reply.json()["outputs"])) == (200, n)
            assert connection.read_reply().json() == {"live": True}


def test_request_may_arrive_byte_by_byte(demo_server):
    with Connection(demo_server.port) as connection:
        for byte in as_bytes(SMALL):
            connection.send(bytes([byte]))
        assert connection.read_reply().status == 200


@pytest.mark.alone
def test_client_may_leave_at_any_byte_of_its_request(start_server):
    """libmicrohttpd does not notice that a client leaves just after it has sent bytes. attnd does,
    long before any timeout."""
    server = start_server("--demo", "--idle-timeout", 1000, "--header-timeout", 1000)
    before = num_fds(server)
    data = as_bytes(SMALL)
    for size in range(0, len(data) + 1, 3):
        with Connection(server.port) as connection:
            connection.send(data[:size])
    wait_for_fds(server, before)
    assert server.is_alive()


@pytest.mark.alone
@pytest.mark.parametrize("abort", [False, True])
def test_clients_may_leave_while_their_request_is_computed(start_server, abort):
    """With `abort` the kernel sends RST instead of FIN. There are several rounds, because a client
    must leave at the right moment. The test also checks that the server then stops at once."""
    data = as_bytes({"model": "d2l", "queries": [[0.5] * 100] * 60, "need_weights": True})
    for _ in range(6):
        server = start_server("--demo", "--idle-timeout", 2, "--grace", 5, "--http-threads", 2)
        before = num_fds(server)
        for i in range(60):
            with Connection(server.port) as connection:
                if abort:
                    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                                 struct.pack("ii", 1, 0))
                connection.send(data)
                time.sleep(0.002 * (i % 10))
        wait_for_fds(server, before)
        assert server.attention(SMALL).status_code == 200
        server.stop()


def test_slow_reader_gets_the_whole_reply(demo_server):
    """A reply of some MB, far more than socket buffers hold, is read after a pause."""
    rows = [[0.25] * 100] * 300
    with Connection(demo_server.port, timeout=60) as connection:
        connection.send(as_bytes({"model": "d2l", "queries": rows, "need_weights": True}))
        time.sleep(1)
        reply = connection.read_reply()
        weights = reply.json()["attention_weights"]
        assert (reply.status, len(weights), len(weights[0]), len(weights[0][0])) == (
            200, 5, 300, 300)


def test_idle_connections_do_not_block_other_clients(demo_server):
    idle = [Connection(demo_server.port) for _ in range(200)]
    try:
        for connection in idle[::2]:
            connection.send(b"POST /v1/attention HTTP/1.1\r\nHost: attnd\r\n")
        assert demo_server.attention(SMALL).status_code == 200
    finally:
        for connection in idle:
            connection.socket.close()


@pytest.mark.parametrize("http_threads", [1, 2])
@pytest.mark.parametrize("paused", [False, True])
def test_server_accepts_again_after_the_connection_limit(start_server, http_threads, paused):
    """All connections end at one time, again and again. With `paused` the server sees that only
    afterwards, as under a CPU quota."""
    server = start_server("--demo", "--max-connections", 20, "--http-threads", http_threads)
    for _ in range(50):
        connections = [Connection(server.port) for _ in range(21)]
        time.sleep(0.01)
        if paused:
            server.process.send_signal(signal.SIGSTOP)
        for connection in connections:
            connection.socket.close()
        if paused:
            server.process.send_signal(signal.SIGCONT)
        with Connection(server.port, timeout=5) as connection:
            connection.send(get_bytes("/v2/health/live"))
            assert connection.read_reply().status == 200


@pytest.mark.alone
def test_connection_limit_is_that_of_all_threads_together(start_server):
    """Each has an equal part of it. At a Unix socket one that has no place left leaves newcomers to others; over TCP
    the kernel spreads them, and some threads have their part before others."""
    with tempfile.TemporaryDirectory(prefix="attnd-limit-") as folder:
        path = f"{folder}/attnd.sock"
        start_server("--demo", "--max-connections", 80, "--http-threads", 4, "--listen", "127.0.0.1:0", "--listen",
                     f"unix:{path}", listen=None)
        connections = [Connection(path, timeout=5) for _ in range(40)]
        for connection in connections:
            connection.send(get_bytes("/v2/health/live"))
        assert [connection.read_reply().status for connection in connections] == [200] * 40
        assert not select.select([connection.socket for connection in connections], [], [], 0)[0]  # none was closed
        for connection in connections:
            connection.socket.close()


@pytest.mark.alone
def test_limit_that_is_below_the_number_of_threads_is_raised(start_server):
    server = start_server("--demo", "--max-connections", 2, "--http-threads", 4)
    assert Scrape(server).value("attnd_connections_limit") == 4
    assert "more connections, each HTTP thread has one at least max_connections=4" in server.read_log()
    for _ in range(20):
        with Connection(server.port) as connection:
            connection.send(get_bytes("/v2/health/live"))
            assert connection.read_reply().status == 200


def test_budget_without_room_for_a_connection_of_each_thread_is_refused():
    result = run_attnd("--demo", "--listen", "127.0.0.1:0", "--http-threads", 8, "--max-memory", 300_000)
    assert result.returncode == 1
    assert f"--max-memory 300000 is too small for connections; set at least {8 * 68 * 1024}" in result.stderr


def test_server_accepts_again_after_it_ran_out_of_descriptors(start_server):
    server = start_server("--demo")
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (num_fds(server) + 10,) * 2)
    for _ in range(10):
        connections = [Connection(server.port) for _ in range(30)]
        time.sleep(0.05)
        for connection in connections:
            connection.socket.close()
        with Connection(server.port, timeout=5) as connection:
            connection.send(get_bytes("/v2/health/live"))
            assert connection.read_reply().status == 200
    assert "cannot accept connections reason=\"Too many open files\"" in server.read_log()


@contextlib.contextmanager
def started(*command):
    """Yields the URL and the log, a list, of an attnd that another program starts, or whose
    address is not 127.0.0.1."""
    log = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True,
                                   env=clean_environment())
        try:
            yield process.stdout.readline().split()[-1], log
            process.terminate()
            assert process.wait(60) == 0
            errors.seek(0)
            log.append(errors.read())
        finally:
            process.kill()
            process.communicate()


class Connection6(Connection):
    """From ::1 to ::1, or from an address of IPv4 to 127.0.0.1."""

    def __init__(self, port, source="::1"):
        target = "::1" if source == "::1" else "127.0.0.1"
        self.socket = socket.create_connection((target, port), 30, (source, 0))
        self.unread = b""


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no address ::1")


def test_connections_are_as_many_as_descriptors_allow():
    command = ("sh", "-c", 'ulimit -n 100; exec "$@"', "sh", BINARY, "--demo", "--http-threads", "1",
               "--listen", "127.0.0.1:0")
    with started(*command) as (url, log):
        port = int(url.rsplit(":", 1)[1])
        idle = [Connection(port) for _ in range(60)]
        with Connection(port) as connection:
            connection.send(as_bytes(SMALL))
            assert connection.read_reply().status == 200
        for connection in idle:
            connection.socket.close()
    assert "limit of open files allows no more max_connections=36" in log[0]
    assert "Too many open files" not in log[0]


@needs_ipv6
@pytest.mark.parametrize("host, sources", [("[::1]", ["::1", "::1"]),
                                           ("[::]", ["127.0.0.1", "127.0.0.1"]),
                                           ("[::]", ["127.0.0.1", "127.0.0.2"]),
                                           ("[::]", ["::1", "127.0.0.1"])])
def test_clients_of_ipv6_and_those_of_ipv4_at_its_socket_are_told_apart(host, sources):
    with started(BINARY, "--demo", "--max-per-client", "1", "--insecure-listen", "--listen",
                 host + ":0") as (url, _):
        assert url.startswith(f"http://{host}:")
        port = int(url.rsplit(":", 1)[1])
        with Connection6(port, sources[0]) as first, Connection6(port, sources[1]) as second:
            body = json.dumps(SMALL).encode()
            send_unfinished(first, body)
            second.send(as_bytes(SMALL))
            assert second.read_reply().status == (429 if sources[0] == sources[1] else 200)
            first.send(body[-1:])
            assert first.read_reply().status == 200


@needs_ipv6
@pytest.mark.parametrize("source, trusted", [("::1", "::1"), ("127.0.0.1", "127.0.0.0/8")])
def test_proxy_may_be_at_an_ipv6_socket(source, trusted):
    """It forwards for two clients, so neither waits for the other."""
    with started(BINARY, "--demo", "--max-per-client", "1", "--trusted-proxy", trusted,
                 "--insecure-listen", "--listen", "[::]:0") as (url, _):
        port = int(url.rsplit(":", 1)[1])
        with Connection6(port, source) as first, Connection6(port, source) as second:
            send_unfinished(first, json.dumps(SMALL).encode(), "X-Forwarded-For: 2001:db8::1")
            for address, status in (("2001:db8::2", 429), ("2001:db8:0:1::1", 200)):
                second.send(as_bytes(SMALL, f"X-Forwarded-For: {address}"))
                assert second.read_reply().status == status


def test_descriptors_that_another_process_has_do_no_harm(start_server):
    """Closing such a socket does not end its watch: the next event came for freed memory. That
    takes a sanitizer to be seen."""
    server = start_server("--demo")
    pidfd_getfd = functools.partial(ctypes.CDLL(None, use_errno=True).syscall, 438,
                                    os.pidfd_open(server.process.pid))
    for _ in range(3):
        with Connection(server.port) as connection:
            connection.send(get_bytes("/v2/health/live"))
            assert connection.read_reply().status == 200
            folder = f"/proc/{server.process.pid}/fd"
            sockets = [int(fd) for fd in os.listdir(folder)
                       if os.readlink(f"{folder}/{fd}").startswith("socket:")]
            kept = [pidfd_getfd(fd, 0) for fd in sockets]
            if -1 in kept:
                pytest.skip(f"pidfd_getfd: {os.strerror(ctypes.get_errno())}")
        assert server.is_alive()
        for fd in kept:
            os.close(fd)


def test_lack_of_descriptors_at_start_is_named():
    """The number that a start needs is not fixed, so all those that fail must say why."""
    for limit in range(5, 9):
        command = 'ulimit -n "$0"; exec timeout --preserve-status -s INT 5 "$@"'
        done = subprocess.run(
            ["sh", "-c", command, str(limit), BINARY, "--demo", "--listen", "127.0.0.1:0"],
            capture_output=True, text=True, env=clean_environment())
        if done.returncode == 0:
            return
        assert done.returncode == 1 and re.search("descriptor|Too many open files", done.stderr), (
            done.stderr)
