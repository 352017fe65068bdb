# SPDX-License-Identifier: Apache-2.0
"""One client that has idle connections on one of several HTTP threads, as many as there are places, beside a good client
of another address that opens a connection for each of its requests."""

import contextlib
import selectors
import socket
import struct
from pathlib import Path

from hogs import ALONE, BESIDE, HOG, good_client
from http1 import get_bytes
from measure import Result, serve
from selector_thread import SelectorThread

LIVE = get_bytes("/v2/health/live")
THREADS, PLACES = 4, 200


def connect_from(port, server_port):
    """Connects from a port of HOG; 0 is a free one. Closing it leaves nothing behind, so it may be used again."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.settimeout(5)
    connection.bind((HOG, port))
    connection.connect(("127.0.0.1", server_port))
    return connection


def count_waits(server):
    """Returns how often each thread of the server has waited."""
    waits = {}
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        lines = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines() if ":" in line)
        waits[task.name] = int(lines["voluntary_ctxt_switches"])
    return waits


def thread_of(server, connection, requests=8):
    """Returns the thread that serves a connection: it waits after each request. An attacker finds out by time."""
    before = count_waits(server)
    for _ in range(requests):
        connection.sendall(LIVE)
        connection.recv(4096)
    after = count_waits(server)
    return max(after, key=lambda task: after[task] - before.get(task, 0))


def ports_of_one_thread(server, count):
    """Returns ports of HOG whose connections the kernel gives to one thread."""
    ports, tried = {}, set()
    while max(map(len, ports.values()), default=0) < count:
        with connect_from(0, server.port) as connection:
            port = connection.getsockname()[1]
            if port not in tried:
                tried.add(port)
                ports.setdefault(thread_of(server, connection), []).append(port)
    return max(ports.values(), key=len)[:count]


class Sitters(SelectorThread):
    """`with Sitters(...)` keeps an idle connection from each port open, in a thread; who is closed comes again."""

    def __init__(self, server_port, ports):
        super().__init__()
        self.server_port, self.missing = server_port, list(ports)
        self.num_closed = 0

    def open_missing(self):
        missing, self.missing = self.missing, []
        for port in missing:
            try:
                connection = connect_from(port, self.server_port)
                connection.sendall(LIVE)
                connection.setblocking(False)
                self.selector.register(connection, selectors.EVENT_READ, port)
            except OSError:
                self.missing.append(port)

    def run(self):
        while not self.stop.wait(0.005):
            self.open_missing()
            for key, _ in self.selector.select(0.05):
                with contextlib.suppress(BlockingIOError, ConnectionResetError):
                    if key.fileobj.recv(4096):
                        continue
                self.selector.unregister(key.fileobj)
                key.fileobj.close()
                self.missing.append(key.data)
                self.num_closed += 1


def idle_threads(long):
    """Idle connections of one client, as many as there are places, all on one of several threads."""
    del long
    with serve("--http-threads", THREADS, "--max-connections", PLACES) as server:
        ports = ports_of_one_thread(server, PLACES)
        alone = good_client(server.port, ALONE, False).wait()
        with Sitters(server.port, ports) as sitters:
            good = good_client(server.port, BESIDE, False).wait()
        print(f"  idle: good client: {good.outcomes()}; closed for it or each other: {sitters.num_closed}", flush=True)
        share = good.share()
        yield Result(f"{PLACES} idle connections on one of {THREADS} HTTP threads, {PLACES} places", "≥ 95 % served",
                     f"{share:.1%}, p99 {good.p99_ms(200):.0f} ms, alone {alone.p99_ms(200):.0f} ms", share >= 0.95)
