# SPDX-License-Identifier: Apache-2.0
"""The queue: what waits for what, and what is refused. No test asserts a time."""

import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests

import oip
from abandoner import Abandoner, get_status, slow_post, summing_post
from checkpoints import slow_request, write_layer, write_slow_layer
from compare import assert_problem
from http1 import Connection, post_bytes
from safetensors_file import make_safetensors
from scrape import wait_for_value

CHEAP = {"model": "d2l", "queries": [[1.0] * 100], "keys": [[1.0] * 100] * 2}


@pytest.fixture
def slow_model(tmp_path):
    path = tmp_path / "slow.safetensors"
    write_slow_layer(path)
    return f"slow={path}"


def wait_until_metrics_stay(server, line):
    """Waits until a line is in the metrics, for longer than it takes to read a request."""
    end, looks = time.monotonic() + 60, 0
    while looks < 3:
        text = server.get("/metrics").text
        assert time.monotonic() < end, f"no {line} within 60 s:\n{text}"
        looks = looks + 1 if f"\n{line}\n" in text else 0
        time.sleep(0.03)


def wait_until_a_worker_has_begun(server):
    wait_until_metrics_stay(server, "attnd_workers_busy 1")


def hold_a_worker(server):
    """Keeps a worker busy for two seconds on a machine of any speed."""
    reply = server.attention(slow_request(tokens=20000) | {"model": "slow", "timeout_ms": 2000})
    assert_problem(reply, 504, "Deadline exceeded")


def test_cheap_requests_are_served_while_a_large_one_runs(start_server, slow_model):
    server = start_server("--demo", "--model", slow_model, "--workers", 1)
    large = slow_request(tokens=3000) | {"model": "slow"}
    with ThreadPoolExecutor(1) as client:
        running = client.submit(server.attention, large)
        wait_until_a_worker_has_begun(server)
        for _ in range(5):
            assert server.attention(CHEAP).status_code == 200
        assert not running.done(), "the large request has ended before the cheap ones"
        assert running.result().status_code == 200


def test_large_requests_do_not_wait_behind_endless_cheap_ones(start_server, slow_model):
    server = start_server("--demo", "--model", slow_model, "--workers", 1)
    stop = threading.Event()

    def send_cheap_ones():
        while not stop.is_set():
            assert server.attention(CHEAP).status_code == 200

    with ThreadPoolExecutor(8) as clients:
        cheap = [clients.submit(send_cheap_ones) for _ in range(8)]
        try:
            large = slow_request() | {"model": "slow"}
            assert server.attention(large).status_code == 200
        finally:
            stop.set()
        for client in cheap:
            client.result()


@pytest.mark.alone
@pytest.mark.parametrize("pause", [0.2, 1])
def test_large_requests_are_served_beside_long_ones_that_are_abandoned(start_server, slow_model,
                                                                       pause):
    """They were refused while a long one ran for less than eight times as long as they need. Nobody waits for the
    minutes of a long one: that would be over the limit."""
    server = start_server("--model", slow_model, "--workers", 1, "--max-queue-delay", 60000)
    with Abandoner(server.port, pause):
        wait_until_a_worker_has_begun(server)
        for _ in range(8):
            assert get_status(server.port, slow_post(tokens=300)) == 200


def served_beside_others(server, keeps_connection, enough=300):
    """Returns the requests of a client with one at a time, and those of each of three others that
    always have three, when so many are served in all."""
    request, counts = slow_post(tokens=128), [0] * 10

    def send(number, keeps):
        source = "127.0.0.2" if number == 9 else f"127.0.0.{3 + number % 3}"
        while sum(counts) < enough:
            with Connection(server.port, 60, source) as connection:
                while sum(counts) < enough:
                    connection.send(request)
                    counts[number] += connection.read_reply().status == 200
                    if not keeps:
                        break

    with ThreadPoolExecutor(10) as clients:
        sent = [clients.submit(send, number, True) for number in range(9)]
        sent.append(clients.submit(send, 9, keeps_connection))
        for client in sent:
            client.result()
    return counts[9], sum(counts[:9]) / 3


@pytest.mark.alone
@pytest.mark.parametrize("keeps_connection", [True, False])
def test_who_connects_anew_for_each_request_gets_no_more_than_a_share(start_server, slow_model,
                                                                      keeps_connection):
    """It got nearly twice as much: its share ended with its last connection."""
    server = start_server("--model", slow_model, "--workers", 1, "--max-queue-delay", 60000)
    own, share = served_beside_others(server, keeps_connection)
    assert own <= 1.3 * share + 4, (own, share)


