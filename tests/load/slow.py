# SPDX-License-Identifier: Apache-2.0
"""Clients that send or read one byte a second, in each phase of a request, beside a good client
that opens a connection for each of its requests. Where a connection is cut, another one follows."""

import contextlib
import re
import select
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from http1 import get_bytes
from measure import (MIB, SAFETENSORS, WORK, Impossible, Load, Result, binary_request, d2l_request, run_load,
                     serve, serve_behind_proxy)

GOOD_RATE = 50  # requests/s of the good client
GOOD_PATIENCE = 2  # seconds
DEADLINE = 12  # seconds: --header-timeout is 10, and connections are looked at once a second
SLICES = 10  # of a second: not all connections send at the same moment
FILL_SECONDS = 5  # until all connections are open; those that were cut follow at the same rate
OK = b"HTTP/1.1 200"

UPLOAD = ("POST /v1/attention HTTP/1.1\r\nHost: a\r\n" + SAFETENSORS + "\r\n").encode()
DECLARED = UPLOAD + f"Content-Length: {64 * MIB}\r\n\r\n".encode()
CHUNKED = UPLOAD + b"Transfer-Encoding: chunked\r\n\r\n"
HEADERS = b"POST /v1/attention HTTP/1.1\r\nHost: a\r\nX-Slow: "


class SlowConnection:
    def __init__(self, port, source, opening):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.setblocking(False)
        self.socket.bind((source, 0))
        self.socket.connect_ex(("127.0.0.1", port))
        self.opening, self.sent, self.head = opening, 0, b""
        self.began = time.monotonic()

    @property
    def age(self):
        return time.monotonic() - self.began

    def step(self, drip):
        """Sends what is left of the opening, or one byte, and reads one. Returns False once the
        server has closed the connection or has answered with an error."""
        try:
            if self.sent < len(self.opening):
                self.sent += self.socket.send(self.opening[self.sent:])
            elif drip:
                self.socket.send(drip)
        except BlockingIOError:
            pass
        except OSError:
            return False
        try:
            data = self.socket.recv(1 if len(self.head) == len(OK) else len(OK) - len(self.head))
            if len(self.head) < len(OK):
                self.head += data
            return data != b"" and self.head == OK[:len(self.head)]
        except BlockingIOError:
            return True
        except OSError:
            return False

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.close()


