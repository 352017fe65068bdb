# SPDX-License-Identifier: Apache-2.0
"""Descriptors and connections run out, and come back."""

import contextlib
import re
import resource
import signal
import time

import pytest

from all_requests import ROWS, native
from fault import ALLOCATIONS, LONG, exchange, faulty_server, is_healthy, num_fds, wait_until, why_not
from http1 import Connection, post_bytes
from test_admin import get_admin
from test_framing import library_version
from test_handshakes import HALF_HELLO, hello, options  # noqa: F401 (a fixture)
from test_tls import pytestmark as tls_marks

SMALL = post_bytes(native(ROWS))


def fill(server, count):
    """Opens connections until `count` are open; those that are not accepted wait in the backlog."""
    return [Connection(server.port) for _ in range(count)]


def close_at_once(server, clients):
    """Closes them while the server is stopped, so that it sees all closings together."""
    server.process.send_signal(signal.SIGSTOP)
    for client in clients:
        client.socket.close()
    server.process.send_signal(signal.SIGCONT)


def cpu_ticks(server):
    """Returns the CPU time of the server so far, in hundredths of a second."""
    with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as file:
        return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))


@pytest.mark.parametrize("threads", (1, 3))
def test_health_answers_after_descriptors_ran_out(start_server, threads):
    server = start_server("--demo", "--http-threads", threads)
    used = num_fds(server)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 20, used + 20))
    for _ in range(50 if LONG else 10):
        clients = fill(server, 60)
        time.sleep(0.02)
        close_at_once(server, clients)
        wait_until(lambda: is_healthy(server), 10, "health is answered")
    wait_until(lambda: num_fds(server) <= used, 10, "descriptors are released")
    assert exchange(server.port, SMALL).status == 200


def test_server_without_descriptors_does_not_spin(start_server):
    """It waits for a descriptor, and does not poll for one."""
    server = start_server("--demo", "--http-threads", 1)
    used = num_fds(server)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 10, used + 10))
    with contextlib.ExitStack() as stack:
        for client in fill(server, 40):
            stack.enter_context(client)
        before = cpu_ticks(server)
        time.sleep(2)
        used_ticks = cpu_ticks(server) - before
    assert used_ticks < 100  # of 200 in two seconds
    wait_until(lambda: is_healthy(server), 10, "health is answered")


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("error", ("EPERM", "ECONNABORTED"))
def test_open_connection_is_served_while_every_accept_fails(error):
    """As where a filter of system calls refuses accept4()."""
    with faulty_server("--demo", "--http-threads", 1) as (server, control):
        with Connection(server.port, timeout=10) as connection:
            connection.send(SMALL)
            assert connection.read_reply().status == 200
            control.arm(["accept"], 1, error, 1 << 40)
            clients = fill(server, 3)
            wait_until(lambda: control.failed > 0, 10, "accept4() is called")
            connection.send(SMALL)
            assert connection.read_reply().status == 200
            control.disarm()
        close_at_once(server, clients)
        wait_until(lambda: is_healthy(server), 10, f"health after {error}")


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("error", ("EMFILE", "ENFILE", "ENOMEM", "ENOBUFS"))
def test_server_accepts_again_after_accept_failed(error):
    """Once, or for a while, with connections open or none."""
    with faulty_server("--demo", "--http-threads", 1) as (server, control):
        for count in (1, 2, 5, 1 << 40):
            for open_ones in (0, 3):
                clients = fill(server, open_ones)
                control.arm(["accept"], 1, error, count)
                clients += fill(server, 3)
                wait_until(lambda: control.failed > 0, 10, "accept4() is called")
                control.disarm()
                close_at_once(server, clients)
                wait_until(lambda: is_healthy(server), 10, f"health after {error}")


def num_connections(server):
    text = get_admin(server, "/metrics").text
    return int(re.search(r"^attnd_connections (\d+)$", text, re.MULTILINE)[1])


@pytest.mark.parametrize("marked", [pytest.param("", marks=tls_marks)])
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_connection_that_libmicrohttpd_refuses_is_forgotten_at_once(options, marked):
    """Its descriptor is closed then, and may soon be another's. The half handshake keeps
    libmicrohttpd busy: it never says that it has looked at all new connections."""
    del marked
    options += ["--http-threads", "1", "--admin-listen", "127.0.0.1:0", "--header-timeout", "3600"]
    begun, num_refused = hello(), 0
    with faulty_server(*options) as (server, control):
        if library_version(server) != "0.9.75":
            pytest.skip("later ones close new connections without a word, when they run")
        for attempt in range(200):
            with Connection(server.port) as busy:
                busy.send(HALF_HELLO)
                wait_until(lambda: num_connections(server) == 1, 10, "the half handshake is open")
                server.process.send_signal(signal.SIGSTOP)  # it finds the other one whole
                with Connection(server.port) as refused:
                    refused.send(begun)
                    control.arm(ALLOCATIONS, 1 + attempt % 8)
                    server.process.send_signal(signal.SIGCONT)
                    refused.receive()
                if control.disarm() and "libmicrohttpd" in control.site:
                    num_refused += 1
                    wait_until(lambda: num_connections(server) == 1, 10, "the other one is gone")
            wait_until(lambda: num_connections(server) == 0, 10, "both are gone")
            if num_refused == 2:
                return
    pytest.fail(f"{num_refused} connections were refused by libmicrohttpd")
