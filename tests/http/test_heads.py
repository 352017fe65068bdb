# SPDX-License-Identifier: Apache-2.0
"""Single heads: what head_mask leaves out."""

import numpy as np

from compare import assert_close, assert_problem
from reference import attend, layer_from_tensors
from safetensors_file import as_stored, write_safetensors


def test_head_that_is_left_out_cannot_overflow(start_server, tmp_path):
    """The values of head 0 overflow float32. They are not computed when nobody needs them."""
    rng = np.random.default_rng(3)
    tensors = {f"{name}.weight": rng.normal(size=(6, 6)) for name in ("W_q", "W_k", "W_v", "W_o")}
    tensors["W_v.weight"][:2] = 3e38
    path = tmp_path / "large.safetensors"
    write_safetensors(path, tensors, "F32", {"num_heads": "3"})
    server = start_server("--model", f"large={path}")
    rows = rng.normal(size=(4, 6)).round(2) + 5
    request = {"queries": [rows.tolist()], "need_weights": True}

    assert_problem(server.attention(request), 422, "Result not finite")
    reply = server.attention(request | {"head_mask": [0, 1, 1]})
    assert reply.status_code == 200, reply.text

    tensors["W_v.weight"][:2] = 0
    layer = layer_from_tensors({name: as_stored(tensor, "F32")
                                for name, tensor in tensors.items()}, 3)
    outputs, weights = attend(layer, rows, rows, rows)
    assert_close(reply.json()["outputs"][0], outputs, "outputs")
    assert_close(reply.json()["attention_weights"][0], weights, "weights")
