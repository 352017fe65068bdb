# SPDX-License-Identifier: Apache-2.0
"""The problems to compute: random weights, biases and inputs, the same in every process."""

from typing import NamedTuple

import numpy as np


class Unavailable(Exception):
    """The machine or build lacks something. A contender that raises it is listed, not failed."""


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
    """Counts each multiplication and each addition: of four projections, scores and outputs, or of
    one projection."""
    projection = 2 * shape.rows * shape.width**2
    attention = 4 * shape.rows * shape.length * shape.width
    return (4 * projection + attention if part == "layer" else projection) * 1e-9


def make_problem(part, shape):
    """Returns a layer with random weights, or a single projection in the form of a layer.

    A query that attends to one key only gets the value of that key. If the projections before it
    are identities, this value is its row of the inputs in any precision. Such a layer computes its
    output projection only.
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
