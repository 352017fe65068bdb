# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and SIGINT: accepted requests get a reply, then attnd exits 0."""

import datetime
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from checkpoints import read_layer, slow_request, write_slow_layer
from compare import assert_close
from http1 import Connection, get_bytes, post_bytes
from reference import attend
from reload import wait_for_log, write_wide_layer
from server import BINARY, clean_environment

SMALL = {"model": "journey", "queries": [[1, 2, 3]]}


def send_slow(server, seed, tokens=400):
    connection = Connection(server.port, timeout=120)
    connection.send(post_bytes(json.dumps(slow_request(seed, tokens)).encode()))
    return connection


def wait_until_read(server):
    """Waits until a server with one HTTP thread has read everything sent before. It handles its
    connections in turn. There are two requests, because the first reply may be sent in the same
    turn."""
    for _ in range(2):
        assert server.get("/v2/health/live").status_code == 200


def wait_until_draining(server):
    """Waits until the signal has arrived and no HTTP thread accepts connections any more."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", server.port), 60).close()
        except ConnectionError:
            return
        time.sleep(0.01)
    raise AssertionError("connections are still accepted 60 s after the signal")


def gets_reply(connection):
    """Returns whether a complete reply arrives."""
    try:
        return connection.read_reply() is not None
    except AssertionError:  # closed in the middle
        return False


def cpu_seconds(server):
    """Returns the CPU time that the threads of the server have used."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_idle_server_stops_at_once(start_server, which):
    """The signal is sent as early as possible, right after the line on stdout, and many times. The
    grace is longer than wait() allows."""
    for _ in range(12):
        server = start_server("--demo", "--grace", 1000)
        server.process.send_signal(which)
        server.wait()


def test_every_accepted_request_gets_a_reply(start_server, tmp_path):
    """The first request keeps the only worker busy while the others wait."""
    path = tmp_path / "slow.safetensors"
    write_slow_layer(path)
    server = start_server("--model", f"slow={path}", "--workers", 1, "--http-threads", 1,
                          "--max-queue-delay", 3600000, "--grace", 100)
    connections = [send_slow(server, seed, tokens=50 if seed > 0 else 400) for seed in range(8)]
    wait_until_read(server)
    server.process.send_signal(signal.SIGTERM)
    replies = [connection.read_reply() for connection in connections]
    assert [reply and reply.status for reply in replies] == [200] * 8
    for seed in range(1, 8):
        rows = slow_request(seed, tokens=50)["queries"]
        assert_close(replies[seed].json()["outputs"], attend(read_layer(path), rows, rows, rows)[0],
                     f"outputs of request {seed}")
    server.wait()


def test_draining_server_closes_every_connection(start_server):
    """The server drains as long as one request has arrived only in part."""
    server = start_server("--demo", "--http-threads", 1, "--grace", 100)
    request = post_bytes(json.dumps(SMALL).encode())
    with Connection(server.port) as half, Connection(server.port) as kept, \
            Connection(server.port) as poster, Connection(server.port) as model:
        half.send(request[:-5])
        model.send(get_bytes("/v2/models/journey/ready"))
        assert model.read_reply().json() == {"name": "journey", "ready": True}
        kept.send(get_bytes("/v2/health/ready"))
        poster.send(get_bytes("/v2/health/ready"))
        assert kept.read_reply().json() == poster.read_reply().json() == {"ready": True}
        wait_until_read(server)
        server.process.send_signal(signal.SIGTERM)
        wait_until_draining(server)
        time.sleep(0.1)  # without an open request the server would have ended
        # A request on a connection that was kept still gets a reply, and is the last one.
        kept.send(get_bytes("/v2/health/ready"))
        reply = kept.read_reply()
        assert (reply.status, reply.json()) == (503, {"ready": False, "reason": "draining"})
        assert kept.read_to_end() == b""
        model.send(get_bytes("/v2/models/journey/ready"))
        reply = model.read_reply()
        assert (reply.status, reply.json()) == (503, {"name": "journey", "ready": False})
        assert model.read_to_end() == b""
        poster.send(request)
        reply = poster.read_reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert poster.read_to_end() == b""
        half.send(request[-5:])
        assert half.read_reply().status == 200
        assert half.read_to_end() == b""
    server.wait()


