# SPDX-License-Identifier: Apache-2.0
"""One client that takes as many places of connections, or turns of an HTTP thread, as it can, while
another wants one for each of its requests: with one HTTP thread and with four, over TCP and at a Unix socket.
tests/load/hogs.py has the large forms."""

import contextlib
import json
import os
import pathlib
import re
import select
import selectors
import signal
import socket
import ssl
import tempfile
import time

import pytest

from certificates import Certificate, client_context
from checkpoints import slow_request, write_slow_layer
from http1 import Connection, get_bytes, post_bytes
from selector_thread import SelectorThread, WithThread
from test_admin import get_admin
from test_unix_socket import OTHER, connect_as

PLACES = 40
REQUESTS = 8      # of the other client
PIPELINED = 300
SLICE = 280       # bytes that a reader takes ten times a second
HOG = "127.0.0.2"
THREADS = 4
BY_THREADS = pytest.mark.parametrize("threads", [1, THREADS])
SMALL = post_bytes(json.dumps({"model": "journey", "queries": [[1, 2, 3]]}).encode())
LARGE = post_bytes(json.dumps({"model": "d2l", "queries": [[0.5] * 100] * 20}).encode())
LIVE = get_bytes("/v2/health/live")


def add_header(request, header):
    return request.replace(b"\r\n", f"\r\n{header}\r\n".encode(), 1)


def of_hog(place, request):
    """At a Unix socket a trusted user names its clients. Over TCP they have addresses of their own."""
    return add_header(request, f"X-Forwarded-For: {HOG}") if isinstance(place, str) else request


def hog_socket(place):
    """Returns a socket of HOG that is not connected yet, and where it connects to."""
    if isinstance(place, str):
        return socket.socket(socket.AF_UNIX), place
    connection = socket.socket()
    connection.bind((HOG, 0))
    return connection, ("127.0.0.1", place)


class Reader:
    """A connection of HOG that sends `requests`, and reads slowly with a small receive buffer."""

    def __init__(self, place, requests, tls):
        self.socket, address = hog_socket(place)
        if address != place:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        self.socket.settimeout(5)
        self.rest = requests
        self.num_bytes = 0
        try:
            self.socket.connect(address)
            if tls:
                self.socket = client_context().wrap_socket(self.socket, server_hostname="127.0.0.1")
            self.socket.setblocking(False)
        except OSError:
            self.socket.close()

    def step(self):
        """Returns False once the connection is closed."""
        waits = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
        if self.socket.fileno() < 0:
            return False
        try:
            with contextlib.suppress(*waits):
                self.rest = self.rest[self.socket.send(self.rest):] if self.rest else b""
            with contextlib.suppress(*waits):
                data = self.socket.recv(SLICE)
                self.num_bytes += len(data)
                return data != b""
        except OSError:
            return False
        return True


class Readers(WithThread):
    """`with Readers(...)` keeps `count` of them open in a thread, each with many of `request`; who is closed comes again."""

    def __init__(self, place, request, count=PLACES, tls=False):
        super().__init__()
        requests = memoryview(of_hog(place, request) * PIPELINED)
        self.make = lambda: Reader(place, requests, tls)
        self.readers = [self.make() for _ in range(count)]
        self.num_closed = 0

    def run(self):
        while not self.stop.wait(0.1):
            for i, reader in enumerate(self.readers):
                if not reader.step():
                    reader.socket.close()
                    self.num_closed += 1
                    self.readers[i] = self.make()

    def wait_until_they_read(self, timeout=60):
        """All of them, once their connections have settled: on each thread as many as it has places for."""
        deadline = time.monotonic() + timeout
        while not all(reader.num_bytes > 0 for reader in list(self.readers)):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def close(self):
        for reader in self.readers:
            reader.socket.close()


