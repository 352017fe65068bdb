# SPDX-License-Identifier: Apache-2.0
"""Memory: uploads against each other, unfinished headers in a cgroup, what stays resident, and
replies that nobody reads."""

import contextlib
import itertools
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path

import requests

from cgroup import memory_cgroup
from http1 import Connection, get_bytes
from measure import (MIB, WORK, Impossible, Result, answers_after, binary_request, body_of,
                     memory_mib, run_load, serve, wide_model, write_layer)
from scrape import Scrape
from server import ROOT
from slow import CHUNKED, DECLARED, FILL_SECONDS, Attack, good_client

SLACK_MIB = 64  # beside budget and weights
REST_MIB = 16   # what may stay beside a fresh start
WIDE_MIB = 10   # weights of wide_model(768, 12)
NUM_WORKERS = 16
CGROUP_MIB = 200
HOARDERS = 5000
NUM_SMALL_MODELS = 64
READERS_MIB = 64  # budget of `unread`: room for 210 connections
READERS, MORE_READERS = 200, 50


def tall_model():
    """Rows of 1,024 numbers and one head of 64: a large body with little work and scratch."""
    path = WORK / "tall.safetensors"
    if not path.exists():
        write_layer(path, num_heads=1, head_size=64, query_size=1024)
    return f"tall={path}"


def upload(port, body, pause, statuses):
    """Sends `body` in chunks of 1 MiB with pauses, and notes the status of the reply."""
    try:
        with Connection(port, 60) as connection:
            connection.send(CHUNKED)
            for begin in range(0, len(body), MIB):
                piece = body[begin:begin + MIB]
                connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                time.sleep(pause)
            connection.send(b"0\r\n\r\n")
            reply = connection.read_reply()
            statuses.append(reply.status if reply else 0)
    except (OSError, AssertionError):
        statuses.append(0)


def uploads(long):
    """Chunked bodies of 25 MiB against a budget of 64 MiB. One needs 34 MiB to be computed."""
    del long
    body = body_of(binary_request("tall", 1, 6400, 1024))
    arguments = ("--model", tall_model(), "--max-memory", "64MiB")
    with serve(*arguments) as server:
        statuses = []
        with Attack(server.port, 2, DECLARED + bytes(24 * MIB), b"x"):
            time.sleep(FILL_SECONDS)
            for _ in range(3):
                upload(server.port, body, 0, statuses)
        served = statuses.count(200)
        yield Result("3 uploads of 25 MiB beside 2 that stopped at 24 MiB, budget 64 MiB",
                     "3 served", f"{served} served ({statuses})", served == 3)
    with serve(*arguments) as server:
        statuses = []
        threads = [threading.Thread(target=upload, args=(server.port, body, 0.1, statuses))
                   for _ in range(4)]
        good = good_client(server.port, 6)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        share, served = good.wait().share(), statuses.count(200)
        yield Result("4 uploads of 25 MiB at once, budget 64 MiB", "1 served, as one fits",
                     f"{served} served ({statuses})", served >= 1)
        yield Result("d2l beside these uploads", "≥ 99 % served", f"{share:.1%}", share >= 0.99)


def hoard(port, count):
    """Opens connections with 60 kB of a header that does not end. Returns them."""
    lines = "".join(f"X-{i}: {'x' * 1000}\r\n" for i in range(60))
    head = f"GET /v2 HTTP/1.1\r\nHost: a\r\n{lines}".encode()
    connections = []
    for _ in range(count):
        connection = socket.socket()
        connection.settimeout(0.2)
        connections.append(connection)
        with contextlib.suppress(OSError):
            connection.connect(("127.0.0.1", port))
            connection.send(head)
    return connections


def headers(long):
    """60 kB of unfinished headers on each of 5,000 connections, in a cgroup of 200 MiB."""
    del long
    with memory_cgroup(CGROUP_MIB * MIB) as cgroup:
        if not cgroup:
            raise Impossible("no memory cgroup can be made")
        with cgroup.holds_new_servers(), serve(must_live=False) as server:
            good = good_client(server.port, 15)
            connections = hoard(server.port, HOARDERS)
            share, ended = good.wait().share(), server.process.poll()
            state = (f"killed by signal {-ended}" if ended is not None else
                     f"peak {memory_mib(server.process.pid, 'VmHWM'):.0f} MiB")
            for connection in connections:
                connection.close()
    yield Result(f"{HOARDERS:,} x 60 kB of headers in {CGROUP_MIB} MiB", "≥ 99 % served",
                 f"{share:.1%}, {state}", share >= 0.99 and ended is None)


def resident(name, request, connections, seconds, budget, served, *arguments):
    """Measures the memory of a server with WIDE_MIB of weights. A server that refuses everything
    needs none, so at least `served` requests must get 200."""
    arguments = ("--model", wide_model(768, 12), "--max-memory", f"{budget}MiB", *arguments)
    with serve(*arguments) as server:
        pid = server.process.pid
        fresh = memory_mib(pid)
        samples = run_load(server.port, [request], seconds, connections=connections)
        peak = memory_mib(pid, "VmHWM")
        time.sleep(10)
        rest = memory_mib(pid)
    limit = budget + WIDE_MIB + SLACK_MIB
    yield Result(f"{name}: served", f"≥ {served}", samples.outcomes(),
                 samples.count(200) >= served)
    yield Result(f"{name}: peak", f"≤ {limit} MiB", f"{peak:.0f} MiB", peak <= limit)
    yield Result(f"{name}: after 10 s of rest", f"≤ {fresh + REST_MIB:.0f} MiB",
                 f"{rest:.0f} MiB", rest <= fresh + REST_MIB)


