# SPDX-License-Identifier: Apache-2.0
"""attnd.load(): layers of files and folders compute what the server computes."""

import gc
import multiprocessing
import pickle
import shutil
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import attnd
import numpy as np
import pytest

from checkpoints import write_layer
from folders import FOLDERS
from safetensors_file import read_safetensors
from server import ROOT

GPT2 = ROOT / "docs/examples/tiny-gpt2"


@pytest.fixture(name="rows", scope="module")
def make_rows():
    width = attnd.load(GPT2)[0].info["query_size"]
    return np.random.default_rng(1).normal(size=(2, 6, width)).astype(np.float32)


def test_layer_is_what_the_server_serves(rows, start_server):
    served = start_server("--model", f"m={GPT2}")
    client = attnd.Client(served.url)
    for layer in attnd.load(GPT2):
        words = ["outputs", "weights", "heads", "lse", "received", "contributions"]
        here = layer(rows, need=words, valid_lens=[4, 6], causal=True)
        there = client.attend(f"m.{layer.name}", rows, need=words, valid_lens=[4, 6], causal=True)
        assert list(here) == words
        for word in words:
            assert here[word].tobytes() == there[word].tobytes(), word
        info = served.get(f"/v1/models/m.{layer.name}").json()
        of_server = {"name", "fingerprint", "loaded"}  # of what was loaded
        assert {key: layer.info[key] for key in info.keys() - of_server} \
            == {key: info[key] for key in info.keys() - of_server}


def test_projections_are_three_arrays(rows):
    layer = attnd.load(GPT2)[0]
    queries, keys, values = layer([rows[0, :4], rows[1]], keys=[rows[0], rows[1, :3]], need="projections")["projections"]
    heads = layer.info["num_heads"]
    assert [part.shape[:2] for part in (*queries, *keys, *values)] == [(n, heads) for n in (4, 6, 6, 3, 6, 3)]
    alone = layer(rows[0, :1], need=["heads", "projections"])  # a key gets all the weight
    assert np.allclose(alone["heads"], alone["projections"][2], atol=1e-5)


def test_layers_are_found_by_name_and_place(rows):
    model = attnd.load(GPT2)
    assert model["0"].index == model[0].index == 0 and model[-1].name == list(model)[-1].name == str(len(model) - 1)
    for place in (len(model), -len(model) - 1):
        with pytest.raises(IndexError, match=f"tiny-gpt2 has no layer {place}; it has 0, 1$"):
            model[place]
    assert model.family == "gpt2" and "gpt2" in repr(model) and "layer 0" in repr(model[0])
    with pytest.raises(KeyError, match="has no layer '99'; it has 0"):
        model["99"]
    one = attnd.load(str(FOLDERS / "whisper"), layer="decoder.0.cross")
    assert [layer.name for layer in one] == ["decoder.0.cross"]


def test_outputs_alone_are_an_array_and_a_ragged_batch_a_list(rows):
    layer = attnd.load(GPT2)[0]
    outputs = layer(rows)
    assert outputs.shape == rows.shape and outputs.dtype == np.float32
    parts = layer([rows[0, :4], rows[1]])
    assert [part.shape[0] for part in parts] == [4, 6] and np.array_equal(parts[1], outputs[1])
    assert layer(rows[0].tolist()).shape == outputs[0].shape


def test_file_takes_the_options_of_model(tmp_path):
    write_layer(tmp_path / "layer", num_heads=4, head_size=3, query_size=6)
    layer = attnd.load(tmp_path / "layer", num_heads=2, causal=True, context_length=5)[0]
    assert (layer.name, layer.num_heads, layer.info["causal"], layer.model.family) == ("model", 2, True, None)
    with pytest.raises(ValueError, match="7"):
        layer(np.ones((7, 6)))


@pytest.mark.parametrize("path, options, error, words", [
    ("/nonexistent", {}, OSError, "cannot be opened"), (ROOT / "src", {}, ValueError, "config.json"),
    (GPT2, {"layer": "9"}, ValueError, "there is no layer=9"), (GPT2, {"colour": 1}, ValueError, "colour"),
    (GPT2, {"num_heads": 2}, ValueError, "comes from its config.json"), (GPT2, {"precision": "f8"}, ValueError, "precision"),
    (ROOT / "README.md", {}, ValueError, "README.md")])
def test_what_cannot_be_opened_says_why(path, options, error, words):
    with pytest.raises(error, match=words) as caught:
        attnd.load(path, **options)
    assert isinstance(caught.value, attnd.Error)


def test_folder_that_is_replaced_is_an_error(tmp_path, rows):
    shutil.copytree(GPT2, tmp_path / "m")
    model = attnd.load(tmp_path / "m")
    before = model[0](rows)
    weights = tmp_path / "m/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + bytes(8))
    assert np.array_equal(model[0](rows), before)  # which is in memory
    with pytest.raises(OSError, match="was replaced since it was opened"):
        model[1](rows)


def test_threads_and_forks_get_the_same_bytes(rows):
    model = attnd.load(GPT2)
    expected = [layer(rows).tobytes() for layer in attnd.load(GPT2)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda i: model[i % len(model)](rows).tobytes(), range(32)))
    assert found == [expected[i % len(model)] for i in range(32)]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(compute_in_child, (rows,)) == expected[0]


def compute_in_child(rows):
    return attnd.load(GPT2)[0](rows).tobytes()


def test_weights_go_with_the_last_layer(rows):
    """At once, and not when the collector finds a circle."""
    layer = attnd.load(GPT2)[0]
    layer(rows)
    opened = weakref.ref(layer.model)
    gc.disable()
    try:
        del layer
        assert opened() is None
    finally:
        gc.enable()


def test_layers_stay_in_their_process():
    with pytest.raises((TypeError, pickle.PicklingError, ValueError)):
        pickle.dumps(attnd.load(GPT2)[0])


def test_note_of_a_reply_is_a_warning_where_attnd_was_called(start_server):
    """Of rows whose norm was applied already; once more it leaves them in the wrong place."""
    model = attnd.load(GPT2)
    width = model[0].info["query_size"]
    rows = np.random.default_rng(2).normal(size=(8, width))
    rows = (rows - rows.mean(1, keepdims=True)) / rows.std(1, keepdims=True)
    weights = read_safetensors(GPT2 / "model.safetensors")
    rows = rows * weights["h.0.ln_1.weight"] + weights["h.0.ln_1.bias"]
    url = start_server("--model", f"m={GPT2}").url
    clients = [attnd.Client(url), attnd.Client(url, json=True)]
    calls = [lambda: model[0](rows), lambda: model[0].heads(rows),
             *(lambda client=client: client.attend("m.0", rows) for client in clients),
             *(lambda client=client: client.heads("m.0", rows) for client in clients)]
    for call in calls:
        with pytest.warns(UserWarning, match="applied again; send hidden states") as found:
            call()
        assert [warning.filename for warning in found] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attnd.load(GPT2, pre_norm=False)[0](rows)
