# SPDX-License-Identifier: Apache-2.0
"""Every system call that attnd or libmicrohttpd makes fails in turn, with each error of its manual
page."""

import itertools
import signal

import pytest

from all_requests import ROWS, make_requests, native
from fault import (ERRORS, LONG, exchange, faulty_server, is_healthy, num_fds, wait_until,
                   why_not)
from http1 import Connection, post_bytes
from starts import control, run_start, start_arguments  # noqa: F401 (fixtures)

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

OPTIONS = ("--demo", "--workers", 1, "--http-threads", 1, "--idle-timeout", 2, "--max-body", 1048576,
           "--log-level", "debug")
REQUESTS = make_requests()
SHORT = ("native", "chunked", "streamed reply", "/v2/health/live", "not JSON")
HEALTH = REQUESTS["/v2/health/live"][0]
RUNNING = ("accept", "recv", "send", "write", "epoll_ctl", "epoll_wait")
# Without "write": when the line that says where attnd listens is lost, it serves all the same.
STARTING = ("epoll_ctl", "epoll_wait", "epoll_create", "eventfd", "socket", "bind", "listen", "open",
            "read", "lchown", "flock")


@pytest.mark.parametrize("at", ["TCP", "Unix socket"])
@pytest.mark.parametrize("kind", RUNNING)
def test_every_failing_call_of_a_request_is_survived(kind, at, tmp_path):
    """Each reply is that of a server without faults, or there is none; then attnd serves on. While attnd accepts,
    it does not know yet what is asked, so one request tells as much as five."""
    count, path = 0, f"{tmp_path}/socket"
    listen = ("--listen", "127.0.0.1:0", "--listen", f"unix:{path}")
    with faulty_server(*OPTIONS, *listen, listen=None) as (server, control):
        place = server.port if at == "TCP" else path
        for data, status in REQUESTS.values():
            assert exchange(place, data).status == status
        live, fds = control.live, num_fds(server)
        names = REQUESTS if LONG else SHORT[:1] if kind == "accept" else SHORT
        for name, error in itertools.product(names, ERRORS[kind]):
            data, status = REQUESTS[name]
            for nth in range(1, 1000 if LONG else 40):  # a streamed reply is sent by many calls
                control.arm([kind], nth, error)
                reply = exchange(place, data)
                if not control.disarm():
                    assert reply is not None and reply.status == status
                    break
                count += 1
                assert reply is None or reply.status == status, (name, error, nth, reply)
                wait_until(lambda: is_healthy(server), 10, f"health after {error}, {nth}, {name}")
        wait_until(lambda: control.live <= live and num_fds(server) <= fds, 20,
                   f"{control.live - live} blocks and {num_fds(server) - fds} descriptors released")
    print(f"{kind}: {count} calls failed in turn, with {', '.join(ERRORS[kind])}")
    assert count > 0


@pytest.mark.parametrize("kind", RUNNING)
def test_server_works_again_after_a_call_failed_for_a_while(kind):
    """All calls of one kind fail while 8 clients try; afterwards new ones are served."""
    for error in ERRORS[kind]:
        with faulty_server(*OPTIONS) as (server, control):
            assert is_healthy(server)
            fds = num_fds(server)
            control.arm([kind], 1, error, count=1 << 40)
            clients = [Connection(server.port, 5) for _ in range(8)]
            for client in clients:
                client.send(post_bytes(native(ROWS)))
            wait_until(lambda: control.failed > 0, 10, f"{kind} is called")
            control.disarm()
            for client in clients:
                client.socket.close()
            wait_until(lambda: is_healthy(server), 10, f"health after {kind} failed with {error}")
            wait_until(lambda: num_fds(server) <= fds, 10, "descriptors are released")


def test_reply_has_no_id_while_random_numbers_are_refused():
    with faulty_server(*OPTIONS) as (server, control):
        control.arm(["getrandom"], 1, "ENOSYS", count=1 << 40)
        assert "x-request-id" not in exchange(server.port, HEALTH).headers
        own = HEALTH.replace(b"\r\n\r\n", b"\r\nX-Request-Id: own\r\n\r\n")
        assert exchange(server.port, own).headers["x-request-id"] == "own"
        assert control.disarm() == 1
        assert len(exchange(server.port, HEALTH).headers["x-request-id"]) == 32


def errors_of(kind, nth):
    """Returns the errors that the nth call fails with: all in the long form, else one of them in turn. The first call
    fails with each."""
    return ERRORS[kind] if LONG or nth == 1 else [ERRORS[kind][nth % len(ERRORS[kind])]]


@pytest.mark.timeout(900)  # a hundred starts, one after the other
def test_every_failing_call_of_a_start_is_survived(control, start_arguments):
    """Either attnd starts and stops, or it ends with one line."""
    count = started = 0
    for kind in STARTING:
        failed = True
        for nth in itertools.takewhile(lambda _: failed, itertools.count(1)):
            for error in errors_of(kind, nth):
                control.write(in_main=0)
                control.arm([kind], nth, error)
                started += run_start(start_arguments, control)
                failed = control.failed > 0
                count += failed
    print(f"start: {count} calls failed in turn; {started} times attnd started all the same")
    assert count > 50


def test_every_failing_call_of_a_stop_is_survived():
    count = 0
    for kind in RUNNING:
        for error in ERRORS[kind] if LONG else ERRORS[kind][:1]:
            for nth in range(1, 20):
                with faulty_server(*OPTIONS, "--grace", 3) as (server, control), \
                        Connection(server.port) as idle:
                    idle.send(HEALTH)
                    assert idle.read_reply().status == 200
                    control.arm([kind], nth, error)
                    server.process.send_signal(signal.SIGTERM)
                    server.process.wait(60)
                    failed = control.disarm()
                if not failed:
                    break
                count += 1
    print(f"stop: {count} calls failed in turn")
    assert count > 0
