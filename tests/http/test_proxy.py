# SPDX-License-Identifier: Apache-2.0
"""Tests deploy/haproxy.cfg before two replicas that only pretend: they say what they were sent."""

import contextlib
import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from http1 import Connection, get_bytes, post_bytes
from proxy import Proxy, count_down, log_socket
from reload import wait_until
from server import ROOT, Server, steady_address

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")


class Replica:
    """Replies to each request with `status`, after `delay` seconds. Health checks get 200."""

    def __init__(self, status=200, delay=0):
        self.status, self.delay = status, delay
        self.requests, self.hung_up = [], threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            while data := connection.recv(65536):
                if b"/v2/health/ready" in data:
                    self.reply(connection, 200)
                    continue
                self.requests.append(data.decode("latin-1"))
                if self.delay:
                    self.wait_for_hang_up(connection)
                self.reply(connection, self.status)
        except OSError:
            pass
        finally:
            connection.close()

    def wait_for_hang_up(self, connection):
        connection.settimeout(self.delay)
        try:
            if connection.recv(1) == b"":
                self.hung_up.set()
        except ConnectionResetError:
            self.hung_up.set()
        except TimeoutError:
            pass
        connection.settimeout(None)

    @staticmethod
    def reply(connection, status):
        connection.sendall(f"HTTP/1.1 {status} Text\r\nContent-Length: 2\r\n\r\n{{}}".encode())

    def __enter__(self):
        return self

    def leave(self):
        """No new connection is accepted from now on."""
        with contextlib.suppress(OSError):  # it has left
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def __exit__(self, *_):
        self.leave()


def exchange(port, request, timeout=30, source="127.0.0.1"):
    with Connection(port, timeout, source) as connection:
        connection.send(request)
        return connection.read_reply()


def test_a_503_is_retried_once_and_at_the_other_replica():
    with Replica(503) as one, Replica(503) as two, Proxy((one.port, two.port)) as proxy:
        assert exchange(proxy.port, post_bytes(b"{}")).status == 503
        assert len(one.requests) == len(two.requests) == 1


def test_a_client_gets_the_reply_of_the_replica_that_is_free():
    with Replica(503) as one, Replica(200) as two, Proxy((one.port, two.port)) as proxy:
        assert [exchange(proxy.port, post_bytes(b"{}")).status for _ in range(4)] == [200] * 4


def test_what_a_client_says_about_its_address_is_replaced():
    with Replica() as one, Proxy((one.port,)) as proxy:
        exchange(proxy.port, get_bytes("/v1/models", "X-Forwarded-For: 192.0.2.1",
                                       "X-Forwarded-For: 192.0.2.2"))
        lines = [line.lower() for line in one.requests[0].split("\r\n")]
        assert [line for line in lines if line.startswith("x-forwarded-for")] == [
            "x-forwarded-for: 127.0.0.1"]


def read_exporter(proxy, path="/metrics"):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{proxy.watch}".ljust(108, "\0"))  # HAProxy fills it up
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        head, _, text = b"".join(iter(lambda: connection.recv(65536), b"")).decode().partition("\r\n\r\n")
    return int(head.split()[1]), text


def test_proxy_exports_what_its_alerts_name():
    rules = yaml.safe_load((ROOT / "deploy/prometheus/rules.yml").read_text())["groups"]
    names = set(re.findall(r"haproxy_\w+", str(rules)))
    with Replica() as one, Proxy((one.port,)) as proxy:
        assert exchange(proxy.port, get_bytes("/v1/models")).status == 200
        status, text = read_exporter(proxy)
        assert status == 200 and len(names) == 3
        assert names <= set(re.findall(r"^(haproxy_\w+)\{", text, re.M))
        assert 'haproxy_backend_active_servers{proxy="replicas"} 1' in text
        assert 'haproxy_server_status{proxy="replicas",server="attnd1",state="MAINT"} 0' in text
        assert read_exporter(proxy, "/v1/models")[0] == 404


def test_empty_name_of_the_replicas_is_refused():
    done = subprocess.run(["haproxy", "-c", "-f", ROOT / "deploy/haproxy.cfg"], capture_output=True, text=True,
                          env={**os.environ, "ATTND_NAME": ""}, timeout=60)
    assert done.returncode == 1 and "ATTND_NAME is empty" in done.stderr