def test_retry_after_is_what_this_request_would_wait(start_server, slow_model):
    """One request of minutes made that of everybody else say minutes."""
    server = start_server("--model", slow_model, "--workers", 1, "--max-queue-delay", 0)
    with Connection(server.port) as long:
        long.send(slow_post(tokens=30000))
        wait_until_a_worker_has_begun(server)
        reply = server.attention(slow_request(tokens=30000))
        assert_problem(reply, 503, "Queue full")
        assert 1 <= int(reply.headers["Retry-After"]) <= 30


def test_what_would_wait_too_long_is_refused_but_nothing_for_its_own_length(start_server,
                                                                            slow_model):
    server = start_server("--model", slow_model, "--workers", 1, "--max-queue-delay", 100)
    large = slow_request(tokens=2500)
    with ThreadPoolExecutor(6) as clients:
        running = clients.submit(server.attention, large)
        wait_until_a_worker_has_begun(server)
        waiting = [clients.submit(server.attention, large) for _ in range(5)]
        replies = [future.result() for future in waiting]
        assert running.result().status_code == 200
    refused = [reply for reply in replies if reply.status_code != 200]
    assert refused
    for reply in refused:
        assert_problem(reply, 503, "Queue full")
        assert int(reply.headers["Retry-After"]) >= 1
    assert server.attention(large).status_code == 200


def test_a_timeout_is_obeyed_in_every_protocol(demo_server):
    rows = np.ones((1, 3), np.float32)
    json_request = {"model": "journey", "queries": rows.tolist()}
    assert_problem(demo_server.attention(json_request | {"timeout_ms": 0.001}),
                   504, "Deadline exceeded")
    assert demo_server.attention(json_request | {"timeout_ms": 60000}).status_code == 200

    body = make_safetensors({"queries": rows}, metadata={"model": "journey", "timeout_ms": "0.001"})
    reply = requests.post(demo_server.url + "/v1/attention", data=body, timeout=60,
                          headers={"Content-Type": "application/vnd.safetensors"})
    assert_problem(reply, 504, "Deadline exceeded")

    body, headers = oip.pack([oip.tensor("queries", rows)], parameters={"timeout": 1})
    oip.assert_error(oip.post(demo_server, "journey", body, headers), 504, "not computed within")


def test_default_timeout_is_for_requests_that_state_none(start_server, slow_model):
    server = start_server("--model", slow_model, "--default-timeout", 1)
    assert_problem(server.attention(slow_request()), 504, "Deadline exceeded")
    assert server.attention(slow_request() | {"timeout_ms": 60000}).status_code == 200


def test_an_expired_request_is_dropped_while_it_is_computed(start_server, slow_model):
    server = start_server("--model", slow_model, "--workers", 2)
    large = slow_request(tokens=6000) | {"timeout_ms": 300}
    assert_problem(server.attention(large), 504, "Deadline exceeded")
    assert server.attention(slow_request()).status_code == 200


@pytest.mark.parametrize("need, workers", [({"need": "received"}, 1),
                                           ({"need": "blocks", "block": "4096"}, 2)])
def test_sums_over_the_queries_of_one_head_end_with_their_client(start_server, need, workers):
    """A million queries of one head would take minutes."""
    server = start_server("--workers", workers)
    with Connection(server.port) as connection:
        connection.send(summing_post(need))
        wait_until_a_worker_has_begun(server)
    wait_for_value(server, 1, "attnd_requests_cancelled_total", reason="computing")
    wait_for_value(server, 0, "attnd_workers_busy")
    assert get_status(server.port, summing_post(need | {"timeout_ms": "500"})) == 504


def test_priority_orders_the_requests_of_one_client(start_server, slow_model):
    server = start_server("--model", slow_model, "--workers", 1, "--max-queue-delay", 3600000)
    done = []

    def send(priority):
        reply = server.attention(slow_request(tokens=1500) | {"priority": priority})
        done.append(priority)
        assert reply.status_code == 200

    with ThreadPoolExecutor(3) as clients:
        with Connection(server.port) as holder:  # it leaves when the others wait
            holder.send(slow_post(tokens=30000))
            wait_until_a_worker_has_begun(server)
            sent = [clients.submit(send, priority) for priority in (0, 7, 1)]
            wait_until_metrics_stay(server, "attnd_jobs_queued 3")
        for future in sent:
            future.result()
    assert done == [1, 7, 0]


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory):
    """A row takes some ms: the weights are 64 MB."""
    path = tmp_path_factory.mktemp("wide") / "wide.safetensors"
    write_layer(path, num_heads=16, head_size=128, query_size=2048)
    return f"wide={path}"


def execution_counts(server, model):
    """Returns the inferences, the executions, and the requests in all executions, which are more
    when one was refused after it had been computed."""
    statistics, = server.get(f"/v2/models/{model}/stats").json()["model_stats"]
    batches = [(batch["batch_size"], batch["compute_infer"]["count"])
               for batch in statistics["batch_stats"]]
    num_computed = sum(size * count for size, count in batches)
    assert num_computed >= statistics["inference_count"]
    assert sum(count for _, count in batches) == statistics["execution_count"]
    return statistics["inference_count"], statistics["execution_count"], num_computed


