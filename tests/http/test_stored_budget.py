# SPDX-License-Identifier: Apache-2.0
"""The budget of captures that are kept, --capture-memory: what is refused before a byte is read, what each counts,
and what a capture counts that is deleted while a request uses it."""

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
import requests

from http1 import Connection
from scrape import Scrape, wait_for_counters, wait_for_value
from server import Server, is_sanitized
from stored import (LEAST, MIB, PATH, Asker, Layer, ask, assert_nothing_kept, assert_refused, begin_put, delete,
                    file_of_size, get, hash_of, head_bytes, list_names, make_file, put, random_capture, send, server,
                    small_file)
from test_keys import ALICE, BOB, bearer, write_keys
from test_shutdown import cpu_seconds

JSON = "application/json"
FILE = small_file()
pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def shared():
    with Server("--capture-memory", 8 * MIB) as running:
        yield running


def test_length_is_required(server):
    for headers in ((), ("Transfer-Encoding: chunked",)):
        with Connection(server.port) as connection:
            connection.send(head_bytes("PUT", f"{PATH}/text", None, *headers))
            if headers:
                connection.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(FILE), FILE))
            assert_refused(connection.read_reply(), 411, "Length required")


def test_capture_that_can_never_fit_is_refused_by_its_headers(server):
    """A holder has at most half of the budget."""
    for length, status in ((4 * MIB, 100), (4 * MIB + 1, 413), (9 * MIB, 413), (10 ** 17, 413)):
        with Connection(server.port) as connection:
            connection.send(head_bytes("PUT", f"{PATH}/text", length, "Expect: 100-continue"))
            reply = connection.read_reply()
            assert reply.status == status, reply
            if status == 413:
                problem = assert_refused(reply, 413, "Capture too large")
                assert "--capture-memory" in problem["detail"]


def test_length_that_no_number_holds_is_refused(server):
    with Connection(server.port) as connection:
        connection.send(head_bytes("PUT", f"{PATH}/text", 1 << 70))
        assert connection.read_reply().status in (400, 413)


def test_length_is_reserved_when_the_headers_have_arrived(server):
    with begin_put(server, "text", 3 * MIB) as connection:
        wait_for_value(server, 3 * MIB, "attnd_capture_bytes")
        assert list_names(server) == [] and get(server, "text").status == 404
        connection.send(b"")
    wait_for_value(server, 0, "attnd_capture_bytes")


def test_half_float_counts_what_it_grows_by(server):
    """It is held as float32: the file has 2.5 MiB and fits in 4 MiB, but 5 do not."""
    keys = np.ones((10240, 1, 128))
    file = make_file({"0": Layer({"keys": keys}, {"keys": "F16"})})
    reply = put(server, "half", file)
    assert reply.status == 413 and reply.json()["title"] == "Capture too large", reply
    assert_nothing_kept(server)
    for dtype in ("BF16", "F32"):
        file = make_file({"0": Layer({"keys": keys[:, :, :32]}, {"keys": dtype})})
        assert put(server, dtype, file).status == 201
    bytes_of = {dtype: get(server, dtype).json()["bytes"] for dtype in ("BF16", "F32")}
    size = keys[:, :, :32].size
    assert 2 * size <= bytes_of["BF16"] < 2.1 * size + LEAST and 4 * size <= bytes_of["F32"] < 4.1 * size + LEAST


def test_each_capture_counts_64_kib_at_least(server):
    for i in range(3):
        assert put(server, f"c{i}", small_file(i)).status == 201
        wait_for_value(server, (i + 1) * LEAST, "attnd_capture_bytes")


def test_bytes_of_a_description_are_those_that_count(server):
    """Also where they are more than the file's."""
    total = 0
    for seed in range(6):
        assert put(server, f"c{seed}", make_file(random_capture(np.random.default_rng(seed)))).status == 201
        total += max(LEAST, get(server, f"c{seed}").json()["bytes"])
        wait_for_value(server, total, "attnd_capture_bytes")


def numbers_in(problem):
    return {int(number) for number in re.findall(r"\d+", problem["detail"])}


