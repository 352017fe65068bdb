# SPDX-License-Identifier: Apache-2.0
"""Clients that are slow on purpose, that take more than their share, or that leave."""

import json
import signal
import socket
import threading
import time

import pytest

from checkpoints import slow_request, write_slow_layer
from http1 import Connection, get_bytes, post_bytes, send_unfinished

SMALL = json.dumps({"model": "journey", "queries": [[1, 2, 3]]}).encode()
HEAD = b"POST /v1/attention HTTP/1.1\r\nHost: attnd\r\nContent-Type: application/json\r\n"
MB = 1_000_000
# Its reply has some 40 MB.
LARGE_REPLY = post_bytes(json.dumps(
    {"model": "d2l", "queries": [[0.5] * 100] * 900, "need_weights": True}).encode())


def large(size):
    """A small request in a body of `size` bytes."""
    return post_bytes(SMALL.ljust(size))


def close_all(connections):
    for connection in connections:
        connection.socket.close()


def exchange(port, data):
    with Connection(port) as connection:
        connection.send(data)
        return connection.read_reply()


def is_closed(connection, within=0.5):
    connection.socket.settimeout(within)
    try:
        return not connection.receive()
    except TimeoutError:
        return False


def wait_for_log(server, text, timeout=30):
    deadline = time.monotonic() + timeout
    while text not in server.read_log():
        assert time.monotonic() < deadline, f"{text!r} is missing in:\n{server.read_log()}"
        time.sleep(0.02)


# --- memory ---

def test_announced_bodies_take_no_memory_before_they_arrive(start_server):
    server = start_server("--demo", "--max-memory", 68 * MB)
    slow = [Connection(server.port) for _ in range(100)]
    for connection in slow:
        connection.send(HEAD + b"Content-Length: 67108864\r\n\r\n{")
    assert [exchange(server.port, large(MB)).status for _ in range(20)] == [200] * 20
    close_all(slow)


def test_body_that_could_never_fit_is_refused_by_its_headers(start_server):
    """Requests get what connections and workers leave of --max-memory."""
    server = start_server("--demo", "--max-memory", 4 << 20)
    for size, status in ((2 << 20, 100), (3 << 20, 413)):
        head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % size
        assert exchange(server.port, head).status == status


def test_slowest_uploads_make_room_for_a_request_and_get_503(start_server):
    """Together they hold all memory. Those that are dropped learn of it when they have sent the
    rest."""
    server = start_server("--demo", "--max-memory", 100 * MB)
    body = large(25 * MB)
    slow = [Connection(server.port) for _ in range(3)]
    for i, connection in enumerate(slow):
        connection.send(body[:(19 + i) * MB])
    end = time.monotonic() + 60
    while (status := exchange(server.port, body).status) == 503:  # not slow yet: their bytes still arrive
        assert time.monotonic() < end
    assert status == 200
    statuses = []
    for i, connection in enumerate(slow):
        connection.send(body[(19 + i) * MB:])
        statuses.append(connection.read_reply().status)
    assert set(statuses) == {200, 503}, statuses
    close_all(slow)


def test_refused_body_releases_its_memory_at_once(start_server):
    """The second chunk exceeds the limit, and the client never ends its body."""
    server = start_server("--demo", "--max-memory", 16 * MB, "--max-body", 10 * MB)
    chunk = b"%x\r\n%s\r\n" % (9 * MB, b" " * (9 * MB))
    with Connection(server.port) as refused:
        refused.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + chunk[:MB * 2])
        time.sleep(0.2)
        assert exchange(server.port, large(9 * MB)).status == 200


