# SPDX-License-Identifier: Apache-2.0
"""Attention in the process: the server's bytes, torch's meaning, and what ends a call."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes  # tritonclient needs it, too
import numpy as np
import pytest

import attnd
from attnd import _native
from attnd.client import Client
from dot_product import attend
from programs import ROOT
from server import PATIENCE


def numbers(*shape, seed=3):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


Q, K, V = numbers(2, 5, 4, 8), numbers(2, 6, 2, 8, seed=4), numbers(2, 6, 2, 3, seed=5)
RAGGED = [numbers(2, 4, 8), numbers(5, 4, 8)]
LONGER = [numbers(6, 2, 8), numbers(3, 2, 8)]
EVERY = ["heads", "weights", "scores", "lse", "spans", "top", "target", "received", "entropy", "blocks"]
WORDS = {"need": EVERY, "spans": [[0, 2], [1, 6]], "top_k": 3, "block": 2}
REQUESTS = {
    "weights by default": {"queries": Q, "keys": K},
    "heads by default": {"queries": Q, "keys": K, "values": V},
    "every word": {"queries": Q, "keys": K, "values": V, "targets": [[0, 1]] * 5, **WORDS},
    "without a batch": {"queries": Q[0], "keys": K[0], "values": V[0], "targets": [None, *[[0, 1]] * 4], **WORDS},
    "ragged": {"queries": RAGGED, "keys": LONGER, "need": ["weights", "lse", "received", "entropy", "top"], "top_k": 2},
    "ragged bits": {"queries": [x.astype(ml_dtypes.bfloat16) for x in RAGGED], "keys": LONGER, "need": "lse"},
    "one word": {"queries": Q, "keys": K, "need": "received"},
    "heads first": {"queries": Q.swapaxes(1, 2), "keys": K.swapaxes(1, 2), "values": V.swapaxes(1, 2), "heads_first": True,
                    "need": ["heads", "lse", "entropy", "weights", "target"], "targets": [[0, 1]] * 5},
    "ragged, heads first": {"queries": [x.swapaxes(0, 1) for x in RAGGED], "keys": [x.swapaxes(0, 1) for x in LONGER],
                            "heads_first": True, "need": ["lse", "weights"]},
    "heads side by side": {"queries": Q.reshape(2, 5, 32), "keys": K.reshape(2, 6, 16), "num_heads": 4, "num_kv_heads": 2},
    "negative strides": {"queries": Q[:, ::-1], "keys": K[:, :, :, ::-1], "values": V[::-1]},
    "float64": {"queries": Q.astype(np.float64), "keys": K.astype(np.float64)},
    "float16": {"queries": Q.astype(np.float16), "keys": K.astype(np.float16)},
    "bfloat16": {"queries": Q.astype(ml_dtypes.bfloat16), "keys": K.astype(ml_dtypes.bfloat16)},
    "lists": {"queries": Q.tolist(), "keys": K.tolist()},
    "booleans": {"queries": Q, "keys": K, "attn_mask": np.random.default_rng(1).random((2, 1, 5, 6)) > 0.4},
    "bias": {"queries": Q, "keys": K, "bias": np.where(numbers(5, 6) > 0, 0, -np.inf), "sinks": [0.5, 1, 2, 3]},
    "numpy's options": {"queries": Q, "keys": Q[:, :, :2], "causal": np.bool_(True), "window": np.int64(2),
                        "scale": np.float32(0.5), "softcap": np.array(20.0), "valid_lens": np.int32([3, 5])},
    "selection": {"queries": Q, "keys": K, "weights_heads": 2, "weights_queries": [-1, 0]},
    "positions": {"queries": Q, "keys": K, "causal": True, "positions": range(1, 6), "slopes": numbers(4)},
    "no queries": {"queries": Q[:, :0], "keys": K},
    "no keys": {"queries": Q, "keys": K[:, :0]},
    "no sequences": {"queries": Q[:0], "keys": K[:0]},
    "causal with heads before tokens": {"queries": numbers(2, 8, 12, 16), "keys": numbers(2, 2, 12, 16), "causal": True},
    "an attention_mask as lengths": {"queries": Q, "keys": Q, "valid_lens": np.ones((2, 5), np.int64)},
    "an unknown word": {"queries": Q, "keys": K, "need": "wieghts"},
    "wide keys": {"queries": Q, "keys": numbers(2, 6, 2, 9)},
    "an axis less": {"queries": Q, "keys": K[0, 0]},
    "one number": {"queries": np.float32(1), "keys": K},
    "NaN": {"queries": Q * np.nan, "keys": K},
    "a mask of 0 and 1": {"queries": Q, "keys": K, "attn_mask": np.eye(5, 6)},
}


def outcome(function, request):
    """Returns the arrays that a request gets, or the text of its error."""
    try:
        return function(**request)
    except attnd.Error as error:
        return str(error)


def flatten(results):
    for word, value in results.items():
        for array in value if isinstance(value, (list, tuple)) else [value]:
            for item in array if isinstance(array, (list, tuple)) else [array]:
                yield word, item.dtype, item.shape, item.tobytes()


@pytest.mark.parametrize("name", REQUESTS)
def test_results_and_errors_are_those_of_the_server(plain_server, name):
    got = outcome(attnd.dot_product, REQUESTS[name])
    expected = outcome(Client(plain_server.url).dot_product, REQUESTS[name])
    if isinstance(expected, str):
        assert got == expected
    else:
        assert list(flatten(got)) == list(flatten(expected))


def test_word_of_torch_gets_that_of_attnd():
    with pytest.raises(ValueError, match="^Unknown key: 'is_causal' is not a key of a request.*; use causal$"):
        attnd.dot_product(Q, K, is_causal=True)


def test_integers_are_no_queries():
    """The client takes them as float32; in the process they are most likely ids of tokens."""
    with pytest.raises(TypeError, match="queries is int64"):
        attnd.dot_product(np.zeros((5, 4, 8), np.int64), K[0])


def test_weights_agree_with_float64():
    got = attnd.dot_product(Q[0], K[0], V[0], need=["weights", "heads"])
    expected = attend(Q[0], K[0], V[0])
    for word in got:
        np.testing.assert_allclose(got[word], expected[word], atol=1e-6)


def test_results_may_be_changed_and_outlive_their_call():
    weights = attnd.dot_product(Q, K)["weights"]
    weights *= 2
    attnd.dot_product(numbers(2, 50, 4, 8), K)
    np.testing.assert_allclose(weights.sum(-1), 2, rtol=1e-5)


def test_read_only_arrays_are_read():
    queries, keys = Q.copy(), K.copy()
    queries.flags.writeable = keys.flags.writeable = False
    assert attnd.dot_product(queries, keys)["weights"].tobytes() == attnd.dot_product(Q, K)["weights"].tobytes()


@pytest.mark.parametrize("request_options, kind, words", [
    ({"keys": numbers(2, 6, 2, 9)}, ValueError, "Shape mismatch"),
    ({"keys": K, "attn_mask": "causal"}, TypeError, "attn_mask is <U6, which"),
    ({"keys": K, "bias": np.ones((5, 6), bool)}, TypeError, "bias is bool, .*; send booleans as attn_mask"),
    ({"keys": K, "scale": 1j}, TypeError, "scale is of the type complex"),
    ({"keys": K, "need": 5}, TypeError, "need is of the type int"),
    ({"keys": K, "heads_first": True, "num_heads": 4}, ValueError, "leave it out with heads_first"),
    ({"keys": K[0, 0], "heads_first": True}, ValueError, r"keys has 2 axes; with heads_first"),
    ({"keys": K, "valid_lens": np.ones((2, 6), bool)}, TypeError, r"mask\.sum\(-1\)")])
def test_errors_are_those_of_python_too(request_options, kind, words):
    with pytest.raises(kind, match=words) as caught:
        attnd.dot_product(Q, **request_options)
    assert isinstance(caught.value, attnd.Error)


def test_result_larger_than_memory_names_its_size_and_the_words_without_it():
    rows = np.broadcast_to(np.float32(1), (1 << 21, 1, 8))
    with pytest.raises(MemoryError, match=r"\d{14} bytes.*need received, .* entropy or blocks"):
        attnd.dot_product(rows, rows)


def test_heads_say_what_they_attend_to():
    found = attnd.heads(Q, K, causal=True, positions=range(1, 6), targets=[[0, 1]] * 5)
    assert len(found) == 4 and found.columns == ["entropy", "distance", "self", "first", "previous", "target", "largest"]
    target = attnd.dot_product(Q, K, causal=True, positions=range(1, 6), targets=[[0, 1]] * 5, need="target")["target"]
    np.testing.assert_allclose(found["target"], target.mean((0, 1)), atol=1e-6)
    turned = attnd.heads(Q.swapaxes(1, 2), K.swapaxes(1, 2), heads_first=True)
    assert turned.replies == attnd.heads(Q, K).replies
    with pytest.raises(ValueError, match="Shape mismatch"):
        attnd.heads(Q, numbers(2, 6, 2, 9))


def test_two_arrays_are_the_same_tokens_where_that_is_said():
    """What docs/python.md says of plain arrays."""
    for known in ({"self_attention": True}, {"token_ids": [1, 2, 3, 1, 2]}):
        plain, found = attnd.heads(Q, Q.copy()), attnd.heads(Q, Q.copy(), **known)
        for column in ("self", "previous", "distance"):
            assert np.isnan(plain[column]).all() and not np.isnan(found[column]).any(), column
    assert attnd.dot_product(Q, Q, **known, self_attention=True)["weights"].tobytes() == attnd.dot_product(Q, Q)["weights"].tobytes()


# --- sdpa ---

def reference(q, k, v, mask=None, causal=False, scale=None):
    """scaled_dot_product_attention of torch in float64, with the mean of all values where no key is left."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    if q.ndim > 2 and q.shape[-3] != k.shape[-3]:
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], axis=-3) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        mask = np.tril(np.ones(scores.shape[-2:], bool))
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    scores = np.where(np.isneginf(scores).all(-1, keepdims=True), 0, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ v, weights


SDPA = {
    "four axes": ((2, 4, 5, 8), (2, 4, 6, 8), {}),
    "two axes": ((5, 8), (6, 8), {}),
    "three axes": ((4, 5, 8), (4, 6, 8), {"attn_mask": numbers(5, 6)}),
    "five axes": ((3, 2, 4, 5, 8), (3, 2, 4, 6, 8), {"attn_mask": numbers(3, 1, 1, 5, 6) > 0}),
    "broadcast": ((3, 4, 5, 8), (1, 4, 6, 8), {"scale": 0.3}),
    "shared heads": ((2, 4, 5, 8), (2, 2, 6, 8), {"enable_gqa": True}),
    "causal": ((2, 4, 6, 8), (2, 4, 6, 8), {"is_causal": True}),
    "causal with fewer queries": ((2, 4, 3, 8), (2, 4, 6, 8), {"is_causal": True}),
    "causal with more queries": ((2, 4, 9, 8), (2, 4, 6, 8), {"is_causal": True}),
    "booleans": ((2, 4, 5, 8), (2, 4, 6, 8), {"attn_mask": numbers(2, 1, 5, 6) > 0}),
    "padding": ((2, 4, 5, 8), (2, 4, 6, 8), {"attn_mask": np.arange(6)[None, None, None] < np.array([3, 6])[:, None, None, None]}),
    "rows without keys": ((2, 4, 5, 8), (2, 4, 6, 8), {"attn_mask": (np.arange(5) < 2)[:, None]}),
    "numbers": ((2, 4, 5, 8), (2, 4, 6, 8), {"attn_mask": numbers(2, 4, 5, 6)}),
    "zeros": ((2, 4, 5, 8), (2, 4, 6, 8), {"attn_mask": np.zeros((5, 6), np.float32)}),
}


@pytest.mark.parametrize("name", SDPA)
def test_sdpa_means_what_torch_means(name):
    query, key, options = SDPA[name]
    q, k, v = numbers(*query), numbers(*key, seed=8), numbers(*key, seed=9)
    expected, weights = reference(q, k, v, options.get("attn_mask"), options.get("is_causal"), options.get("scale"))
    np.testing.assert_allclose(attnd.sdpa(q, k, v, **options), expected, atol=2e-6)
    got = attnd.sdpa(q, k, v, **options, need=["heads", "weights", "lse"])
    np.testing.assert_allclose(got["weights"], weights, atol=2e-6)
    assert got["heads"].shape == expected.shape and got["lse"].shape == expected.shape[:-1]


@pytest.mark.parametrize("options, words", [
    ({"dropout_p": 0.1}, "without dropout"),
    ({"attn_mask": np.ones((5, 5), bool), "is_causal": True}, "exclude each other"),
    ({"attn_mask": np.eye(5)}, "0 and 1 alone"),
    ({"attn_mask": np.ones((4, 4), bool)}, "Shape mismatch"),
    ({"key": numbers(2, 2, 5, 8)}, "enable_gqa=True"),
    ({"key": numbers(3, 4, 5, 8)}, "do not broadcast"),
    ({"key": numbers(5, 8)}, "have the shapes"),
    ({"key": numbers(2, 4, 0, 8), "value": numbers(2, 4, 0, 8)}, "Empty tensor"),
    ({"key": numbers(2, 4, 5, 7)}, "heads of key have size 7, but those of query 8"),
    ({"value": numbers(2, 4, 6, 8)}, "Shape mismatch: value"),
    ({"need": "top"}, "top_k")])
def test_sdpa_refuses_what_it_would_misread(options, words):
    q = numbers(2, 4, 5, 8)
    with pytest.raises(ValueError, match=words):
        attnd.sdpa(**{"query": q, "key": q, "value": q} | options)


def test_sdpa_takes_integers_of_lists_alone():
    q = [[[1, 2], [3, 4]]]
    assert np.array_equal(attnd.sdpa(q, q, q), attnd.sdpa(*[np.float32(q)] * 3))
    with pytest.raises(TypeError, match="^query is int64, but must be floats"):
        attnd.sdpa(np.array(q), q, q)


def test_sdpa_equals_torch_with_its_own_tensors():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    q, k, v = (torch.randn(2, heads, 5, 8, requires_grad=True) for heads in (4, 2, 2))
    for options in ({}, {"is_causal": True}, {"attn_mask": torch.ones(5, 5).tril(2).bool()}, {"scale": 0.4}):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options).detach().numpy()
        np.testing.assert_allclose(attnd.sdpa(q, k, v, enable_gqa=True, **options), expected, atol=2e-6)
        halves = [x.bfloat16() for x in (q, k, v)]
        np.testing.assert_allclose(attnd.sdpa(*halves, enable_gqa=True, **options), expected, atol=0.1)


