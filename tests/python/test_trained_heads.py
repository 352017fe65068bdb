# SPDX-License-Identifier: Apache-2.0
"""The tags of heads of trained models, whose queries and keys are recorded in tests/data."""

import json

import numpy as np
import pytest
from attnd._safetensors import read_safetensors
from attnd.attention import heads

from server import ROOT

# What each head has: layer, or pass, and head; a weak tag is in brackets.
EXPECTED = {
    "smollm2": {"18.6": "first token 0.74, induction 0.52", "17.3": "first token 0.63, induction 0.73",
                "17.4": "first token 0.78, induction 0.55", "0.1": "(duplicate 0.12)"},
    "rxn": {"10.5": "(same token 0.47)", "0.3": "previous 0.98", "0.0": "2 after 0.67"},
    "iglm": {"0.2": "2 before 0.93", "0.3": "3 before 0.93", "0.7": "4 before 0.51", "1.0": "(first token 0.46)"},
    "iglm_s": {"0.0": "2 before 0.97", "0.1": "3 before 0.59"},
    "antiberty": {"1.2": "(previous 0.41)", "0.4": "(previous 0.26)", "7.7": "(spread 0.90)"},
    "minilm": {"0.2": "previous 0.79", "0.7": "(spread 0.97)", "2.9": "(same token 0.41)"},
    "whisper": {"0.0": "self 0.96", "0.2": "previous 0.99", "1.5": "first token 0.68, induction 0.80"},  # no threshold's
}


def describe(model, ids):
    """Returns the printed tags of each recorded head."""
    tensors, metadata = read_safetensors(ROOT / f"tests/data/trained-heads/{model}.safetensors")
    options = {"token_ids": np.array(json.loads(metadata["token_ids"]))} if ids else {}
    found = {}
    for layer in json.loads(metadata["layers"]):
        found[layer], = heads(*(tensors[f"{layer}.{name}"].astype(np.float32) for name in ("queries", "keys")),
                              scale=json.loads(metadata[f"{layer}.scale"]),
                              causal=json.loads(metadata[f"{layer}.causal"]), **options)["tags"]
    return found


@pytest.mark.parametrize("model", EXPECTED)
def test_trained_heads_are_named_for_what_they_do(model):
    assert describe(model, True) == EXPECTED[model]


def test_tags_of_tokens_need_ids():
    """Without them nothing says that queries and keys are the same tokens."""
    assert describe("smollm2", False)["18.6"] == "first token 0.74"
