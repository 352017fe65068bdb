# SPDX-License-Identifier: Apache-2.0
"""Raschka's Build a Large Language Model (From Scratch), chapter 3: stacked heads, weight splits, and
the batched product of the heads.

What one sees: the two tables that the book prints, to all four decimals. `stacked` is its
MultiHeadAttentionWrapper and `journey` its MultiHeadAttention, both with the weights of the book's
seed. Then the book's `a @ a.transpose(2, 3)`, the raw scores of two heads, which need no model. Last,
layers as wide as the smallest and the largest GPT-2 with random weights, beside numpy.

    python3 docs/examples/from_scratch.py"""

import numpy as np

from numpy_attention import attend, difference
from serve import serve, serve_layers

SENTENCE = [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64],  # Your journey starts
            [0.22, 0.58, 0.33], [0.77, 0.25, 0.10], [0.05, 0.80, 0.55]]  # with one step
A = np.array([[[[0.2745, 0.6584, 0.2775, 0.8573],
                [0.8993, 0.0390, 0.9268, 0.7388],
                [0.7179, 0.7058, 0.9156, 0.4340]],
               [[0.0772, 0.3565, 0.1479, 0.5331],
                [0.4066, 0.2318, 0.4545, 0.9737],
                [0.4606, 0.5159, 0.4220, 0.5786]]]])  # 1 sequence, 2 heads, 3 tokens, 4 numbers


def show(title, array):
    print(title)
    print(np.array2string(array, precision=4, floatmode="fixed"))


def print_tables():
    with serve(demo=True) as client:
        for name in ("stacked", "journey"):
            outputs, _ = client.attend(name, np.array([SENTENCE, SENTENCE]))
            show(f"{name}: {outputs.shape}", outputs[0])


def ask_scores():
    """The products of queries and keys. Only a scale of 1 leaves them whole: the usual one divides by √4."""
    tokens = A.transpose(0, 2, 1, 3)  # attnd has tokens before heads
    with serve() as client:
        return client.dot_product(tokens, tokens, scale=1, need=["scores"])["scores"][0]


def compare_gpt2(width, num_heads):
    rng = np.random.default_rng(0)
    names = ("W_query.weight", "W_key.weight", "W_value.weight", "out_proj.weight")
    layer = {name: rng.standard_normal((width, width), np.float32) / width**0.5 for name in names}
    tokens = rng.standard_normal((1, 16, width), np.float32)
    with serve_layers({"gpt2": layer}, num_heads) as client:
        outputs, _ = client.attend("gpt2", tokens)

    *projected, output = layer.values()
    causal = [range(1, 17)]  # token i attends to the first i tokens
    heads, _ = attend(*(tokens @ weight.T for weight in projected), num_heads, causal)
    print(f"GPT-2, {num_heads} heads: {outputs.shape}"
          f" difference from numpy: {difference(outputs, heads @ output.T):.1e}")


print_tables()
show("a @ a.transpose(2, 3), by numpy:", (A @ A.transpose(0, 1, 3, 2))[0])
show("the same by attnd:", ask_scores())
compare_gpt2(width=768, num_heads=12)
compare_gpt2(width=1600, num_heads=25)
