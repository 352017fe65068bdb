#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the built-in model `patterns` and its example request; docs/heads.md explains them.

Run as a program, it writes both files again."""

from pathlib import Path

import numpy as np

from safetensors_file import write_safetensors

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "src/weights/demo/patterns.safetensors"
METADATA = {"num_heads": "8", "context_length": "16"}
REQUEST = ROOT / "docs/examples/patterns.json"
HEADS = ("previous token", "next token", "first token", "same token", "local window", "uniform",
         "long range", "causal prefix")
WORDS = ("the", "a", "big", "small", "dog", "cat", "mouse", "bird", "chased", "saw", "heard",
         "ran", "slept", "and", "but", "then")
SENTENCE = "the dog chased the cat and the cat chased the mouse"
FREQUENCIES = np.pi / 16 * np.arange(1, 16, 2)
GAIN = 8.0       # score of what a sharp head attends to, over that of the other tokens
BELL_GAIN = 12.0
HEAD_SIZE = 16   # as many as words, and as numbers of a position


def position(places):
    """Returns [T, 16]: sin and cos of each frequency, side by side."""
    angles = np.multiply.outer(places, FREQUENCIES)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(*np.shape(places), 16)


def embed(sentence):
    """Returns the input rows [T, 32] of a sentence: which word it is, and where it is."""
    words = sentence.split()
    identity = np.eye(len(WORDS))[[WORDS.index(word) for word in words]]
    return np.hstack([identity, position(np.arange(len(words)))])


def turned(gains, steps):
    """Returns M [16, 16] with position(k) · M position(i) = sum of gains · cos(w (i - k + steps)),
    w being the frequencies."""
    matrix = np.zeros((HEAD_SIZE, HEAD_SIZE))
    for m, (gain, angle) in enumerate(zip(gains, FREQUENCIES * steps)):
        sine, cosine = gain * np.sin(angle), gain * np.cos(angle)
        matrix[2 * m:2 * m + 2, 2 * m:2 * m + 2] = [[cosine, sine], [-sine, cosine]]
    return matrix


def make_tensors():
    """Returns the tensors of the layer, in layout d2l."""
    sharp = np.full(8, GAIN / 8)
    slowest = np.eye(8)[0] * BELL_GAIN
    # The step from -GAIN/2 to GAIN/2 between i - k = -1 and 0. It is a sum of sines, which are
    # cosines a quarter of a turn later.
    step = GAIN / 2 / (8 * np.sin(FREQUENCIES / 2))
    quarter = np.pi / 2 / FREQUENCIES
    of_position = {"previous token": turned(sharp, -1), "next token": turned(sharp, 1),
                   "local window": turned(slowest, 0), "long range": turned(-slowest, 0),
                   "causal prefix": turned(step, 0.5 - quarter)}

    query = np.zeros((len(HEADS), HEAD_SIZE, 32))
    key = np.zeros((len(HEADS), HEAD_SIZE, 32))
    query_bias = np.zeros((len(HEADS), HEAD_SIZE))
    for h, name in enumerate(HEADS):
        if name in of_position:
            query[h, :, 16:] = of_position[name]
        if name in of_position or name == "first token":
            key[h, :, 16:] = np.eye(HEAD_SIZE)
        if name == "first token":
            query_bias[h] = GAIN / 8 * position(0)
        if name == "same token":
            query[h, :, :16] = GAIN * np.eye(HEAD_SIZE)
            key[h, :, :16] = np.eye(HEAD_SIZE)

    scale = np.sqrt(HEAD_SIZE)  # scores are divided by it
    value = np.tile(np.eye(HEAD_SIZE, 32), (len(HEADS), 1))
    output = np.tile(np.eye(HEAD_SIZE) / len(HEADS), (1, len(HEADS)))
    return {"W_q.weight": (scale * query).reshape(-1, 32), "W_q.bias": scale * query_bias.ravel(),
            "W_k.weight": key.reshape(-1, 32), "W_v.weight": value, "W_o.weight": output}


def make_request():
    """Returns the example request as text: one line for each token."""
    rows = (", ".join(f"{number:.6g}" for number in row) for row in embed(SENTENCE).round(4) + 0.0)
    return ('{"model": "patterns", "need_weights": true, "queries": [\n  '
            + ",\n  ".join(f"[{row}]" for row in rows) + "\n]}\n")


if __name__ == "__main__":
    write_safetensors(MODEL, make_tensors(), metadata=METADATA)
    REQUEST.write_text(make_request())
