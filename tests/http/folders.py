# SPDX-License-Identifier: Apache-2.0
"""Copies of the folders of tests/data/hf, which tests change."""

import json
import re
import shutil

from safetensors_file import read_safetensors, write_safetensors
from server import ROOT, run_attnd

FOLDERS = ROOT / "tests/data/hf"

# How the refusal of a type or of a key ends: with what works.
REMEDY = "; capture queries and keys, and ask POST /v1/attention/dot-product"


def copy_folder(name, target):
    """Copies a folder of the data, so that a test may spoil it."""
    return shutil.copytree(FOLDERS / name, target / name)


def copy_layers(name, target, count):
    """Copies a folder of one layer, gpt2 or vit, which the copy has `count` times."""
    folder = copy_folder(name, target)
    rewrite(folder, lambda tensors: tensors.update(
        {re.sub(r"(^|\.)0\.", rf"\g<1>{layer}.", key, count=1): tensor
         for key, tensor in [*tensors.items()] for layer in range(count)}))
    change_config(folder, **{"n_layer" if name == "gpt2" else "num_hidden_layers": count})
    return folder


def expected_layers():
    """Returns what layers must be found to be: folder -> part -> features."""
    folders = {}
    for line in (FOLDERS / "EXPECTED").read_text().splitlines():
        name, features = line.split(": ", 1)
        folder, part = name.split(" ")
        folders.setdefault(folder, {})[part] = features
    return folders


def change_config(folder, **changes):
    """Sets keys of config.json; those that become ... are removed."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def refusal_of(*arguments):
    """Returns the only line with which attnd refuses a model, for the exit code of a bad one."""
    result = run_attnd("--check-config", *arguments)
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stderr.startswith("attnd: ") and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def rewrite(folder, change):
    """Lets `change` work on the tensors of model.safetensors."""
    tensors = read_safetensors(folder / "model.safetensors")
    change(tensors)
    write_safetensors(folder / "model.safetensors", tensors, "F32")
