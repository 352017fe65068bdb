# SPDX-License-Identifier: Apache-2.0
"""The attention weights of a model that runs with a fast kernel: its hidden states go to attnd.

What one sees: GPT-2 computes with `sdpa`, which returns no weights. attnd replies with them, and with the
outputs of the layer, as `eager` has them, to about 1e-6. What attnd gets is found in two ways: hooks take
what goes into the layer, and output_hidden_states what is before its norm. The checkpoint is tiny-gpt2,
beside this script. Without PyTorch and transformers, what they computed is read from recorded.safetensors.

    python3 docs/examples/hidden_states.py [--record]"""

import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

from numpy_attention import difference
from serve import serve

FOLDER = pathlib.Path(__file__).parent / "tiny-gpt2"
RECORDED = FOLDER / "recorded.safetensors"
TEXT = b"Attention is a soft dictionary."


def run_model(kernel):
    """Returns what GPT-2 computes for the text: for each layer N the input of its attention by a hook as
    "N/queries", hidden_states[N] as "N/hidden", the outputs of its attention, and of `eager` the weights."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(FOLDER, attn_implementation=kernel).eval()
    found = {}
    for number, block in enumerate(model.h):
        block.attn.c_attn.register_forward_hook(
            lambda _, inputs, outputs, number=number: found.update({f"{number}/queries": inputs[0]}))
        block.attn.register_forward_hook(
            lambda _, inputs, outputs, number=number: found.update({f"{number}/outputs": outputs[0]}))
    with torch.no_grad():
        result = model(torch.tensor([list(TEXT)]), output_hidden_states=True,
                       output_attentions=kernel == "eager")
    for number in range(len(model.h)):
        found[f"{number}/hidden"] = result.hidden_states[number]
        if kernel == "eager":
            found[f"{number}/weights"] = result.attentions[number]
    return {name: tensor.numpy() for name, tensor in found.items()}


def load_recorded():
    """Returns what `sdpa` and what `eager` computed when it was recorded."""
    recorded = load_file(RECORDED)
    return [{name.removeprefix(f"{kernel}/"): tensor for name, tensor in recorded.items()
             if name.startswith(kernel)} for kernel in ("sdpa", "eager")]


try:
    source, (fast, eager) = "transformers", [run_model(kernel) for kernel in ("sdpa", "eager")]
except ImportError:
    source, (fast, eager) = "recorded", load_recorded()
if "--record" in sys.argv:
    save_file({f"{kernel}/{name}": np.ascontiguousarray(tensor)
               for kernel, found in (("sdpa", fast), ("eager", eager)) for name, tensor in found.items()}, RECORDED)

print(f"{source}: {len(TEXT)} tokens")
with serve(f"tiny={FOLDER}", f"normed={FOLDER},pre_norm=false") as client:
    for number in range(2):
        for way, model, rows in ("hook", "normed", "queries"), ("hidden_states", "tiny", "hidden"):
            outputs, weights = client.attend(f"{model}.{number}", fast[f"{number}/{rows}"], need_weights=True)
            print(f"layer {number}, {way}: outputs {difference(outputs, eager[f'{number}/outputs']):.1e}, "
                  f"weights {difference(weights, eager[f'{number}/weights']):.1e} from eager")
    head = weights[0, 2]  # of layer 1, for the text: [queries, keys]
for query in (12, 30):
    keys = np.argsort(head[query])[:-4:-1]
    print(f"head 2 of layer 1, byte {query} {chr(TEXT[query])!r}:",
          ", ".join(f"{head[query, key]:.2f} on {key} {chr(TEXT[key])!r}" for key in keys))