def test_complete_requests_are_never_dropped(start_server, tmp_path):
    """They wait for the only worker while uploads use up the memory."""
    write_slow_layer(tmp_path / "slow.safetensors")
    server = start_server("--model", f"slow={tmp_path}/slow.safetensors", "--workers", 1,
                          "--max-memory", 40 * MB, "--max-queue-delay", 60_000)
    request = json.dumps(slow_request()).encode()
    waiting = [Connection(server.port, timeout=120) for _ in range(3)]
    for connection in waiting:
        connection.send(post_bytes(request))
    time.sleep(0.5)  # until they are complete
    uploads = [Connection(server.port) for _ in range(4)]
    for connection in uploads:
        connection.send(large(20 * MB)[:8 * MB])
    assert [connection.read_reply().status for connection in waiting] == [200] * 3
    close_all(waiting + uploads)


# --- places ---

def test_newcomers_get_the_places_of_slow_connections(start_server):
    server = start_server("--demo", "--max-connections", 20)
    slow = [Connection(server.port) for _ in range(20)]
    for connection in slow:
        connection.send(HEAD)
    assert [exchange(server.port, post_bytes(SMALL)).status for _ in range(10)] == [200] * 10
    close_all(slow)


@pytest.mark.alone
def test_idle_connection_goes_before_an_unfinished_request(start_server):
    server = start_server("--demo", "--max-connections", 2)
    with Connection(server.port) as unfinished, Connection(server.port) as idle:
        unfinished.send(post_bytes(SMALL)[:-1])
        idle.send(get_bytes("/v2/health/live"))
        assert idle.read_reply().status == 200
        time.sleep(1.2)
        assert exchange(server.port, post_bytes(SMALL)).status == 200
        assert is_closed(idle)
        unfinished.send(post_bytes(SMALL)[-1:])
        assert unfinished.read_reply().status == 200


@pytest.mark.alone
def test_body_that_pauses_goes_before_a_newcomer(start_server):
    server = start_server("--demo", "--max-connections", 2)
    with Connection(server.port) as paused:
        paused.send(HEAD + f"Content-Length: {2 * MB}\r\n\r\n".encode() + b" " * MB)
        time.sleep(1.5)  # in which a megabyte is far more than --min-rate asks for
        with Connection(server.port) as newcomer:
            assert exchange(server.port, post_bytes(SMALL)).status == 200
            newcomer.send(post_bytes(SMALL))
            assert newcomer.read_reply().status == 200
        assert is_closed(paused)


@pytest.mark.alone
def test_newcomer_is_closed_when_every_request_is_complete(start_server, tmp_path):
    write_slow_layer(tmp_path / "slow.safetensors")
    server = start_server("--model", f"slow={tmp_path}/slow.safetensors", "--workers", 1,
                          "--max-connections", 2, "--max-queue-delay", 60_000)
    waiting = [Connection(server.port, timeout=120) for _ in range(2)]
    for connection in waiting:
        connection.send(post_bytes(json.dumps(slow_request(tokens=2000)).encode()))
    time.sleep(0.2)
    with Connection(server.port) as newcomer:
        assert is_closed(newcomer, within=5)
    assert [connection.read_reply().status for connection in waiting] == [200] * 2
    close_all(waiting)
    assert "every connection of this HTTP thread has a request in progress" in server.read_log()


def test_connections_take_at_most_a_quarter_of_the_memory(start_server):
    server = start_server("--demo", "--max-memory", 1 << 20)
    assert "max_connections=3" in server.read_log()
    slow = [Connection(server.port) for _ in range(30)]
    assert exchange(server.port, post_bytes(SMALL)).status == 200
    close_all(slow)


# --- time ---

