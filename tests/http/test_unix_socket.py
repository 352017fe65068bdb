# SPDX-License-Identifier: Apache-2.0
"""Unix sockets: the file, who may connect, who its clients are, and what stays as over TCP."""

import contextlib
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from certificates import Certificate
from http1 import Connection, get_bytes, post_bytes, send_unfinished
from reload import wait_for_log, wait_until
from server import BINARY, clean_environment, run_attnd
from stored import Layer, head_bytes, make_file, small_file

pytestmark = pytest.mark.alone

SMALL = json.dumps({"model": "journey", "queries": [[0.43, 0.15, 0.89]]}).encode()
LARGE = json.dumps({"model": "d2l", "queries": [[0.5] * 100] * 900, "need_weights": True}).encode()
LIVE, READY = get_bytes("/v2/health/live"), get_bytes("/v2/health/ready")
OTHER, THIRD = 65534, 65533  # users who are not attnd's own
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can connect as another user")


@pytest.fixture
def path():
    """A path that others reach, too; pytest's own folders are for one user."""
    with tempfile.TemporaryDirectory(prefix="attnd-unix-") as folder:
        os.chmod(folder, 0o755)
        yield f"{folder}/attnd.sock"


@pytest.fixture
def start(start_server, path):
    """Starts attnd at a port of TCP and at the path."""
    return lambda *arguments, socket_options="", **options: start_server(
        "--demo", "--listen", "127.0.0.1:0", "--listen", f"unix:{path}{socket_options}", *arguments,
        listen=None, **options)


