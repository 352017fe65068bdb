# SPDX-License-Identifier: Apache-2.0
"""An article's heads, whose rows are projected twice: once for all heads, and once more by each.

The sentence is "Jane visite l'Afrique en septembre". First q = W^Q x, k = W^K x and v = W^V x for
every word; then q_j = W_j^Q q, k_j = W_j^K k and v_j = W_j^V v for head j. What one sees: attnd's
layout `two_stage` has just these tensors, and replies with what numpy computes in two steps. The
words have random embeddings here, so the weights mean nothing.

The article's last formula takes the softmax of the sum of the values, A = softmax(Σ (q·k) v). That is
not attention, because nothing then says how much of each word is taken. attnd cannot compute it. As in
Attention Is All You Need, it takes the softmax of the scores q·k / √D first, and weighs the values by
that. The last line shows how far apart the two are.

    python3 docs/examples/two_projections.py"""

import numpy as np

from numpy_attention import attend, difference, join_heads, softmax, split_heads
from serve import serve_layers

WORDS = "Jane visite l'Afrique en septembre".split()
WIDTH, HEADS, HEAD_SIZE = 8, 2, 4
rng = np.random.default_rng(0)


def make_weight(rows, columns):
    return (rng.normal(size=(rows, columns)) / columns**0.5).astype(np.float32)


state = {f"W_{kind}.weight": make_weight(WIDTH, WIDTH) for kind in "QKV"}
state |= {f"heads.{head}.W_{kind}.weight": make_weight(HEAD_SIZE, WIDTH)
          for head in range(HEADS) for kind in "QKV"}
# The article puts nothing behind the heads. Ones on the diagonal leave them side by side.
state["W_O.weight"] = np.eye(HEADS * HEAD_SIZE, dtype=np.float32)


def project(kind, rows):
    """Both projections, the heads side by side."""
    shared = rows @ state[f"W_{kind}.weight"].T
    return np.concatenate([shared @ state[f"heads.{head}.W_{kind}.weight"].T
                           for head in range(HEADS)], axis=-1)


embeddings = rng.normal(size=(1, len(WORDS), WIDTH))
with serve_layers({"article": state}, HEADS) as client:
    outputs, weights = client.attend("article", embeddings, need_weights=True)

queries, keys, values = (project(kind, embeddings) for kind in "QKV")
expected, expected_weights = attend(queries, keys, values, HEADS)
print(f"outputs: {outputs.shape} difference from numpy: {difference(outputs, expected):.1e},"
      f" weights: {difference(weights, expected_weights):.1e}")
for head in range(HEADS):
    print(f"head {head}: l'Afrique attends to",
          ", ".join(f"{word} {weight:.2f}" for word, weight in zip(WORDS, weights[0, head, 2])))

q, k, v = (split_heads(rows, HEADS) for rows in (queries, keys, values))
literal = join_heads(softmax(q @ k.transpose(0, 1, 3, 2) @ v))
print("the article's last formula, taken literally, is not this function, nor one of attnd:"
      f" difference {difference(literal, expected):.1f}")
