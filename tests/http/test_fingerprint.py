# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of a model, and when it was loaded: /v1/models, the index, metrics and attnd inspect."""

import re
import time

import numpy as np
import pytest
import requests

from checkpoints import write_layer
from reload import reload, replace
from safetensors_file import write_safetensors
from scrape import Scrape, wait_for_scrape
from server import ROOT, run_attnd, skip_without

# The same on every CPU, as the files in src/weights/demo are.
DEMO = {"journey": "b5e9330e1846859f377ab2ab385c6c23", "d2l": "300a5abbc08141776bb0b2f4daa68692",
        "patterns": "f69ba4d5b9d0b345d1724fcd9c42cc6f", "stacked": "41179f64b78eba6e84a9d36c0e01429a"}


def served(server):
    """Returns {model: (fingerprint, time)}, which all places agree on."""
    models = {model["name"]: (model["fingerprint"], model["loaded"]) for model in server.get("/v1/models").json()["models"]}
    listed = requests.post(f"{server.url}/v2/repository/index", timeout=60).json()
    assert {entry["name"]: (entry["fingerprint"], entry["loaded"]) for entry in listed if "loaded" in entry} == models
    scrape = Scrape(server)
    for name, (fingerprint, loaded) in models.items():
        labels = scrape.all("attnd_model_info", model=name)[0].labels
        assert (labels["fingerprint"], int(labels["loaded"])) == (fingerprint, loaded)
    return models


def inspected(path):
    result = run_attnd("inspect", path)
    assert result.returncode == 0, result
    return re.findall(r"fingerprint +([0-9a-f]{32})$", result.stdout, re.M)


@pytest.mark.parametrize("options", [[], ["--cpu", "portable"], ["--engine", "openblas"], ["--precision", "bf16"]])
def test_demo_models_have_theirs_whatever_computes_them(start_server, options):
    skip_without(*options)
    begin = int(time.time())
    models = served(start_server("--demo", *options))
    assert {name: fingerprint for name, (fingerprint, _) in models.items()} == DEMO
    assert all(begin <= loaded <= time.time() for _, loaded in models.values())


@pytest.mark.parametrize("name", DEMO)
def test_inspect_has_that_of_the_server(name):
    assert inspected(ROOT / f"src/weights/demo/{name}.safetensors") == [DEMO[name]]


def write_file(path, seed=1, change=0.0, **metadata):
    rng = np.random.default_rng(seed)
    weights = {f"W_{name}.weight": rng.standard_normal((12, 12)).astype(np.float32) for name in "qkvo"}
    weights["W_k.weight"][7, 3] += change
    write_safetensors(path, weights, "F32", {"num_heads": "2"} | metadata)


def test_one_weight_or_option_makes_another_one(tmp_path):
    path = tmp_path / "a.safetensors"
    made = []
    for case in ({}, {"change": 1e-6}, {"num_heads": "3"}, {"causal": "true"}, {"rope_theta": "10000"},
                 {"rope_theta": "10000", "rope_interleaved": "true"}, {"context_length": "9"}, {"seed": 2}):
        write_file(path, **case)
        made += inspected(path)
    assert len(made) == len(set(made)) == 8, made
    write_file(path, note="nothing computes with this")
    assert inspected(path) == made[:1]  # only what is read counts
    assert inspected(f"{path},num_heads=3") == made[2:3]  # wherever an option is written


def test_layers_of_a_folder_have_their_own():
    made = inspected(ROOT / "tests/data/hf/qwen3")
    assert len(made) == len(set(made)) > 0


def test_reload_changes_the_one_whose_file_changed(start_server, tmp_path):
    for seed, name in enumerate("ab"):
        write_layer(tmp_path / f"{name}.safetensors", 1, 4, 3, seed=seed)
    server = start_server("--model-dir", tmp_path)
    before = served(server)
    scrape = Scrape(server)
    for what in ("models", "keys", "certificate"):
        assert scrape.value("attnd_last_reload_success_timestamp_seconds", what=what) == 0
        assert scrape.value("attnd_last_reload_failure_timestamp_seconds", what=what) == 0

    begin = int(time.time())
    replace(tmp_path / "a.safetensors", lambda path: write_layer(path, 1, 4, 3, seed=7))
    reload(server)
    success, failure = (f"attnd_last_reload_{end}_timestamp_seconds" for end in ("success", "failure"))
    scrape = wait_for_scrape(server, lambda scrape: scrape.value(success, what="models") > 0)
    assert begin <= scrape.value(success, what="models") <= time.time()
    assert scrape.value(failure, what="models") == 0
    after = served(server)
    assert after["b"] == before["b"] and after["a"][0] != before["a"][0] and after["a"][1] >= begin

    replace(tmp_path / "b.safetensors", lambda path: path.write_bytes(b"0123456789"))
    reload(server)
    last = wait_for_scrape(server, lambda scrape: scrape.value(failure, what="models") > 0)
    assert 0 < scrape.value(success, what="models") == last.value(success, what="models") < last.value(failure, what="models")
    assert served(server) == after