def fill(server):
    """Sixteen holders put a capture each: all that a budget of 1 MiB has room for, and none has more than another."""
    for i in range(16):
        assert put(server, f"c{i}", small_file(i), source=f"127.0.0.{i + 1}").status == 201


def test_full_store_is_told_with_what_is_taken(start_server):
    """Nobody knows when there will be room: there is no Retry-After."""
    server = start_server("--capture-memory", MIB)
    fill(server)
    refused = put(server, "more", FILE, source="127.0.0.20")
    problem = assert_refused(refused, 507, "Captures full")
    assert "retry-after" not in refused.headers
    assert {0, LEAST, MIB, MIB // 2} <= numbers_in(problem)
    assert "no more than you would have" in problem["detail"]
    assert Scrape(server).value("attnd_capture_bytes") == Scrape(server).value("attnd_capture_limit_bytes") == MIB
    assert len(list_names(server)) == 16
    assert delete(server, "c0").status == 204
    assert put(server, "more", FILE, source="127.0.0.20").status == 201


def test_refused_put_is_told_before_its_body(start_server):
    server = start_server("--capture-memory", MIB)
    fill(server)
    with Connection(server.port, source="127.0.0.20") as connection:
        connection.send(head_bytes("PUT", f"{PATH}/more", 8000, "Expect: 100-continue"))
        assert_refused(connection.read_reply(), 507, "Captures full")


def test_name_that_has_another_length_is_refused_by_its_headers(server):
    assert put(server, "text", FILE).status == 201
    with Connection(server.port) as connection:
        connection.send(head_bytes("PUT", f"{PATH}/text", len(FILE) + 8, "Expect: 100-continue"))
        assert_refused(connection.read_reply(), 409, "Capture exists")


@pytest.mark.parametrize("grows", [False, True])
def test_holder_has_256_captures(start_server, grows):
    """Their bytes are far below half of the budget. The next one replaces that which was used least recently. F16 is
    held as float32, so room for it is reserved twice."""
    server = start_server("--capture-memory", 256 * MIB)
    growing = make_file({"0": Layer({"keys": np.ones((700, 1, 64))}, {"keys": "F16"})})
    assert len(growing) > LEAST
    file = growing if grows else FILE
    for i in range(256):
        assert put(server, f"c{i}", file).status == 201
    assert ask(server, "c0", {"queries": np.ones((1, 1, 64)), "need": ["lse"]} if grows else {}).status == 200
    assert put(server, "c256", file).status == 201
    assert put(server, "other", file, source="127.0.0.2").status == 201
    assert set(list_names(server)) == {f"c{i}" for i in range(257)} - {"c1"} | {"other"}
    assert Scrape(server).sum("attnd_capture_removals_total") == 1


def test_file_is_counted_neither_as_body_nor_as_memory(start_server):
    """12 MiB pass where a body may have 1 MiB and all requests 8."""
    server = start_server("--capture-memory", 32 * MIB, "--max-body", MIB, "--max-memory", 8 * MIB)
    file = file_of_size(12 * MIB)
    assert put(server, "large", file).status == 201
    question = {"queries": np.ones((1, 1, 64)), "need": ["top"], "top_k": 3}
    assert ask(server, "large", question).status == 200


def test_bytes_that_are_refused_are_counted(start_server):
    """A piece of a file that gets no memory has arrived, too."""
    server = start_server("--capture-memory", 64 * MIB, "--max-memory", MIB, "--max-connections", 1)
    file = file_of_size(4 * MIB)
    assert_refused(put(server, "large", file), 413, "Request too large")
    wait_for_value(server, len(file), "attnd_request_body_bytes_sum", route=f"{PATH}/*")


def test_process_holds_a_capture_once(start_server):
    """Also while it is put: 64 MiB at most are beside its bytes."""
    server = start_server("--capture-memory", 512 * MIB, "--workers", 1)
    if is_sanitized():
        pytest.skip("a sanitizer holds memory of its own")
    status = Path(f"/proc/{server.process.pid}/status")
    file = file_of_size(96 * MIB)
    assert put(server, "large", file).status == 201
    assert ask(server, "large", {"queries": np.ones((1, 1, 64)), "need": ["top"], "top_k": 3}).status == 200
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024
    assert peak <= len(file) + 64 * MIB


def test_list_and_descriptions_may_be_long(start_server):
    """A thousand captures, and one of a thousand layers."""
    server = start_server("--capture-memory", 512 * MIB)
    for i in range(1000):
        assert put(server, f"capture-{i}", FILE, source=f"127.0.1.{i % 5}").status == 201
    assert sorted(list_names(server)) == sorted(f"capture-{i}" for i in range(1000))
    layer = Layer({"keys": np.ones((1, 1, 1))})
    assert put(server, "layers", make_file({f"{i}.text": layer for i in range(1000)})).status == 201
    assert [layer["name"] for layer in get(server, "layers").json()["layers"]] == [f"{i}.text" for i in range(1000)]
    head = send(server, "HEAD", f"{PATH}/layers")
    assert int(head.headers["content-length"]) == len(get(server, "layers").body)


def test_metrics_count_without_names(start_server, tmp_path):
    """What is kept is nobody's business, nor whose it is. Requests are counted by the names of keys."""
    write_keys(tmp_path / "keys", f"alice:{ALICE}", f"bob:{BOB}")
    server = start_server("--capture-memory", MIB, "--api-key-file", tmp_path / "keys")
    key = [f"Authorization: Bearer {ALICE}"]

    def count(name, **labels):
        wait_for_counters()
        text = server.get("/metrics", headers=bearer(ALICE)).text
        others = re.sub(r"(?m)^attnd_key_.*$", "", text)
        assert "secret-name" not in text and not {"alice", "bob"} & set(re.split(r"[^\w-]+", others))
        found = [line for line in text.splitlines() if line.startswith(f"attnd_capture_{name}") and
                 all(f'{key}="{value}"' in line for key, value in labels.items())]
        assert found, text
        return sum(float(line.split()[-1]) for line in found)

    before = count("refusals_total")
    assert put(server, "secret-name", FILE, headers=key).status == 201
    assert put(server, "secret-name", small_file(1), headers=key).status == 409
    assert count("refusals_total") == before + 1
    found, unknown = (count("lookups_total", result=result) for result in ("found", "unknown"))
    assert ask(server, "secret-name", headers=key).status == 200
    assert ask(server, "nowhere", headers=key).status == 404
    assert count("lookups_total", result="found") == found + 1
    assert count("lookups_total", result="unknown") == unknown + 1
    removals = count("removals_total")
    assert delete(server, "secret-name", headers=key).status == 204
    assert count("removals_total") == removals + 1


def test_piece_has_memory_for_what_has_arrived(start_server):
    """48 clients announce 1 MiB each, more than --max-memory has in all, and send little. Each body takes 64 KiB first."""
    server = start_server("--demo", "--capture-memory", 256 * MIB, "--max-memory", 32 * MIB, "--idle-timeout", 1000,
                          "--min-rate", 1)
    before, file, slow = Scrape(server).value("attnd_memory_reserved_bytes"), file_of_size(MIB), []
    for i in range(48):
        slow.append(begin_put(server, f"slow{i}", len(file), f"127.0.1.{i + 1}"))
        slow[-1].send(file[:5000])
    wait_for_value(server, before + 48 * 65536, "attnd_memory_reserved_bytes")
    for connection in slow:
        connection.send(file[5000:])
        assert connection.read_reply().status == 201
        connection.socket.close()
    wait_for_value(server, before, "attnd_memory_reserved_bytes")


def test_pieces_are_dropped_for_requests_that_are_complete(start_server):
    """Files that have stopped hold all memory; others are served, and the files have to be sent again."""
    server = start_server("--demo", "--capture-memory", 64 * MIB, "--max-memory", 12 * MIB, "--workers", 2,
                          "--idle-timeout", 1000, "--min-rate", 1)
    file = file_of_size(2 * MIB)
    body = b'{"model":"journey","queries":[[1,2,3]]}'.ljust(3 * MIB)
    slow = []
    for i in range(12):
        connection = Connection(server.port, timeout=60, source=f"127.0.0.{i + 2}")
        connection.send(head_bytes("PUT", f"{PATH}/slow{i}", len(file)) + file[:900_000])
        slow.append(connection)
    wait_for_counters()
    for _ in range(5):
        reply = requests.post(server.url + "/v1/attention", data=body, timeout=60,
                              headers={"Content-Type": "application/json"})
        assert reply.status_code == 200, reply.text
    statuses = []
    for connection in slow:
        connection.send(file[900_000:])
        reply = connection.read_reply()
        statuses.append(reply.status if reply else None)
        connection.socket.close()
    assert set(statuses) <= {201, 503, None} and 503 in statuses, statuses
    kept = list_names(server)
    assert len(kept) == statuses.count(201)
    for name in kept:
        assert get(server, name).json()["sha256"] == hash_of(file)
        assert delete(server, name).status == 204
    assert_nothing_kept(server)


def test_description_counts_as_its_captures(start_server):
    """It is kept beside the numbers, for all replies."""
    server = start_server("--capture-memory", 64 * MIB, "--max-memory", 512 * MIB)
    layer = Layer({"keys": np.ones((1, 1, 1))})
    names = [f"{i:04}.{'x' * 40}" for i in range(2000)]
    assert put(server, "many", make_file({name: layer for name in names})).status == 201
    shorter = [f"{i:04}" for i in range(2000)]
    assert put(server, "shorter", make_file({name: layer for name in shorter})).status == 201
    many, few = get(server, "many"), get(server, "shorter")
    texts = len(many.body) - len(few.body)
    assert 0 <= many.json()["bytes"] - few.json()["bytes"] - texts - 2000 * 41 < 200
    assert Scrape(server).value("attnd_capture_bytes") == many.json()["bytes"] + few.json()["bytes"]


def test_description_is_read_by_those_who_outlive_its_capture(start_server):
    """It is large and read slowly, while the capture is deleted, and its room is free."""
    server = start_server("--capture-memory", 64 * MIB, "--max-memory", 512 * MIB)
    layer = Layer({"keys": np.ones((1, 1, 1))})
    assert put(server, "many", make_file({str(i): layer for i in range(8000)})).status == 201
    expected = get(server, "many").body
    with Connection(server.port, timeout=60) as connection:
        connection.send(head_bytes("GET", f"{PATH}/many", None) * 8)  # more than the sockets' buffers hold
        first = connection.read_reply()
        assert delete(server, "many").status == 204
        wait_for_value(server, 0, "attnd_capture_bytes")
        replies = [first] + [connection.read_reply() for _ in range(7)]
    assert [reply.status for reply in replies].count(200) >= 1
    for reply in replies:
        assert reply.body == expected if reply.status == 200 else reply.status == 404


# --- a capture in use ---

def test_deleted_capture_stays_for_a_request_that_uses_it(start_server):
    """It counts until that ends. The question takes seconds."""
    server = start_server("--capture-memory", 256 * MIB, "--workers", 1)
    tokens = 2048 if is_sanitized() else 4096
    rng = np.random.default_rng(0)
    layer = Layer({"queries": rng.normal(size=(tokens, 8, 64)).astype(np.float32),
                   "keys": rng.normal(size=(tokens, 1, 64)).astype(np.float32)})
    assert put(server, "text", make_file({"0": layer})).status == 201
    path, question = f"{PATH}/text/attention", json.dumps({"need": ["entropy", "lse"]}).encode()
    expected = Asker(server).post(path, question, JSON)
    idle, size = cpu_seconds(server), Scrape(server).value("attnd_capture_bytes")
    with Connection(server.port, timeout=120) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: attnd\r\nContent-Type: {JSON}\r\nContent-Length: {len(question)}\r\n\r\n"
        connection.send(head.encode() + question)
        while cpu_seconds(server) < idle + 0.1:  # until the worker computes it
            time.sleep(0.01)
        assert delete(server, "text").status == 204
        assert_refused(get(server, "text"), 404, "Unknown capture")
        assert list_names(server) == []
        assert Scrape(server).value("attnd_capture_bytes") == size
        assert put(server, "text", FILE).status == 201, "the name is free"
        reply = connection.read_reply()
    assert (reply.status, reply.body) == (200, expected.body)
    wait_for_value(server, LEAST, "attnd_capture_bytes")
