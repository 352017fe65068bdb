# SPDX-License-Identifier: Apache-2.0
"""TLS handshakes that hang: few of them run at a time, so that they delay nobody for long."""

import asyncio
import contextlib
import select
import time

import pytest

from certificates import HOST, client_context, hello
from http1 import Connection, get_bytes
from test_tls import Files, TlsConnection, ask, pytestmark as tls_marks

ALL, PER_CLIENT = 128, 32  # handshakes that run at a time, and those of one client
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"
pytestmark = tls_marks


@pytest.fixture
def options(tmp_path):
    """Of a server with one HTTP thread, whose handshakes the test counts."""
    files = Files(tmp_path)
    files.put()
    return ["--demo", "--http-threads", 1, *files.options]


@pytest.fixture(params=[1, 4])
def threads(options, request):
    """Lets `options` ask for so many HTTP threads."""
    options[options.index("--http-threads") + 1] = request.param
    return request.param


@contextlib.contextmanager
def hanging(server, count, begun):
    """Connections of one client that say no more than this."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(Connection(server.port)) for _ in range(count)]
        for connection in connections:
            connection.send(begun)
        yield connections


def readable(connections, count):
    """Waits until as many have something to read, or are closed; returns how many do at last."""
    deadline = time.monotonic() + 60
    while True:
        ready = select.select([connection.socket for connection in connections], [], [], 1)[0]
        if len(ready) >= count or time.monotonic() > deadline:
            return len(ready)
        time.sleep(0.01)


def test_handshakes_that_hang_give_way_to_those_that_wait(options, start_server):
    """Without that they would run until --header-timeout, an hour here."""
    server = start_server(*options, "--header-timeout", 3600)
    with hanging(server, PER_CLIENT + 8, HALF_HELLO) as connections:
        assert readable(connections, 8) == 8  # closed
        time.sleep(3)  # nobody waits any more, so the others may go on
        assert readable(connections, 8) == 8


def test_every_handshake_is_begun(options, start_server):
    server = start_server(*options, "--header-timeout", 3600)
    with hanging(server, 2 * PER_CLIENT + 8, hello()) as connections:
        assert readable(connections, len(connections)) == len(connections)
        assert all(connection.receive() for connection in connections)


def test_other_clients_do_not_wait(options, threads, start_server):
    server = start_server(*options, "--header-timeout", 3600)
    with hanging(server, 4 * PER_CLIENT * threads, b"\x16"):
        with TlsConnection(server.port, source="127.0.0.2") as other:
            assert ask(other).status == 200


@contextlib.contextmanager
def hanging_far_apart(server, count, begun):
    """As hanging(), but each connection has an address of its own."""
    with contextlib.ExitStack() as stack:
        sources = [f"127.1.{i // 250}.{i % 250 + 1}" for i in range(count)]
        connections = [stack.enter_context(Connection(server.port, source=source))
                       for source in sources]
        for connection in connections:
            connection.send(begun)
        yield connections


def in_records(message, size):
    """Cuts a record into records of so many bytes."""
    head, content = message[:3], message[5:]
    pieces = [content[at:at + size] for at in range(0, len(content), size)]
    return b"".join(head + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def test_a_handshake_takes_no_slot_before_its_first_bytes(options, threads, start_server):
    """So silent connections of any number of addresses stay, and nobody waits for them."""
    server = start_server(*options, "--header-timeout", 3600)
    with hanging_far_apart(server, ALL * threads + 72, b"") as connections:
        for _ in range(5):
            with TlsConnection(server.port) as other:
                assert ask(other).status == 200
        assert not select.select([connection.socket for connection in connections], [], [], 3)[0]
        connections[0].send(hello())
        assert connections[0].receive()


def test_the_newest_handshake_begins_first(options, start_server):
    """Those of many addresses that hang give way to a newcomer before it is their turn."""
    server = start_server(*options, "--header-timeout", 3600)
    with hanging_far_apart(server, 3 * ALL, HALF_HELLO) as connections:
        with TlsConnection(server.port) as other:
            assert ask(other).status == 200
        closed = select.select([connection.socket for connection in connections], [], [], 0)[0]
        assert len(closed) < 2 * ALL  # all that had come before would have been begun
        assert readable(connections, 2 * ALL) >= 2 * ALL  # as many as waited


def test_a_handshake_in_very_many_records_ends(options, threads, start_server):
    server = start_server(*options, "--header-timeout", 3600)
    with Connection(server.port) as connection:
        connection.send(in_records(hello(), 100))  # a hello may have 2 kB
        assert connection.receive()
    with Connection(server.port) as connection:
        connection.send(in_records(hello(), 1))
        assert not connection.receive()


def test_those_that_wait_have_a_deadline_too(options, threads, start_server):
    server = start_server(*options, "--header-timeout", 1)
    with hanging(server, 3 * PER_CLIENT * threads, b"\x16") as connections:
        assert readable(connections, len(connections)) == len(connections)
        assert not any(connection.receive() for connection in connections)


def test_many_connections_at_once_are_all_served(options, threads, start_server):
    """More than may shake hands at a time: each that is done makes room for one that waits."""
    server = start_server(*options, "--header-timeout", 3600)
    context = client_context()  # takes longer to make than a handshake

    async def fetch():
        reader, writer = await asyncio.open_connection(HOST, server.port, ssl=context)
        writer.write(get_bytes("/v2/health/live"))
        status = await reader.readline()
        writer.close()
        return status

    async def fetch_all():
        return await asyncio.gather(*(fetch() for _ in range(3 * PER_CLIENT)))

    assert set(asyncio.run(fetch_all())) == {b"HTTP/1.1 200 OK\r\n"}


def test_connections_that_wait_give_up_their_places(options, threads, start_server):
    """Those without a request go first when a connection finds no place. Some threads have their part before all have
    come, others later."""
    server = start_server(*options, "--header-timeout", 3600, "--max-connections", 2 * PER_CLIENT)
    with hanging(server, 2 * PER_CLIENT * threads, b"\x16"):
        for _ in range(5 * threads):
            with TlsConnection(server.port, source="127.0.0.2") as other:
                assert ask(other).status == 200


def test_stop_does_not_wait_for_handshakes(options, threads, start_server):
    server = start_server(*options, "--header-timeout", 3600)
    with hanging(server, 2 * PER_CLIENT * threads, b"\x16"):
        with TlsConnection(server.port, source="127.0.0.2") as other:
            assert ask(other).status == 200  # all others were accepted before
        server.stop(timeout=30)
