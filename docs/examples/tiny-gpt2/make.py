# SPDX-License-Identifier: Apache-2.0
"""Makes the checkpoint in this folder: a GPT-2 of two layers that nobody trained, which reads bytes.

    python3 docs/examples/tiny-gpt2/make.py [FOLDER]

It writes config.json and model.safetensors as save_pretrained() would, and needs numpy and safetensors.
Its weights are larger than those of a fresh model, so that heads differ in what they attend to."""

import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import save_file

WIDTH, HEADS, LAYERS, INNER, TOKENS, POSITIONS = 64, 4, 2, 128, 256, 64
rng = np.random.default_rng(2017)


def draw(*shape, spread=0.02, mean=0.0):
    return (mean + spread * rng.standard_normal(shape)).astype(np.float32)


tensors = {"wte.weight": draw(TOKENS, WIDTH, spread=0.3), "wpe.weight": draw(POSITIONS, WIDTH, spread=0.3)}
for layer in range(LAYERS):
    for name, shape in (("attn.c_attn", (WIDTH, 3 * WIDTH)), ("attn.c_proj", (WIDTH, WIDTH)),
                        ("mlp.c_fc", (WIDTH, INNER)), ("mlp.c_proj", (INNER, WIDTH))):
        tensors[f"h.{layer}.{name}.weight"] = draw(*shape, spread=0.2)
        tensors[f"h.{layer}.{name}.bias"] = draw(shape[1])
    for name in ("ln_1", "ln_2"):
        tensors[f"h.{layer}.{name}.weight"] = draw(WIDTH, spread=0.2, mean=1.0)
        tensors[f"h.{layer}.{name}.bias"] = draw(WIDTH, spread=0.1)
tensors["ln_f.weight"], tensors["ln_f.bias"] = draw(WIDTH, mean=1.0), draw(WIDTH)

config = {"model_type": "gpt2", "architectures": ["GPT2Model"], "n_embd": WIDTH, "n_head": HEADS,
          "n_layer": LAYERS, "n_inner": INNER, "n_positions": POSITIONS, "vocab_size": TOKENS, "dtype": "float32",
          "bos_token_id": 0, "eos_token_id": 0}
folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
(folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
