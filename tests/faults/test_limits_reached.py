# SPDX-License-Identifier: Apache-2.0
"""Descriptors and connections run out, and come back."""

import contextlib
import resource
import signal
import time

import pytest

from all_requests import ROWS, native
from fault import LONG, exchange, faulty_server, is_healthy, num_fds, wait_until, why_not
from http1 import Connection, post_bytes

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
