# SPDX-License-Identifier: Apache-2.0
"""Captures sent to POST /v1/attention/dot-product, by JSON and safetensors, have the weights of eager attention."""

import re

import numpy as np
import pytest

from captures import recorded_layers
from server import ROOT, Server

import attnd
from attnd import attention
from attnd import Client

LAYERS = {name: rest for name, *rest in recorded_layers()}
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def server():
    """No model needs to be loaded."""
    with Server() as running:
        yield running


@pytest.mark.parametrize("json", [False, True], ids=["safetensors", "json"])
@pytest.mark.parametrize("name", LAYERS)
def test_replay_has_the_weights_of_eager_attention(server, name, json):
    request, expected, _ = LAYERS[name]
    weights = Client(server.url, json=json).dot_product(**request, need=["weights"])["weights"]
    assert np.abs(weights - expected).max() < TOLERANCE


def test_uses_print_what_the_page_shows(server, monkeypatch, capsys):
    page = (ROOT / "docs/inspect.md").read_text().split("## Thirteen uses")[1]
    monkeypatch.chdir(ROOT)
    for module in (attnd, attention):  # attnd finds its own in the other, when it is first used
        monkeypatch.setattr(module, "dot_product", Client(server.url).dot_product)
    names = {}
    for code, shown in re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", page, re.S):
        exec(code, names)
        printed = capsys.readouterr().out
        assert not shown or printed == shown
