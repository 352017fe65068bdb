# SPDX-License-Identifier: Apache-2.0
"""One client with thousands of connections, beside a good client of another address that opens one
for each of its requests: readers that pipeline and are slow, connections that are fast, or uploads
that do not end."""

import contextlib
import json
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time

from background import compiled
from certificates import Certificate
from http1 import Connection, get_bytes, post_bytes
from measure import WORK, Impossible, Load, Result, d2l_request, serve, serve_behind_proxy
from proxy import bound_socket, count_down, log_socket

HOG, OTHER = "127.0.0.2", "127.0.0.3"
RATE = 40      # requests/s of the good client
PATIENCE = 2   # seconds
ALONE, FILL, BESIDE = 4, 4, 12  # seconds
PIPELINED = {True: 400, False: 20}  # requests of a slow and of a fast connection
SLOW_RATE = 2800  # bytes/s of a slow reader
KEY = "0123456789abcdef"
ROUTES = {"/ui.js": get_bytes("/ui.js"), "/metrics": get_bytes("/metrics"),
          "/openapi.json": get_bytes("/openapi.json"), "a refused path": get_bytes("/nothing"),
          "/v1/attention": d2l_request()}

TLS_FRONT = """
global
    maxconn 5000
    tune.rcvbuf.server 4096
defaults
    mode tcp
    timeout connect 60s
    timeout client 60s
    timeout server 60s
listen front
    bind fd@{front}
    server attnd 127.0.0.1:{port} ssl verify none source {source}
"""


def good_client(port, seconds, key=False, source="127.0.0.1"):
    requests = [get_bytes("/v2/health/live"), d2l_request()]
    if key:
        header = f"\r\nAuthorization: Bearer {KEY}\r\n".encode()
        requests = [request.replace(b"\r\n", header, 1) for request in requests]
    return Load(port, requests, seconds, rate=RATE, connections=RATE * 4, give_up=PATIENCE,
                fresh=True, source=source)


