# SPDX-License-Identifier: Apache-2.0
"""Keys of --api-key-file: who may use what, and how keys change while attnd runs."""

import json
import os
import re
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest
import requests

from http1 import Connection, get_bytes, post_bytes
from server import Server, run_attnd

ALICE, BOB, NEW = "alice-0123456789", "bob/0123456789+==", "new:0123456789abcdef"
SMALL = json.dumps({"model": "journey", "queries": [[0.43, 0.15, 0.89]]}).encode()
OPEN = ["/", "/ui.css", "/ui.js", "/v2/health/live", "/v2/health/ready"]
CLOSED = ["/v1/models", "/v1/models/journey", "/v2", "/v2/models/journey", "/v2/models/stats",
          "/v2/models/journey/stats", "/openapi.json", "/metrics", "/nothing", "/v1/attention"]
APP = "https://app.example"

pytestmark = pytest.mark.alone


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def write_keys(path, *lines):
    """Replaces the file at once, as an operator should."""
    new = path.with_suffix(".new")
    new.write_text("".join(f"{line}\n" for line in lines))
    new.chmod(0o600)
    new.rename(path)


@pytest.fixture(scope="module")
def key_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    write_keys(path, "# the staff", f"alice:{ALICE}", "", f"bob:{BOB}")
    return path


@pytest.fixture(scope="module")
def server(key_file):
    with Server("--demo", "--api-key-file", key_file, "--max-body", 1048576, "--cors-origin",
                APP) as running:
        yield running


def reload(server, count):
    """Sends SIGHUP, and waits until attnd has logged `count` lines about keys."""
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 30
    while server.read_log().count(" keys ") < count and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.read_log().count(" keys ") == count


def status_of(server, key, path="/v1/models"):
    return server.get(path, headers=bearer(key)).status_code


@pytest.mark.parametrize("path", OPEN)
def test_health_and_the_page_are_open(server, path):
    assert server.get(path).status_code == 200
    assert server.get(path, headers=bearer("wrong-0123456789")).status_code == 200


@pytest.mark.parametrize("path", CLOSED)
def test_everything_else_needs_a_key(server, path):
    missing = server.get(path)
    assert missing.status_code == 401
    assert missing.headers["WWW-Authenticate"] == 'Bearer realm="attnd"'
    assert "Allow" not in missing.headers
    wrong = server.get(path, headers=bearer("wrong-0123456789"))
    assert wrong.status_code == 401
    assert wrong.headers["WWW-Authenticate"] == 'Bearer realm="attnd", error="invalid_token"'
    for key in (ALICE, BOB):
        assert server.get(path, headers=bearer(key)).status_code != 401


def test_errors_have_the_form_of_their_protocol(server):
    native = server.get("/v1/models")
    assert native.headers["Content-Type"] == "application/problem+json"
    assert native.json()["title"] == "Unauthorized"
    assert native.json()["field"] == "Authorization"
    assert "Bearer" in native.json()["detail"]
    oip = server.get("/v2/models/journey")
    assert oip.headers["Content-Type"] == "application/json"
    assert set(oip.json()) == {"error"}


@pytest.mark.parametrize("value", [
    "", "Bearer", "Bearer ", ALICE, f"Basic {ALICE}", f"Bearer{ALICE}", f"Bearer {ALICE}x",
    f"Bearer {ALICE[:-1]}", f"Bearer {ALICE.upper()}", f"Bearer alice:{ALICE}", f"Bearer {'k' * 4000}",
    f"Bearer {ALICE},", f'Bearer "{ALICE}"', f"Bearer {ALICE} anything", f"Bearer {ALICE}\t{BOB}", f"Bearer {ALICE} ,"])
def test_only_a_whole_key_lets_in(server, value):
    with Connection(server.port) as connection:
        connection.send(get_bytes("/v1/models", f"Authorization: {value}"))
        assert connection.read_reply().status == 401


@pytest.mark.parametrize("value", [f"bearer {ALICE}", f"BEARER   {BOB}  "])
def test_the_scheme_has_any_case(server, value):
    with Connection(server.port) as connection:
        connection.send(get_bytes("/v1/models", f"Authorization: {value}"))
        assert connection.read_reply().status == 200


def test_the_connection_is_kept_after_a_refusal(server):
    """A body that is small is read, so the next request is understood."""
    with Connection(server.port) as connection:
        for headers, status in (((), 401), ((f"Authorization: Bearer {ALICE}",), 200)) * 3:
            connection.send(post_bytes(SMALL, *headers))
            assert connection.read_reply().status == status