def test_idle_connections_do_not_delay_the_stop(start_server):
    server = start_server("--demo", "--grace", 1000, "--idle-timeout", 1000)
    with Connection(server.port) as idle, Connection(server.port):
        idle.send(post_bytes(json.dumps(SMALL).encode()))
        assert idle.read_reply().status == 200
        server.stop()


def test_half_sent_request_does_not_delay_the_stop_beyond_the_grace(start_server):
    server = start_server("--demo", "--http-threads", 1, "--grace", 1, "--idle-timeout", 1000)
    with Connection(server.port) as half:
        half.send(post_bytes(json.dumps(SMALL).encode())[:-5])
        wait_until_read(server)
        server.stop()


def test_request_that_outlives_the_grace_is_reported_by_the_exit_code(start_server, tmp_path):
    path = tmp_path / "slow.safetensors"
    write_slow_layer(path)
    server = start_server("--model", f"slow={path}", "--workers", 1, "--max-queue-delay", 3600000, "--http-threads", 1,
                          "--grace", 0)
    connections = [send_slow(server, seed) for seed in range(8)]
    wait_until_read(server)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) in (0, 1), server.read_log()
    num_replies = sum(gets_reply(connection) for connection in connections)
    # At the last moment a reply may be sent although the exit code reports it as unfinished.
    assert num_replies == 8 or server.process.returncode == 1


def test_ended_http_threads_are_joined_even_if_a_request_outlives_the_grace(start_server, tmp_path):
    """Seven threads end at once, and the eighth waits for its worker. ThreadSanitizer reports a
    thread that is not joined."""
    path = tmp_path / "slow.safetensors"
    write_slow_layer(path)
    server = start_server("--model", f"slow={path}", "--workers", 1, "--http-threads", 8,
                          "--grace", 0)
    idle = cpu_seconds(server)
    with Connection(server.port) as connection:
        connection.send(post_bytes(json.dumps(slow_request(tokens=4000)).encode()))  # some 20 s
        while cpu_seconds(server) < idle + 0.1:  # until the worker computes it
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 1, server.read_log()
    assert "requests unfinished" in server.read_log()


def test_stopping_under_load_is_clean_many_times(start_server):
    """Requests that were sent before the signal get a reply, are refused or are closed."""
    for _ in range(10):
        server = start_server("--demo")
        connections = [Connection(server.port) for _ in range(16)]
        for connection in connections:
            connection.send(get_bytes("/v2/health/live"))
            assert connection.read_reply().status == 200
        for connection in connections:
            connection.send(post_bytes(json.dumps(SMALL).encode()))
        server.process.send_signal(signal.SIGTERM)
        for connection in connections:
            reply = connection.read_reply()
            assert reply is None or reply.status in (200, 503), reply
            connection.socket.close()
        server.wait()


def test_reply_that_is_cut_off_at_the_end_of_the_grace_exits_1(start_server):
    server = start_server("--demo", "--grace", 1)
    request = {"model": "d2l", "queries": [[i % 7] * 100 for i in range(600)],
               "need_weights": True}  # 1.8 million weights: more than socket buffers hold
    with Connection(server.port) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.send(post_bytes(json.dumps(request).encode()))
        assert connection.receive(), "no reply"
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 1, server.read_log()
    assert "replies unsent" in server.read_log()


def wait_until_not_ready(server):
    """Waits until the signal has arrived at a server that has a readiness delay."""
    end = time.monotonic() + 60
    while server.get("/v2/health/ready").status_code == 200:
        assert time.monotonic() < end, "still ready 60 s after the signal"
        time.sleep(0.01)


def test_server_with_a_readiness_delay_still_accepts_but_is_not_ready(start_server):
    server = start_server("--demo", "--readiness-delay", 3, "--grace", 0)
    server.process.send_signal(signal.SIGTERM)
    begun = time.monotonic()
    wait_until_not_ready(server)
    while time.monotonic() < begun + 1:  # each on a connection of its own
        reply = server.get("/v2/health/ready")
        assert (reply.status_code, reply.json()) == (503, {"ready": False, "reason": "draining"})
        assert server.get("/v2/health/live").status_code == 200
        assert server.get("/v2/models/d2l/ready").status_code == 503
        reply = server.attention(SMALL)
        assert reply.status_code == 200 and "connection" not in reply.headers
    assert server.process.poll() is None
    server.wait()
    assert time.monotonic() >= begun + 3