def connect_as(user, path, group=0):
    """Connects as another user, whom the kernel notes then: who sends later does not matter."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(group)
    os.seteuid(user)
    try:
        return Connection(path)
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def exchange(place, data):
    with Connection(place) as connection:
        connection.send(data)
        return connection.read_reply()


def exchange_as(user, path, data):
    with connect_as(user, path) as connection:
        connection.send(data)
        return connection.read_reply()


def finish(connection):
    connection.send(SMALL[-1:])
    return connection.read_reply().status


def wait_for_clients(server, clients):
    """Waits until the log, whose lines may follow the replies, has requests of these and no others."""
    def logged():
        lines = [line for line in server.read_log().splitlines() if " request id=" in line]
        return {line.split(" client=")[1].split()[0] for line in lines}

    wait_until(lambda: logged() == clients, f"requests of {clients}")


@contextlib.contextmanager
def started(path, *arguments, **environment):
    """A server at the socket alone. Yields the process, which the test may stop itself."""
    process = subprocess.Popen([BINARY, "--demo", *map(str, arguments)], stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.PIPE, env=clean_environment(**environment))
    try:
        assert process.stdout.readline() == f"listening on unix:{path}\n"
        yield process
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


# --- the file ---

def test_socket_beside_tcp_gives_the_same_replies(start, path):
    server = start()
    for data in (LIVE, post_bytes(SMALL), post_bytes(LARGE), get_bytes("/"), get_bytes("/nowhere")):
        replies = [exchange(place, data) for place in (server.port, path)]
        assert replies[0].status == replies[1].status and replies[0].body == replies[1].body
    assert f"listening url=unix:{path}" in server.read_log()


def test_every_thread_accepts_at_the_socket(start, path):
    start("--http-threads", 3)
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            connection = stack.enter_context(Connection(path))
            connection.send(LIVE)
            assert connection.read_reply().status == 200


@pytest.mark.parametrize("options, mode", [("", 0o660), (",mode=600", 0o600), (",mode=0666,group=0", 0o666)])
def test_socket_has_its_mode_and_goes_with_the_server(start, path, options, mode):
    server = start(socket_options=options)
    assert os.stat(path).st_mode == stat.S_IFSOCK | mode
    server.stop()
    assert os.listdir(Path(path).parent) == []


@as_root
def test_group_of_the_socket_lets_its_members_in_and_nobody_else(start, path):
    start(socket_options=f",group={OTHER}")
    assert os.stat(path).st_gid == OTHER
    connect_as(THIRD, path, group=OTHER).socket.close()
    with pytest.raises(PermissionError):
        connect_as(THIRD, path, group=THIRD)


def become_other():
    os.setgroups([])
    os.setgid(OTHER)
    os.setuid(OTHER)


@as_root
def test_group_that_attnd_is_not_in_is_named(path):
    os.chmod(Path(path).parent, 0o777)
    result = run_attnd("--demo", "--listen", f"unix:{path},group=0", preexec_fn=become_other)
    assert result.returncode == 1 and f"cannot give {path} to group 0: Operation not permitted" in result.stderr
    assert os.listdir(Path(path).parent) == []


def test_socket_of_a_killed_server_is_replaced(path):
    with contextlib.suppress(AssertionError), started(path, "--listen", f"unix:{path}") as process:
        process.kill()
        process.wait()
    assert stat.S_ISSOCK(os.stat(path).st_mode)
    with started(path, "--listen", f"unix:{path}"):
        assert exchange(path, LIVE).status == 200


def test_socket_of_a_running_server_is_refused(start, path):
    start()
    result = run_attnd("--demo", "--listen", f"unix:{path}")
    assert result.returncode == 1
    assert f"--listen: cannot lock {path}.lock" in result.stderr and "a running attnd has the socket" in result.stderr
    assert exchange(path, LIVE).status == 200


def test_socket_where_another_program_listens_is_refused(path):
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        result = run_attnd("--demo", "--listen", f"unix:{path}")
        assert result.returncode == 1 and f"{path} belongs to another server" in result.stderr
        assert os.listdir(Path(path).parent) == ["attnd.sock"]


@as_root
@pytest.mark.parametrize("what, words", [
    ("lock of another user", "cannot make {}.lock: Permission denied; it exists; remove it"),
    ("socket without access", "cannot ask whether a server listens at {}: Permission denied; remove it")])
def test_what_a_user_may_not_use_is_named(path, what, words):
    os.chmod(Path(path).parent, 0o777)
    if what == "lock of another user":
        Path(path + ".lock").touch(0o600)
    else:
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(path)
        os.chmod(path, 0o060)
    result = run_attnd("--demo", "--listen", f"unix:{path}", preexec_fn=become_other)
    assert result.returncode == 1 and words.format(path) in result.stderr


@pytest.mark.parametrize("what", ["file", "folder", "link", "pipe"])
def test_what_is_not_a_socket_is_never_replaced(path, what):
    make = {"file": lambda: Path(path).write_text("mine"), "folder": lambda: os.mkdir(path),
            "link": lambda: os.symlink("/nowhere", path), "pipe": lambda: os.mkfifo(path)}
    make[what]()
    before = os.lstat(path)
    result = run_attnd("--demo", "--listen", f"unix:{path}")
    assert result.returncode == 1
    assert f"--listen: {path} exists and is not a socket; remove it, or give another path" in result.stderr
    assert os.path.samestat(before, os.lstat(path))


@pytest.mark.parametrize("option", ["--listen", "--admin-listen"])
@pytest.mark.parametrize("value, code, words", [
    ("unix:/no/such/folder/a.sock", 1, "cannot make /no/such/folder/a.sock.lock: No such file or directory; "
                                       "make its folder first"),
    ("unix:/" + "a" * 107, 2, "is too long: 108 bytes, and a Unix socket may have 107"),
    ("unix:attnd.sock", 2, "must begin with '/'"),
    ("unix:/tmp/a,mode=9", 2, "'mode=9' is not the mode of a file"),
    ("unix:/tmp/a,group=no-such", 2, "there is no group 'no-such'"),
    ("unix:/proc/a.sock", 1, "cannot make /proc/a.sock.lock")])
def test_bad_socket_is_named_with_a_remedy(option, value, code, words):
    result = run_attnd("--demo", "--listen", "127.0.0.1:0", option, value)
    assert (result.returncode, result.stdout) == (code, "")
    assert f"attnd: {option}: " in result.stderr and words in result.stderr


def test_start_that_fails_leaves_no_file(path):
    result = run_attnd("--demo", "--listen", f"unix:{path}", "--listen", "192.0.2.1:80", "--insecure-listen")
    assert result.returncode == 1 and os.listdir(Path(path).parent) == []
    assert run_attnd("--demo", "--check-config", "--listen", f"unix:{path}").returncode == 0
    assert os.listdir(Path(path).parent) == []


def test_next_server_starts_while_the_first_finishes(start, path):
    first = start()
    with Connection(path) as unfinished:
        send_unfinished(unfinished, SMALL)
        first.process.send_signal(signal.SIGTERM)
        while os.path.exists(path):
            time.sleep(0.01)
        with started(path, "--listen", f"unix:{path}"):
            assert finish(unfinished) == 200
            first.wait()
            assert exchange(path, LIVE).status == 200


def test_accepted_requests_get_replies_at_a_stop(start, path):
    server = start("--readiness-delay", 1)
    with Connection(path) as unfinished:
        send_unfinished(unfinished, SMALL)
        server.process.send_signal(signal.SIGTERM)
        while exchange(path, READY).status == 200:
            time.sleep(0.01)
        assert exchange(path, post_bytes(SMALL)).status == 200  # until the delay is over
        while os.path.exists(path):
            time.sleep(0.01)
        assert finish(unfinished) == 200
    server.wait()


def test_reload_keeps_the_socket_and_its_connections(start, path):
    server = start()
    inode = os.stat(path).st_ino
    with Connection(path) as connection:
        for _ in range(2):
            connection.send(post_bytes(SMALL))
            assert connection.read_reply().status == 200
            server.process.send_signal(signal.SIGHUP)
            time.sleep(0.2)
    assert os.stat(path).st_ino == inode


# --- health, keys, TLS, pages ---

def test_health_asks_the_only_socket(path):
    with started(path, ATTND_LISTEN=f"unix:{path},mode=0600"):
        result = run_attnd("health", ATTND_LISTEN=f"unix:{path},mode=0600")
        assert (result.returncode, result.stdout) == (0, f"unix:{path},mode=0600: ready\n")
    result = run_attnd("health", "--listen", f"unix:{path}")
    assert result.returncode == 1 and f"no server listens at unix:{path}: " in result.stderr


def test_variable_has_several_addresses(path):
    with started(path, ATTND_LISTEN=f"unix:{path};127.0.0.1:0") as process:
        assert process.stdout.readline().startswith("listening on http://127.0.0.1:")
        assert run_attnd("health", ATTND_LISTEN=f"unix:{path};127.0.0.1:1").returncode == 0


def test_file_of_options_has_several_addresses(path, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"listen": [f"unix:{path}", "127.0.0.1:0"]}))
    with started(path, "--config", tmp_path / "config.json"):
        assert exchange(path, LIVE).status == 200


def test_admin_address_may_be_a_socket(start_server, path):
    start_server("--demo", "--admin-listen", f"unix:{path}")
    assert exchange(path, READY).status == exchange(path, get_bytes("/metrics")).status == 200
    assert exchange(path, post_bytes(SMALL)).status == 404
    assert run_attnd("health", "--listen", "127.0.0.1:1", "--admin-listen", f"unix:{path}").returncode == 0


def test_socket_needs_keys_only_where_a_file_has_them(start, path, tmp_path):
    assert run_attnd("--demo", "--check-config", "--listen", f"unix:{path}").returncode == 0
    result = run_attnd("--demo", "--listen", f"unix:{path}", "--listen", "0.0.0.0:0")
    assert result.returncode == 2 and "--listen 0.0.0.0:0 lets other machines in" in result.stderr
    (tmp_path / "keys").write_text("alice:0123456789abcdef\n")
    (tmp_path / "keys").chmod(0o600)
    start("--api-key-file", tmp_path / "keys")
    assert exchange(path, post_bytes(SMALL)).status == 401
    assert exchange(path, post_bytes(SMALL, "Authorization: Bearer 0123456789abcdef")).status == 200


def test_socket_has_no_tls(start, path, tmp_path):
    Certificate().write(tmp_path / "cert.pem", tmp_path / "key.pem")
    files = ("--tls-cert", tmp_path / "cert.pem", "--tls-key", tmp_path / "key.pem")
    if "--tls-cert: this" in run_attnd("--demo", "--check-config", *files).stderr:
        pytest.skip("attnd or libmicrohttpd was built without TLS")
    server = start(*files)
    assert server.url.startswith("https://")
    assert exchange(path, post_bytes(SMALL)).status == 200
    assert run_attnd("health", "--listen", f"unix:{path}", *files).returncode == 0


@pytest.mark.parametrize("origin, host, status", [
    ("http://localhost", "localhost", 200), ("http://127.0.0.1:80", "127.0.0.1", 200),
    ("http://page.example", "page.example", 403), ("http://page.example", "localhost", 403)])
def test_pages_are_refused_as_on_loopback(start, path, origin, host, status):
    start()
    data = post_bytes(SMALL, f"Origin: {origin}").replace(b"Host: attnd", f"Host: {host}".encode())
    assert exchange(path, data).status == status


# --- users are clients ---

@as_root
def test_limit_of_requests_is_for_each_user(start, path):
    server = start("--max-per-client", 1, "--access-log", socket_options=",mode=0666")
    with Connection(path) as own, connect_as(OTHER, path) as others:
        send_unfinished(own, SMALL)
        assert exchange(path, post_bytes(SMALL)).status == 429
        send_unfinished(others, SMALL)
        assert exchange_as(OTHER, path, post_bytes(SMALL)).status == 429
        assert exchange_as(THIRD, path, post_bytes(SMALL)).status == 200
        assert exchange(server.port, post_bytes(SMALL)).status == 200
        assert finish(own) == finish(others) == 200
        assert exchange(path, post_bytes(SMALL)).status == 200
    wait_for_clients(server, {"unix:0", f"unix:{OTHER}", f"unix:{THIRD}", "127.0.0.1"})


@as_root
def test_user_with_all_places_gives_one_up_to_another(start, path):
    """There are four places at each address."""
    server = start("--max-connections", 8, "--max-per-client", 0, socket_options=",mode=0666")
    hogs = [connect_as(OTHER, path) for _ in range(4)]
    for hog in hogs:
        send_unfinished(hog, SMALL)
    for _ in range(20):
        assert exchange_as(THIRD, path, post_bytes(SMALL)).status == 200
        assert exchange(server.port, post_bytes(SMALL)).status == 200
    alive = 0
    for hog in hogs:
        with hog:
            hog.send(SMALL[-1:])
            reply = hog.read_reply()
            alive += reply is not None and reply.status == 200
    assert alive == 3


def test_newcomer_without_a_place_is_refused_for_a_reason(start, path):
    server = start("--max-connections", 2, "--http-threads", 1)
    with Connection(path) as busy:
        busy.send(post_bytes(LARGE))
        assert busy.receive()
        assert exchange(path, LIVE) is None
    wait_until(lambda: "every connection of this HTTP thread has a request in progress" in server.read_log(), "the log")


@as_root
def test_places_of_tcp_do_not_keep_users_out(start, path):
    server = start("--max-connections", 8, "--max-per-client", 0)
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            send_unfinished(stack.enter_context(Connection(server.port)), SMALL)
        assert exchange(path, post_bytes(SMALL)).status == 200
        wait_until(lambda: b"\nattnd_connections 5\n" in exchange(path, get_bytes("/metrics")).body,
                   "four connections of TCP and one")
        assert b"\nattnd_connections_limit 8\n" in exchange(path, get_bytes("/metrics")).body


def test_each_address_has_a_place_that_counts(start, path):
    server = start("--max-connections", 1)
    with Connection(path) as connection, Connection(server.port) as other:
        for each, data in ((other, LIVE), (connection, get_bytes("/metrics"))):
            each.send(data)
            reply = each.read_reply()
    metrics = reply.body.decode()
    assert "\nattnd_connections_limit 2\n" in metrics and "\nattnd_connections 2\n" in metrics
    wait_until(lambda: "more connections, each HTTP thread has one at least" in server.read_log(), "the warning")


@as_root
def test_trusted_user_names_its_clients_and_others_do_not(start, path):
    server = start("--max-per-client", 1, "--trusted-proxy", f"unix:{OTHER}", "--access-log",
                   socket_options=",mode=0666")

    def post_for(*addresses):
        return post_bytes(SMALL, *(f"X-Forwarded-For: {address}" for address in addresses))

    with connect_as(OTHER, path) as first, connect_as(OTHER, path) as proxy, Connection(path) as own:
        send_unfinished(first, SMALL, "X-Forwarded-For: 10.0.0.1")
        for address, status in (("10.0.0.1", 429), ("10.0.0.2", 200), ("unix:0", 200)):
            proxy.send(post_for(address))
            assert proxy.read_reply().status == status
        send_unfinished(own, SMALL, "X-Forwarded-For: 10.0.0.3")
        assert exchange(path, post_for("10.0.0.4")).status == 429
        assert exchange(server.port, post_for("10.0.0.1")).status == 200
        assert finish(first) == finish(own) == 200
    wait_for_clients(server, {"10.0.0.1", "10.0.0.2", f"unix:{OTHER}", "unix:0", "127.0.0.1"})


@as_root
def test_users_without_keys_are_holders_of_captures(start, path):
    """Each may have half of the memory: eight captures of 64 KiB. The ninth takes the place of its own first."""
    start("--capture-memory", "1MiB", socket_options=",mode=0666")
    file = small_file()

    def put_as(user, name):
        return exchange_as(user, path, head_bytes("PUT", f"/v1/captures/{name}", len(file)) + file).status

    assert [put_as(OTHER, f"a{i}") for i in range(9)] == [201] * 9
    assert [put_as(THIRD, f"b{i}") for i in range(9)] == [201] * 9
    reply = exchange_as(OTHER, path, get_bytes("/v1/captures"))  # who has no key sees those of all
    assert sorted(each["name"] for each in json.loads(reply.body)["captures"]) == [
        f"{user}{i}" for user in "ab" for i in range(1, 9)]


# --- slow and many clients ---

def read_slowly(connection, step, seconds):
    """Reads `step` bytes ten times a second. Returns whether the server was there to the end."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not connection.socket.recv(step):
            return False
        time.sleep(0.1)
    return True


