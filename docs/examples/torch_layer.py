# SPDX-License-Identifier: Apache-2.0
"""A layer of your own, from the state dict of PyTorch's torch.nn.MultiheadAttention.

What one sees: the state dict is saved as it is, attnd serves it without conversion, and replies with
what the layer itself computes, to about 1e-7. Without PyTorch, random numbers in the same names and
shapes take its place, and numpy computes what to expect.

    python3 docs/examples/torch_layer.py"""

import numpy as np
from safetensors.numpy import save_file

from numpy_attention import attend, difference
from serve import serve

WIDTH, HEADS = 64, 8
rng = np.random.default_rng(0)
tokens = rng.normal(size=(2, 10, WIDTH)).astype(np.float32)  # batch, tokens, width


def compute_by_torch(torch):
    """Returns a state dict, and the outputs and weights of its layer."""
    layer = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    state = {name: tensor.numpy() for name, tensor in layer.state_dict().items()}
    with torch.no_grad():
        rows = torch.from_numpy(tokens)
        outputs, weights = layer(rows, rows, rows, average_attn_weights=False)
    return state, outputs.numpy(), weights.numpy()


def compute_by_numpy():
    """The same of random numbers. `in_proj_weight` has the query's rows, the key's, the value's."""
    state = {"in_proj_weight": rng.normal(size=(3 * WIDTH, WIDTH)) / WIDTH**0.5,
             "in_proj_bias": rng.normal(size=3 * WIDTH),
             "out_proj.weight": rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5,
             "out_proj.bias": rng.normal(size=WIDTH)}
    state = {name: array.astype(np.float32) for name, array in state.items()}
    projected = tokens @ state["in_proj_weight"].T + state["in_proj_bias"]
    heads, weights = attend(*np.split(projected, 3, axis=-1), HEADS)
    return state, heads @ state["out_proj.weight"].T + state["out_proj.bias"], weights


try:
    import torch
except ImportError:
    source, (state, expected, expected_weights) = "numpy", compute_by_numpy()
else:
    source, (state, expected, expected_weights) = "PyTorch", compute_by_torch(torch)

save_file(state, "torch_layer.safetensors", metadata={"num_heads": str(HEADS)})
with serve("layer=torch_layer.safetensors") as client:
    outputs, weights = client.attend("layer", tokens, need_weights=True)

print("state dict:", ", ".join(f"{name} {list(array.shape)}" for name, array in state.items()))
print(f"outputs: {outputs.shape} difference from {source}: {difference(outputs, expected):.1e}")
print(f"weights: {weights.shape} difference from {source}: {difference(weights, expected_weights):.1e}")