# --- threads, processes and signals ---

def ask(_=None):
    return attnd.dot_product(numbers(300, 4, 8), numbers(300, 4, 8), need=["received"])["received"].tobytes()


def test_eight_threads_get_the_same_bytes():
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask, range(40))) == {ask()}


@pytest.fixture
def restore_threads():
    yield
    attnd.set_threads(None)


@pytest.mark.usefixtures("restore_threads")
def test_threads_may_be_set_while_others_compute():
    expected = ask()
    with ThreadPoolExecutor(4) as threads:
        results = [threads.submit(ask) for _ in range(20)]
        for number in (1, 2, None, 3):
            attnd.set_threads(number)
        assert {result.result() for result in results} == {expected}


@pytest.mark.usefixtures("restore_threads")
@pytest.mark.parametrize("number, kind", [(0, ValueError), (-1, ValueError), (True, TypeError), ("2", TypeError), (1.0, TypeError)])
def test_threads_that_are_no_number_of_them_are_refused(number, kind):
    with pytest.raises(kind, match="^num_threads is"):
        attnd.set_threads(number)


def test_process_that_forks_computes_in_both():
    expected = ask()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # no exception may leave this branch: it would run the other tests
        try:
            os.write(writer, b"same" if ask() == expected else b"else")
        finally:
            os._exit(0)
    assert os.read(reader, 4) == b"same" and os.waitpid(child, 0)[1] == 0
    assert ask() == expected