def exchange(place, request, tls=False):
    """Sends a request on a connection of its own. Returns its reply; None: it was closed."""
    with Connection(place) as connection:
        if tls:
            connection.socket = client_context().wrap_socket(connection.socket,
                                                             server_hostname="127.0.0.1")
        connection.send(request)
        return connection.read_reply()


def expect_service(place, requests, tls=False):
    """Each of the requests is served, with the bytes that the first one got."""
    expected = {}
    for request in requests:
        reply = exchange(place, request, tls)
        assert reply is not None, "closed without a reply"
        assert reply.status == 200
        assert expected.setdefault(request, reply.body) == reply.body


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys"
    path.write_text("test:0123456789abcdef\n")
    path.chmod(0o600)
    return path


def with_key(request):
    return add_header(request, "Authorization: Bearer 0123456789abcdef")


@pytest.fixture(params=[(at, threads) for at in ("tcp", "unix") for threads in (1, THREADS)],
                ids=lambda param: f"{param[0]}-{param[1]}")
def start_at(start_server, request):
    """Starts a server with one or four threads at each address. Returns it, and the address to use."""
    at, threads = request.param
    with tempfile.TemporaryDirectory(prefix="attnd-hogs-") as folder:
        os.chmod(folder, 0o755)
        path = f"{folder}/attnd.sock"

        def start(*arguments, places=PLACES):
            options = ["--demo", "--http-threads", threads, *arguments]
            if at == "tcp":
                server = start_server(*options, "--max-connections", places)
                return server, server.port
            return start_server(*options, "--max-connections", 2 * places, "--listen", "127.0.0.1:0", "--listen",
                                f"unix:{path},mode=0666", "--trusted-proxy", f"unix:{os.geteuid()}", listen=None), path

        yield start


# --- places ---

def page_tag(server):
    return server.get("/ui.js").headers["etag"]


ATTACKS = {
    "page": get_bytes("/ui.js"),
    "openapi": get_bytes("/openapi.json"),
    "metrics": get_bytes("/metrics"),
    "unknown path": get_bytes("/nothing"),
    "models": get_bytes("/v1/models"),
    "attention": LARGE,
}