@pytest.mark.parametrize("name, works", [("", False), ("attnd:8080", False), ("http://attnd", False), ("a b", False),
                                         ("attnd", True), ("attnd-pods.team.svc.cluster.local", True), (None, True)])
def test_image_refuses_what_is_no_name_of_replicas(tmp_path, name, works):
    [entry] = re.findall(r"^ENTRYPOINT (.*\])$", (ROOT / "deploy/haproxy.Dockerfile").read_text().replace("\\\n", ""), re.M)
    (tmp_path / "haproxy").write_text("#!/bin/sh\necho \"$@\"\n")
    (tmp_path / "haproxy").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | ({} if name is None else {"ATTND_NAME": name})
    done = subprocess.run([*json.loads(entry), "-V"], capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode == 0) == works
    assert done.stdout == ("-db -f /etc/haproxy/haproxy.cfg -V\n" if works else "")
    assert works or f"ATTND_NAME is '{name}'" in done.stderr


def test_log_is_json_by_the_line_of_the_configuration():
    text = (ROOT / "deploy/haproxy.cfg").read_text()
    [line] = re.findall(r"^    # (log-format .*)$", text, re.M)
    with log_socket() as log, Replica() as one, Proxy(
            (one.port,), log_port=log.getsockname()[1], changes={"    option httplog\n": f"    {line}\n"}) as proxy:
        assert exchange(proxy.port, get_bytes("/v1/models?x=1")).status == 200
        log.setblocking(True)
        log.settimeout(60)
        while b'"method":"GET"' not in (found := log.recv(8192)):
            pass
        event = json.loads(found[found.index(b"{"):])
        assert event | {"time": "", "total_ms": 0} == {
            "time": "", "level": "info", "message": "request", "client": "127.0.0.1", "method": "GET",
            "path": "/v1/models", "status": 200, "replica": "attnd1", "reply_bytes": event["reply_bytes"], "total_ms": 0,
            "end": "--"}


def test_replies_are_compressed_by_the_lines_of_the_page():
    (lines,) = re.findall(r"^```haproxy\n( +filter compression\n.*?)^```$", (ROOT / "docs/operate.md").read_text(),
                          re.M | re.S)
    with Server("--demo") as attnd, Proxy((f"{attnd.port}",), changes={
            "    http-request set-header X-Forwarded-For": lines + "    http-request set-header X-Forwarded-For"}) as proxy:
        with Connection(proxy.port) as connection:
            connection.send(get_bytes("/v1/models", "Accept-Encoding: gzip"))
            reply = connection.read_reply()
        assert reply.headers["content-encoding"] == "gzip"
        assert json.loads(gzip.decompress(reply.body)) == attnd.get("/v1/models").json()


def test_rates_by_key_of_the_page():
    """Its lines with another number, in a frontend whose table of addresses is not there."""
    (lines,) = re.findall(r"^```haproxy\n( +stick-table.*?)^```$", (ROOT / "docs/operate.md").read_text(), re.M | re.S)
    assert len(lines.splitlines()) <= 6
    assert "gt 100" in lines
    old = "    stick-table type ipv6 size 100k expire 1m store conn_cur\n"
    keep = "    http-request set-header X-Forwarded-For"
    changes = {old: "", "    tcp-request connection track-sc0 src\n": "",
               "    tcp-request connection reject if { sc0_conn_cur gt 1000 } { fe_conn gt 3500 }\n": "",
               "    http-request set-nice 1024 if { sc0_conn_cur gt 64 }\n": "",
               keep: lines.replace("gt 100", "gt 5") + keep}

    def statuses(port, key):
        request = get_bytes("/v1/models", *[f"Authorization: Bearer {key}"] * bool(key))
        return [exchange(port, request).status for _ in range(8)]
    with Replica() as one, Proxy((one.port,), changes=changes) as proxy:
        assert statuses(proxy.port, "a" * 20) == [200] * 5 + [429] * 3
        assert statuses(proxy.port, "b" * 20) == [200] * 5 + [429] * 3
        assert statuses(proxy.port, "") == [200] * 8  # which attnd itself refuses


