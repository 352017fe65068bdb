# SPDX-License-Identifier: Apache-2.0
"""Who holds captures: names of keys, or clients without keys. What web pages may do, and what a server that stops
does with captures."""

import json
import re
import signal

import numpy as np
import pytest

from compare import assert_problem
from http1 import Connection, get_bytes
from reload import wait_until
from scrape import Scrape, wait_for_value
from server import Server
from stored import (LEAST, MIB, PATH, Asker, Layer, ask, assert_refused, begin_put, delete, file_of_size, get, hash_of,
                    head_bytes, list_names, make_file, put, send, small_file)
from test_keys import ALICE, BOB, NEW, bearer, reload, write_keys
from test_origin import APP, preflight
from test_shutdown import wait_until_draining

FILE, OTHER = small_file(0), small_file(1)
pytestmark = pytest.mark.alone


def key(text):
    """Returns the headers of a request with a key."""
    return [f"Authorization: Bearer {text}"]


# --- keys ---

@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    write_keys(path, f"alice:{ALICE}", f"bob:{BOB}")
    return path


@pytest.fixture
def keyed(start_server, key_file):
    return start_server("--capture-memory", 4 * MIB, "--api-key-file", key_file)


def metrics_of(server):
    """Returns captures and their bytes from /metrics, for which a key is needed."""
    text = server.get("/metrics", headers=bearer(ALICE)).text
    return tuple(int(float(re.search(rf"^attnd_{name} (\S+)$", text, re.M)[1])) for name in ("captures", "capture_bytes"))


def wait_for_captures(server, count):
    """Waits until `count` captures are kept, each of 64 KiB."""
    wait_until(lambda: metrics_of(server) == (count, count * LEAST), f"{count} captures")


def without_id(reply):
    return reply.status, reply.body, {name: value for name, value in reply.headers.items()
                                      if name not in ("x-request-id", "date", "server-timing")}


def test_each_key_sees_its_own_captures(keyed):
    """Others' are refused in the words of one that there is not."""
    assert put(keyed, "mine", FILE, headers=key(ALICE)).status == 201
    for call in (get, delete, ask):
        never = call(keyed, "nothing", headers=key(BOB))
        hidden = call(keyed, "mine", headers=key(BOB))
        assert_refused(hidden, 404, "Unknown capture")
        assert without_id(hidden)[1].replace(b"mine", b"nothing") == without_id(never)[1]
    assert send(keyed, "HEAD", f"{PATH}/mine", headers=key(BOB)).status == 404
    assert list_names(keyed, headers=key(BOB)) == []
    assert list_names(keyed, headers=key(ALICE)) == ["mine"]
    assert ask(keyed, "mine", headers=key(ALICE)).status == 200


def test_a_name_can_have_other_bytes_for_another_key(keyed):
    answers = {}
    for secret, file in ((ALICE, FILE), (BOB, OTHER)):
        assert put(keyed, "text", file, headers=key(secret)).status == 201
        answers[secret] = ask(keyed, "text", headers=key(secret)).body
    assert answers[ALICE] != answers[BOB] == ask(keyed, "text", headers=key(BOB)).body
    assert get(keyed, "text", headers=key(ALICE)).json()["sha256"] == hash_of(FILE)
    wait_for_captures(keyed, 2)
    assert delete(keyed, "text", headers=key(BOB)).status == 204
    assert get(keyed, "text", headers=key(BOB)).status == 404
    assert ask(keyed, "text", headers=key(ALICE)).body == answers[ALICE]
    wait_for_captures(keyed, 1)


def test_same_bytes_of_another_key_are_created_too(keyed):
    """Else a status would tell what others have."""
    assert [put(keyed, hash_of(FILE), FILE, headers=key(secret)).status for secret in (ALICE, BOB, BOB)] == [201, 201, 200]
    wait_for_captures(keyed, 2)


def test_every_route_needs_a_key(keyed):
    assert put(keyed, "text", FILE, headers=key(ALICE)).status == 201
    for headers in ((), key("wrong-0123456789")):
        for reply in (put(keyed, "a", FILE, headers=headers), get(keyed, "text", headers=headers),
                      delete(keyed, "text", headers=headers), ask(keyed, "text", headers=headers),
                      send(keyed, "GET", PATH, headers=headers)):
            assert_refused(reply, 401, "Unauthorized")
    assert list_names(keyed, headers=key(ALICE)) == ["text"]


def test_put_without_a_key_reserves_nothing(keyed):
    for headers in ((), key("wrong-0123456789")):
        with Connection(keyed.port) as connection:
            connection.send(head_bytes("PUT", f"{PATH}/a", MIB, *headers) + FILE)
            assert_refused(connection.read_reply(), 401, "Unauthorized")
            assert metrics_of(keyed) == (0, 0)