def test_a_large_body_for_an_open_route_is_not_read(server):
    """It would hold the models of its time, and nobody needs a key to send it."""
    with Connection(server.port) as connection:
        connection.send(b"GET /v2/health/live HTTP/1.1\r\nHost: attnd\r\n"
                        b"Content-Length: 60000000\r\n\r\n")
        assert connection.read_reply().status == 413
        assert connection.read_to_end() == b""
    with Connection(server.port) as connection:  # one whose size is not known
        connection.send(b"GET /v2/health/live HTTP/1.1\r\nHost: attnd\r\n"
                        b"Transfer-Encoding: chunked\r\n\r\n1E8480\r\n" + bytes(2000000))
        assert not connection.receive()


def test_a_large_body_without_a_key_is_not_read(server):
    """The reply comes before the body, and then the connection closes."""
    for size in ("Content-Length: 1000000", "Transfer-Encoding: chunked"):
        with Connection(server.port) as connection:
            connection.send("\r\n".join(["POST /v1/attention HTTP/1.1", "Host: attnd", size, "",
                                         ""]).encode())
            assert connection.read_reply().status == 401
            assert not connection.receive()
    with Connection(server.port) as connection:
        connection.send(post_bytes(SMALL, "Expect: 100-continue")[:-len(SMALL)])
        assert connection.read_reply().status == 401


def test_a_preflight_is_open_and_allows_the_key(server):
    """A browser sends it without the header that it asks about."""
    reply = requests.options(server.url + "/v1/attention", timeout=60, headers={
        "Origin": APP, "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization"})
    assert reply.status_code == 204
    assert "authorization" in reply.headers["Access-Control-Allow-Headers"].lower()
    refused = server.get("/v1/models", headers={"Origin": APP})
    assert (refused.status_code, refused.headers["Access-Control-Allow-Origin"]) == (401, APP)


def test_the_access_log_has_the_name_and_never_the_key(key_file, start_server):
    server = start_server("--demo", "--access-log", "--log-level", "debug", "--api-key-file", key_file)
    for headers in (bearer(BOB), bearer("wrong-0123456789"), {}):
        server.get("/v1/models", headers=headers)
    server.get("/v2/health/live", headers=bearer(ALICE))
    deadline = time.monotonic() + 30
    while server.read_log().count(" request id=") < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    lines = [line for line in server.read_log().splitlines() if " request id=" in line]
    names = [re.search(r" key=(\S+)", line) for line in lines]
    assert [name and name[1] for name in names] == ["bob", None, None, None]
    for key in (ALICE, BOB, "wrong-0123456789"):
        assert key not in server.read_log()


def test_without_a_file_no_key_is_needed(demo_server):
    assert demo_server.get("/v1/models").status_code == 200
    assert demo_server.get("/v1/models", headers=bearer("anything")).status_code == 200


# --- files ---

@pytest.mark.parametrize("text, reason", [
    ("", "has no key"), ("alice\n", "line 1 is not NAME:KEY"),
    ("alice:tooshort\n", "line 1 has a key"), (f"a:{ALICE}\nb:{ALICE}\n", "line 2 has the key of")])
def test_a_bad_file_stops_the_start(tmp_path, text, reason):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    for arguments in ([], ["--check-config"]):
        result = run_attnd("--demo", "--api-key-file", path, *arguments)
        assert result.returncode == 2
        assert f"--api-key-file: {path}: {reason}" in result.stderr
        assert ALICE not in result.stderr and "tooshort" not in result.stderr


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_refused(tmp_path, mode):
    path = tmp_path / "keys"
    path.write_text(f"alice:{ALICE}\n")
    path.chmod(mode)
    result = run_attnd("--demo", "--api-key-file", path)
    assert result.returncode == 2
    assert "may write" in result.stderr and f"run chmod go-w {path}" in result.stderr
    path.chmod(0o644)
    assert run_attnd("--demo", "--api-key-file", path, "--check-config").returncode == 0


def test_what_is_no_file_is_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, reason in ((pipe, "not a regular file"), (tmp_path, "not a regular file"),
                         (tmp_path / "none", "No such file")):
        result = run_attnd("--demo", "--api-key-file", path, timeout=30)
        assert result.returncode == 2 and reason in result.stderr
    large = tmp_path / "large"
    large.write_text("#" * (1 << 20) + f"\nalice:{ALICE}\n")
    assert "larger than 1 MiB" in run_attnd("--demo", "--api-key-file", large).stderr


@pytest.mark.parametrize("closed, words", [("keys", "chown {} FILE, or with LoadCredential= of systemd"),
                                           ("folder", "open the folders on its path")])
def test_file_that_may_not_be_read_says_for_whom_and_what_to_do(closed, words):
    """Certificates and their keys are opened by the same function."""
    user = os.geteuid() or 65532  # root can read every file
    with tempfile.TemporaryDirectory() as root:  # unlike tmp_path, open to that user
        os.chmod(root, 0o755)
        path = Path(root) / "folder/keys"
        path.parent.mkdir()
        write_keys(path, f"alice:{ALICE}")
        os.chmod(path.parent, 0o755)
        (path if closed == "keys" else path.parent).chmod(0)
        try:
            result = run_attnd("--demo", "--api-key-file", path, user=user)
        except PermissionError:
            print(f"user {user} may not run attnd: nothing is tested")
            return
        finally:
            path.parent.chmod(0o755)
    assert result.returncode == 2, result
    assert f"--api-key-file: user {user} cannot open {path}: Permission denied; " in result.stderr
    assert words.format(user) in result.stderr, result