DRIPS = {"request line": (b"", b"G"), "headers": (HEAD, b"a"),
         "body": (HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
         "chunked body": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n")}


@pytest.mark.parametrize("what", DRIPS)
def test_request_that_drips_gets_408_and_is_closed(start_server, what):
    server = start_server("--demo", "--header-timeout", 2, "--idle-timeout", 1000)
    begin, drip = DRIPS[what]
    with Connection(server.port, timeout=0.2) as connection:
        connection.send(begin)
        deadline = time.monotonic() + 20
        while not connection.unread:
            assert time.monotonic() < deadline
            connection.send(drip)
            try:
                connection.receive()
            except TimeoutError:
                pass
        reply = connection.read_reply()
        assert (reply.status, reply.json()["title"]) == (408, "Request timeout")
        assert reply.headers["connection"] == "close"
        assert connection.read_to_end() == b""


def test_kept_connection_may_not_drip_empty_lines_for_ever(start_server):
    server = start_server("--demo", "--idle-timeout", 2)
    with Connection(server.port, timeout=0.2) as connection:
        connection.send(get_bytes("/v2/health/live"))
        assert connection.read_reply().status == 200
        deadline = time.monotonic() + 20
        closed = False
        while not closed:
            assert time.monotonic() < deadline
            connection.send(b"\r\n")
            try:
                closed = not connection.receive()
            except TimeoutError:
                pass


@pytest.mark.alone
def test_reader_that_drips_is_cut_off(start_server):
    server = start_server("--demo", "--header-timeout", 1, "--idle-timeout", 1000, "--log-level",
                          "debug")
    with Connection(server.port) as connection:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.send(LARGE_REPLY)
        wait_for_log(server, "status=200 ")
        assert "end=left_sending" in server.read_log()


def test_reply_that_is_read_slowly_from_full_buffers_is_not_cut_off(start_server):
    """The kernel lets the server send more each few seconds, and has megabytes until then."""
    server = start_server("--demo", "--idle-timeout", 2)
    with Connection(server.port, timeout=60) as reader:
        reader.send(LARGE_REPLY)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            reader.unread += reader.socket.recv(10_000)
            time.sleep(0.1)
        assert reader.read_reply().status == 200


@pytest.mark.alone
@pytest.mark.parametrize("what", ("body", "reply"))
def test_pause_of_idle_timeout_ends_a_body_and_a_reply(start_server, what):
    """However many bytes moved before."""
    server = start_server("--demo", "--idle-timeout", 2, "--log-level", "debug")
    with Connection(server.port) as connection:
        connection.send(LARGE_REPLY[:-1] if what == "body" else LARGE_REPLY)
        wait_for_log(server, "status=408 " if what == "body" else "end=left_sending")


@pytest.mark.alone
def test_reply_that_is_looked_at_late_for_the_first_time_is_not_cut_off(start_server):
    """The server is paused soon after its reply has begun, for longer than --header-timeout."""
    server = start_server("--demo", "--header-timeout", 1)
    with Connection(server.port, timeout=60) as reader:
        reader.send(LARGE_REPLY)
        reader.receive()
        time.sleep(0.2)  # until the buffers of the sockets are full
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(1.6)
        server.process.send_signal(signal.SIGCONT)
        time.sleep(0.2)
        assert reader.read_reply().status == 200


@pytest.mark.alone
def test_pause_of_the_server_does_not_count_against_its_clients(start_server):
    server = start_server("--demo", "--header-timeout", 4)
    clients = []
    for _ in range(3):
        clients.append(Connection(server.port))
        clients[-1].send(HEAD)
        time.sleep(0.3)
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(5)
    server.process.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    for client in clients:
        client.send(b"Content-Length: %d\r\n\r\n" % len(SMALL) + SMALL)
        assert client.read_reply().status == 200
    close_all(clients)


def test_slow_readers_make_room_for_a_request(start_server):
    """They read faster than --min-rate, but would keep the memory for an hour."""
    server = start_server("--demo", "--max-memory", 100 * MB, "--header-timeout", 3,
                          "--idle-timeout", 1000)
    readers = []

    def begin_reply():
        with Connection(server.port) as connection:
            connection.send(LARGE_REPLY)
            connection.receive()
            return connection.unread.split()[1].decode()

    ended = threading.Event()

    def drip():
        while not ended.wait(0.05):
            for reader in list(readers):
                try:
                    reader.recv(2048)
                except OSError:
                    pass  # nothing there, or cut off

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        for _ in range(8):  # each drips while the next ones begin, however long that takes
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", server.port))
            reader.sendall(LARGE_REPLY)
            reader.recv(1024)  # waits for the reply
            reader.setblocking(False)
            readers.append(reader)
        assert begin_reply() == "503"
        deadline = time.monotonic() + 30
        while begin_reply() != "200":
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        ended.set()
        thread.join()
        for reader in readers:
            reader.close()


def test_slow_readers_make_room_for_other_clients(start_server):
    """They hold every place. A newcomer of another client gets one, and one of theirs does not."""
    server = start_server("--demo", "--max-connections", 6, "--header-timeout", 3,
                          "--idle-timeout", 1000, "--min-rate", 1)
    readers = [Connection(server.port) for _ in range(6)]
    for reader in readers:
        reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.send(LARGE_REPLY)
        reader.receive()  # waits for the reply

    def drip(seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for reader in readers:
                reader.socket.recv(2048)
            time.sleep(0.05)

    drip(6)
    with Connection(server.port) as newcomer:
        drip(1)
        assert is_closed(newcomer, within=5)
    with Connection(server.port, source="127.0.0.2") as newcomer:
        newcomer.send(post_bytes(SMALL))
        assert newcomer.read_reply().status == 200
    close_all(readers)


def test_large_body_at_an_honest_rate_is_not_cut(start_server):
    """It takes three times --header-timeout."""
    server = start_server("--demo", "--header-timeout", 1)
    data = large(60_000)
    with Connection(server.port) as connection:
        for at in range(0, len(data), 4000):
            connection.send(data[at:at + 4000])
            time.sleep(0.2)
        assert connection.read_reply().status == 200


def test_chunk_extension_without_end_does_not_last_until_the_idle_timeout(start_server):
    server = start_server("--demo", "--idle-timeout", 1000)
    with Connection(server.port, timeout=8) as connection:
        connection.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 200_000)
        assert server.is_alive()
        connection.read_to_end()
    assert server.is_alive()


# --- clients ---

def forwarded_for(addresses):
    return [f"X-Forwarded-For: {address}" for address in addresses]


def begin_requests(server, count):
    connections = [Connection(server.port) for _ in range(count)]
    for connection in connections:
        send_unfinished(connection, SMALL)
    return connections


def finish(connection):
    connection.send(SMALL[-1:])
    return connection.read_reply().status


@pytest.mark.alone
def test_requests_of_one_client_beyond_its_limit_get_429(start_server):
    server = start_server("--demo", "--max-per-client", 2)
    unfinished = begin_requests(server, 2)
    with Connection(server.port) as connection:
        connection.send(post_bytes(SMALL))
        reply = connection.read_reply()
        assert (reply.status, reply.json()["title"]) == (429, "Too many requests")
        assert reply.headers["retry-after"] == "1"
        assert finish(unfinished[0]) == 200
        connection.send(post_bytes(SMALL))
        assert connection.read_reply().status == 200
    close_all(unfinished)


@pytest.mark.alone
def test_limit_of_0_lets_a_client_have_any_number_of_requests(start_server):
    server = start_server("--demo", "--max-per-client", 0)
    unfinished = begin_requests(server, 100)
    assert [finish(connection) for connection in unfinished] == [200] * 100
    close_all(unfinished)


@pytest.mark.alone
def test_refused_request_does_not_count_as_one_in_progress(start_server):
    """Its client still sends the body, which is discarded, when its first request has ended."""
    server = start_server("--demo", "--max-per-client", 1)
    with Connection(server.port) as first, Connection(server.port) as refused:
        send_unfinished(first, SMALL)
        refused.send(post_bytes(SMALL)[:-1])
        assert exchange(server.port, post_bytes(SMALL)).status == 429
        assert finish(first) == 200
        assert exchange(server.port, post_bytes(SMALL)).status == 200
        assert finish(refused) == 429


@pytest.mark.alone
def test_client_that_leaves_makes_room_for_its_next_request(start_server):
    server = start_server("--demo", "--max-per-client", 1)
    with Connection(server.port) as first:
        send_unfinished(first, SMALL)
    deadline = time.monotonic() + 20
    while exchange(server.port, post_bytes(SMALL)).status != 200:
        assert time.monotonic() < deadline


@pytest.mark.alone
def test_limit_counts_requests_of_one_client_over_several_proxies_and_connections(start_server):
    """A connection of a proxy carries requests of several clients, one after another."""
    server = start_server("--demo", "--max-per-client", 1, "--trusted-proxy", "127.0.0.0/8")
    with Connection(server.port) as one, Connection(server.port, source="127.0.0.2") as other:
        send_unfinished(one, SMALL, *forwarded_for(["10.0.0.1"]))
        for address, status in (("10.0.0.1", 429), ("10.0.0.2", 200), ("10.0.0.1", 429)):
            other.send(post_bytes(SMALL, *forwarded_for([address])))
            assert other.read_reply().status == status
        assert finish(one) == 200
        other.send(post_bytes(SMALL, *forwarded_for(["10.0.0.1"])))
        assert other.read_reply().status == 200


@pytest.mark.alone
@pytest.mark.parametrize("first, second, same", [
    (["10.0.0.1"], ["10.0.0.1"], True), (["10.0.0.1"], ["10.0.0.2"], False),
    (["6.6.6.6, 10.0.0.1"], ["7.7.7.7, 10.0.0.1:99"], True), (["nonsense, 10.0.0.1"], ["10.0.0.1"], True),
    (["10.0.0.1, 127.0.0.1"], ["10.0.0.1"], True), (["10.0.0.1, nonsense"], [], True),
    (["10.0.0.2", "10.0.0.1"], ["10.0.0.1"], True), (["2001:db8::1"], ["[2001:db8::2]:5"], True),
    (["2001:db8::1"], ["2001:db8:0:1::1"], False), (["10.0.0.1"], ["::ffff:10.0.0.1"], True)])
def test_client_behind_a_trusted_proxy_is_the_last_untrusted_address(start_server, first, second,
                                                                     same):
    server = start_server("--demo", "--max-per-client", 1, "--trusted-proxy", "127.0.0.0/8")
    with Connection(server.port) as unfinished, Connection(server.port) as other:
        send_unfinished(unfinished, SMALL, *forwarded_for(first))
        other.send(post_bytes(SMALL, *forwarded_for(second)))
        assert other.read_reply().status == (429 if same else 200)


@pytest.mark.alone
def test_header_of_a_peer_that_is_not_trusted_is_ignored(start_server):
    server = start_server("--demo", "--max-per-client", 1, "--trusted-proxy", "10.0.0.0/8")
    with Connection(server.port) as unfinished, Connection(server.port) as other:
        send_unfinished(unfinished, SMALL, *forwarded_for(["10.1.1.1"]))
        other.send(post_bytes(SMALL, *forwarded_for(["10.1.1.2"])))
        assert other.read_reply().status == 429


@pytest.mark.alone
def test_request_that_waits_is_not_computed_when_its_client_leaves(start_server, tmp_path):
    write_slow_layer(tmp_path / "slow.safetensors")
    server = start_server("--model", f"slow={tmp_path}/slow.safetensors", "--workers", 1,
                          "--log-level", "debug", "--max-queue-delay", 3_600_000)
    with Connection(server.port, timeout=120) as first, Connection(server.port) as second:
        first.send(post_bytes(json.dumps(slow_request(tokens=3000)).encode()))
        time.sleep(0.2)
        second.send(post_bytes(json.dumps(slow_request(tokens=3000)).encode()))
        time.sleep(0.2)
        second.socket.close()
        wait_for_log(server, "status=0 ")
        assert "status=200" not in server.read_log()
        assert first.read_reply().status == 200
    statistics = server.get("/v2/models/slow/stats").json()["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] == 1
