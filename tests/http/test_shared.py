# SPDX-License-Identifier: Apache-2.0
"""Replies that an HTTP thread makes: what is costly is made once for many, and their bytes are in the budget."""

import contextlib
import re
import socket
import time
from pathlib import Path

import pytest

from checkpoints import write_layer
from http1 import Connection, get_bytes
from scrape import wait_for_counters, wait_for_scrape
from server import Server, is_sanitized

NUM_MODELS = 2000

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """It has many models, which are one file. Readers are not cut off while a slow machine scrapes it."""
    folder = tmp_path_factory.mktemp("models")
    write_layer(folder / "m0.safetensors", 1, 2, 4)
    for number in range(1, NUM_MODELS):
        (folder / f"m{number}.safetensors").symlink_to("m0.safetensors")
    with Server("--model-dir", folder, "--max-memory", 256 << 20, "--http-threads", 2,
                "--header-timeout", 120) as running:
        yield running


def cpu_of(server, request, count):
    """Returns the CPU time that the server takes for some requests whose replies have no body, in ns."""
    def spent():
        tasks = Path(f"/proc/{server.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks)
    with Connection(server.port, timeout=120) as connection:
        before = spent()
        for _ in range(count // 50):
            connection.send(request * 50)
            assert {connection.read_reply(head_only=True).status for _ in range(50)} == {200}
        return spent() - before


@pytest.mark.parametrize("path", ["/", "/ui.css", "/ui.js", "/v1/models"])
def test_what_does_not_change_is_not_made_for_each_request(server, path):
    """HEAD costs what GET does but for sending."""
    head = f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    live = b"HEAD /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    cpu_of(server, head, 50)
    assert min(cpu_of(server, head, 1000) for _ in range(3)) < 3 * max(cpu_of(server, live, 1000) for _ in range(3))


def test_shared_index_is_that_of_the_request(server):
    def ask(body):
        with Connection(server.port, timeout=120) as connection:
            connection.send(b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                            % (len(body), body))
            return connection.read_reply().json()
    assert len(ask(b"")) == len(ask(b'{"ready":true}')) == NUM_MODELS
    assert ask(b"") == ask(b'{"ready":false}')


@pytest.mark.parametrize("path", ["/metrics", "/v2/models/stats"])
def test_counters_are_printed_at_most_ten_times_a_second(server, path):
    bodies = set()
    infer = b'{"model":"m0","queries":[[1,2,3,4]]}'
    with Connection(server.port, timeout=120) as connection:
        def count_one():
            connection.send(b"POST /v1/attention HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                            b"Content-Length: %d\r\n\r\n%s" % (len(infer), infer))
            assert connection.read_reply().status == 200

        def ask():
            connection.send(get_bytes(path))
            return connection.read_reply().body

        begun = time.monotonic()
        for _ in range(30):
            count_one()
            bodies.add(ask())
        seconds = time.monotonic() - begun
        assert len(bodies) <= 10 * seconds + 2
        count_one()  # which no text has yet
        while ask() in bodies:
            assert time.monotonic() - begun < 60, "the text stays as it is"
            wait_for_counters()


def reserved(server, condition):
    name = "attnd_memory_reserved_bytes"
    return wait_for_scrape(server, lambda scrape: condition(scrape.value(name)), timeout=120).value(name)


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/v2/models/stats"])
def test_replies_that_nobody_reads_are_in_the_budget(server, path):
    """Each counts as if it were its own; the budget is soon used up, which is told with 503."""
    size = len(server.get(path).content)  # `before` may hold this reply still, and that of a scrape
    before = reserved(server, lambda bytes: bytes < 70e6)
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(Connection(server.port, source="127.0.0.9"))
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.send(get_bytes(path) * 100)
        reserved(server, lambda bytes: bytes >= before + 15 * size)
    reserved(server, lambda bytes: bytes < before + size)


def test_replies_are_refused_when_the_budget_is_used_up(start_server, server, path="/v1/models"):
    size = len(server.get(path).content)
    folder = re.search(r"--model-dir\0([^\0]+)", Path(f"/proc/{server.process.pid}/cmdline").read_text())[1]
    small = start_server("--model-dir", folder, "--max-memory", 2_600_000, "--workers", 64, "--max-connections", 9)
    assert 7 * size > 2_600_000
    with contextlib.ExitStack() as stack:
        for _ in range(7):
            connection = stack.enter_context(Connection(small.port, source="127.0.0.9"))
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.send(get_bytes(path) * 100)
        end = time.monotonic() + 60
        while (reply := small.get(path)).status_code != 503:
            assert time.monotonic() < end
        assert reply.json()["title"] == "Out of memory"
        assert int(reply.headers["Retry-After"]) >= 1
        assert small.get("/v2/health/live").status_code == 200


def test_readers_of_one_text_share_its_memory(server):
    def resident():
        return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())[1]) * 1024
    size = len(server.get("/v2/models/stats").content)
    before = resident()
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(Connection(server.port, source="127.0.0.9"))
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.send(get_bytes("/v2/models/stats") * 50)
        reserved(server, lambda bytes: bytes >= 100 * size)
        assert is_sanitized() or resident() < before + 100 * (size + 70_000) / 2