# --- keys change ---

def test_keys_are_rotated_step_by_step(tmp_path, start_server):
    """Both keys, then the new one alone, as docs/operate.md says."""
    path = tmp_path / "keys"
    write_keys(path, f"alice:{ALICE}")
    server = start_server("--demo", "--api-key-file", path)
    assert (status_of(server, ALICE), status_of(server, NEW)) == (200, 401)
    write_keys(path, f"alice:{ALICE}", f"alice:{NEW}")
    assert status_of(server, NEW) == 401
    reload(server, 2)
    assert (status_of(server, ALICE), status_of(server, NEW)) == (200, 200)
    write_keys(path, f"alice:{NEW}")
    reload(server, 3)
    assert (status_of(server, ALICE), status_of(server, NEW)) == (401, 200)


@pytest.mark.parametrize("text, mode", [("", 0o600), ("alice:short\n", 0o600),
                                        (f"bob:{BOB}\n", 0o622), (None, 0)])
def test_a_bad_new_file_keeps_the_old_keys(tmp_path, start_server, text, mode):
    path = tmp_path / "keys"
    write_keys(path, f"alice:{ALICE}")
    server = start_server("--demo", "--api-key-file", path)
    path.unlink()
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    reload(server, 2)
    warning, = (line for line in server.read_log().splitlines() if "keys stay as they were" in line)
    assert " warn " in warning and str(path) in warning and BOB not in warning
    assert (status_of(server, ALICE), status_of(server, BOB)) == (200, 401)


def test_a_request_under_way_is_not_checked_again(tmp_path, start_server):
    path = tmp_path / "keys"
    write_keys(path, f"alice:{ALICE}")
    server = start_server("--demo", "--api-key-file", path)
    with Connection(server.port) as connection:
        data = post_bytes(SMALL, f"Authorization: Bearer {ALICE}", "Expect: 100-continue")
        connection.send(data[:-len(SMALL)])
        assert connection.read_reply().status == 100
        write_keys(path, f"bob:{BOB}")
        reload(server, 2)
        connection.send(SMALL)
        assert connection.read_reply().status == 200
        connection.send(data)
        assert connection.read_reply().status == 401


def test_keys_are_rotated_under_load(tmp_path, start_server):
    """The key that both files have is never refused."""
    path = tmp_path / "keys"
    write_keys(path, f"alice:{ALICE}")
    server = start_server("--demo", "--api-key-file", path, "--http-threads", 2)
    ends, statuses = threading.Event(), []

    def send():
        with Connection(server.port) as connection:
            while not ends.wait(0.002):
                connection.send(post_bytes(SMALL, f"Authorization: Bearer {ALICE}"))
                statuses.append(connection.read_reply().status)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for count in range(2, 32):
        write_keys(path, f"alice:{ALICE}", *([f"bob:{BOB}"] if count % 2 else []))
        reload(server, count)
        assert status_of(server, BOB) == (200 if count % 2 else 401)
    ends.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200} and len(statuses) > 50


# --- where attnd listens ---

@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_an_open_address_needs_keys_or_consent(listen):
    result = run_attnd("--demo", "--listen", listen)
    assert result.returncode == 2
    for word in (listen, "--api-key-file", "--insecure-listen"):
        assert word in result.stderr


@pytest.mark.parametrize("consent", ["key", "flag", "environment"])
def test_keys_or_consent_open_an_address(key_file, consent):
    arguments = {"key": ["--api-key-file", key_file], "flag": ["--insecure-listen"], "environment": []}
    variables = {"ATTND_INSECURE_LISTEN": "true"} if consent == "environment" else {}
    result = run_attnd("--demo", "--check-config", "--listen", "0.0.0.0:0", *arguments[consent],
                       **variables)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.8.9.1:0", "localhost:0"])
def test_loopback_needs_no_consent(listen):
    assert run_attnd("--demo", "--check-config", "--listen", listen).returncode == 0


def test_health_asks_for_neither(key_file):
    """It only connects. So a container's check needs no more options than the server has."""
    with socket.socket() as bound:  # which no other test's server can take meanwhile
        bound.bind(("127.0.0.1", 0))
        result = run_attnd("health", "--listen", f"0.0.0.0:{bound.getsockname()[1]}")
    assert result.returncode == 1 and "no server listens" in result.stderr
    with Server("--demo", "--api-key-file", key_file) as running:
        assert run_attnd("health", "--listen", f"0.0.0.0:{running.port}").returncode == 0
