# SPDX-License-Identifier: Apache-2.0
"""Clients that leave at every stage. Nothing of theirs stays: no descriptor, block, slot or byte."""

import contextlib
import json
import socket
import struct

import pytest

from all_requests import ROWS, make_requests, native
from checkpoints import slow_request, write_slow_layer
from fault import LONG, exchange, faulty_server, is_healthy, num_fds, wait_until
from http1 import Connection, post_bytes

QUEUE = 4
OPTIONS = ("--demo", "--workers", 1, "--http-threads", 1, "--queue", QUEUE, "--max-memory", "32MiB")
SMALL = post_bytes(native(ROWS))
TIMES = 40 if LONG else 1


def leave(connection, reset):
    """Closes the connection: by a reset, or as a client that ends."""
    if reset:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.socket.close()


@contextlib.contextmanager
def nothing_stays(server, control, queue=QUEUE):
    """What is in use afterwards must be what was in use before."""
    # What a server allocates once. A body of 20 MB is most of the budget.
    large = post_bytes(b" " * 20000000)
    for data in (SMALL, SMALL, large):
        exchange(server.port, data)
    is_healthy(server)
    live, fds = control and control.live, num_fds(server)
    yield
    wait_until(lambda: num_fds(server) <= fds, 20,
               f"{num_fds(server) - fds} descriptors are released")
    wait_until(lambda: not control or control.live <= live, 20,
               f"{control and control.live - live} blocks are released")
    assert exchange(server.port, large).status == 400  # and not 503
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Connection(server.port)) for _ in range(queue)]
        for client in clients:
            client.send(SMALL)
        assert [client.read_reply().status for client in clients] == [200] * queue


@pytest.mark.parametrize("reset", (False, True))
@pytest.mark.parametrize("name", ("native", "chunked", "safetensors", "OIP, binary"))
def test_client_that_leaves_after_any_byte_of_its_request(name, reset):
    data, _ = make_requests()[name]
    with faulty_server(*OPTIONS) as (server, control):
        with nothing_stays(server, control):
            for _ in range(TIMES):
                for sent in range(len(data) + 1):
                    with Connection(server.port) as client:
                        client.send(data[:sent])
                        leave(client, reset)
        print(f"{name}: left {TIMES * (len(data) + 1)} times")


@pytest.mark.parametrize("reset", (False, True))
def test_client_that_leaves_while_its_reply_is_sent(reset):
    """A streamed reply of 2 MB, of which the client reads a part."""
    data, _ = make_requests()["streamed reply"]
    with faulty_server(*OPTIONS) as (server, control):
        with nothing_stays(server, control):
            for _ in range(TIMES):
                for received in (*range(0, 20, 3), *range(20, 1500000, 150000)):
                    with Connection(server.port) as client:
                        client.send(data)
                        while received > 0 and (part := client.socket.recv(min(received, 65536))):
                            received -= len(part)
                        leave(client, reset)


@pytest.mark.parametrize("reset", (False, True))
def test_client_that_leaves_while_its_job_waits_or_runs(tmp_path, reset):
    path = tmp_path / "slow.safetensors"
    write_slow_layer(path)
    slow = post_bytes(json.dumps(slow_request(1, 100) | {"model": "slow"}).encode())
    with faulty_server(*OPTIONS, "--model", f"slow={path}") as (server, control):
        exchange(server.port, slow)  # the arena of the worker grows
        with nothing_stays(server, control):
            for _ in range(3 * TIMES):
                clients = [Connection(server.port) for _ in range(QUEUE)]
                for client in clients:
                    client.send(slow)
                assert is_healthy(server)  # all have been read
                for client in clients:
                    leave(client, reset)
                assert is_healthy(server)
            # A request that comes now waits for at most what is computed already.
            wait_until(lambda: exchange(server.port, SMALL).status == 200, 60, "slots are released")