def bodies(long):
    """200 clients that each post 6.3 MB and ask for all weights: 200 MB a reply."""
    request = binary_request("wide", 1, 2048, 768, need_weights="true")
    yield from resident("200 bodies of 6.3 MB, budget 512 MiB", request, 200, 60 if long else 15,
                        512, 1)


def workers(long):
    """One client, 16 workers that each compute a request of 8 MB in their turn."""
    request = binary_request("wide", 4, 680, 768)
    yield from resident("16 workers, 8 MB, budget 128 MiB", request, 1, 60 if long else 20, 128,
                        NUM_WORKERS, "--workers", str(NUM_WORKERS))


def fill_once(server, count, stopped):
    """Opens `count` connections and closes them in one batch. Returns whether newcomers are then
    answered within a second, on each of several connections."""
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
    time.sleep(0.05)
    if stopped:
        os.kill(server.process.pid, signal.SIGSTOP)
    for connection in connections:
        connection.close()
    if stopped:
        time.sleep(0.05)
        os.kill(server.process.pid, signal.SIGCONT)
    return all(answers_after(server.port, 1) <= 1 for _ in range(4))


def fill(long):
    """Reaches the connection limit and closes all connections, half of the times while attnd is
    stopped. After a failure a new attnd goes on."""
    tries = 200 if long else 50
    for threads in (1, 2):
        answered = number = 0
        while number < tries:
            with serve("--max-connections", "20", "--http-threads", str(threads)) as server:
                while number < tries:
                    number += 1
                    if not fill_once(server, 21, number % 2):
                        break
                    answered += 1
        yield Result(f"limit reached, {threads} HTTP thread(s)", f"answers in {tries} of {tries}",
                     f"{answered} of {tries}", answered == tries)


def small_models():
    """Returns a folder of models that are one file."""
    folder = WORK / "small"
    if not folder.exists():
        folder.mkdir()
        write_layer(folder / "m0.safetensors", 1, 2, 4)
        for number in range(1, NUM_SMALL_MODELS):
            (folder / f"m{number}.safetensors").symlink_to("m0.safetensors")
    return folder


def lengthen_metrics(server):
    """Asks each route of each model with four methods. Returns the bytes of GET /metrics."""
    paths = json.loads((ROOT / "docs/openapi.json").read_text())["paths"]
    routes = [path.format(name=f"m{number}", version=1) for path in paths if "{name}" in path
              for number in range(NUM_SMALL_MODELS)]
    with requests.Session() as session:
        for method, route in itertools.product(("GET", "PUT", "DELETE", "POST"), routes):
            session.request(method, server.url + route, timeout=60)
    return len(server.get("/metrics").content)


def leave_unread(port, count, source="127.0.0.2"):
    """Asks for /metrics on each of `count` connections, and reads none of the replies. Segments and
    buffers are small, so that replies stay with the server. Returns the connections."""
    connections = []
    for _ in range(count):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        connection.settimeout(0.2)
        connection.bind((source, 0))
        connections.append(connection)
        with contextlib.suppress(OSError):
            connection.connect(("127.0.0.1", port))
            connection.send(get_bytes("/metrics"))
    return connections


def unread(long):
    """Replies that no worker makes, and that one client leaves unread on all places."""
    del long
    with serve("--model-dir", small_models(), "--max-memory", f"{READERS_MIB}MiB") as server:
        size = lengthen_metrics(server)
        before = Scrape(server).value("attnd_memory_reserved_bytes")
        fresh = memory_mib(server.process.pid)

        with contextlib.ExitStack() as stack:
            # The counter is read while there are places left.
            for connection in leave_unread(server.port, READERS):
                stack.enter_context(connection)
            time.sleep(2)
            counted = Scrape(server).value("attnd_memory_reserved_bytes") - before
            for connection in leave_unread(server.port, MORE_READERS):
                stack.enter_context(connection)
            share = good_client(server.port, 6).wait().share()
        peak = memory_mib(server.process.pid, "VmHWM")

    name = f"{READERS + MORE_READERS} x unread /metrics, budget {READERS_MIB} MiB"
    yield Result(name, "≥ 95 % served", f"{share:.1%}", share >= 0.95)
    yield Result(f"{name}: peak", f"≤ {fresh + READERS_MIB:.0f} MiB",
                 f"{peak:.0f} MiB, at rest {fresh:.0f} MiB", peak <= fresh + READERS_MIB)
    yield Result(f"{name}: in `attnd_memory_reserved_bytes`", f"≥ {READERS * size / MIB:.0f} MiB",
                 f"{counted / MIB:.0f} MiB for {READERS} of {size // 1000} kB",
                 counted >= READERS * size)