def joined_requests():
    """Small requests of different forms. All but the last four can be computed as one; those with a bias are
    computed alone, beside them."""
    random = np.random.default_rng(3)
    for i in range(12):
        rows = random.normal(size=(1 + i % 3, 2048)).round(3)
        request = {"model": "wide", "queries": rows.tolist()}
        if i % 4 == 1:
            request["causal"] = True
        if i % 4 == 2:
            request["valid_lens"] = 1
        if i % 4 == 3:
            request |= {"causal": True, "prefix_lens": 1 + i % 3}
        yield request
    for fields in ({"bias": [0.5, -2]}, {"bias": [None, 1]}, {"attn_mask": [[True, False], [True, True]]}):
        yield {"model": "wide", "queries": random.normal(size=(2, 2048)).round(3).tolist()} | fields
    yield {"model": "wide", "queries": [[0.5] * 2048] * 2, "need_weights": True}


def test_requests_that_wait_are_computed_together_with_the_same_bits(start_server, slow_model,
                                                                    wide_model):
    server = start_server("--model", slow_model, "--model", wide_model, "--workers", 1,
                          "--engine", "native", "--max-queue-delay", 3600000)
    requests_alone = list(joined_requests())
    alone = [server.attention(request) for request in requests_alone]
    assert {reply.status_code for reply in alone} == {200}
    assert execution_counts(server, "wide") == (16, 16, 16)

    not_finite = {"model": "wide", "queries": [[3e38] * 2048]}
    too_late = requests_alone[0] | {"timeout_ms": 0.001}
    with ThreadPoolExecutor(24) as clients:
        holder = clients.submit(hold_a_worker, server)
        wait_until_a_worker_has_begun(server)
        together = [clients.submit(server.attention, request)
                    for request in [*requests_alone, not_finite, too_late]]
        *together, refused, dropped = [future.result() for future in together]
        holder.result()
    for reply, expected in zip(together, alone):
        assert (reply.status_code, reply.content) == (200, expected.content)
    assert_problem(refused, 422, "Result not finite")
    assert_problem(dropped, 504, "Deadline exceeded")
    inferences, executions, _ = execution_counts(server, "wide")
    assert inferences == 32 > executions


@pytest.mark.alone
@pytest.mark.parametrize("memory", [5_000_000, 6_000_000])
def test_requests_that_fit_only_one_by_one_are_all_served(start_server, wide_model, memory):
    """In the smaller memory they cannot be joined. In the larger one they are, but there is no
    memory for all replies while the results of all are kept."""
    server = start_server("--model", wide_model, "--workers", 1, "--engine", "native",
                          "--max-memory", memory, "--max-connections", 16, "--max-queue-delay", 3600000)
    data = post_bytes(json.dumps({"queries": [[0.5] * 2048] * 7}).encode())
    connections = [Connection(server.port) for _ in range(9)]
    for connection in connections:
        connection.send(data[:-1])
    for connection in connections:  # all have their bodies in memory before one is computed
        connection.send(data[-1:])
    replies = [connection.read_reply() for connection in connections]
    assert [reply.status for reply in replies] == [200] * 9
    assert len({reply.body for reply in replies}) == 1
    for connection in connections:
        connection.socket.close()


@pytest.mark.alone
def test_a_deadline_inside_a_running_batch_ends_one_request_only(start_server, wide_model):
    """The deadlines of requests that come together end while some of them are computed."""
    server = start_server("--model", wide_model, "--workers", 1, "--engine", "native",
                          "--max-queue-delay", 3600000)
    request = {"queries": [[0.5] * 2048] * 2}
    reply = server.attention(request)
    alone = reply.content
    milliseconds = float(re.search(r"compute;dur=([\d.]+)", reply.headers["Server-Timing"])[1])
    for _ in range(50):
        with ThreadPoolExecutor(20) as clients:
            replies = [clients.submit(server.attention, request | {"timeout_ms": milliseconds * (1 + i / 3)})
                       for i in range(20)]
            replies = [reply.result() for reply in replies]
        served = [reply for reply in replies if reply.status_code == 200]
        assert all(reply.content == alone for reply in served)
        for reply in replies:
            if reply not in served:
                assert_problem(reply, 504, "Deadline exceeded")
        inferences, _, num_computed = execution_counts(server, "wide")
        if num_computed > inferences:
            return
        # The machine was busier, or less so, when one was computed alone.
        milliseconds *= 2 if len(served) < 5 else 0.7 if len(served) > 15 else 1
    pytest.fail("no deadline ended while a batch was computed")