def test_request_of_the_last_moment_of_the_delay_gets_the_whole_grace(start_server, tmp_path):
    path = tmp_path / "slow.safetensors"
    write_slow_layer(path)
    server = start_server("--model", f"slow={path}", "--readiness-delay", 1, "--grace", 100,
                          "--workers", 1, "--max-queue-delay", 3600000)
    server.process.send_signal(signal.SIGTERM)
    wait_until_not_ready(server)
    connections = [send_slow(server, seed, tokens=800) for seed in range(3)]  # more than the delay
    assert [connection.read_reply().status for connection in connections] == [200] * 3
    server.wait()


@pytest.mark.parametrize("delay", [0, 1000], ids=["grace", "delay"])
def test_sigusr1_is_obeyed_while_attnd_stops(start_server, delay):
    server = start_server("--demo", "--http-threads", 1, "--readiness-delay", delay, "--grace", 1000)
    with Connection(server.port) as half:
        half.send(post_bytes(json.dumps(SMALL).encode())[:-5])
        wait_until_read(server)
        server.process.send_signal(signal.SIGTERM)
        (wait_until_not_ready if delay else wait_until_draining)(server)
        for level in ("debug", "info"):
            server.process.send_signal(signal.SIGUSR1)
            wait_for_log(server, f"log level changed level={level} cause=SIGUSR1")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 1


@pytest.mark.parametrize("first, second", [(signal.SIGTERM, signal.SIGTERM),
                                           (signal.SIGINT, signal.SIGINT),
                                           (signal.SIGINT, signal.SIGTERM)])
@pytest.mark.parametrize("delay", [0, 1000])
def test_second_signal_ends_attnd_at_once(start_server, first, second, delay):
    server = start_server("--demo", "--log-format", "json", "--http-threads", 1, "--readiness-delay", delay, "--grace", 1000)
    with Connection(server.port) as half:
        half.send(post_bytes(json.dumps(SMALL).encode())[:-5])
        wait_until_read(server)
        server.process.send_signal(first)
        (wait_until_not_ready if delay else wait_until_draining)(server)
        time.sleep(0.1)
        assert server.process.poll() is None
        server.process.send_signal(second)
        assert server.process.wait(60) == 1
    line = json.loads(server.read_log().splitlines()[-1])
    assert line["level"] == "warn" and line["message"].startswith("a second signal ended attnd")
    logged = datetime.datetime.strptime(line["time"], "%Y-%m-%dT%H:%M:%S.%fZ")
    assert abs(logged - datetime.datetime.utcnow()) < datetime.timedelta(minutes=2)


def start_as_process_1(*arguments):
    """Starts attnd as process 1 of a new namespace, with its log as a pipe. Returns the process of
    unshare and the pid of attnd, as this namespace sees it."""
    process = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", BINARY, "--listen", "127.0.0.1:0",
         *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        env=clean_environment())
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        for pid in children.read_text().split():
            if os.path.realpath(f"/proc/{pid}/exe") == str(BINARY):
                return process, int(pid)
        time.sleep(0.001)
    error = process.stderr.read().decode()
    if "Operation not permitted" in error:
        pytest.skip("namespaces may not be made here: " + error)
    raise AssertionError(error)


def catches(pid, number):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1


@pytest.mark.parametrize("when", ["loading", "serving"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_1_stops_whenever_the_signal_comes(tmp_path, when, number):
    """The kernel drops signals to process 1 that have no handler. Each model takes some 0.3 s."""
    write_wide_layer(tmp_path / "a.safetensors")
    for i in range(11):
        (tmp_path / f"a{i}.safetensors").symlink_to(tmp_path / "a.safetensors")
    process, pid = start_as_process_1(*(["--model-dir", tmp_path] if when == "loading" else ["--demo"]))
    with process:
        if when == "loading":
            while not catches(pid, number):
                time.sleep(0.001)
        else:
            while b"listening" not in process.stderr.readline():
                pass
        os.kill(pid, number)
        assert process.wait(60) == 0
        assert b"listening" not in process.stderr.read()
