# SPDX-License-Identifier: Apache-2.0
"""The admin address: what it serves, and that it replies whatever happens to the main one."""

import contextlib
import json
import re
import signal
import threading
import time

import pytest
import requests

from http1 import Connection, closed_port, get_bytes, post_bytes, send_unfinished
from server import Server, run_attnd

HEALTH = ["/v2/health/live", "/v2/health/ready"]
SMALL = json.dumps({"model": "journey", "queries": [[0.43, 0.15, 0.89]]}).encode()

pytestmark = pytest.mark.alone


def admin_port(server):
    return int(re.search(r"admin address url=http://127\.0\.0\.1:(\d+)", server.read_log())[1])


def get_admin(server, path, **options):
    return requests.get(f"http://127.0.0.1:{admin_port(server)}{path}", timeout=60, **options)


def assert_admin_replies(server):
    for path in HEALTH:
        assert get_admin(server, path).status_code == 200


@pytest.fixture
def start(start_server):
    return lambda *arguments: start_server("--demo", "--admin-listen", "127.0.0.1:0", *arguments)


@pytest.fixture(scope="module")
def server():
    with Server("--demo", "--admin-listen", "127.0.0.1:0") as running:
        yield running


@pytest.mark.parametrize("path", HEALTH)
def test_health_is_at_both_addresses(server, path):
    assert server.get(path).text == get_admin(server, path).text


def test_metrics_are_at_the_admin_address_alone(server, demo_server):
    """They count the requests of both, and the connections of the main one."""
    assert demo_server.get("/metrics").status_code == 200
    assert server.get("/metrics").status_code == 404
    reply = get_admin(server, "/metrics")
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "\nattnd_connections_limit 4096\n" in reply.text
    text = 'attnd_requests_total{route="/metrics",model="(none)",status="200"}'
    assert text in get_admin(server, "/metrics").text


@pytest.mark.parametrize("path", ["/", "/ui.js", "/v1/models", "/v2", "/v2/models/stats",
                                  "/v2/models/journey", "/openapi.json", "/nothing"])
def test_nothing_else_is_at_the_admin_address(server, path):
    reply = get_admin(server, path)
    assert reply.status_code == 404
    assert "admin address" in reply.text


def test_it_computes_nothing(server):
    for path in ("/v1/attention", "/v1/heads", "/v2/models/journey/infer"):
        reply = requests.post(f"http://127.0.0.1:{admin_port(server)}{path}", SMALL, timeout=60)
        assert reply.status_code == 404
    assert requests.post(f"http://127.0.0.1:{admin_port(server)}/v2/health/live",
                         timeout=60).status_code == 405


def test_it_needs_no_key(tmp_path, start):
    path = tmp_path / "keys"
    path.write_text("alice:0123456789abcdef\n")
    path.chmod(0o600)
    server = start("--api-key-file", path)
    assert server.get("/v1/models").status_code == 401
    assert_admin_replies(server)
    assert get_admin(server, "/v1/models").status_code == 404


@pytest.mark.parametrize("http_threads", [1, 2])
def test_it_replies_while_the_main_address_is_at_its_limit(start, http_threads):
    """Every connection has a reply that its client does not read, so none gives its place away."""
    server = start("--max-connections", 4, "--http-threads", http_threads, "--header-timeout", 600)
    large = json.dumps({"model": "d2l", "queries": [[0.5] * 100] * 700, "need_weights": True}).encode()
    with contextlib.ExitStack() as stack:
        num_busy = 0
        while num_busy < 4:  # on each thread as many as it has places for
            connection = stack.enter_context(Connection(server.port, timeout=170))
            connection.send(post_bytes(large))
            num_busy += connection.receive()
        for _ in range(5):
            with Connection(server.port) as refused:
                refused.send(get_bytes("/v2/health/live"))
                assert not refused.receive()
            assert_admin_replies(server)
            assert "\nattnd_connections 4\n" in get_admin(server, "/metrics").text
    assert "every connection of this HTTP thread has a request in progress" in server.read_log()


