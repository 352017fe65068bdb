# SPDX-License-Identifier: Apache-2.0
"""TLS: everything that plain HTTP does goes through it, and certificates change while attnd runs."""

import contextlib
import datetime
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import requests

from certificates import HOST, RSA, Certificate, authority, client_context
from http1 import Connection, get_bytes, post_bytes
from server import BINARY, Server, is_sanitized, run_attnd

SMALL = json.dumps({"model": "journey", "queries": [[0.43, 0.15, 0.89]]}).encode()
LIVE = get_bytes("/v2/health/live")

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif("--tls-cert: this" in run_attnd("--check-config", "--demo", "--tls-cert", "/",
                                                       "--tls-key", "/").stderr,
                       reason="attnd or libmicrohttpd was built without TLS")]


class TlsConnection(Connection):
    def __init__(self, port, timeout=60, context=None, source=HOST):
        super().__init__(port, timeout, source)
        try:
            self.socket = (context or client_context()).wrap_socket(self.socket, server_hostname=HOST)
        except Exception:
            self.socket.close()
            raise

    def certificate(self):
        return self.socket.getpeercert(binary_form=True)


class Files:
    """The two files that attnd reads, and the options that name them."""

    def __init__(self, folder):
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.options = ["--tls-cert", self.cert, "--tls-key", self.key]

    def put(self, **options):
        certificate = Certificate(**options)
        certificate.write(self.cert, self.key)
        return certificate

    def openssl(self, *arguments):
        """Runs a command, which replaces the file that it reads."""
        *before, path = arguments
        subprocess.run(["openssl", *before, f"{path}.new"], check=True, capture_output=True)
        os.chmod(f"{path}.new", 0o600)
        os.rename(f"{path}.new", path)


@pytest.fixture
def files(tmp_path):
    made = Files(tmp_path)
    made.put()
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Files(tmp_path_factory.mktemp("tls"))
    made.put()
    with Server("--demo", "--http-threads", 2, "--header-timeout", 2, *made.options) as running:
        yield running


def reload(server, count):
    """Sends SIGHUP, and waits until attnd has logged `count` lines about its certificate."""
    def logged():
        return len(re.findall(r"certificate (?:days_left|stays)", server.read_log()))

    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 30
    while logged() < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert logged() == count


def ask(connection, data=LIVE):
    connection.send(data)
    return connection.read_reply()


def test_the_address_says_https(server):
    assert server.url == f"https://{HOST}:{server.port}"
    with authority().cert_pem.tempfile() as trusted:
        assert requests.get(server.url + "/v2/health/ready", verify=trusted, timeout=60).ok


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_tls_1_2_and_1_3_are_spoken(server, version):
    context = client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    with TlsConnection(server.port, context=context) as connection:
        assert connection.socket.version() == version.replace("_", ".")
        assert ask(connection).status == 200


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1"])
def test_older_versions_are_refused(server, version):
    context = client_context()
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion[version]
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(OSError):
        TlsConnection(server.port, context=context)


@pytest.mark.parametrize("ciphers", ["AES128-GCM-SHA256", "ECDHE-RSA-AES128-SHA"])
def test_tls_1_2_is_spoken_with_forward_secrecy_and_authenticated_encryption_only(
        files, start_server, ciphers):
    """The certificate is RSA: without the second half an RSA client and a CBC client were served."""
    files.put(key_type=RSA)
    server = start_server("--demo", *files.options)
    context = client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM")
    with TlsConnection(server.port, context=context) as connection:
        assert ask(connection).status == 200
    context.set_ciphers(f"{ciphers}:@SECLEVEL=0")
    with pytest.raises(OSError):
        TlsConnection(server.port, context=context)


def test_plain_http_gets_no_reply(server):
    with Connection(server.port) as connection:
        connection.send(LIVE)
        assert b"HTTP/" not in connection.read_to_end()


def test_a_connection_is_kept_and_pipelined(server):
    with TlsConnection(server.port) as connection:
        for _ in range(20):
            assert ask(connection, post_bytes(SMALL)).status == 200
        connection.send(post_bytes(SMALL) * 10 + LIVE)
        assert [connection.read_reply().status for _ in range(11)] == [200] * 11


def test_a_body_may_come_in_any_pieces(server):
    """Records of one byte, and a chunked body."""
    with TlsConnection(server.port) as connection:
        for byte in post_bytes(SMALL):
            connection.send(bytes([byte]))
        assert connection.read_reply().status == 200
        head = "POST /v1/attention HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n" \
               "Content-Type: application/json\r\n\r\n"
        connection.send(head.encode())
        for byte in SMALL:
            connection.send(b"1\r\n" + bytes([byte]) + b"\r\n")
        connection.send(b"0\r\n\r\n")
        assert connection.read_reply().status == 200


