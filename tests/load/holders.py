# SPDX-License-Identifier: Apache-2.0
"""Captures that are kept: one client that asks to have a large one described, few that fill the memory of all, and
files that arrive slowly, beside a good client of another address."""

import contextlib
import threading
import time

import numpy as np

from hogs import HOG, measure
from http1 import Connection
from measure import MIB, Load, Result, binary_request, serve
from scrape import Scrape
from stored import (LEAST, PATH, Layer, ask, delete, file_of_size, head_bytes, make_file, put, small_file)

SECONDS = 12
LAYERS = 9000  # of which a header of 1 MiB has room for some 13,000
SENDERS = 48


def described(long):
    """A description of 2 MB, which costs its client 40 bytes, and the list of 2,048 captures."""
    del long
    layer = Layer({"keys": np.ones((1, 1, 1))})
    file = make_file({f"{i:x}": layer for i in range(LAYERS)})
    with serve("--capture-memory", "64MiB") as server:
        assert put(server, "many", file, HOG).status == 201
        for method, count in (("GET", 64), ("GET", 1000), ("HEAD", 64)):
            yield from measure(f"{method} of a capture with {LAYERS:,} layers", server.port, server.port,
                               head_bytes(method, f"{PATH}/many", None), count, False)
    with serve("--capture-memory", "256MiB") as server:
        for i in range(2048):
            assert put(server, f"capture-{i}", small_file(), f"127.0.1.{i // 256 + 1}").status == 201
        yield from measure("the list of 2,048 captures", server.port, server.port, head_bytes("GET", PATH, None), 64,
                           False)


def put_often(server, size):
    """Puts a capture of another holder again and again. Returns how many there were and how many were kept."""
    file, count, kept, end = file_of_size(size), 0, 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        kept += put(server, "mine", file).status == 201
        count += 1
        delete(server, "mine")
        time.sleep(0.1)
    return count, kept


@contextlib.contextmanager
def in_threads(run, sources):
    """Calls run(source, stop) in a thread for each of these addresses."""
    stop = threading.Event()
    threads = [threading.Thread(target=run, args=(source, stop)) for source in sources]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def fill_again(server, file):
    """Returns what a client does that has half of the memory, asks for it once a second, and puts it again."""
    def run(source, stop):
        while not stop.wait(1):
            put(server, f"half-{source}", file, source)
            ask(server, f"half-{source}", {"queries": np.ones((1, 1, 64)), "need": ["lse"]}, source)
    return run


def announce_again(server, size):
    """Returns what a client does that announces half of the memory, and sends nothing."""
    def run(source, stop):
        while not stop.is_set():
            with contextlib.suppress(OSError, AssertionError):
                with Connection(server.port, timeout=0.3, source=source) as connection:
                    connection.send(head_bytes("PUT", f"{PATH}/half-{source}", size))
                    while not stop.is_set() and connection.receive():
                        pass
    return run


def holders(long):
    """Clients that fill all of --capture-memory, and fill it again."""
    del long
    half = file_of_size(8 * MIB - LEAST)
    for what, count, make in (("keep half of the memory, and use it", 2, lambda server: fill_again(server, half)),
                              ("announce half of the memory", 2, lambda server: announce_again(server, 8 * MIB)),
                              ("announce half of the memory", 4, lambda server: announce_again(server, 8 * MIB))):
        with serve("--capture-memory", "16MiB") as server:
            with in_threads(make(server), [f"127.0.3.{i + 1}" for i in range(count)]):
                time.sleep(3)  # until all is used
                tries, kept = put_often(server, MIB)
        yield Result(f"{count} clients {what}: another one's captures of 1 MiB", "≥ 95 % kept",
                     f"{kept} of {tries}", kept >= 0.95 * tries)


def pieces(long):
    """Files of 1 MiB that arrive at 5 kB/s, beside requests of 240 kB, in a budget of 64 MiB."""
    del long
    file, request = file_of_size(MIB), binary_request("d2l", 1, 600, 100)
    with serve("--capture-memory", "256MiB", "--max-memory", "64MiB") as server:
        connections = [Connection(server.port, timeout=60, source=f"127.0.2.{i + 1}") for i in range(SENDERS)]
        for i, connection in enumerate(connections):
            connection.send(head_bytes("PUT", f"{PATH}/slow{i}", len(file)))
        good = Load(server.port, [request], SECONDS, rate=5, connections=20, give_up=10, fresh=True)
        for at in range(0, 5000 * (SECONDS + 2), 5000):
            for connection in connections:
                with contextlib.suppress(OSError, AssertionError):
                    connection.send(file[at:at + 5000])
            time.sleep(1)
        reserved = Scrape(server).value("attnd_memory_reserved_bytes")
        share = good.wait().share()
        for connection in connections:
            connection.socket.close()
    yield Result(f"{SENDERS} clients that put files of 1 MiB at 5 kB/s, budget 64 MiB: another one's requests of 240 kB",
                 "≥ 95 % served", f"{share:.1%}, {reserved / MIB:.0f} MiB reserved", share >= 0.95)
