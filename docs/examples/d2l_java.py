# SPDX-License-Identifier: Apache-2.0
"""Dive into Deep Learning, multi-head attention, Java edition: its example and both exercises.

The example has ones for all numbers, and `validLens` as floats, 3 and 2. What one sees: the shape of
the book, and weights of 1/3 and 1/2 on the valid keys whatever the model weights are, because all
keys are alike. With random numbers instead, d2l_java.png (exercise 1) has five different heads, each
grey past the valid keys. Exercise 2 leaves out the heads of `patterns` one after another, always the
one that the outputs miss least. First goes the head that attends to all words alike.

DJL's own .params files are not read: docs/models.md shows what to write instead.

    python3 docs/examples/d2l_java.py"""

import json

import numpy as np

from heatmaps import REQUEST, draw_heads
from serve import serve

BATCH, QUERIES, KEYS, WIDTH = 2, 4, 6, 100
VALID_LENS = np.float32([3, 2])


def run_example(client):
    x, y = np.ones((BATCH, QUERIES, WIDTH)), np.ones((BATCH, KEYS, WIDTH))
    outputs, weights = client.attend("d2l", x, keys=y, valid_lens=VALID_LENS, need_weights=True)
    print("example:", outputs.shape)
    for sequence in weights:
        for row in np.unique(sequence.reshape(-1, KEYS).round(4), axis=0):
            print("  every head and query:", row)


def draw_weights(client):
    """Exercise 1: visualise the attention weights of the heads."""
    rng = np.random.default_rng(0)
    x, y = 4 * rng.normal(size=(BATCH, QUERIES, WIDTH)), 4 * rng.normal(size=(BATCH, KEYS, WIDTH))
    _, weights = client.attend("d2l", x, keys=y, valid_lens=VALID_LENS, need_weights=True)
    draw_heads(weights[0], range(QUERIES), range(KEYS), "d2l_java.png")
    print(f"exercise 1: written: d2l_java.png, the {len(weights[0])} heads of d2l;",
          "the hidden keys have", weights[0, :, :, 3:].sum())


def rank_heads(client):
    """Exercise 2: which heads matter least? Measures how far the outputs move without them."""
    request = json.loads(REQUEST.read_text())
    whole, weights = client.attend("patterns", request["queries"], need_weights=True)

    def change_without(heads):
        mask = [0.0 if head in heads else 1.0 for head in range(len(weights))]
        outputs, _ = client.attend("patterns", request["queries"], head_mask=mask)
        return np.linalg.norm(outputs - whole) / np.linalg.norm(whole)

    print(f"exercise 2: of the {len(weights)} heads of patterns, those left out, and the change of the outputs")
    removed = []
    while len(removed) < len(weights):
        changes = {head: change_without([*removed, head])
                   for head in range(len(weights)) if head not in removed}
        removed.append(min(changes, key=changes.get))
        print(f"  {removed} {changes[removed[-1]]:.4f}")
    print("  a file without such heads is faster: docs/heads.md")


with serve(demo=True) as client:
    run_example(client)
    draw_weights(client)
    rank_heads(client)