def test_large_requests_and_streamed_replies_are_exact(server):
    """As over plain HTTP: several megabytes each way, the reply piece by piece."""
    rows = np.random.default_rng(7).normal(size=(6, 300, 100)).round(4).tolist()
    body = json.dumps({"model": "d2l", "queries": rows, "need_weights": True}).encode()
    with Server("--demo") as plain, Connection(plain.port) as connection:
        expected = ask(connection, post_bytes(body))
    assert expected.status == 200 and len(expected.body) > 10_000_000
    with TlsConnection(server.port, timeout=170) as connection:
        for _ in range(2):
            reply = ask(connection, post_bytes(body))
            assert (reply.status, reply.body == expected.body) == (200, True)


def test_many_connections_at_once(server):
    """Each is suspended and resumed by workers while others shake hands."""
    failures = []

    def run():
        try:
            for _ in range(10):
                with TlsConnection(server.port) as connection:
                    for _ in range(5):
                        assert ask(connection, post_bytes(SMALL)).status == 200
        except Exception as error:  # noqa: BLE001 (reported below)
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_client_may_end_its_side_after_the_request(server):
    with TlsConnection(server.port) as connection:
        connection.send(LIVE)
        socket.socket.shutdown(connection.socket, socket.SHUT_WR)  # SSLSocket's own forgets TLS
        assert connection.read_reply().status == 200


def test_a_client_that_leaves_does_no_harm(server):
    """In the middle of the handshake, of the body, and of the reply."""
    body = json.dumps({"model": "d2l", "queries": [[0.5] * 100] * 700, "need_weights": True}).encode()
    for _ in range(5):
        with Connection(server.port) as connection:
            connection.send(b"\x16\x03\x01\x02\x00\x01\x00")
        with TlsConnection(server.port) as connection:
            connection.send(post_bytes(SMALL)[:-5])
        with TlsConnection(server.port) as connection:
            connection.send(post_bytes(body))
            assert connection.receive()
    assert run_attnd("health", "--listen", f"{HOST}:{server.port}", "--tls-cert", "-", "--tls-key",
                     "-").returncode == 0


@pytest.mark.parametrize("begun", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
def test_a_slow_handshake_is_ended(server, begun):
    with Connection(server.port) as connection:
        connection.send(begun)
        assert connection.read_to_end(timeout=60) == b""


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_slow_headers_and_bodies_get_408(server, version):
    context = client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    for data, late in ((b"GET /v2", "the request line"), (b"GET /v2/health/live HTTP/1.1\r\nHost:", "the headers"),
                       (post_bytes(SMALL)[:-5], "the body")):
        with TlsConnection(server.port, context=context) as connection:
            connection.send(data)
            reply = connection.read_reply()
            assert (reply.status, reply.json()["title"]) == (408, "Request timeout")
            assert reply.json()["detail"].startswith(late)
            assert not connection.receive()  # a proper end, which is no ssl.SSLError


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_connection_that_asks_for_nothing_gets_no_408(server, version):
    """A browser that connects in advance would take it for the reply to its request."""
    context = client_context()
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    with TlsConnection(server.port, context=context) as connection:
        with contextlib.suppress(ssl.SSLError):
            assert not connection.receive()
        assert connection.unread == b""


def test_a_handshake_that_hangs_costs_little(files, start_server):
    """The library asks for one run after another then; the thread pauses between them."""
    server = start_server("--demo", *files.options)

    def cpu_ticks():
        with open(f"/proc/{server.process.pid}/stat", encoding="ascii") as file:
            return sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))

    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(Connection(server.port)).send(b"\x16\x03\x01\x02\x00\x01\x00")
        time.sleep(0.5)
        before = cpu_ticks()
        time.sleep(3)
        assert cpu_ticks() - before < 60  # of 300; some 300 without the pause


# --- certificates change ---

def test_open_connections_keep_their_certificate(files, start_server):
    first = files.put()
    server = start_server("--demo", "--http-threads", 2, *files.options)
    with TlsConnection(server.port) as old:
        assert old.certificate() == first.der and ask(old).status == 200
        second = files.put()
        reload(server, 2)
        with TlsConnection(server.port) as new:
            assert new.certificate() == second.der
            for connection in (old, new, old):
                assert ask(connection, post_bytes(SMALL)).status == 200
            assert old.certificate() == first.der


