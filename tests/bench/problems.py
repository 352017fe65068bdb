# SPDX-License-Identifier: Apache-2.0
"""What is computed: random weights, biases and inputs, the same in every process."""

from typing import NamedTuple

import numpy as np


class Unavailable(Exception):
    """What this machine or build lacks: a contender that raises it is named, but has not failed."""


class Shape(NamedTuple):
    sequences: int
    length: int
    width: int
    heads: int

    @property
    def rows(self):
        return self.sequences * self.length


class Problem(NamedTuple):
    """A layer and its input. Weights are [out, in]."""
    shape: Shape
    weights: dict  # of "q", "k", "v", "o"
    biases: dict
    inputs: np.ndarray  # [B, T, width]


def count_gflop(part, shape):
    """Multiplications and additions, each counted: four projections, scores, outputs; or one
    projection."""
    projection = 2 * shape.rows * shape.width**2
    attention = 4 * shape.rows * shape.length * shape.width
    return (4 * projection + attention if part == "layer" else projection) * 1e-9


def make_problem(part, shape):
    """A layer with random weights; or a single projection, of as many rows, as a layer in disguise.

    A query that attends to one key only gets its value, and with identities before it that is its
    row of the inputs, in whatever precision: such a layer is its output projection and no more.
    """
    rng = np.random.default_rng(20170612)
    width = shape.width
    weights = {p: (rng.normal(size=(width, width)) / np.sqrt(width)).astype("f4") for p in "qkvo"}
    biases = {p: (rng.normal(size=width) / 10).astype("f4") for p in "qkvo"}
    if part == "projection":
        shape = shape._replace(sequences=shape.rows, length=1)
        weights |= {p: np.eye(width, dtype="f4") for p in "qkv"}
        biases |= {p: np.zeros(width, "f4") for p in "qkv"}
    return Problem(shape, weights, biases,
                   rng.normal(size=(shape.sequences, shape.length, width)).astype("f4"))
