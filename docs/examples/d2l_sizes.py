# SPDX-License-Identifier: Apache-2.0
"""Dive into Deep Learning, the class with explicit key_size, query_size and value_size; and the
scoring function that the text leaves open: scaled dot product, or additive.

What one sees: the shape of the book; the same with inputs of three different widths; lengths for
every single query, [B, Tq]; and a layer with additive scoring, which attnd recognises by the tensors
`attention.W_q.weight`, `attention.W_k.weight` and `attention.w_v.weight`.

    python3 docs/examples/d2l_sizes.py"""

import numpy as np

from numpy_attention import attend, difference, dot_product
from serve import serve_layers

WIDTH, HEADS = 100, 5
rng = np.random.default_rng(0)


def make_weight(rows, columns):
    return (rng.normal(size=(rows, columns)) / columns**0.5).astype(np.float32)


def make_state(query_size, key_size, value_size):
    return {"W_q.weight": make_weight(WIDTH, query_size), "W_k.weight": make_weight(WIDTH, key_size),
            "W_v.weight": make_weight(WIDTH, value_size), "W_o.weight": make_weight(WIDTH, WIDTH)}


SCORING_SIZE = 16
book, sizes = make_state(WIDTH, WIDTH, WIDTH), make_state(20, 30, 40)
additive = sizes | {"attention.W_q.weight": make_weight(SCORING_SIZE, WIDTH // HEADS),
                    "attention.W_k.weight": make_weight(SCORING_SIZE, WIDTH // HEADS),
                    "attention.w_v.weight": make_weight(1, SCORING_SIZE)}


def additive_score(queries, keys):
    """w_v · tanh(W_q q + W_k k) for each query and key of a head."""
    queries = queries @ additive["attention.W_q.weight"].T
    keys = keys @ additive["attention.W_k.weight"].T
    hidden = np.tanh(queries[:, :, :, np.newaxis] + keys[:, :, np.newaxis])
    return hidden @ additive["attention.w_v.weight"][0]


with serve_layers({"book": book, "sizes": sizes, "additive": additive}, HEADS) as client:
    x, y = np.ones((2, 4, WIDTH)), np.ones((2, 6, WIDTH))
    outputs, _ = client.attend("book", x, keys=y, valid_lens=[3, 2])
    print("book:", outputs.shape)

    queries, keys, values = (rng.normal(size=shape) for shape in ((2, 4, 20), (2, 6, 30), (2, 6, 40)))
    projected = [rows @ sizes[f"W_{name}.weight"].T for name, rows in
                 (("q", queries), ("k", keys), ("v", values))]
    for valid_lens in ([3, 2], [[1, 2, 3, 4], [6, 5, 4, 3]]):
        for name, score in (("sizes", dot_product), ("additive", additive_score)):
            outputs, weights = client.attend(name, queries, keys=keys, values=values,
                                             valid_lens=valid_lens, need_weights=True)
            heads, expected_weights = attend(*projected, HEADS, valid_lens, score)
            expected = heads @ sizes["W_o.weight"].T
            print(f"{name}, valid_lens {np.shape(valid_lens)}: {outputs.shape}"
                  f" difference from numpy: {difference(outputs, expected):.1e},"
                  f" weights: {difference(weights, expected_weights):.1e}")