@pytest.mark.parametrize("damage", ["key", "text", "gone", "mode"])
def test_a_bad_new_certificate_keeps_the_old_one(files, start_server, damage):
    first = files.put()
    server = start_server("--demo", *files.options)
    if damage == "key":
        Certificate().write(files.cert, files.key.with_suffix(".other"))
    elif damage == "text":
        files.cert.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    elif damage == "gone":
        files.key.unlink()
    else:
        files.put()
        files.key.chmod(0o620)
    reload(server, 2)
    assert "warn certificate stays as it was" in server.read_log().replace('"', "")
    with TlsConnection(server.port) as connection:
        assert connection.certificate() == first.der and ask(connection).status == 200


def test_certificates_are_rotated_under_load(files, start_server):
    """Requests on open connections go on, and each new one gets a certificate that was current."""
    issued = {files.put().der}
    server = start_server("--demo", "--http-threads", 2, *files.options)
    ends, statuses, seen, failures = threading.Event(), [], set(), []

    def send(fresh):
        try:
            with contextlib.ExitStack() as stack:
                connection = stack.enter_context(TlsConnection(server.port))
                while not ends.is_set():
                    if fresh:
                        connection.socket.close()
                        connection = stack.enter_context(TlsConnection(server.port))
                        seen.add(connection.certificate())
                    statuses.append(ask(connection, post_bytes(SMALL)).status)
        except Exception as error:  # noqa: BLE001 (reported below)
            failures.append(error)

    threads = [threading.Thread(target=send, args=(fresh,)) for fresh in (False, False, True, True)]
    for thread in threads:
        thread.start()
    for count in range(2, 32):
        issued.add(files.put().der)
        reload(server, count)
    with TlsConnection(server.port) as last:
        assert last.certificate() in issued
    ends.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert set(statuses) == {200} and seen <= issued and len(seen) > 1


def test_metrics_say_when_the_certificate_ends_and_what_was_not_reloaded(files, start_server):
    files.put(not_after=datetime.datetime(2040, 1, 2))
    server = start_server("--demo", *files.options)

    def scrape():
        with TlsConnection(server.port) as connection:
            return ask(connection, get_bytes("/metrics")).body.decode()

    seconds = int(datetime.datetime(2040, 1, 2, tzinfo=datetime.timezone.utc).timestamp())
    value = re.search(r"^attnd_certificate_expiry_timestamp_seconds (\S+)$", scrape(), re.M)
    assert float(value[1]) == seconds
    assert 'attnd_last_reload_failure_timestamp_seconds{what="certificate"} 0\n' in scrape()
    files.key.write_text("")
    reload(server, 2)
    time.sleep(0.2)  # a text is shared for 100 ms
    assert 'attnd_last_reload_failure_timestamp_seconds{what="certificate"} 0\n' not in scrape()
    assert 'attnd_last_reload_failure_timestamp_seconds{what="models"} 0\n' in scrape()


# --- options ---

def memory_of(process):
    """Yields what is in the private memory of a process."""
    with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
            first, last = (int(text, 16) for text in line.split()[0].split("-"))
            if line.split()[1].startswith("rw-p") and last - first < 1 << 30:
                with contextlib.suppress(OSError):
                    memory.seek(first)
                    yield memory.read(last - first)


@pytest.mark.skipif(is_sanitized(), reason="what a library frees stays in a sanitizer's quarantine")
def test_the_text_of_the_private_key_does_not_stay_in_memory(files, start_server):
    files.put(key_type=RSA)
    padding = "padding before the key, so that it is read in more than one piece\n" * 200
    text = files.key.read_text()
    files.key.write_text(padding + text)
    server = start_server("--demo", *files.options)
    lines = [line.encode() for line in text.splitlines() if len(line) == 64]
    assert lines
    reload(server, 2)
    for memory in memory_of(server.process):
        assert not any(line in memory for line in lines)


def test_one_option_needs_the_other(files):
    for option in (files.options[:2], files.options[2:]):
        result = run_attnd("--demo", *option)
        assert result.returncode == 2 and "go together" in result.stderr


def test_files_that_do_not_fit_stop_the_start(files, tmp_path):
    Certificate().write(files.cert, tmp_path / "other.pem")
    for arguments in ([], ["--check-config"]):
        result = run_attnd("--demo", *files.options, *arguments)
        assert result.returncode == 2
        assert "the private key belongs to another certificate" in result.stderr
    for which, path in (("private key", files.key), ("certificate", files.cert)):
        files.put()
        path.write_text("-----BEGIN NOTHING-----\nAAAA\n-----END NOTHING-----\n")
        assert f"the {which} is not usable PEM" in run_attnd("--demo", *files.options).stderr
    files.cert.unlink()
    assert f"--tls-cert: cannot open {files.cert}" in run_attnd("--demo", *files.options).stderr


