# SPDX-License-Identifier: Apache-2.0
"""docs/examples/sharded.py: one capture over several attnd gives what one of them gives for the whole."""

import ast
import contextlib
import functools
import subprocess
import sys

import numpy as np
import pytest

from dot_product import attend as attend_in_float64
from server import ROOT, Server, clean_environment

sys.path.insert(0, str(ROOT / "docs/examples"))

import sharded
from attnd import Client
from attnd.captured import Captured

SCRIPT = ROOT / "docs/examples/sharded.py"
NUM_QUERIES, NUM_KEYS, HEADS, KV_HEADS, SIZE = 9, 41, 6, 2, 16
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def make_bias(*shape):
    """A bias that masks a third of the keys, and every key of the rows 0 and 4."""
    bias = np.where(normal(*shape) > 0.4, -np.inf, normal(*shape)).astype(np.float32)
    bias[..., [0, 4], :] = -np.inf
    return bias


LAST = np.arange(NUM_KEYS - NUM_QUERIES, NUM_KEYS)
SPARSE = np.sort(RNG.permutation(100)[:NUM_KEYS])
REQUESTS = {
    "all keys": {},
    "causal": {"causal": True, "positions": LAST},
    "causal from the first key": {"causal": True, "positions": np.arange(NUM_QUERIES)},
    "window": {"causal": True, "window": 5, "positions": LAST},
    "window on both sides": {"window": 3, "positions": LAST[::-1]},
    "empty rows": {"causal": True, "window": 4, "positions": np.arange(0, 100, 12)},
    "empty rows, with sinks": {"causal": True, "window": 4, "positions": np.arange(0, 100, 12), "sinks": normal(HEADS)},
    "sinks": {"causal": True, "positions": LAST, "sinks": normal(HEADS) + 3},
    "sinks far below": {"positions": np.arange(NUM_QUERIES), "causal": True, "sinks": normal(HEADS) - 2000},
    "positions of keys": {"causal": True, "positions": SPARSE[LAST], "key_positions": SPARSE},
    "keys in no order": {"causal": True, "positions": LAST, "key_positions": RNG.permutation(NUM_KEYS)},
    "slopes": {"causal": True, "positions": LAST, "slopes": np.float32([0.5, 0.3, 0.1, 0.05, 0.02, 0])},
    "softcap and scale": {"softcap": 3.5, "scale": 0.7},
    "bias": {"bias": make_bias(HEADS, NUM_QUERIES, NUM_KEYS)},
    "bias of all heads, with sinks": {"bias": make_bias(NUM_QUERIES, NUM_KEYS), "sinks": normal(HEADS)},
    "large scores": {"scale": 2.0},
}


def make_request(name):
    """Returns the same request whenever it is called for a name."""
    shapes = {"queries": (NUM_QUERIES, HEADS, SIZE), "keys": (NUM_KEYS, KV_HEADS, SIZE), "values": (NUM_KEYS, KV_HEADS, 10)}
    rng = np.random.default_rng([*name.encode()])
    return {each: rng.normal(size=shape).astype(np.float32) for each, shape in shapes.items()} | REQUESTS[name]


def compute(queries, keys, values, **options):
    return attend_in_float64(queries, keys, values, **{name: options[name] for name in options if options[name] is not None})


def attend_in_parts(request, parts, ask):
    """Merges the replies of `ask`, which gets the request of a part and the question."""
    asks = [functools.partial(ask, sharded.take(request, part)) for part in parts]
    return sharded.attend(asks, parts, **{name: request[name] for name in sharded.QUESTION if name in request})


def assert_close(got, expected):
    """To 1e-6 of the largest head, and of the largest lse where this is above one."""
    for name, least in (("heads", 0), ("lse", 1)):
        is_finite = np.isfinite(expected[name])
        assert got[name].shape == expected[name].shape and np.array_equal(np.isfinite(got[name]), is_finite)
        largest = np.abs(expected[name][is_finite]).max(initial=least)
        assert np.abs(got[name][is_finite] - expected[name][is_finite]).max(initial=0) <= 1e-6 * largest