@pytest.mark.parametrize("target", ["/metrics", "/metrics?x=1", "http://attnd/metrics"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_metrics_are_not_passed_on_to_clients(method, target):
    with Replica() as one, Proxy((one.port,)) as proxy:
        request = get_bytes(target).replace(b"GET", method.encode(), 1)
        if method == "POST":
            request = request[:-2] + b"Content-Length: 0\r\n\r\n"
        with Connection(proxy.port) as connection:
            connection.send(request)
            reply = connection.read_reply(head_only=method == "HEAD")
        assert reply.status == 404 and reply.headers["content-type"] == "application/problem+json"
        assert method == "HEAD" or "admin address" in reply.json()["detail"]
        assert not one.requests


def test_a_small_body_that_does_not_arrive_gets_408_and_reaches_no_replica():
    with Replica() as one, Proxy((one.port,), {"http-request": "1s"}) as proxy:
        reply = exchange(proxy.port, post_bytes(b"x" * 100)[:-1])
        assert reply.status == 408 and reply.json()["title"] == "Request timeout"
        assert reply.headers["content-type"] == "application/problem+json"
        assert not one.requests


def test_a_client_may_wait_longer_than_it_may_be_silent_while_it_sends():
    with Replica(delay=2) as one, Proxy((one.port,), {"client": "500ms"}) as proxy:
        assert exchange(proxy.port, post_bytes(b"{}")).status == 200
        assert not one.hung_up.is_set()


def test_a_client_that_hangs_up_is_noticed_by_the_replica():
    with Replica(delay=20) as one, Proxy((one.port,)) as proxy:
        with Connection(proxy.port) as connection:
            connection.send(post_bytes(b"{}"))
            for _ in range(100):
                if one.requests:
                    break
                time.sleep(0.05)
        assert one.hung_up.wait(10)


def test_a_slow_large_body_holds_one_connection_of_the_proxy_and_no_other_client():
    with Server("--demo") as server, Proxy((server.port,)) as proxy:
        with Connection(proxy.port) as slow:
            slow.send(post_bytes(b"x" * (1 << 20))[:100_000])
            for _ in range(5):
                assert exchange(proxy.port, get_bytes("/v1/models")).status == 200


def test_rolling_restart_of_two_servers_loses_no_request():
    """As docs/operate.md says: each stops with a readiness delay, and starts again at its address."""
    options = ("--demo", "--readiness-delay", 4, "--trusted-proxy", "127.0.0.1")
    addresses = [steady_address() for _ in range(2)]
    servers = [Server(*options, listen=address) for address in addresses]
    replies, ended = [], threading.Event()

    def send():
        while not ended.wait(0.01):
            reply = exchange(proxy.port, post_bytes(b'{"model":"journey","queries":[[1,2,3]]}'))
            replies.append((reply.status, reply.headers.get("x-served-by")))

    with Proxy([server.port for server in servers]) as proxy, ThreadPoolExecutor(2) as clients:
        loads = [clients.submit(send) for _ in range(2)]
        try:
            for number, address in enumerate(addresses):
                servers[number].stop()
                servers[number] = Server(*options, listen=address)
                seen = len(replies)
                wait_until(lambda: any(name == f"attnd{number + 1}" for _, name in replies[seen:]), "it is back")
        finally:
            ended.set()
        for load in loads:
            load.result()
    for server in servers:
        server.process.kill()  # the delay is not of interest here
        server.process.wait()
    assert {status for status, _ in replies} == {200}
    assert {name for _, name in replies} == {"attnd1", "attnd2"}


def test_one_client_does_not_take_all_connections_of_the_proxy():
    limits = {"maxconn": 60, "reject if { sc0_conn_cur gt": 20, "fe_conn gt": 40}
    timeouts = {"client": "60s", "http-request": "60s"}
    many = []
    with Replica() as one, Proxy((one.port,), timeouts, limits) as proxy:
        for _ in range(80):
            with contextlib.suppress(ConnectionResetError):
                many.append(Connection(proxy.port, source="127.0.0.2"))
                many[-1].send(b"GET")
        for _ in range(5):
            assert exchange(proxy.port, get_bytes("/v1/models")).status == 200
    for connection in many:
        connection.socket.close()


# --- which replicas are down ---

def test_connections_that_fail_take_out_no_replica_that_its_checks_find_well():
    """A busy machine makes HAProxy late with connections. The failures are its own: checks alone judge."""
    with socket.socket() as refusing, Replica() as well, log_socket() as log:
        refusing.bind(("127.0.0.1", 0))  # never listens
        replica = f"{refusing.getsockname()[1]} port {well.port}"  # whose checks go to the other port
        with Proxy((replica,), log_port=log.getsockname()[1]) as proxy, contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Connection(proxy.port)) for _ in range(60)]
            for client in clients:
                client.send(get_bytes("/v1/models"))
            assert [client.read_reply().status for client in clients] == [503] * 60
        assert count_down(log) == 0