def test_it_replies_while_memory_is_used_up(start):
    """An upload holds all that --max-memory leaves."""
    server = start("--max-memory", 8 << 20, "--max-body", 64 << 20, "--workers", 1,
                   "--max-connections", 4)
    with Connection(server.port) as holder, Connection(server.port) as other:
        body = b" " * (4 << 20)
        send_unfinished(holder, body)
        other.send(post_bytes(body))
        assert_admin_replies(server)
        assert other.read_reply().status in (400, 413, 503)
        assert_admin_replies(server)


def test_its_own_limit_is_apart(start):
    """More connections than it has do not take one from the main address, or end it."""
    server = start("--max-connections", 2)
    port = admin_port(server)
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(Connection(port))
        with Connection(server.port) as connection:
            connection.send(post_bytes(SMALL))
            assert connection.read_reply().status == 200
    assert_admin_replies(server)


def test_many_probes_of_one_client_are_served(start):
    server = start("--max-per-client", 1)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(Connection(admin_port(server))) for _ in range(8)]
        for connection in connections:
            connection.send(get_bytes("/v2/health/live", "Content-Length: 1"))
        for connection in connections:
            connection.send(b"x")
            assert connection.read_reply().status == 200


def test_it_replies_until_the_last_request_is_done(start):
    server = start("--grace", 60)
    with Connection(server.port) as connection:
        send_unfinished(connection, SMALL)
        server.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 30
        while get_admin(server, "/v2/health/ready").status_code == 200 and time.monotonic() < deadline:
            time.sleep(0.01)
        reply = get_admin(server, "/v2/health/ready")
        assert (reply.status_code, reply.json()) == (503, {"ready": False, "reason": "draining"})
        assert get_admin(server, "/v2/health/live").status_code == 200
        connection.send(SMALL[-1:])
        assert connection.read_reply().status == 200
    server.wait()


def test_a_client_of_it_does_not_delay_the_stop(start):
    """One request has not arrived complete, and --grace is long."""
    server = start("--grace", 600)
    with Connection(admin_port(server)) as connection:
        connection.send(b"POST /v2/health/live HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n")
        server.stop(timeout=60)


def test_it_replies_under_many_requests(start):
    server, ends, statuses = start(), threading.Event(), []

    def send():
        with Connection(server.port) as connection:
            while not ends.is_set():
                connection.send(post_bytes(SMALL))
                statuses.append(connection.read_reply().status)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        assert_admin_replies(server)
    ends.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200}


@pytest.mark.parametrize("listen, reason", [("127.0.0.1", "--admin-listen: '127.0.0.1' is not"),
                                            ("no-such-host.invalid:0", "--admin-listen: unknown host")])
def test_a_bad_address_is_refused(listen, reason):
    result = run_attnd("--demo", "--listen", "127.0.0.1:0", "--admin-listen", listen)
    assert result.returncode in (1, 2) and reason in result.stderr


def test_an_address_that_is_taken_is_refused(server):
    result = run_attnd("--demo", "--listen", "127.0.0.1:0", "--admin-listen",
                       f"127.0.0.1:{server.port}")
    assert result.returncode == 1
    assert "--admin-listen: cannot listen on" in result.stderr and "give another port" in result.stderr


def test_it_may_be_reached_by_others():
    """It has no data of requests, and probes come from elsewhere."""
    result = run_attnd("--demo", "--check-config", "--admin-listen", "0.0.0.0:0")
    assert result.returncode == 0


def test_health_asks_it_when_there_is_one(server):
    port = admin_port(server)
    with closed_port() as closed:
        result = run_attnd("health", "--listen", f"127.0.0.1:{closed}", "--admin-listen", f"0.0.0.0:{port}")
        assert (result.returncode, result.stdout) == (0, f"0.0.0.0:{port}: ready\n")
        assert run_attnd("health", "--listen", f"127.0.0.1:{server.port}", "--admin-listen",
                         f"127.0.0.1:{closed}").returncode == 1
