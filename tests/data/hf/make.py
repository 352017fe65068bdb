# SPDX-License-Identifier: Apache-2.0
"""Makes a tiny checkpoint, with what transformers computes: make.py MODEL_TYPE TARGET [KEY=JSON...].

It needs torch and transformers, on your machine only. A KEY sets one of config.json, such as
hidden_size=48 or layer_types='["full_attention"]'. The names of modules are those of Llama;
--names q_proj=self.query,o_proj=output.dense replaces some. They are paths from the module that
returns the weights. Where one weight makes queries, keys and values, all three have its name.
reduce.py takes the folder TARGET/MODEL_TYPE into the data."""

import argparse
import json
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel

NAMES = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "o_proj", "norm": "input_layernorm"}
TINY = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
        "vocab_size": 97, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TOKENS = 13


def draw(model):
    """Draws every parameter, so that leaving one out shows: norms around 1, biases around 0."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        scale = 1.5 * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
        middle = 1.0 if parameter.dim() == 1 and name.endswith("weight") else 0.0
        parameter.data = middle + scale * torch.randn_like(parameter)


def part_of(name, config):
    """Returns what attnd calls the layer of a module, such as 0, encoder.1, decoder.1.cross or text.0."""
    stacks = {"is_encoder_decoder": "encoder|decoder", "vision_config": "text|vision"}
    stack = next((re.search(words, name) for key, words in stacks.items() if getattr(config, key, None)), None)
    cross = ".cross" if re.search(r"cross|encoder_attn|EncDec", name) else ""
    number = re.search(r"\.(\d+)\.", name)
    return f"{stack[0] + '.' if stack else ''}{number[1]}{cross}"


def find(module, paths):
    """Returns the modules at the paths inside a module; None where one is missing."""
    try:
        return {key: module.get_submodule(path) for key, path in paths.items() if key != "norm"}
    except AttributeError:
        return None


def record(model, names):
    """Hooks the attention and the norm before it; returns the dict that running the model fills."""
    cases = {}

    def keep(part, kind, tensor):
        cases.setdefault(f"{part}/{kind}", tensor.detach().to(torch.float32).contiguous())

    for name, module in model.named_modules():
        inside = find(module, names)
        if inside:
            part = part_of(name + ".", model.config)
            for kind, key in ("queries", "q_proj"), ("keys", "k_proj"), ("values", "v_proj"), ("heads", "o_proj"):
                inside[key].register_forward_pre_hook(
                    lambda _, args, part=part, kind=kind: keep(part, kind, args[0]))
            inside["o_proj"].register_forward_hook(
                lambda _, args, output, part=part: keep(part, "outputs", output))
            module.register_forward_hook(lambda _, args, output, part=part: keep(part, "weights", output[-1]))
        elif name.endswith("." + names["norm"]):
            module.register_forward_pre_hook(
                lambda _, args, part=part_of(name, model.config): keep(part, "hidden", args[0]))
    return cases


def is_needed(name, cases):
    """Returns whether a tensor says more than the others: keys are queries, and values keys, where they are missing."""
    part, _, kind = name.rpartition("/")
    same = {"keys": "queries", "values": "keys"}.get(kind)
    return f"{part}/queries" in cases and not (same and torch.equal(cases[name], cases[f"{part}/{same}"]))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("type")
    parser.add_argument("target", type=Path)
    parser.add_argument("changes", nargs="*")
    parser.add_argument("--names", default="")
    options = parser.parse_args()
    changes = {key: json.loads(value) for key, value in (change.split("=", 1) for change in options.changes)}
    names = NAMES | dict(pair.split("=") for pair in options.names.split(",") if pair)

    model = AutoModel.from_config(AutoConfig.for_model(options.type, **TINY | changes), attn_implementation="eager")
    draw(model)
    folder = options.target / options.type
    model.save_pretrained(folder)
    cases = record(model.double().eval(), names)
    with torch.no_grad():
        tokens = {"input_ids": torch.randint(3, 97, (2, TOKENS))}
        if model.config.is_encoder_decoder:
            tokens["decoder_input_ids"] = torch.randint(3, 97, (2, 9))
        model(**tokens, output_attentions=True)
    cases = {name: tensor for name, tensor in cases.items() if is_needed(name, cases)}
    if not cases:
        parser.error(f"no module has {names}: give --names")
    save_file(cases, folder / "cases.safetensors")
    print("\n".join(f"{name} {list(tensor.shape)}" for name, tensor in cases.items()))


if __name__ == "__main__":
    main()
