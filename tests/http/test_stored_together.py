# SPDX-License-Identifier: Apache-2.0
"""Captures that are put, asked, deleted and that expire all at once, while keys come and go. No answer is wrong, and
no byte is lost. ThreadSanitizer sees what threads share. PROPERTY_SEED repeats what each thread does."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from checkpoints import slow_request, write_slow_layer
from dot_product import to_json
from http1 import Connection
from reload import wait_until
from scrape import wait_for_value
from stored import (MIB, PATH, Layer, ask, assert_nothing_kept, delete, file_of_size, get, hash_of, head_bytes, list_names,
                    make_file, put, send, small_file)
from test_keys import ALICE, BOB, write_keys
from test_stored_holders import key, wait_for_captures

SEED = int(os.environ["PROPERTY_SEED"])  # conftest.py sets it
QUESTION = {"need": ["weights", "lse"]}
THREADS, STEPS = 8, 60
pytestmark = pytest.mark.alone


def make_files():
    """Returns files of one layer of queries and keys, each with other numbers; some grow, some count more than 64 KiB."""
    rng = np.random.default_rng(SEED)
    files = [small_file(i) for i in range(3)]
    for dtype, rows in (("F16", 700), ("BF16", 300), ("F64", 100)):
        layer = Layer({"queries": rng.normal(size=(3, 2, 64)), "keys": rng.normal(size=(rows, 1, 64))}, {"keys": dtype})
        files.append(make_file({"0": layer}))
    return files


FILES = make_files()


class Actor(threading.Thread):
    """Does random things with a few names; `answers` has the right ones, by the file's hash."""

    def __init__(self, server, number, headers, answers, turns=None):
        super().__init__()
        self.turns = turns  # of keys; it goes on until there were a few
        self.server, self.headers, self.answers, self.error = server, headers, answers, None
        self.rng, self.source = np.random.default_rng([SEED, number]), f"127.0.0.{number + 1}"
        self.counts = {}

    def run(self):
        try:
            steps = 0
            while steps < STEPS or self.turns is not None and len(self.turns) < 10:
                self.step()
                steps += 1
        except Exception as error:  # for the test, which waits for the thread
            self.error = error

    def step(self):
        file = FILES[self.rng.integers(len(FILES))]
        name = hash_of(file) if self.rng.random() < 0.5 else str(self.rng.choice(["a", "b", "c"]))
        act = [self.put, self.put, self.ask, self.ask, self.ask, self.delete, self.look, self.leave][self.rng.integers(8)]
        reply = act(name, file)
        if reply is not None:
            self.counts[act.__name__, reply.status] = self.counts.get((act.__name__, reply.status), 0) + 1

    def put(self, name, file):
        query = "?ttl=1" if self.rng.random() < 0.3 else ""
        reply = put(self.server, name, file, self.source, self.headers, query)
        while reply.status == 429:  # the other threads are the same holder, who has one PUT at a time
            self.counts["put", 429] = self.counts.get(("put", 429), 0) + 1
            time.sleep(0.01)
            reply = put(self.server, name, file, self.source, self.headers, query)
        assert reply.status in (200, 201, 401, 409, 507), reply
        if reply.status in (200, 201):
            assert reply.json()["sha256"] == hash_of(file)
        return reply

    def ask(self, name, _):
        reply = ask(self.server, name, QUESTION, self.source, self.headers)
        assert reply.status in (200, 401, 404), reply
        if reply.status == 200:
            assert reply.body == self.answers[name] if name in self.answers else reply.body in self.answers.values()
        return reply

    def delete(self, name, _):
        reply = delete(self.server, name, self.source, self.headers)
        assert reply.status in (204, 401, 404), reply
        return reply

    def look(self, name, _):
        reply = send(self.server, "GET", PATH, None, self.source, self.headers)
        assert reply.status in (200, 401), reply
        found = get(self.server, name, self.source, self.headers)
        assert found.status in (200, 401, 404), found
        if found.status == 200:
            assert found.json()["sha256"] in self.answers
        return found

    def leave(self, name, file):
        """Sends a part of a file, and goes."""
        with Connection(self.server.port, timeout=60, source=self.source) as connection:
            head = head_bytes("PUT", f"{PATH}/{name}", len(file), *self.headers)
            connection.send(head + file[:int(self.rng.integers(len(file)))])


def right_answers(server, headers=()):
    """Returns the answer of each file, asked while nothing else happens, by its hash."""
    answers = {}
    for file in FILES:
        assert put(server, hash_of(file), file, headers=headers).status == 201
        answers[hash_of(file)] = ask(server, hash_of(file), QUESTION, headers=headers).body
        assert delete(server, hash_of(file), headers=headers).status == 204
    assert len(set(answers.values())) == len(FILES)
    return answers


def run_actors(actors, meanwhile=lambda: None):
    for actor in actors:
        actor.start()
    while any(actor.is_alive() for actor in actors):
        meanwhile()
        time.sleep(0.05)
    for actor in actors:
        if actor.error is not None:
            raise actor.error
    counts = {}
    for actor in actors:
        for what, count in actor.counts.items():
            counts[what] = counts.get(what, 0) + count
    return counts