def test_key_that_is_removed_loses_its_captures(keyed, key_file):
    for secret in (ALICE, BOB):
        assert put(keyed, "text", FILE, headers=key(secret)).status == 201
    write_keys(key_file, f"alice:{ALICE}")
    reload(keyed, 2)
    wait_for_captures(keyed, 1)
    assert ask(keyed, "text", headers=key(ALICE)).status == 200
    write_keys(key_file, f"alice:{ALICE}", f"bob:{BOB}")
    reload(keyed, 3)
    assert_refused(get(keyed, "text", headers=key(BOB)), 404, "Unknown capture")
    assert list_names(keyed, headers=key(BOB)) == []
    assert ask(keyed, "text", headers=key(ALICE)).status == 200


def test_captures_belong_to_the_name_of_a_key(keyed, key_file):
    """So they stay when the key is rotated."""
    assert put(keyed, "text", FILE, headers=key(ALICE)).status == 201
    write_keys(key_file, f"alice:{ALICE}", f"alice:{NEW}", f"bob:{BOB}")
    reload(keyed, 2)
    assert ask(keyed, "text", headers=key(NEW)).status == 200
    write_keys(key_file, f"alice:{NEW}", f"bob:{BOB}")
    reload(keyed, 3)
    assert list_names(keyed, headers=key(NEW)) == ["text"]
    assert delete(keyed, "text", headers=key(NEW)).status == 204


def test_bad_new_keys_lose_nothing(keyed, key_file):
    assert put(keyed, "text", FILE, headers=key(ALICE)).status == 201
    key_file.unlink()
    reload(keyed, 2)
    assert ask(keyed, "text", headers=key(ALICE)).status == 200


def test_put_of_a_key_that_is_removed_meanwhile_keeps_nothing(keyed, key_file):
    with begin_put(keyed, "text", len(FILE), headers=key(BOB)) as connection:
        connection.send(FILE[:-5])
        write_keys(key_file, f"alice:{ALICE}")
        reload(keyed, 2)
        connection.send(FILE[-5:])
        reply = connection.read_reply()
    assert_refused(reply, 401, "Unauthorized")
    assert reply.headers["www-authenticate"] == 'Bearer realm="attnd", error="invalid_token"'
    wait_for_captures(keyed, 0)
    write_keys(key_file, f"alice:{ALICE}", f"bob:{BOB}")
    reload(keyed, 3)
    assert list_names(keyed, headers=key(BOB)) == []


def test_keys_of_one_address_are_holders_of_their_own(keyed):
    """A budget of 4 MiB: half of it for each. What is more replaces one's own."""
    for secret in (ALICE, BOB):
        assert put(keyed, "half", file_of_size(2 * MIB - LEAST), headers=key(secret)).status == 201
    for secret in (ALICE, BOB):
        assert put(keyed, "more", file_of_size(2 * LEAST), headers=key(secret)).status == 201
        assert list_names(keyed, headers=key(secret)) == ["more"]


# --- clients, without keys ---

@pytest.fixture
def server(start_server):
    return start_server("--capture-memory", MIB, "--idle-timeout", 1000, "--min-rate", 1)


def test_captures_are_everybodys_without_keys(server):
    assert put(server, "text", FILE, source="127.0.0.1").status == 201
    assert ask(server, "text", source="127.0.0.2").status == 200
    assert put(server, "text", FILE, source="127.0.0.3").status == 200
    assert list_names(server, source="127.0.0.4") == ["text"]
    assert delete(server, "text", source="127.0.0.5").status == 204
    assert get(server, "text").status == 404


def fill_half(server, source, name="mine", headers=()):
    for i in range(8):
        assert put(server, f"{name}{i}", small_file(i), source, headers).status == 201


def test_holders_that_renew_their_halves_keep_nobody_out(server):
    """They ask for all they have, again and again, and put more: that replaces what they have. Who has less than one
    of them gets room, which they give in turns."""
    for source in ("127.0.0.2", "127.0.0.3"):
        fill_half(server, source, source[-1])
    for i in range(5):
        for name in list_names(server):
            assert ask(server, name, source="127.0.0.2").status == 200
        assert put(server, f"2more{i}", FILE, source="127.0.0.2").status == 201
        assert put(server, f"other{i}", small_file(i), source="127.0.0.4").status == 201
        names = list_names(server)
        assert len(names) == 16
        assert [name[:5] for name in names].count("other") == i + 1
        assert all(len([name for name in names if name[0] == first]) >= 5 for first in "23"), names