def test_replica_that_is_gone_is_found_by_its_checks_and_costs_no_request():
    with Replica() as stays, log_socket() as log:
        with Replica() as goes, Proxy((stays.port, goes.port), log_port=log.getsockname()[1]) as proxy:
            wait_until(lambda: len({exchange(proxy.port, get_bytes("/v1/models")).headers.get("x-served-by")
                                    for _ in range(4)}) == 2, "both reply")
            goes.leave()
            replies, downs = [], 0
            while downs < 2:  # once for each backend
                replies.append(exchange(proxy.port, get_bytes("/v1/models")).status)
                downs += count_down(log)
            assert set(replies) == {200}


# --- whom requests count for ---

SMALL = post_bytes(b'{"model":"journey","queries":[[1,2,3]]}')
NO_DEADLINE = {"client": "600s", "http-request": "600s"}


@contextlib.contextmanager
def full_client(port, source, upload_headers=(), headers=()):
    """`source` has as many uploads without an end as each replica takes: it sends one more until four requests,
    of which some go to both, get 429. HAProxy passes uploads on: they are over 16 KiB."""
    request = SMALL.replace(b"\r\n", "".join(["\r\n", *(f"{header}\r\n" for header in headers)]).encode(), 1)
    with contextlib.ExitStack() as stack:
        def is_full():
            connection = stack.enter_context(Connection(port, source=source))
            connection.send(post_bytes(b" " * 40_000, *upload_headers)[:32_768])
            return all(exchange(port, request, source=source).status == 429 for _ in range(4))
        wait_until(is_full, "the client is at its limit")
        yield


def count_checks(server):
    return server.read_log().count("route=/v2/health/ready")


def test_full_client_keeps_out_nobody_where_the_trusted_range_has_the_clients_too():
    """As in kubernetes/proxy. The checks of the proxy go on meanwhile, and find both replicas well."""
    options = ("--demo", "--trusted-proxy", "127.0.0.0/8", "--max-per-client", 4, "--header-timeout", 600,
               "--access-log")
    with Server(*options) as one, Server(*options) as two, log_socket() as log, \
            Proxy((one.port, two.port), NO_DEADLINE, log_port=log.getsockname()[1]) as proxy, \
            full_client(proxy.port, "127.0.0.5"):
        for server in (one, two):
            seen = count_checks(server)
            wait_until(lambda: count_checks(server) >= seen + 6, "both backends have looked three times")
        assert [exchange(proxy.port, SMALL, source="127.0.0.6").status for _ in range(20)] == [200] * 20
        assert count_down(log) == 0


def test_an_address_that_a_client_invents_is_no_other_client_behind_a_proxy_that_appends():
    appends = {"http-request set-header X-Forwarded-For %[src]": "option forwardfor"}
    invented = "X-Forwarded-For: 127.0.0.8", "X-Forwarded-For: 127.0.0.9", "X-Forwarded-For: 127.0.0.5"
    with Server("--demo", "--trusted-proxy", "127.0.0.0/8", "--max-per-client", 4, "--header-timeout", 600) as server, \
            Proxy((server.port,), NO_DEADLINE, changes=appends) as proxy, \
            full_client(proxy.port, "127.0.0.5", invented[:1], invented[1:2]):
        small = post_bytes(b'{"model":"journey","queries":[[1,2,3]]}', invented[2])
        assert exchange(proxy.port, small, source="127.0.0.6").status == 200
