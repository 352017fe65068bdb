# SPDX-License-Identifier: Apache-2.0
"""Random requests, good and bad: the process and the server give the same bytes, or the same error."""

import os

import ml_dtypes  # tritonclient needs it, too
import numpy as np

import attnd
from attnd.client import Client

CASES = int(os.environ.get("PROPERTY_CASES", 500))
DTYPES = (np.float32, np.float16, np.float64, ml_dtypes.bfloat16, ">f4")
WORDS = ("weights", "scores", "lse", "spans", "top", "target", "received", "entropy", "blocks")


def random_array(rng, *shape):
    """An array of a random type and order of its axes."""
    array = rng.normal(size=shape).astype(DTYPES[rng.choice(5, p=[0.6, 0.1, 0.1, 0.1, 0.1])])
    if rng.random() < 0.3:
        array = np.asfortranarray(array)
    if rng.random() < 0.2:
        array = array[tuple(slice(None, None, rng.choice([-1, 1])) for _ in shape)]
    return array


def random_request(rng):
    """The options of one call, of which some have no meaning together."""
    batch, groups, shared = int(rng.integers(1, 4)), int(rng.integers(1, 4)), int(rng.integers(1, 3))
    width, rows, keys = (int(size) for size in rng.integers(1, 20, 3))
    heads = groups * shared
    request = {"heads_first": bool(rng.random() < 0.3), "need": list(rng.permutation(WORDS)[:rng.integers(1, 5)])}

    def arrays(num_rows, num_heads, size):
        shape = (num_heads, num_rows, size) if request["heads_first"] else (num_rows, num_heads, size)
        if is_ragged:
            axis = 1 if request["heads_first"] else 0
            return [random_array(rng, *(n + (i if axis == j else 0) for j, n in enumerate(shape))) for i in range(batch)]
        return random_array(rng, *([batch] if is_batch else []), *shape)

    is_ragged, is_batch = rng.random() < 0.2, rng.random() < 0.7
    request |= {"queries": arrays(rows, heads, width), "keys": arrays(keys, groups, width)}
    if rng.random() < 0.5:
        request |= {"values": arrays(keys, groups, int(rng.integers(1, 9))), "need": ["heads", *request["need"]]}
    choices = {
        "causal": lambda: bool(rng.random() < 0.7), "window": lambda: int(rng.integers(0, 9)), "scale": lambda: np.float32(0.3),
        "softcap": lambda: 5.0, "sinks": lambda: rng.normal(size=heads), "slopes": lambda: rng.normal(size=heads).tolist(),
        "attn_mask": lambda: rng.random((rows, keys)) < 0.7, "bias": lambda: rng.normal(size=keys).astype("f2"),
        "valid_lens": lambda: rng.integers(0, keys + 1, batch), "positions": lambda: np.arange(rows) + int(rng.integers(9)),
        "weights_heads": lambda: int(rng.integers(heads)), "weights_queries": lambda: [0, int(rng.integers(rows))],
        "sinsk": lambda: 1}
    for name, choose in choices.items():
        if rng.random() < (0.01 if name == "sinsk" else 0.15):
            request[name] = choose()
    needed = {"spans": {"spans": [[0, 1], [0, keys]]}, "top": {"top_k": int(rng.integers(1, keys + 1))},
              "target": {"targets": [[0, 1]] * rows}, "blocks": {"block": int(rng.integers(1, 9))}}
    for word, options in needed.items():
        if word in request["need"] and rng.random() < 0.95:
            request |= options
    return request


def flatten(value):
    """The bytes of all arrays of a result, or the text of an error up to what differs between formats."""
    if isinstance(value, dict):
        return [(word, flatten(item)) for word, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [flatten(item) for item in value]
    return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value.partition(" is not ")[0]


def outcome(function, request):
    try:
        return function(**request)
    except attnd.Error as error:
        return str(error)


def test_random_requests_get_the_bytes_of_the_server(plain_server):
    client, seed = Client(plain_server.url), int(os.environ["PROPERTY_SEED"])
    num_results = 0
    for case in range(CASES):
        request = random_request(np.random.default_rng([seed, case]))
        got, expected = outcome(attnd.dot_product, request), outcome(client.dot_product, request)
        assert flatten(got) == flatten(expected), f"PROPERTY_SEED={seed}, case {case}: {request}"
        num_results += isinstance(expected, dict)
    assert num_results > CASES // 4
