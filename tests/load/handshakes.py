# SPDX-License-Identifier: Apache-2.0
"""TLS handshakes that never end, from many addresses, beside a client that opens a connection for
each of its requests. Where one is closed, another one follows at once."""

import multiprocessing
import selectors
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from certificates import HOST, Certificate, client_context, hello
from http1 import get_bytes
from measure import WORK, Result, serve

COUNT = 2000  # connections, each from an address of its own
RATE = 40  # handshakes/s of the good client
PATIENCE = 2  # seconds
FILL_SECONDS = 4
OPENED_MAX = 50  # at one time, so that this process reads in between


def forms():
    """Yields (name, what a connection sends)."""
    message = hello()
    yield "silent", b""
    yield "half a hello", message[:len(message) // 2]
    yield "hellos in records of one byte", b"".join(
        message[:3] + b"\0\1" + message[i:i + 1] for i in range(5, len(message)))


class Attack(multiprocessing.Process):
    """`with Attack(...)` keeps COUNT connections open in a process of its own."""

    def __init__(self, port, opening):
        super().__init__(daemon=True)
        self.port, self.opening = port, opening

    def open(self, number, selector):
        connection = socket.socket()
        connection.setblocking(False)
        connection.bind((f"127.1.{number // 250}.{number % 250 + 1}", 0))
        connection.connect_ex((HOST, self.port))
        selector.register(connection, selectors.EVENT_WRITE, number)

    def step(self, key, events, selector):
        """Sends the opening once, then reads. Returns whether the connection has ended."""
        try:
            if events & selectors.EVENT_READ:
                return not key.fileobj.recv(65536)
            key.fileobj.send(self.opening)
            selector.modify(key.fileobj, selectors.EVENT_READ, key.data)
        except BlockingIOError:
            pass
        except OSError:
            return True
        return False

    def run(self):
        selector, missing = selectors.DefaultSelector(), list(range(COUNT))
        while True:
            for number in missing[:OPENED_MAX]:
                self.open(number, selector)
            del missing[:OPENED_MAX]
            for key, events in selector.select(0 if missing else 1):
                if self.step(key, events, selector):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    missing.append(key.data)

    def __enter__(self):
        self.start()
        time.sleep(FILL_SECONDS)
        return self

    def __exit__(self, *_):
        self.kill()
        self.join()


def fetch(port, context):
    """Returns the seconds until a reply on a new connection, infinity if there was none."""
    began = time.monotonic()
    try:
        with socket.create_connection((HOST, port), PATIENCE) as plain, \
                context.wrap_socket(plain, server_hostname=HOST) as connection:
            connection.sendall(get_bytes("/v2/health/live"))
            served = connection.recv(65536).startswith(b"HTTP/1.1 200")
    except OSError:
        served = False
    took = time.monotonic() - began
    return took if served and took <= PATIENCE else float("inf")


def fetch_at_a_rate(port, seconds):
    """Returns the times of RATE requests a second, slowest last; several wait at a time."""
    context, began = client_context(), time.monotonic()
    with ThreadPoolExecutor(RATE * PATIENCE) as clients:
        futures = []
        for number in range(seconds * RATE):
            time.sleep(max(began + number / RATE - time.monotonic(), 0))
            futures.append(clients.submit(fetch, port, context))
        return sorted(future.result() for future in futures)


def handshakes(long):
    cert, key = WORK / "cert.pem", WORK / "key.pem"
    Certificate().write(Path(cert), Path(key))
    for name, opening in forms():
        with serve("--tls-cert", cert, "--tls-key", key) as server:
            alone = fetch_at_a_rate(server.port, 3)
            with Attack(server.port, opening):
                times = fetch_at_a_rate(server.port, 60 if long else 10)
        share = sum(took <= PATIENCE for took in times) / len(times)
        p99, before = (1e3 * each[int(len(each) * 0.99)] for each in (times, alone))
        yield Result(f"{COUNT:,} handshakes of as many addresses: {name}", "≥ 95 % served",
                     f"{share:.1%}, p99 {p99:.0f} ms, alone {before:.0f} ms", share >= 0.95)