def test_everything_at_once_without_keys(start_server):
    server = start_server("--capture-memory", MIB, "--workers", 2, "--http-threads", 2)
    answers = right_answers(server)
    counts = run_actors([Actor(server, number, (), answers) for number in range(THREADS)])
    assert {("put", 201), ("put", 200), ("put", 409), ("ask", 200), ("ask", 404), ("delete", 204)} <= set(counts), counts
    for name in list_names(server):
        delete(server, name)  # some expire meanwhile
    assert_nothing_kept(server)


def test_everything_at_once_while_keys_change(start_server, tmp_path):
    """Bob's key comes and goes; Alice's captures stay."""
    lines = [f"alice:{ALICE}", f"bob:{BOB}"]
    write_keys(tmp_path / "keys", *lines)
    server = start_server("--capture-memory", 2 * MIB, "--workers", 2, "--http-threads", 2, "--api-key-file",
                          tmp_path / "keys")
    answers = right_answers(server, key(BOB))
    assert put(server, "stays", FILES[0], headers=key(ALICE)).status == 201
    turns = []
    actors = [Actor(server, number, key(BOB), answers, turns) for number in range(THREADS)]

    def count(*what):
        return sum(actor.counts.get(what, 0) for actor in actors)

    def change_keys():
        """Waits until Bob has asked with his key, and without: a slow machine changes nothing."""
        turns.append(None)
        write_keys(tmp_path / "keys", *lines[:1 + len(turns) % 2])
        server.process.send_signal(signal.SIGHUP)
        wanted = 200 if len(turns) % 2 else 401
        wait_until(lambda: send(server, "GET", PATH, None, headers=key(BOB)).status == wanted, "the keys stay")
        asked = count("ask", wanted)
        wait_until(lambda: count("ask", wanted) > asked or not any(actor.is_alive() for actor in actors),
                   f"no question gets {wanted}")

    counts = run_actors(actors, change_keys)
    assert {("ask", 200), ("ask", 401), ("put", 201)} <= set(counts), counts
    assert ask(server, "stays", QUESTION, headers=key(ALICE)).body == answers[hash_of(FILES[0])]
    write_keys(tmp_path / "keys", *lines[:1])
    server.process.send_signal(signal.SIGHUP)
    wait_for_captures(server, 1)


def test_same_bytes_at_once_are_the_same_answers(start_server):
    """Questions of one capture on many connections, while it is put again and again."""
    server = start_server("--capture-memory", MIB, "--workers", 2)
    answers = right_answers(server)
    name, wrong = hash_of(FILES[3]), []
    assert put(server, name, FILES[3]).status == 201

    def client(number):
        for _ in range(STEPS // 4):
            if put(server, name, FILES[3], f"127.0.0.{number + 1}").status != 200:
                wrong.append("put")
            reply = ask(server, name, QUESTION, f"127.0.0.{number + 1}")
            if reply.body != answers[name]:
                wrong.append(reply)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert delete(server, name).status == 204
    wait_for_value(server, 0, "attnd_capture_bytes")


def test_one_connection_puts_asks_and_deletes(start_server):
    """Many times, with requests that follow each other at once."""
    server = start_server("--capture-memory", 8 * MIB)
    question = to_json(QUESTION)
    with Connection(server.port) as connection:
        for file in FILES * 3:
            path = f"{PATH}/{hash_of(file)}"
            ask_head = f"POST {path}/attention HTTP/1.1\r\nHost: attnd\r\nContent-Type: application/json\r\n"
            connection.send(head_bytes("PUT", path, len(file)) + file + head_bytes("GET", path, None)
                            + f"{ask_head}Content-Length: {len(question)}\r\n\r\n".encode() + question
                            + head_bytes("DELETE", path, None) + head_bytes("GET", path, None))
            assert [connection.read_reply().status for _ in range(5)] == [201, 200, 200, 204, 404]
    assert_nothing_kept(server)


@pytest.mark.parametrize("pieces", [0.5, 1, 1.5, 3.7])
def test_client_that_leaves_while_a_worker_has_its_piece(start_server, pieces):
    """It sends a few pieces of 1 MiB at once, and goes."""
    server = start_server("--capture-memory", 16 * MIB, "--workers", 1)
    file = file_of_size(4 * MIB)
    for i in range(12):
        with Connection(server.port, source=f"127.0.0.{i + 1}") as connection:
            connection.send(head_bytes("PUT", f"{PATH}/text", len(file)) + file[:int(pieces * MIB)])
            connection.send(b"")
    assert_nothing_kept(server)
    assert put(server, "text", file).status == 201


def test_file_waits_for_workers_like_a_request(start_server, tmp_path):
    """Its pieces wait behind others, and it is kept."""
    write_slow_layer(tmp_path / "slow.safetensors")
    server = start_server("--model", f"slow={tmp_path}/slow.safetensors", "--workers", 1, "--queue", 2,
                          "--max-queue-delay", 3600000, "--capture-memory", 16 * MIB)
    file, statuses = file_of_size(4 * MIB), []
    threads = [threading.Thread(target=lambda seed=seed: statuses.append(server.attention(slow_request(seed)).status_code))
               for seed in range(6)]
    for thread in threads:
        thread.start()
    kept = put(server, "text", file)
    for thread in threads:
        thread.join()
    assert set(statuses) <= {200, 503} and kept.status in (201, 503), (statuses, kept)
    if kept.status == 503:
        assert_nothing_kept(server)
        assert put(server, "text", file).status == 201
    assert get(server, "text").json()["sha256"] == hash_of(file)
