# SPDX-License-Identifier: Apache-2.0
"""Captures that are kept by two replicas of attnd behind HAProxy with deploy/haproxy.cfg."""

import contextlib
import shutil
import threading
import time

import numpy as np
import pytest
import requests

from captures import capture
from proxy import Proxy
from reload import wait_until
from server import Server
from stored import PATH, hash_of, small_file, small_layer

import attnd

pytestmark = [pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
              pytest.mark.alone]
OPTIONS = ("--capture-memory", "64MiB", "--trusted-proxy", "127.0.0.1", "--max-per-client", 0)
FILES = {hash_of(file): file for file in map(small_file, range(12))}
QUESTION = {"layer": "0", "need": ["weights", "lse"]}


@contextlib.contextmanager
def start_replicas():
    with Server(*OPTIONS) as first, Server(*OPTIONS) as second:
        yield first, second


def wait_for_replicas(proxy, count):
    """Waits until so many replicas answer: the proxy takes none before its first check."""
    def served():
        replies = [requests.get(f"http://127.0.0.1:{proxy.port}/v2/health/ready", timeout=10) for _ in range(8)]
        return len({reply.headers.get("X-Served-By") for reply in replies if reply.status_code == 200}) >= count
    wait_until(served, "replicas behind the proxy")


def expected_answers():
    """Returns what one server replies to the same question when the tensors are sent."""
    answers = {}
    with Server() as server:
        client = attnd.Client(server.url)
        for seed, name in enumerate(FILES):
            tensors = {key: np.float32(array) for key, array in small_layer(seed).tensors.items()}
            answers[name] = client.dot_product(**tensors, causal=True, need=QUESTION["need"])
    return answers


def ask(client, name):
    return client.attend(capture=name, **QUESTION)


def assert_same(got, expected, name):
    for word, array in expected.items():
        assert np.array_equal(got[word], array), f"{name}: {word}"


def test_names_spread_over_replicas_and_each_stays_with_one():
    with start_replicas() as replicas, Proxy([replica.port for replica in replicas]) as proxy:
        wait_for_replicas(proxy, 2)
        url, homes = f"http://127.0.0.1:{proxy.port}{PATH}", {}
        for name, file in FILES.items():
            replies = [requests.put(f"{url}/{name}?ttl=60", data=file, timeout=30),
                       requests.get(f"{url}/{name}", timeout=30), requests.put(f"{url}/{name}", data=file, timeout=30),
                       requests.post(f"{url}/{name}/attention", json=QUESTION, timeout=30)]
            assert [reply.status_code for reply in replies] == [201, 200, 200, 200]
            served, = {reply.headers["X-Served-By"] for reply in replies}
            homes[name] = served
        assert set(homes.values()) == {"attnd1", "attnd2"}
        for number, replica in enumerate(replicas, 1):
            listed = {each["name"] for each in replica.get(PATH).json()["captures"]}
            assert listed == {name for name, home in homes.items() if home == f"attnd{number}"}
        assert requests.get(url, timeout=30).json()["captures"]  # the list of one of them


class Asker(threading.Thread):
    """Asks for all captures in turns until it is told to stop. A client waits for 429 and 503 itself, and puts a
    file again that is unknown; a 502 or a closed connection is of a replica that was killed."""

    def __init__(self, proxy, answers, stop):
        super().__init__()
        self.proxy, self.answers, self.stop = proxy, answers, stop
        self.asked, self.lost, self.error = 0, 0, None

    def run(self):
        try:
            client = attnd.Client(f"http://127.0.0.1:{self.proxy.port}")
            for name, file in FILES.items():
                self.repeat(lambda: client.put_capture(name, file))
            while not self.stop.is_set():
                for name in FILES:
                    assert_same(self.repeat(lambda: ask(client, name)), self.answers[name], name)
                    self.asked += 1
        except BaseException as error:  # for the test, which waits for the thread
            self.error = error

    def repeat(self, call):
        for _ in range(100):
            try:
                return call()
            except requests.ConnectionError:
                self.lost += 1
            except attnd.AttentionError as error:
                if error.problem["status"] not in (502, 503):
                    raise
                self.lost += 1
            time.sleep(0.1)
        raise AssertionError("no answer after 100 requests")


def wait_for_answers(askers, count):
    """Waits until each has got so many more."""
    goals = [asker.asked + count for asker in askers]
    wait_until(lambda: all(asker.error or asker.asked >= goal for asker, goal in zip(askers, goals)), "answers")
    assert [asker.error for asker in askers] == [None] * len(askers)


@pytest.mark.timeout(300)
def test_no_answer_is_wrong_when_a_replica_is_lost_and_the_proxy_restarts():
    stop, answers = threading.Event(), expected_answers()
    with Server(*OPTIONS) as first, contextlib.ExitStack() as stack:
        second = Server(*OPTIONS)
        stack.callback(second.process.kill)
        with Proxy([first.port, second.port]) as proxy:
            wait_for_replicas(proxy, 2)
            askers = [Asker(proxy, answers, stop) for _ in range(3)]
            try:
                for asker in askers:
                    asker.start()
                wait_for_answers(askers, 2 * len(FILES))
                second.process.kill()
                second.process.wait()
                wait_for_answers(askers, 2 * len(FILES))
                restart(proxy)
                wait_for_answers(askers, 2 * len(FILES))
            finally:
                stop.set()
                for asker in askers:
                    asker.join()
        listed = {each["name"] for each in first.get(PATH).json()["captures"]}
        assert listed == set(FILES)


def restart(proxy):
    """Ends the proxy and starts it again, on the same port."""
    proxy.process.kill()
    proxy.process.wait()
    type(proxy).__enter__(proxy)


def test_captured_layers_are_asked_through_the_proxy():
    """As people do it: Captured.put(), then attend()."""
    with start_replicas() as replicas, Proxy([replica.port for replica in replicas]) as proxy:
        wait_for_replicas(proxy, 2)
        tensors = {key: np.float32(array) for key, array in small_layer().tensors.items()}
        captured = capture.Captured({"0": [tensors | {"causal": True}]})
        sent = captured.attend("0", client=f"http://127.0.0.1:{proxy.port}")
        captured.put(f"http://127.0.0.1:{proxy.port}")
        assert np.array_equal(captured.attend("0"), sent)