def test_reader_that_stops_is_cut_off(start, path):
    server = start("--header-timeout", 1, "--idle-timeout", 2, "--log-level", "debug")
    with Connection(path) as connection:
        connection.send(post_bytes(LARGE))
        wait_for_log(server, "end=left_sending")
        assert len(connection.read_to_end()) < 10_000_000  # of 40 MB: what the kernel had


def test_reader_below_the_least_rate_is_cut_off_and_one_above_is_not(start, path):
    start("--header-timeout", 1, "--idle-timeout", 5, "--min-rate", "1MiB")
    for step, seconds, stays in ((300_000, 6, True), (20_000, 12, False)):
        with Connection(path) as connection:
            connection.send(post_bytes(LARGE))
            assert read_slowly(connection, step, seconds) == stays


def test_reader_of_a_large_reply_in_memory_may_take_its_time(start, path):
    """The description of a capture is there at once, and the kernel takes a part of it."""
    server = start("--header-timeout", 1, "--min-rate", "40KiB", "--capture-memory", "64MiB")
    layer = Layer({"keys": [[[0.5]]]})
    file = make_file({str(i): layer for i in range(8000)})
    assert exchange(path, head_bytes("PUT", "/v1/captures/large", len(file)) + file).status == 201
    expected = exchange(server.port, get_bytes("/v1/captures/large")).body
    with Connection(path) as connection:
        connection.send(get_bytes("/v1/captures/large"))
        assert read_slowly(connection, 8000, 8)
    reply = exchange(path, get_bytes("/v1/captures/large"))
    assert reply.body == expected and len(expected) > 1_500_000


def test_headers_that_do_not_end_are_refused(start, path):
    start("--header-timeout", 1)
    with Connection(path) as late, Connection(path) as silent, Connection(path) as line:
        late.send(b"POST /v1/attention HTTP/1.1\r\nHost: attnd\r\n")
        line.send(b"POST /v1/att")
        assert late.read_reply().status == 408
        assert silent.read_reply() is line.read_reply() is None  # nothing tells them apart


def test_descriptors_that_are_used_up_stop_nobody_for_long(path):
    def limit_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))

    process = subprocess.Popen([BINARY, "--demo", "--listen", f"unix:{path}"], preexec_fn=limit_descriptors,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=clean_environment())
    try:
        process.stdout.readline()
        idle = []
        for _ in range(200):
            connection = Connection(path)
            connection.send(LIVE)
            assert connection.read_reply().status == 200
            idle.append(connection)
        for connection in idle:
            connection.socket.close()
        assert exchange(path, post_bytes(SMALL)).status == 200
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