each_request = pytest.mark.parametrize("name", REQUESTS)
each_split = pytest.mark.parametrize("is_interleaved", [False, True])


@each_request
@each_split
@pytest.mark.parametrize("count", [1, 2, 3, 5, 41])
def test_parts_have_every_key_once_and_merge_into_the_whole(name, is_interleaved, count):
    """In float64, so that nothing but the formula is compared."""
    request = make_request(name)
    parts = sharded.split(NUM_KEYS, count, is_interleaved)
    assert len(parts) == count and sorted(np.concatenate(parts)) == [*range(NUM_KEYS)]
    got = attend_in_parts(request, parts, lambda part, need, **question: compute(**part | question))
    assert_close(got, compute(**request))


def test_rows_that_see_no_key_are_among_the_requests():
    for name, rows in (("empty rows", 5), ("bias", 2), ("all keys", 0)):
        assert np.isneginf(compute(**make_request(name))["lse"]).all(axis=1).sum() == rows


def test_there_are_as_many_parts_as_keys_at_most():
    for is_interleaved in (False, True):
        assert [len(part) for part in sharded.split(3, 5, is_interleaved)] == [1, 1, 1]


@each_request
@each_split
@pytest.mark.parametrize("count", [1, 2, 5])
def test_parts_that_are_sent_merge_into_the_whole(demo_server, name, is_interleaved, count):
    request = make_request(name)
    expected = Client(demo_server.url).dot_product(**request, need=["heads", "lse"])
    got = attend_in_parts(request, sharded.split(NUM_KEYS, count, is_interleaved),
                          lambda part, **question: Client(demo_server.url).dot_product(**part | question))
    assert_close(got, expected)


@pytest.fixture(scope="module")
def capture_servers():
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Server("--capture-memory", "64MiB")) for _ in range(3)]


@each_request
@each_split
@pytest.mark.parametrize("count", [1, 3, 5])
def test_parts_that_are_kept_merge_into_the_whole(capture_servers, name, is_interleaved, count):
    """Five parts are on three servers."""
    request = make_request(name)
    parts = sharded.split(NUM_KEYS, count, is_interleaved)
    asks = [sharded.put(sharded.take(request, part), Client(capture_servers[i % 3].url)) for i, part in enumerate(parts)]
    question = {name: request[name] for name in sharded.QUESTION if name in request}
    expected = Client(capture_servers[0].url).dot_product(**request, need=["heads", "lse"])
    for _ in range(2):
        assert_close(sharded.attend(asks, parts, **question), expected)


@pytest.mark.parametrize("name", ["sinks", "empty rows"])
def test_script_writes_the_whole(start_server, name, tmp_path):
    """Each server has one part."""
    servers, request = [start_server("--capture-memory", "1MiB") for _ in range(2)], make_request(name)
    Captured({"7": [request]}).save(tmp_path / "file.safetensors")
    subprocess.run([sys.executable, SCRIPT, "file.safetensors", "7", *(server.url for server in servers)],
                   cwd=tmp_path, env=clean_environment(PYTHONDONTWRITEBYTECODE="1"), check=True, timeout=60)
    clients = [Client(server.url) for server in servers]
    assert_close(np.load(tmp_path / "sharded.npz"), clients[0].dot_product(**request, need=["heads", "lse"]))
    assert [len(client.captures()) for client in clients] == [1, 1]


def test_script_says_how_to_call_it():
    result = subprocess.run([sys.executable, SCRIPT], env=clean_environment(PYTHONDONTWRITEBYTECODE="1"),
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and "python sharded.py FILE LAYER URL" in result.stderr


def test_script_has_at_most_forty_lines_of_code():
    tree = ast.parse(SCRIPT.read_text())
    docs = [node.body[0] for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.FunctionDef))
            and ast.get_docstring(node)]
    left_out = {line for node in docs for line in range(node.lineno, node.end_lineno + 1)}
    lines = SCRIPT.read_text().splitlines()
    assert sum(1 for number, line in enumerate(lines, 1)
               if line.strip() and not line.startswith("#") and number not in left_out) <= 40
