# SPDX-License-Identifier: Apache-2.0
"""A layer of your own, from numpy arrays: written, served, and compared with numpy.

What one sees: attnd recognises the names of the tensors, and its outputs and attention weights are
those of numpy to about 1e-7. own_layer.safetensors stays in this folder:

    python3 docs/examples/own_layer.py
    attnd inspect own_layer.safetensors
    attnd --model layer=own_layer.safetensors"""

import numpy as np
from safetensors.numpy import save_file

from numpy_attention import attend, difference
from serve import serve

WIDTH, HEADS = 64, 8
rng = np.random.default_rng(0)


def make_kernel():
    """[in, out], as Keras, Flax and numpy's `rows @ kernel` have it."""
    return rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5


kernels = {name: make_kernel() for name in ("W_q", "W_k", "W_v", "W_o")}

# A file has [out, in], as PyTorch does. save_file() stores the memory of an array as it is, and .T
# alone changes only the shape: without ascontiguousarray() the file would hold the wrong weights.
save_file({f"{name}.weight": np.ascontiguousarray(kernel.T) for name, kernel in kernels.items()},
          "own_layer.safetensors", metadata={"num_heads": str(HEADS)})

tokens = rng.normal(size=(2, 10, WIDTH)).astype(np.float32)  # two sequences of ten tokens
with serve("layer=own_layer.safetensors") as client:
    outputs, weights = client.attend("layer", tokens, need_weights=True)

heads, expected_weights = attend(tokens @ kernels["W_q"], tokens @ kernels["W_k"],
                                 tokens @ kernels["W_v"], HEADS)
print("outputs:", outputs.shape, "difference from numpy:",
      f"{difference(outputs, heads @ kernels['W_o']):.1e}")
print("weights:", weights.shape, "difference from numpy:",
      f"{difference(weights, expected_weights):.1e}")