def test_holder_that_is_full_replaces_what_it_used_least_recently(server):
    """Nobody else loses any."""
    fill_half(server, "127.0.0.2")
    fill_half(server, "127.0.0.3", "other")
    assert ask(server, "mine0", source="127.0.0.9").status == 200
    assert put(server, "new", FILE, source="127.0.0.2").status == 201
    others = {f"other{i}" for i in range(8)}
    assert set(list_names(server)) == {"mine0", "new", *(f"mine{i}" for i in range(2, 8))} | others
    assert put(server, "large", file_of_size(7 * LEAST), source="127.0.0.2").status == 201
    assert set(list_names(server)) == {"large"} | others
    assert_refused(ask(server, "mine0"), 404, "Unknown capture")


def test_room_goes_to_who_will_have_less(server):
    """Not to who would have as much: then nothing goes."""
    for i in range(2):
        assert put(server, f"held{i}", file_of_size(7 * LEAST), source=f"127.0.0.{i + 2}").status == 201
    assert_refused(put(server, "new", file_of_size(15 * LEAST // 2), source="127.0.0.4"), 507, "Captures full")
    assert sorted(list_names(server)) == ["held0", "held1"]
    assert put(server, "new", file_of_size(6 * LEAST), source="127.0.0.4").status == 201
    assert len(list_names(server)) == 2 and "new" in list_names(server)


def test_holder_is_the_client_of_a_trusted_proxy(start_server):
    """Others cannot say who they are: they are one holder."""
    server = start_server("--capture-memory", MIB, "--trusted-proxy", "127.0.0.1")
    fill_half(server, "127.0.0.1", "a", ["X-Forwarded-For: 203.0.113.7"])
    for i in range(8):
        reply = put(server, f"b{i}", small_file(i), headers=[f"X-Forwarded-For: 203.0.113.{8 + i % 2}"])
        assert reply.status == 201
    assert len(list_names(server)) == 16
    for i in range(8):
        assert delete(server, f"b{i}").status == 204
    for i in range(9):
        assert put(server, f"c{i}", small_file(i), "127.0.0.9", [f"X-Forwarded-For: 203.0.113.{i}"]).status == 201
    assert sorted(list_names(server)) == sorted(f"a{i}" for i in range(8)) + sorted(f"c{i}" for i in range(1, 9))


def test_deleted_room_returns_to_its_holder(server):
    """Whoever deletes it."""
    fill_half(server, "127.0.0.2", "c")
    assert delete(server, "c3", source="127.0.0.9").status == 204
    assert put(server, "c8", FILE, source="127.0.0.2").status == 201
    assert len(list_names(server)) == 8


def test_holder_has_one_put_in_progress(server):
    with begin_put(server, "first", len(FILE), "127.0.0.2") as first:
        reply = put(server, "second", OTHER, source="127.0.0.2")
        assert_refused(reply, 429, "Too many requests")
        assert int(reply.headers["retry-after"]) >= 1
        assert put(server, "third", OTHER, source="127.0.0.3").status == 201
        assert ask(server, "third", source="127.0.0.2").status == 200
        first.send(FILE)
        assert first.read_reply().status == 201
    assert put(server, "second", OTHER, source="127.0.0.2").status == 201


def test_put_that_is_refused_lets_the_next_one_begin(server):
    """Whatever the first one was refused for."""
    wrong = FILE.replace(b"0.keys", b"0.kays")
    for name, file, status in (("a", wrong, 400), ("%", FILE, 400), ("a", FILE[:-1], 400), ("f" * 64, FILE, 400),
                               ("a", FILE, 201), ("a", OTHER, 409), ("a", FILE, 200)):
        assert put(server, name, file, source="127.0.0.2").status == status
    with begin_put(server, "b", len(FILE), "127.0.0.2"):
        pass
    wait_until(lambda: put(server, "b", FILE, source="127.0.0.2").status == 201, "the client that left puts again")


def test_files_that_were_only_announced_give_room(server):
    """Two hold nearly all of the budget. One ends, and its client is told why when it goes on."""
    file, wanted = file_of_size(7 * LEAST), file_of_size(3 * LEAST)
    slow = [begin_put(server, f"slow{i}", len(file), f"127.0.0.{i + 2}") for i in range(2)]
    for connection in slow:
        connection.send(file[:1000])
    wait_for_value(server, 14 * LEAST, "attnd_capture_bytes")
    assert put(server, "quick", wanted, source="127.0.0.9").status == 201
    replies = []
    for connection in slow:
        connection.send(file[1000:])
        replies.append(connection.read_reply())
        connection.socket.close()
    assert sorted(reply.status for reply in replies) == [201, 507], replies
    (refused,) = (reply for reply in replies if reply.status == 507)
    assert "another holder" in assert_refused(refused, 507, "Captures full")["detail"]
    wait_for_value(server, sum(get(server, name).json()["bytes"] for name in list_names(server)), "attnd_capture_bytes")
    assert Scrape(server).value("attnd_capture_refusals_total", reason="full") == 1


def test_announcements_that_come_again_keep_nobody_out(server):
    """Two clients announce half of the budget, and again whenever they are ended, without a byte."""
    held = {source: begin_put(server, f"held-{source}", 8 * LEAST, source) for source in ("127.0.0.2", "127.0.0.3")}
    for i in range(20):
        assert put(server, "small", FILE, source="127.0.0.4").status == 201
        for source, connection in held.items():
            connection.socket.close()
            held[source] = Connection(server.port, timeout=60, source=source)
            held[source].send(head_bytes("PUT", f"{PATH}/held-{source}", 8 * LEAST))
        assert get(server, "small").status == 200
        assert delete(server, "small").status == 204
    for connection in held.values():
        connection.socket.close()


def test_who_has_no_more_than_another_gives_nothing(server):
    for i in range(16):
        assert put(server, f"c{i}", small_file(i), source=f"127.0.0.{i + 1}").status == 201
    assert_refused(put(server, "more", FILE, source="127.0.0.20"), 507, "Captures full")
    assert len(list_names(server)) == 16


def test_slow_put_does_not_delay_others(server):
    """It takes no worker and no connection of theirs."""
    assert put(server, "text", FILE).status == 201
    with begin_put(server, "slow", len(FILE), "127.0.0.2") as slow:
        slow.send(FILE[:-1])
        for i in range(20):
            assert ask(server, "text").status == 200
            assert put(server, "more", OTHER).status in (200, 201)
        slow.send(FILE[-1:])
        assert slow.read_reply().status == 201


# --- web pages ---

@pytest.fixture(scope="module")
def pages():
    with Server("--capture-memory", 4 * MIB, "--cors-origin", APP) as running:
        yield running


def test_page_may_put_and_delete(pages):
    reply = preflight(pages, f"{PATH}/text", Access_Control_Request_Method="PUT")
    assert reply.status_code == 204
    assert set(reply.headers["Access-Control-Allow-Methods"].split(", ")) == {"GET", "HEAD", "POST", "PUT", "DELETE"}
    origin = [f"Origin: {APP}"]
    replies = [put(pages, "text", FILE, headers=origin), get(pages, "text", headers=origin),
               ask(pages, "text", headers=origin), delete(pages, "text", headers=origin)]
    assert [reply.status for reply in replies] == [201, 200, 200, 204]
    for reply in replies:
        assert reply.headers["access-control-allow-origin"] == APP
        assert "etag" in reply.headers["access-control-expose-headers"].lower().split(", ")


def test_own_page_may_put_and_delete(pages):
    origin = [f"Origin: {pages.url}"]
    for call, arguments, status in ((put, [FILE], 201), (ask, [], 200), (delete, [], 204)):
        with Connection(pages.port) as connection:
            method = {put: "PUT", ask: "POST", delete: "DELETE"}[call]
            body = arguments[0] if arguments else b"{}" if call is ask else None
            path = f"{PATH}/text" + "/attention" * (call is ask)
            head = head_bytes(method, path, None if body is None else len(body), *origin)
            head = head.replace(b"Host: attnd", f"Host: 127.0.0.1:{pages.port}".encode())
            head = head.replace(b"application/vnd.safetensors", b"application/json") if call is ask else head
            connection.send(head + (body or b""))
            assert connection.read_reply().status == status


REFUSED = {"foreign": ("https://evil.example", "attnd"), "null": ("null", "attnd"), "empty": ("", "attnd"),
           "rebound": ("http://rebound.example:{port}", "rebound.example:{port}"),
           "another port": ("http://127.0.0.1:1", "127.0.0.1:{port}")}


@pytest.mark.parametrize("waits", [True, False], ids=["waits for 100", "sends at once"])
@pytest.mark.parametrize("name", REFUSED)
def test_page_that_is_not_allowed_reserves_nothing(pages, name, waits):
    """It is refused by its headers: while its body is sent, nothing is reserved."""
    origin, host = (text.format(port=pages.port) for text in REFUSED[name])
    headers = [f"Origin: {origin}"] + ["Expect: 100-continue"] * waits
    head = head_bytes("PUT", f"{PATH}/evil", 2 * MIB, *headers).replace(b"Host: attnd", f"Host: {host}".encode())
    with Connection(pages.port) as connection:
        connection.send(head + (b"" if waits else file_of_size(2 * MIB)[:MIB]))
        for _ in range(3):
            scrape = Scrape(pages)
            assert scrape.value("attnd_capture_bytes") == scrape.value("attnd_captures") == 0
        if waits:
            assert_refused(connection.read_reply(), 403, "Origin not allowed", "Origin")
        else:
            connection.send(file_of_size(2 * MIB)[MIB:])
            reply = connection.read_reply()
            assert reply is None or reply.status == 403, reply
    assert list_names(pages) == []


@pytest.mark.parametrize("name", REFUSED)
def test_page_that_is_not_allowed_reads_and_deletes_nothing(pages, name):
    origin, host = (text.format(port=pages.port) for text in REFUSED[name])
    assert put(pages, "text", FILE).status == 201
    for method, path in (("GET", PATH), ("GET", f"{PATH}/text"), ("HEAD", f"{PATH}/text"), ("DELETE", f"{PATH}/text"),
                         ("POST", f"{PATH}/text/attention")):
        head = head_bytes(method, path, 2 if method == "POST" else None, f"Origin: {origin}")
        with Connection(pages.port) as connection:
            connection.send(head.replace(b"Host: attnd", f"Host: {host}".encode()) + b"{}" * (method == "POST"))
            reply = connection.read_reply(head_only=method == "HEAD")
            assert reply.status == 403 and "etag" not in reply.headers
    assert list_names(pages) == ["text"]
    assert delete(pages, "text").status == 204
    assert_problem(preflight(pages, f"{PATH}/text", Origin="https://evil.example", Access_Control_Request_Method="PUT"),
                   403, "Origin not allowed")


# --- reload, and stop ---

def test_sighup_loses_nothing(start_server):
    server = start_server("--demo", "--capture-memory", MIB)
    assert put(server, "text", FILE).status == 201
    before = ask(server, "text").body
    with begin_put(server, "half", len(OTHER), "127.0.0.2") as connection:
        connection.send(OTHER[:-1])
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reload" in server.read_log(), "SIGHUP is logged")
        connection.send(OTHER[-1:])
        assert connection.read_reply().status == 201
    assert ask(server, "text").body == before and sorted(list_names(server)) == ["half", "text"]


def test_draining_server_answers_and_lets_a_put_end(start_server):
    server = start_server("--capture-memory", MIB, "--grace", 100, "--http-threads", 1)
    assert put(server, "text", FILE).status == 201
    asker, kept = Asker(server), Connection(server.port)
    expected = asker.post(f"{PATH}/text/attention", b"{}", "application/json")
    kept.send(get_bytes(f"{PATH}/text"))
    assert kept.read_reply().status == 200
    with begin_put(server, "late", len(OTHER), "127.0.0.2") as connection:
        connection.send(OTHER[:-5])
        wait_for_value(server, 2 * LEAST, "attnd_capture_bytes")
        server.process.send_signal(signal.SIGTERM)
        wait_until_draining(server)
        reply = asker.post(f"{PATH}/text/attention", b"{}", "application/json")
        assert (reply.status, reply.body) == (200, expected.body)
        kept.send(get_bytes(f"{PATH}/text"))
        assert kept.read_reply().status == 200
        connection.send(OTHER[-5:])
        reply = connection.read_reply()
        assert (reply.status, reply.json()["sha256"]) == (201, hash_of(OTHER))
    kept.socket.close()
    server.wait()


@pytest.mark.parametrize("sent", [0, 1000])
def test_put_that_never_ends_does_not_delay_the_stop_beyond_the_grace(start_server, sent):
    server = start_server("--capture-memory", MIB, "--grace", 1, "--idle-timeout", 1000, "--min-rate", 1)
    with begin_put(server, "text", len(FILE)) as connection:
        connection.send(FILE[:sent])
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) in (0, 1), server.read_log()


def test_server_that_stops_releases_captures(start_server):
    """AddressSanitizer would report what is not released."""
    server = start_server("--capture-memory", 8 * MIB)
    layer = Layer({"keys": np.ones((100, 2, 64)), "values": np.ones((100, 2, 3))}, {"keys": "BF16"})
    for i in range(20):
        assert put(server, f"c{i}", make_file({"0": layer, "1": layer}, tokens=i)).status == 201
    assert json.loads(send(server, "GET", PATH).body)["captures"][0]["num_layers"] == 2
    server.stop()