@pytest.mark.alone
@pytest.mark.parametrize("what", [*ATTACKS, "not modified"])
def test_slow_readers_of_one_client_do_not_keep_out_others(start_at, what):
    server, place = start_at()
    request = ATTACKS.get(what) or get_bytes("/ui.js", f"If-None-Match: {page_tag(server)}")
    with Readers(place, request) as readers:
        readers.wait_until_they_read()
        expect_service(place, [LIVE, SMALL] * (REQUESTS // 2))


def num_taken(server):
    return int(re.search(r"\nattnd_connections (\d+)\n", get_admin(server, "/metrics").text)[1])


def is_open(connection):
    return not select.select([connection.socket], [], [], 0)[0] or connection.receive()


@pytest.mark.alone
@pytest.mark.parametrize("request_", [b"", LIVE, post_bytes(b"{}")[:-1]], ids=["silent", "idle", "unfinished"])
def test_idle_connections_of_one_client_do_not_keep_out_others(start_at, request_):
    """A newcomer finds a place on each thread, though there are so few that one thread may have got all of them."""
    places = 2 * THREADS
    server, place = start_at("--admin-listen", "127.0.0.1:0", places=places)
    if isinstance(place, str) and os.geteuid() != 0:
        pytest.skip("only root can connect as another user")
    sitters = []
    for _ in range(30):
        sitters = [sitter for sitter in sitters if is_open(sitter)]
        while num_taken(server) < places:
            sitter = connect_as(OTHER, place) if isinstance(place, str) else Connection(place, source=HOG)
            sitters.append(sitter)
            sitter.send(request_)
        expect_service(place, [LIVE])
    for sitter in sitters:
        sitter.socket.close()


@pytest.mark.alone
@BY_THREADS
def test_slow_readers_without_a_key_do_not_keep_out_those_with_one(start_server, keys, threads):
    server = start_server("--demo", "--max-connections", PLACES, "--api-key-file", keys, "--http-threads", threads)
    with Readers(server.port, get_bytes("/ui.js")) as readers:
        readers.wait_until_they_read()
        expect_service(server.port, [with_key(SMALL)] * REQUESTS)


@pytest.mark.alone
@BY_THREADS
@pytest.mark.parametrize("what", ["page", "attention"])
def test_slow_readers_over_tls_do_not_keep_out_others(start_server, tmp_path, what, threads):
    Certificate().write(tmp_path / "cert.pem", tmp_path / "key.pem")
    server = start_server("--demo", "--max-connections", PLACES, "--http-threads", threads, "--tls-cert",
                          tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    with Readers(server.port, ATTACKS[what], tls=True) as readers:
        readers.wait_until_they_read()
        expect_service(server.port, [LIVE, SMALL] * (REQUESTS // 2), tls=True)


@pytest.mark.alone
@BY_THREADS
def test_client_that_is_alone_may_have_all_places(start_server, threads):
    """Its own newcomers end none of its requests, and get no place."""
    server = start_server("--demo", "--max-connections", PLACES, "--http-threads", threads)
    with Readers(server.port, get_bytes("/ui.js")) as readers:
        readers.wait_until_they_read()
        num_closed = readers.num_closed  # by threads that had all their places taken
        for _ in range(REQUESTS):
            with Connection(server.port, source=HOG) as newcomer:
                newcomer.send(LIVE)
                assert newcomer.read_reply() is None
        assert readers.num_closed == num_closed
    assert "name it with --trusted-proxy" in server.read_log()


@pytest.mark.alone
def test_job_that_runs_gives_way_to_another_client(start_server, tmp_path):
    write_slow_layer(tmp_path / "slow.safetensors")
    server = start_server("--model", f"slow={tmp_path}/slow.safetensors", "--workers", 1,
                          "--max-connections", 2, "--max-queue-delay", 60_000)
    jobs = [Connection(server.port, source=HOG, timeout=120) for _ in range(2)]
    for job in jobs:
        job.send(post_bytes(json.dumps(slow_request(tokens=3000)).encode()))
    time.sleep(0.3)  # until they are complete
    expect_service(server.port, [LIVE] * REQUESTS)
    replies = [job.read_reply() for job in jobs]
    assert sorted(reply.status if reply else 0 for reply in replies) == [0, 200]
    for job in jobs:
        job.socket.close()


@pytest.mark.alone
@BY_THREADS
def test_clients_behind_a_proxy_hold_the_places_of_their_requests(start_server, threads):
    """All connections are of the proxy; those of the client with most requests give way."""
    server = start_server("--demo", "--max-connections", PLACES, "--trusted-proxy", "127.0.0.0/8", "--http-threads",
                          threads)
    hog = get_bytes("/ui.js", "X-Forwarded-For: 10.0.0.1")
    with Readers(server.port, hog) as readers:
        readers.wait_until_they_read()
        other = get_bytes("/v2/health/live", "X-Forwarded-For: 10.0.0.2")
        expect_service(server.port, [other] * REQUESTS)


# --- turns ---

class Flood(SelectorThread):
    """`with Flood(...)` keeps `count` fast connections that pipeline 20 requests each, in a thread.
    Who is closed comes again."""

    def __init__(self, place, request, count):
        super().__init__()
        self.place, self.batch, self.count = place, of_hog(place, request) * 20, count
        self.num_bytes = 0

    def open(self):
        connection, address = hog_socket(self.place)
        connection.setblocking(address == self.place)  # a Unix socket has no room for a moment, and says so
        connection.connect_ex(address)
        connection.setblocking(False)
        self.selector.register(connection, selectors.EVENT_WRITE)

    def step(self, connection, events):
        try:
            if events & selectors.EVENT_WRITE:
                connection.send(self.batch)
                self.selector.modify(connection, selectors.EVENT_READ)
            else:
                data = connection.recv(1 << 20)
                self.num_bytes += len(data)
                if data:
                    self.selector.modify(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
                    return
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            self.selector.unregister(connection)
            connection.close()
            self.open()

    def run(self):
        for _ in range(self.count):
            self.open()
        while not self.stop.is_set():
            for key, events in self.selector.select(0.1):
                self.step(key.fileobj, events)


def expect_service_beside_flood(place, what):
    with Flood(place, ATTACKS[what], 300) as flood:
        while flood.num_bytes < 1000:
            time.sleep(0.05)
        expect_service(place, [LIVE, SMALL] * (REQUESTS // 2))


@pytest.mark.alone
@pytest.mark.parametrize("what", ["page", "metrics", "attention"])
def test_fast_connections_of_one_client_do_not_keep_out_others(start_at, what):
    expect_service_beside_flood(start_at(places=4096)[1], what)


@pytest.mark.alone
@BY_THREADS
@pytest.mark.parametrize("what", ["page", "metrics", "attention"])
def test_fast_connections_that_want_more_places_do_not_keep_out_others(start_server, what, threads):
    server = start_server("--demo", "--max-connections", 200, "--http-threads", threads)
    expect_service_beside_flood(server.port, what)


def stop_process(process):
    """Returns once every thread has stopped: the signal alone lets them go on for a while."""
    process.send_signal(signal.SIGSTOP)
    tasks = pathlib.Path(f"/proc/{process.pid}/task")
    while any("State:\tT" not in (task / "status").read_text() for task in tasks.iterdir()):
        time.sleep(0.01)


@pytest.mark.alone
def test_requests_that_come_at_once_are_served_by_turns_of_their_clients(start_server):
    """The server is stopped until all have come, those of another client last. It logs them in the
    order in which they are served."""
    server = start_server("--demo", "--http-threads", 1, "--access-log")
    hogs = [Connection(server.port, source=HOG) for _ in range(400)]
    with Connection(server.port) as other:
        for connection in [*hogs, other]:  # until the server has them all
            connection.send(LIVE)
            assert connection.read_reply().status == 200
        stop_process(server.process)
        for connection in hogs:
            connection.send(get_bytes("/v1/models"))
        other.send(get_bytes("/v2/health/ready"))
        server.process.send_signal(signal.SIGCONT)
        assert other.read_reply().status == 200
        for connection in hogs:
            assert connection.read_reply().status == 200
            connection.socket.close()
    before = server.read_log().split("route=/v2/health/ready")[0]
    assert before.count("route=/v1/models") < 200


@pytest.mark.alone
def test_requests_that_wait_for_their_turn_may_leave_and_are_served_by_a_stop(start_server):
    """More than have a turn in one run, in one segment each. Half of the clients leave at once."""
    server = start_server("--demo", "--grace", 60)
    connections = [Connection(server.port) for _ in range(600)]
    for connection in connections:
        connection.send(SMALL * 2)
    for connection in connections[::2]:
        connection.socket.close()
    stay = connections[1::2]
    first = [connection.read_reply().status for connection in stay]
    assert set(first) <= {200, 503}
    server.stop(timeout=120)
    for connection in stay:
        reply = connection.read_reply()
        assert reply is None or reply.status in (200, 503)
        connection.socket.close()


@pytest.mark.alone
def test_client_that_is_alone_has_all_turns(start_server):
    """Requests that wait for their turn are not lost, and keep their order."""
    server = start_server("--demo", "--http-threads", 1)
    connections = [Connection(server.port, timeout=120) for _ in range(300)]
    for connection in connections:
        connection.send((LIVE + get_bytes("/v1/models")) * 10)
    for connection in connections:
        for _ in range(10):
            assert connection.read_reply().json() == {"live": True}
            assert "models" in connection.read_reply().json()
        connection.socket.close()
