# SPDX-License-Identifier: Apache-2.0
"""Dive into Deep Learning, the PyTorch class with d2l's names: without biases, and with them.

What one sees: attnd recognises `W_q.weight` and so on, with or without `W_q.bias`, and replies with
what the class computes. The example has ones for all numbers, so the four queries of a sequence have
the same outputs. Dropout does nothing here: it belongs to training, and attnd is always what the
class is after `.eval()`. Numbers that were printed while dropout was active, from weights without a
seed, cannot be had again.

    python3 docs/examples/d2l_torch.py"""

import numpy as np

from numpy_attention import attend, difference
from serve import serve_layers

WIDTH, HEADS = 100, 5
rng = np.random.default_rng(0)


def make_state(bias):
    """The state dict of the class, with nn.Linear's own random numbers."""
    bound = WIDTH**-0.5
    state = {}
    for name in ("W_q", "W_k", "W_v", "W_o"):
        state[f"{name}.weight"] = rng.uniform(-bound, bound, (WIDTH, WIDTH)).astype(np.float32)
        if bias:
            state[f"{name}.bias"] = rng.uniform(-bound, bound, WIDTH).astype(np.float32)
    return state


def forward(state, queries, keys, valid_lens):
    """What the class computes."""
    def linear(name, rows):
        return rows @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0)

    heads, weights = attend(linear("W_q", queries), linear("W_k", keys), linear("W_v", keys), HEADS,
                            valid_lens)
    return linear("W_o", heads), weights


states = {"plain": make_state(bias=False), "biased": make_state(bias=True)}
with serve_layers(states, HEADS) as client:
    for name, state in states.items():
        x, y, valid_lens = np.ones((2, 4, WIDTH)), np.ones((2, 6, WIDTH)), [3, 2]
        outputs, _ = client.attend(name, x, keys=y, valid_lens=valid_lens)
        expected, _ = forward(state, x, y, valid_lens)
        alike = np.ptp(outputs, axis=1).max() < 1e-6
        print(f"{name}: {outputs.shape}, queries alike: {alike},"
              f" difference from numpy: {difference(outputs, expected):.1e}")

        x, y = rng.normal(size=x.shape), rng.normal(size=y.shape)
        outputs, weights = client.attend(name, x, keys=y, valid_lens=valid_lens, need_weights=True)
        expected, expected_weights = forward(state, x, y, valid_lens)
        print(f"  random numbers: difference from numpy: {difference(outputs, expected):.1e},"
              f" weights: {difference(weights, expected_weights):.1e}")
