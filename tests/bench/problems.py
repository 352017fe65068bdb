# SPDX-License-Identifier: Apache-2.0
"""The problems to compute: random weights, biases and inputs, the same in every process."""

from typing import NamedTuple

import numpy as np


class Unavailable(Exception):
    """The machine or build lacks something. A contender that raises it is listed, not failed."""


class Shape(NamedTuple):
    sequences: int
    length: int  # queries of a sequence
    width: int
    heads: int
    key_length: int  # keys of a sequence

    @property
    def rows(self):
        return self.sequences * self.length

    @property
    def key_rows(self):
        return self.sequences * self.key_length


class Problem(NamedTuple):
    """A layer and its inputs. Weights are [out, in]."""
    shape: Shape
    weights: dict  # of "q", "k", "v", "o"
    biases: dict
    queries: np.ndarray  # [B, T, width]
    keys: np.ndarray  # [B, TK, width], also the values; `queries` itself if as many
    valid_lens: np.ndarray = None  # [B] int32: keys that count; None: all


def count_gflop(part, shape):
    """Counts each multiplication and each addition: of four projections, scores and outputs, or of
    one projection."""
    projection = 2 * shape.rows * shape.width**2
    if part == "projection":
        return projection * 1e-9
    of_keys = 2 * shape.key_rows * shape.width**2
    attention = 4 * shape.rows * shape.key_length * shape.width
    return (2 * projection + 2 * of_keys + attention) * 1e-9


def make_problem(part, shape):
    """Returns a layer with random weights, or a single projection in the form of a layer.

    A query that attends to one key only gets the value of that key. If the projections before it
    are identities, this value is its row of the inputs in any precision. Such a layer computes its
    output projection only.
    """
    rng = np.random.default_rng(20170612)
    width = shape.width
    drawn = "o" if part == "projection" else "qkvo"
    weights = {p: (rng.normal(size=(width, width)) / np.sqrt(width)).astype("f4") for p in drawn}
    biases = {p: (rng.normal(size=width) / 10).astype("f4") for p in drawn}
    if part == "projection":
        shape = shape._replace(sequences=shape.rows, length=1, key_length=1)
        weights |= {p: np.eye(width, dtype="f4") for p in "qkv"}
        biases |= {p: np.zeros(width, "f4") for p in "qkv"}
    queries = rng.normal(size=(shape.sequences, shape.length, width)).astype("f4")
    keys = queries if shape.key_length == shape.length else rng.normal(
        size=(shape.sequences, shape.key_length, width)).astype("f4")
    return Problem(shape, weights, biases, queries, keys)