class Attack:
    """`with Attack(...)` keeps `count` slow connections open in a thread. It replaces those that
    were closed or got an error."""

    def __init__(self, port, count, opening, drip, source="127.0.0.2"):
        self.make = lambda: SlowConnection(port, source, opening)
        self.drip, self.count = drip, count
        self.slices = [[] for _ in range(SLICES)]
        self.oldest, self.num_cut = 0.0, 0
        self.stop = threading.Event()
        self.executor = ThreadPoolExecutor(1)

    def run(self):
        """Looks at each connection once a second, and at one slice of them at a time."""
        while not self.stop.is_set():
            for number, connections in enumerate(self.slices):
                share = len(range(number, self.count, SLICES))
                began = time.monotonic()
                for connection in list(connections):
                    if not connection.step(self.drip):
                        self.note(connection)
                        connections.remove(connection)
                for _ in range(min(share - len(connections), share // FILL_SECONDS + 1)):
                    connections.append(self.make())
                    connections[-1].step(b"")
                self.stop.wait(max(1 / SLICES - (time.monotonic() - began), 0))
        for connection in sum(self.slices, []):
            self.oldest = max(self.oldest, connection.age)
            connection.close()

    def note(self, connection):
        self.oldest = max(self.oldest, connection.age)
        self.num_cut += 1
        connection.close()

    def __enter__(self):
        self.future = self.executor.submit(self.run)
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.future.result()  # raises what has ended the thread
        self.executor.shutdown()


def good_client(port, seconds):
    return Load(port, [d2l_request()], seconds, rate=GOOD_RATE, connections=GOOD_RATE * 4,
                give_up=GOOD_PATIENCE, fresh=True)


def measure(name, port, count, opening, drip, seconds, deadline=None):
    with Attack(port, count, opening, drip) as attack:
        time.sleep(FILL_SECONDS + 1)
        good = good_client(port, seconds).wait()
    share, oldest = good.share(), attack.oldest
    print(f"  {name}: good client: {good.outcomes()}; {attack.num_cut} connections cut")
    yield Result(f"{count:,} x {name}", "≥ 99 % served", f"{share:.1%}", share >= 0.99)
    if deadline:
        yield Result(f"{count:,} x {name}: oldest connection", f"≤ {deadline} s",
                     f"{oldest:.0f} s", oldest <= deadline)


def phases():
    """Yields (name, opening, drip, deadline in seconds or None)."""
    large_reply = binary_request("d2l", 1, 450, 100, need_weights="true")
    yield "slow headers", HEADERS, b"x", DEADLINE
    yield "slow bodies of 64 MiB", DECLARED, b"x", DEADLINE
    yield "slow chunked bodies", CHUNKED, b"1\r\nx\r\n", DEADLINE
    # 1 MiB is paid for with 256 s at the least rate, so these are not cut: they must yield.
    yield "bodies that stop at 1 MiB", DECLARED + bytes(MIB), b"", None
    yield "blank lines between requests", get_bytes("/v2/health/live"), b"\r\n", None
    yield "slow readers of 4 MB", large_reply, b"", None


def slow(long):
    """Short: 1,000 connections for 15 s a phase. Long: 10,000 for a minute."""
    count, seconds = (10000, 60) if long else (1000, 15)
    for name, opening, drip, deadline in phases():
        with serve("--max-memory", "256MiB") as server:
            yield from measure(name, server.port, count, opening, drip, seconds, deadline)
    with serve("--max-connections", "100") as server:
        yield from measure("slow headers, --max-connections 100", server.port, 100, HEADERS, b"x",
                           seconds)


def slow_proxy(long):
    del long
    # A body that stops at 1 MiB has left the proxy's buffer, so its replica must cope with it.
    for count, name, opening, drip in (
            (1000, "slow headers", HEADERS, b"x"),
            (18, "slow bodies of 64 MiB", DECLARED, b"x"),
            (1000, "slow bodies of 64 MiB", DECLARED, b"x"),
            (1000, "bodies that stop at 1 MiB", DECLARED + bytes(MIB), b"")):
        with serve_behind_proxy() as port:
            yield from measure(f"{name}, HAProxy", port, count, opening, drip, 15)


def slowhttptest(long):
    """The tool of that name, which judges by a request of its own every few seconds."""
    count = 10000 if long else 1000
    if not shutil.which("slowhttptest"):
        raise Impossible("slowhttptest is not installed")
    modes = (("headers", "-H", ()), ("bodies", "-B", ("-s", "1000000")),
             ("readers", "-X", ("-w", "10", "-y", "20", "-n", "5", "-z", "32")))
    for name, mode, options in modes:
        with serve("--max-memory", "256MiB") as server:
            log = subprocess.run(
                ["slowhttptest", mode, *options, "-c", str(count), "-r", "1000", "-i", "5", "-l",
                 "60" if long else "20", "-p", "2", "-u", f"{server.url}/openapi.json"],
                capture_output=True, text=True, cwd=WORK, check=False).stdout
            plain = re.sub(r"\x1b\[[0-9;]*m", "", log)
            answers = re.findall(r"service available:\s+(YES|NO)", plain)
            yes = answers.count("YES")
            yield Result(f"slowhttptest, {count:,} slow {name}", "available at all times",
                         f"{yes} of {len(answers)} looks", 0 < yes == len(answers))


def time_until_closed(connections, seconds):
    """Returns the time until the server has closed all connections, infinity if it does not."""
    began, waiting = time.monotonic(), list(connections)
    while waiting and time.monotonic() - began < seconds:
        readable, _, _ = select.select(waiting, [], [], 0.1)
        for connection in readable:
            try:
                closed = connection.recv(65536) == b""
            except OSError:
                closed = True
            if closed:
                waiting.remove(connection)
    return float("inf") if waiting else time.monotonic() - began


def chunk_extension(long):
    """Four uploads whose first chunk has an extension without end."""
    del long
    with serve() as server:
        alone = run_load(server.port, [d2l_request()], 5, rate=GOOD_RATE, connections=200)
        connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
        for connection in connections:
            connection.sendall(CHUNKED + b"1;" + b"x" * 100_000)
        good = Load(server.port, [d2l_request()], 10, rate=GOOD_RATE, connections=200)
        closed = time_until_closed(connections, 90)
        beside = good.wait()
        for connection in connections:
            connection.close()
    yield Result("chunk extension of 100 kB: closed after", f"≤ {DEADLINE} s", f"{closed:.1f} s",
                 closed <= DEADLINE)
    before, after = alone.p99_ms(), beside.p99_ms()
    yield Result("chunk extension: p99 of others", "≤ 2x alone",
                 f"{after:.1f} ms, alone {before:.1f} ms", after <= 2 * before)