@contextlib.contextmanager
def hog(port, request, count, slow, seconds):
    with tempfile.NamedTemporaryFile() as file:
        file.write(request)
        file.flush()
        arguments = (port, HOG, count, seconds, file.name, PIPELINED[slow], SLOW_RATE * slow)
        process = subprocess.Popen([compiled("hog"), *map(str, arguments)], stdout=subprocess.PIPE,
                                   text=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def measure(what, port, hog_port, request, count, slow, key=False, fill=FILL):
    alone = good_client(port, ALONE, key).wait()
    with hog(hog_port, request, count, slow, fill + BESIDE + 1) as process:
        time.sleep(fill)
        good = good_client(port, BESIDE, key).wait()
        said = process.communicate()[0].strip()
    print(f"  {what}: good client: {good.outcomes()}; the other one: {said}", flush=True)
    share = good.share()
    # Of those that were served: the share says how many were not.
    yield Result(f"{count:,} {'slow readers' if slow else 'fast connections'} of {what}",
                 "≥ 95 % served", f"{share:.1%}, p99 {good.p99_ms(200):.0f} ms, "
                 f"alone {alone.p99_ms(200):.0f} ms", share >= 0.95)


def key_file():
    path = WORK / "keys"
    path.write_text(f"test:{KEY}\n")
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def tls_front(port, source):
    """Speaks TLS with attnd on `port` for clients that do not, from `source`. Yields its port."""
    if not shutil.which("haproxy"):
        raise Impossible("haproxy is not installed")
    listener, front = bound_socket()
    path = WORK / f"front-{source}.cfg"
    path.write_text(TLS_FRONT.format(front=listener.fileno(), port=port, source=source))
    process = subprocess.Popen(["haproxy", "-db", "-f", path], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, pass_fds=[listener.fileno()])
    try:
        time.sleep(1)
        yield front
    finally:
        listener.close()
        process.kill()
        process.wait()


def measure_tls(count, slow):
    cert, key = WORK / "cert.pem", WORK / "key.pem"
    Certificate().write(cert, key)
    with serve("--tls-cert", cert, "--tls-key", key) as server, \
            tls_front(server.port, "127.0.0.1") as front, tls_front(server.port, HOG) as other:
        yield from measure("/ui.js, TLS", front, other, ROUTES["/ui.js"], count, slow, fill=12)


def hogs(long):
    """Slow readers on all places."""
    del long
    for what, request in ROUTES.items():
        with serve() as server:
            yield from measure(what, server.port, server.port, request, 4096, True)
    with serve("--api-key-file", key_file()) as server:
        yield from measure("/ui.js without a key", server.port, server.port, ROUTES["/ui.js"], 4096,
                           True, key=True)
    yield from measure_tls(4096, True)


def flood(long):
    """Fast connections, which take all turns of the HTTP thread."""
    del long
    for what, request in ROUTES.items():
        for count in (2000, 4000):
            with serve() as server:
                yield from measure(what, server.port, server.port, request, count, False)
    with serve("--api-key-file", key_file()) as server:
        yield from measure("/ui.js without a key", server.port, server.port, ROUTES["/ui.js"], 4000,
                           False, key=True)
    yield from measure_tls(2000, False)


def hogs_proxy(long):
    del long
    for what, slow in (("/v2/health/live", False), ("/ui.js", False), ("/ui.js", True)):
        with log_socket() as log:
            with serve_behind_proxy(log_port=log.getsockname()[1]) as port:
                yield from measure(f"{what}, HAProxy", port, port, get_bytes(what), 3500, slow,
                                   fill=1)
            downs = count_down(log)
        yield Result(f"3,500 {'slow readers' if slow else 'fast connections'} of {what}, HAProxy: "
                     "replicas down", "0", str(downs), downs == 0)


def uploads_proxy(long):
    """The replicas trust the range in which clients are, as those of kubernetes/proxy do. One client has
    twice as many requests in progress as both replicas allow it, none of them complete."""
    del long
    count, upload = 256, post_bytes(b" " * 40_000)[:32_768]
    with log_socket() as log, contextlib.ExitStack() as stack:
        port = stack.enter_context(serve_behind_proxy(trusted="127.0.0.0/8", log_port=log.getsockname()[1]))
        alone = good_client(port, ALONE, source=OTHER).wait()
        for _ in range(count):
            stack.enter_context(Connection(port, source=HOG)).send(upload)
        good = good_client(port, 8, source=OTHER).wait()  # after 10 s the uploads get 408
        stack.close()
        downs = count_down(log)
    name = f"{count} uploads that do not end, HAProxy, clients in the trusted range"
    yield Result(name, "≥ 95 % served", f"{good.share():.1%}, p99 {good.p99_ms(200):.0f} ms, "
                 f"alone {alone.p99_ms(200):.0f} ms", good.share() >= 0.95)
    yield Result(f"{name}: replicas down", "0", str(downs), downs == 0)


def keys(long):
    """Two keys from one address: one fills 200 connections with work, the other is the good client's."""
    del long
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "keys")
        path.write_text(f"hog:hog-{KEY}\ngood:{KEY}\n")
        path.chmod(0o600)
        with serve("--demo", "--api-key-file", path) as server:
            header = f"\r\nAuthorization: Bearer hog-{KEY}\r\n".encode()
            request = post_bytes(json.dumps({"model": "d2l", "queries": [[0.5] * 100] * 1000}).encode())
            attack = Load(server.port, [request.replace(b"\r\n", header, 1)], BESIDE + FILL + 2, connections=200)
            time.sleep(FILL)
            good = good_client(server.port, BESIDE, key=True).wait()
            print(f"  good client: {good.outcomes()}; the other key: {attack.wait().outcomes()}", flush=True)
            yield Result("200 connections of another key from the same address", "≥ 95 % served",
                         f"{good.share():.1%}, p99 {good.p99_ms(200):.0f} ms", good.share() >= 0.95)