def day(number):
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=number)


def append(path, *certificates):
    path.write_bytes(path.read_bytes() + b"".join(each.bytes() for each in certificates))


# What makes the files wrong, and what attnd says then.
WRONG = {
    "expired": (lambda files: files.put(not_before=day(-9), not_after=day(-1)),
                rf"certificate 1 of 1 ended at {day(-1):%Y-%m-%d}T.*; renew it"),
    "begins later": (lambda files: files.put(not_before=day(5), not_after=day(9)),
                     rf"certificate 1 of 1 begins at {day(5):%Y-%m-%d}T.*; correct the clock, or wait"),
    "unrelated": (lambda files: append(files.cert, Certificate().issued.cert_chain_pems[0]),
                  "certificate 2 of 2 has not signed the one before it"),
    "key with a password": (lambda files: files.openssl(
        "pkey", "-in", files.key, "-aes256", "-passout", "pass:word", "-out", files.key),
        "private key is not usable PEM: .*; openssl pkey -in FILE -out NEW takes its password away"),
    "certificate in DER": (lambda files: files.openssl("x509", "-in", files.cert, "-outform", "DER", "-out", files.cert),
                           "certificate is not usable PEM: .*; openssl x509 -inform DER -in FILE -out NEW makes PEM"),
    "key in DER": (lambda files: files.openssl("pkey", "-in", files.key, "-outform", "DER", "-out", files.key),
                   "private key is not usable PEM: .* with -inform DER makes PEM"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_certificate_that_clients_would_refuse_is_refused(files, start_server, case):
    """At a reload, the one that is served stays."""
    spoil, told = WRONG[case]
    server = start_server("--demo", *files.options)
    with TlsConnection(server.port) as connection:
        before = connection.socket.getpeercert(binary_form=True)
    spoil(files)
    result = run_attnd("--demo", "--check-config", *files.options)
    assert result.returncode == 2 and re.search(told, result.stderr), result
    reload(server, 2)
    assert re.search(f"warn certificate stays as it was.*{told}", server.read_log())
    with TlsConnection(server.port) as connection:
        assert connection.socket.getpeercert(binary_form=True) == before


def test_a_chain_and_a_last_day_are_fine(files):
    files.put(not_before=day(-9), not_after=day(0.5))
    append(files.cert, authority().cert_pem)
    result = run_attnd("--demo", "--check-config", *files.options)
    assert result.returncode == 0 and "warn certificate days_left=0" in result.stderr, result


def test_tls_alone_does_not_open_an_address(files):
    result = run_attnd("--demo", "--listen", "0.0.0.0:0", *files.options)
    assert result.returncode == 2 and "--insecure-listen" in result.stderr


# --- attnd health ---

def test_health_speaks_tls_without_checking_the_name(server, files):
    """It knows only that there is a certificate; the file need not be readable for it."""
    result = run_attnd("health", "--listen", f"0.0.0.0:{server.port}", *files.options)
    assert (result.returncode, result.stdout) == (0, f"0.0.0.0:{server.port}: ready\n")
    plain = run_attnd("health", "--listen", f"0.0.0.0:{server.port}")
    assert plain.returncode == 1 and "no reply in plain HTTP" in plain.stderr


def test_health_says_so_when_no_tls_is_spoken(demo_server, files):
    result = run_attnd("health", "--listen", f"{HOST}:{demo_server.port}", *files.options, timeout=30)
    assert (result.returncode, result.stdout) == (1, f"{HOST}:{demo_server.port}: not ready\n")
    assert "no reply in TLS" in result.stderr


def test_health_prefers_the_admin_address(files, start_server):
    server = start_server("--demo", "--admin-listen", "127.0.0.1:0", *files.options)
    admin = re.search(r"admin address url=http://([0-9.:]+)", server.read_log())[1]
    with socket.create_connection((HOST, int(admin.rsplit(":", 1)[1]))) as plain:
        plain.sendall(LIVE)
        assert plain.recv(100).startswith(b"HTTP/1.1 200")
    assert run_attnd("health", "--listen", "127.0.0.1:1", "--admin-listen", admin,
                     *files.options).returncode == 0


def test_health_gives_up_on_a_server_that_says_nothing(files):
    with socket.create_server((HOST, 0)) as silent:
        started = subprocess.run([BINARY, "health", "--listen", f"{HOST}:{silent.getsockname()[1]}",
                                  *map(str, files.options)], timeout=60, capture_output=True)
    assert started.returncode == 1
