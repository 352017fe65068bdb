# SPDX-License-Identifier: Apache-2.0
"""Attention modules of transformers, with the sizes of published models and random weights: the folders
that attnd serves, and the modules themselves. For families whose layers family_layers.py does not repeat."""

import importlib
import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

from problems import Unavailable
from safetensors_file import write_safetensors


class Module(NamedTuple):
    model_type: str
    file: str  # modeling_FILE.py
    name: str  # its classes are NAMEAttention and ROTARYRotaryEmbedding
    rotary: str
    kind: str = "full_attention"
    config: dict = {}


MODULES = {
    "qwen3_5": Module("qwen3_5_text", "qwen3_5", "Qwen3_5", "Qwen3_5Text"),
    "gemma4": Module("gemma4_text", "gemma4", "Gemma4Text", "Gemma4Text"),
    "deepseek_v3": Module("deepseek_v3", "deepseek_v3", "DeepseekV3", "DeepseekV3"),
}


class ModuleProblem(NamedTuple):
    """A module, the folder that attnd serves, and its input [1, T, width]."""
    name: str
    folder: str
    queries: np.ndarray


def import_torch():
    try:
        import torch
        import transformers
    except ImportError as error:
        raise Unavailable(f"{error}; install torch and transformers") from error
    torch.set_grad_enabled(False)
    return torch, transformers


def make_module_config(name):
    """Returns the config of one layer. What it does not set are the defaults of the family."""
    _, transformers = import_torch()
    module = MODULES[name]
    options = {} if module.model_type == "deepseek_v3" else {"layer_types": [module.kind]}
    return transformers.AutoConfig.for_model(module.model_type, num_hidden_layers=1, **options, **module.config)


def make_layer(name, config):
    """Returns the module, whose weights are the same each time."""
    torch, _ = import_torch()
    module = MODULES[name]
    classes = importlib.import_module(f"transformers.models.{module.file}.modeling_{module.file}")
    layer = getattr(classes, f"{module.name}Attention")(config, layer_idx=0).eval()
    torch.manual_seed(20170612)
    for parameter in layer.parameters():
        scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.1
        parameter.data = scale * torch.randn(parameter.shape) + (0.3 if parameter.dim() == 1 else 0)
    return layer, getattr(classes, f"{module.rotary}RotaryEmbedding")(config)


def make_module_problem(name, folder, length):
    rng = np.random.default_rng(length)
    return ModuleProblem(name, folder, rng.normal(size=(1, length, make_module_config(name).hidden_size)).astype("f4"))


def write_module_folder(folder, name):
    """Writes the folder of a layer that attnd serves."""
    config = make_module_config(name)
    layer, _ = make_layer(name, config)
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    write_safetensors(Path(folder) / "model.safetensors", {
        f"model.layers.0.self_attn.{key}": tensor.numpy() for key, tensor in layer.state_dict().items()})


def make_transformers_module(problem, threads, rows, attention, precision="float32"):
    """Runs a module with `attention`: "eager" or "sdpa"."""
    torch, transformers = import_torch()
    torch.set_num_threads(threads)
    config = make_module_config(problem.name)
    config._attn_implementation = attention
    layer, rotary = make_layer(problem.name, config)
    layer = layer.to(getattr(torch, precision))
    inputs = torch.from_numpy(problem.queries).to(getattr(torch, precision))
    length = inputs.shape[1]
    kind = [MODULES[problem.name].kind] if problem.name == "gemma4" else []
    options = {"position_embeddings": rotary(inputs, torch.arange(length)[None], *kind), "attention_mask": None}
    if problem.name == "gemma4":
        options["shared_kv_states"] = {}
    if attention == "eager":
        options["attention_mask"] = torch.full((length, length), -torch.inf).triu(1)[None, None]
    outputs = None

    def run():
        nonlocal outputs
        outputs = layer(inputs, **options)[0]

    return (run, lambda: outputs[0].numpy()[rows],
            f"transformers {transformers.__version__} {attention} on PyTorch {torch.__version__.split('+')[0]}")


def compute_module_rows(problem, rows):
    """Returns the outputs of some rows in float64, by the module itself."""
    run, outputs, _ = make_transformers_module(problem, os.cpu_count(), rows, "sdpa", "float64")
    run()
    return outputs()
