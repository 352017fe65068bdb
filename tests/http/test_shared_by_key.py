# SPDX-License-Identifier: Apache-2.0
"""What the keys of one name share: turns, workers and --max-per-key; and what is counted for them."""

import json
import threading

import pytest

from http1 import Connection, get_bytes, post_bytes
from scrape import Scrape
from server import run_attnd
from test_keys import ALICE, BOB, SMALL, bearer, write_keys

SECOND = "alice/second-key"  # of the same name
WATCHER = "watcher/9876543210"

pytestmark = pytest.mark.alone


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    write_keys(path, f"alice:{ALICE}", f"alice:{SECOND}", f"bob:{BOB}", f"watcher:{WATCHER}")
    return path


def with_key(request, key):
    return request.replace(b"\r\n", f"\r\nAuthorization: Bearer {key}\r\n".encode(), 1)


def send_unfinished(connection, key):
    connection.send(with_key(post_bytes(SMALL), key)[:-1])


def status_of(server, key, source="127.0.0.1"):
    with Connection(server.port, source=source) as connection:
        connection.send(with_key(get_bytes("/v1/models"), key))
        return connection.read_reply()


class Watcher:
    """Asks for metrics with a key of its own name."""

    def __init__(self, server):
        self.server = server

    def get(self, path):
        return self.server.get(path, headers=bearer(WATCHER))

    def wait(self, name, least):
        while Scrape(self).value(name) < least:
            pass


def test_limit_is_of_all_keys_and_addresses_of_a_name(start_server, key_file):
    server = start_server("--demo", "--api-key-file", key_file, "--max-per-key", 2)
    with Connection(server.port) as first, Connection(server.port, source="127.0.0.5") as second:
        send_unfinished(first, ALICE)
        send_unfinished(second, SECOND)
        Watcher(server).wait("attnd_requests_in_flight", 3)
        refused = status_of(server, ALICE, "127.0.0.6")
        assert refused.status == 429 and "retry-after" in refused.headers
        assert "--max-per-key 2" in refused.json()["detail"]
        assert status_of(server, BOB).status == 200
        first.send(SMALL[-1:])
        assert first.read_reply().status == 200
        assert status_of(server, ALICE).status == 200
        second.send(SMALL[-1:])
        assert second.read_reply().status == 200


def test_limit_needs_keys():
    result = run_attnd("--demo", "--max-per-key", 2, "--check-config")
    assert result.returncode == 2 and "--max-per-key counts by the names of keys; give --api-key-file" in result.stderr


def test_requests_of_a_name_are_counted(start_server, key_file):
    server = start_server("--demo", "--api-key-file", key_file, "--max-per-key", 1)
    for key in (ALICE, SECOND, BOB):
        with Connection(server.port) as connection:
            connection.send(with_key(post_bytes(SMALL), key))
            assert connection.read_reply().status == 200
    assert server.get("/v1/models", headers=bearer("wrong-0123456789")).status_code == 401
    with Connection(server.port) as unfinished:
        send_unfinished(unfinished, BOB)
        Watcher(server).wait("attnd_requests_in_flight", 2)
        assert status_of(server, BOB).status == 429
    found = Scrape(Watcher(server))
    assert found.value("attnd_key_requests_total", key="alice") == 2
    assert found.value("attnd_key_requests_rejected_total", key="alice") == 0
    assert found.value("attnd_key_requests_rejected_total", key="bob") == 1
    assert found.value("attnd_key_received_bytes_total", key="alice") == 2 * len(SMALL)
    assert found.value("attnd_key_sent_bytes_total", key="alice") > 50
    assert found.value("attnd_key_busy_seconds_total", key="alice") > 0
    assert {sample.labels["key"] for sample in found.all("attnd_key_requests_total")} == {"alice", "bob", "watcher"}


@pytest.mark.parametrize("key", [BOB, SECOND])
def test_workers_are_shared_by_name_and_then_by_address(start_server, key_file, key):
    """Twenty requests of one key and address wait for the worker. One of another name is served before most of
    them, and so is one of another address with the same name."""
    server = start_server("--demo", "--api-key-file", key_file, "--workers", 1, "--max-queue-delay", 600000)
    body = json.dumps({"model": "d2l", "queries": [[0.5] * 100] * 1500, "need": ["entropy"]}).encode()
    order, threads = [], []

    def send(key, source):
        with Connection(server.port, timeout=300, source=source) as connection:
            connection.send(with_key(post_bytes(body), key))
            order.append((connection.read_reply().status, source))

    for source in ["127.0.0.5"] * 20 + ["127.0.0.5" if key == BOB else "127.0.0.6"]:
        if len(threads) == 20:
            Watcher(server).wait("attnd_jobs_queued", 15)
        threads.append(threading.Thread(target=send, args=(ALICE if len(threads) < 20 else key, source)))
        threads[-1].start()
    threads[-1].join()
    behind = 21 - len(order)
    for thread in threads:
        thread.join()
    assert [status for status, _ in order] == [200] * 21
    assert behind >= 5