LONG_CALL = """
import numpy as np, signal, attnd
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background may ignore it
rows = np.random.default_rng(0).normal(size=(1, 1 << 17, 4, 64)).astype("f4")
attnd.dot_product(rows[:, :8], rows[:, :8])
try:
    print("begins", flush=True)
    attnd.dot_product(rows, rows, need=["entropy"])
except KeyboardInterrupt:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("interrupted", attnd.dot_product(rows[:, :8], rows[:, :8])["weights"].shape, flush=True)
"""


def test_interrupt_ends_a_call_and_the_next_one_computes():
    with subprocess.Popen([sys.executable, "-c", LONG_CALL], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begins\n"
        time.sleep(0.5)  # it computes for minutes
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE)[0] == "interrupted (1, 4, 8, 8)\n"
        assert process.returncode == 0


def test_flag_stops_a_call_of_another_thread():
    stop = _native.c_int(1)
    assert _native.run_interruptible(lambda: stop.value, stop) == 1
    results = []
    thread = threading.Thread(target=lambda: results.append(_native.run_interruptible(lambda: 7, stop)))
    thread.start()
    thread.join()
    assert results == [7]


# --- the library ---

def run_python(code, **environment):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100,
                          env=os.environ | environment)


def test_package_is_imported_without_what_is_optional_and_without_the_library():
    result = run_python("import sys, attnd; print(sys.modules.keys() & {'torch', 'transformers', 'matplotlib'}, 'libattnd' in "
                        "open('/proc/self/maps').read(), attnd.__version__)")
    assert result.stdout.startswith("set() False 0.")
    assert all(hasattr(attnd, name) for name in attnd.__all__)


def test_library_that_is_not_found_says_where_to_get_it(tmp_path):
    result = run_python("import attnd; attnd.__version__", ATTND_LIBRARY=str(tmp_path / "none.so"))
    assert "ImportError" in result.stderr and "install attnd's wheel, or set ATTND_LIBRARY" in result.stderr


def test_library_of_another_kind_is_refused():
    result = run_python("import attnd; attnd.__version__", ATTND_LIBRARY="libc.so.6")
    assert "libc.so.6 has no attn_version(): it is older" in result.stderr


def test_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'attnd' has no attribute 'atend'"):
        attnd.atend


def test_statuses_are_those_of_the_header():
    text = (ROOT / "include/attnd/status.h").read_text()
    names = re.findall(r"^    (ATTN_\w+)(?: = 0)?,", text, re.M)
    assert names[0] == "ATTN_OK" and len(names) == len(_native.STATUSES)
    for name, kind in (("ATTN_E_NOMEM", MemoryError), ("ATTN_E_SHAPE", ValueError), ("ATTN_E_IO", OSError)):
        assert issubclass(_native.STATUSES[names.index(name)], kind)
