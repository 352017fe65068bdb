# SPDX-License-Identifier: Apache-2.0
"""One file for a text: queries, keys, hidden states, token ids, tokens and targets, and what takes it."""

import json
import subprocess

import attnd
import numpy as np
import pytest
import safetensors.numpy

from captures import FOLDER
from folders import FOLDERS
from head_lines import error_of, run_heads, table
from server import BINARY, ROOT, Server

TINY = ROOT / "docs/examples/tiny-gpt2"
VLLM = FOLDER / "vllm-hidden-states/qwen3-float32.safetensors"
RNG = np.random.default_rng(11)


def normal(*shape):
    return RNG.normal(size=shape).astype("f4")


def make_captured(num_states=2):
    """Returns a capture of the small model's text, with hidden states of its layers and all else."""
    captured = attnd.open(TINY / "capture.safetensors")
    count = len(captured.tokens)
    captured.hidden_states = [normal(count, 64) for _ in range(num_states)]
    captured.token_ids = np.arange(count) % 7
    captured.targets = np.array([[0, 0], *([0, i] for i in range(1, count))])
    return captured


@pytest.fixture
def path(tmp_path):
    make_captured().save(tmp_path / "text.safetensors")
    return tmp_path / "text.safetensors"


@pytest.fixture(scope="module")
def client():
    with Server("--capture-memory", "16MiB") as running:
        yield attnd.Client(running.url)


def without(head, *names):
    return {name: value for name, value in head.items() if name not in names}


# --- the file ---

def test_file_has_all_and_is_loaded_as_it_was(path, tmp_path):
    captured, loaded = make_captured(), attnd.open(path)
    assert list(loaded.layers) == ["0", "1"] and loaded.tokens == captured.tokens and loaded.hidden_ids == [0, 1]
    assert loaded.hidden_states.shape == (2, 31, 64) and loaded.hidden_states.dtype == np.float32
    assert np.array_equal(loaded.token_ids, captured.token_ids) and np.array_equal(loaded.targets, captured.targets)
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    names = set(safetensors.numpy.load_file(path))
    assert names == {"0.queries", "0.keys", "1.queries", "1.keys", "token_ids", "targets", "hidden_states"}


def test_states_of_vllm_are_a_capture_that_says_what_it_lacks():
    captured = attnd.open(VLLM)
    assert not captured.layers and captured.hidden_states.shape[1] == 2 and len(captured.token_ids) == 13
    for ask in (lambda: captured.attend(0), captured.heads, captured.show, captured.put):
        with pytest.raises(attnd.CaptureError, match="has hidden_states alone, no queries and keys; the folder of the model"):
            ask()
    hidden, ids = attnd.read_hidden_states(VLLM, [3, 5])
    assert np.array_equal(hidden[5], captured.hidden_states[:, 1]) and np.array_equal(ids, captured.token_ids)


def test_axes_of_one_and_tokens_without_a_target_are_taken(tmp_path):
    captured = make_captured()
    captured.token_ids, captured.targets = captured.token_ids[np.newaxis], [None, *captured.targets[1:].tolist()]
    captured.save(tmp_path / "text", sequence=-1)
    assert attnd.open(tmp_path / "text").to_bytes() == (tmp_path / "text").read_bytes()
    assert attnd.open(tmp_path / "text").targets[0].tolist() == [0, 0]
    assert attnd.open(tmp_path / "text").token_ids.shape == (31,)


# --- what the heads of a folder do with it ---

@pytest.mark.parametrize("num_states", [2, 3])
def test_folder_takes_the_file_the_capture_and_the_arrays_alike(num_states, tmp_path):
    """The third state leaves the last layer."""
    captured, model = make_captured(num_states), attnd.load(TINY)
    captured.token_ids = None  # which arrays do not bring
    captured.save(tmp_path / "text")
    wanted = model.heads(captured.hidden_states, targets=captured.targets)
    for given in (captured, tmp_path / "text", attnd.open(tmp_path / "text")):
        table = model.heads(given)
        assert table.replies == wanted.replies and list(table.replies) == ["0", "1"] and "target" in table.columns
    one = model.heads(attnd.open(tmp_path / "text"), ids=range(num_states)) if num_states == 2 else None
    assert one is None or one.replies == wanted.replies


def test_heads_of_one_layer_of_a_capture():
    captured = make_captured(2)
    name = [*captured.layers][1]
    for layers in (name, [name], int(name)):
        assert list(captured.heads(layers=layers).replies) == [name]
    with pytest.raises(attnd.Error, match="17"):
        captured.heads(layers="17")
    assert repr(captured) == f"<captured layers {', '.join(captured.layers)}, hidden_states>"


def test_token_ids_of_the_file_are_those_of_its_rows(tmp_path):
    captured, model = make_captured(2), attnd.load(TINY)
    captured.save(tmp_path / "text")
    table = model.heads(tmp_path / "text")
    for layer, rows in zip(model, captured.hidden_states):
        wanted = layer.heads(np.asarray(rows), token_ids=captured.token_ids, targets=captured.targets)
        reply = table.replies[layer.name]
        assert reply["heads"] == wanted.replies[layer.name]["heads"]


def test_targets_of_a_call_go_before_those_of_the_file(path):
    own = [[0, 31]] * 31
    assert np.allclose(attnd.load(TINY).heads(path, targets=own)["target"], 1)


def test_command_takes_the_file_with_and_without_a_folder(path):
    alone, folder = run_heads("--data", path), run_heads(TINY, "--data", path)
    for result in (alone, folder):
        assert (result.returncode, result.stderr) == (0, ""), result
        assert len(table(result.stdout, "layer ")) == 8 and "target" in result.stdout.splitlines()[0]
    assert "importance" in folder.stdout and "importance" not in alone.stdout


@pytest.mark.parametrize("arguments, words", [
    (lambda path: (TINY, "--data", TINY / "capture.safetensors"), "has no hidden_states, which the layers of a folder take"),
    (lambda path: ("--data", VLLM), "has hidden_states alone"),
    (lambda path: (TINY, "--data", VLLM), "ids are missing"),
    (lambda path: ("--data", path, "--ids", "0,1"), "or no folder is named"),
    (lambda path: (f"{FOLDERS / '../golden/torch_packed.safetensors'},num_heads=6", "--data", path), "is one layer; name the folder")])
def test_what_a_file_lacks_is_said(path, arguments, words):
    assert words in error_of(run_heads(*arguments(path)))


# --- what the capture's own heads do ---

def test_heads_are_the_same_from_the_process_and_from_a_server(client):
    captured = make_captured()
    name = captured.put(client)
    for layer, reply in captured.heads().replies.items():
        kept, gram = client.heads(capture=name, layer=layer)
        assert gram is None and len(kept) == len(reply["heads"]) == 4
        for got, head in zip(kept, reply["heads"]):
            assert got == head
            assert head["mass_on_target"] == pytest.approx(1 - head["mass_on_self"] * 31 / 30 + 1 / 30, abs=1e-4)


def test_captured_heads_have_tags():
    """Queries that look one token back, and others at the first token."""
    count = 20
    places = np.eye(count, dtype="f4")
    queries = np.stack([np.roll(places, -1, 1), places[[0] * count]], 1) * 50
    keys = np.stack([places, places], 1)
    request = {"queries": queries, "keys": keys, "causal": True, "scale": 1.0}
    captured = attnd.Captured({"decoder.0": [dict(request)], "decoder.0.cross": [dict(request, causal=False)]})
    table = captured.heads()
    assert list(table["tags"][:2]) == ["previous 1.00", "first token 1.00"]
    assert not np.isnan(table["self"][:2]).any() and np.isnan(table["self"][2:]).all()
    assert "previous" not in ", ".join(table["tags"][2:])


def test_ids_and_targets_are_those_of_the_last_text():
    request = {"queries": normal(5, 2, 4), "keys": normal(5, 2, 4)}
    short = {"queries": normal(3, 2, 4), "keys": normal(3, 2, 4)}
    captured = attnd.Captured({"encoder.0": [request], "decoder.0": [request], "decoder.1": [short], "decoder.1.cross": [request]})
    captured.token_ids, captured.targets = range(5), [[0, 1]] * 5
    assert ["token_ids" in captured.request(layer) for layer in captured.layers] == [False, True, False, False]
    assert ["self_attention" in captured.request(layer) for layer in captured.layers] == [True, True, True, False]
    assert [reply["heads"][0]["mass_on_target"] is not None for reply in captured.heads().replies.values()] == [
        False, True, False, False]


def test_request_brings_what_the_capture_knows_of_its_tokens(path):
    captured = attnd.open(path)
    captured.targets = None
    for layer, reply in captured.heads().replies.items():
        assert attnd.heads(**captured.request(layer)).replies[""]["heads"] == reply["heads"]
        assert attnd.dot_product(**captured.request(layer))["weights"].tobytes() == captured.attend(layer).tobytes()
    with pytest.raises(TypeError, match="mappingproxy"):
        captured.request(1)["window"] = 3  # which would change nothing
    captured.layers["1"][0]["window"] = 3
    assert captured.request(1)["window"] == 3


def test_targets_that_are_all_empty_are_said_to_be(path):
    captured = attnd.open(path)
    captured.targets = [None] * 31
    with pytest.raises(attnd.Error, match="no column 'target' .*: no query has a target; send targets that are not all empty; "):
        captured.heads().sort("target")


def test_rows_are_chosen_by_tag_and_layer(path):
    table = attnd.open(path).heads()
    weak = table.where("first token", weak=True)
    assert 0 < len(weak) < len(table) == 8 and all("first token" in tags for tags in weak["tags"])
    assert len(table.where("first token")) == sum("first token" in f" {tags}" and "(first token" not in tags for tags in table["tags"])
    assert repr(table.where(layer=1)) == repr(table[table["layer"] == "1"]) and len(table.where(layer=1)) == 4
    assert len(table.where("token", weak=True)) == len(table.where("induction", layer="7")) == 0


def test_argument_that_is_wrong_is_named_as_it_was_written(path, client):
    captured = attnd.open(path)
    for kept in (False, True):
        with pytest.raises(attnd.Error, match=r"Out of range: heads\[0\] is 99, but there are 4 heads"):
            captured.attend(1, heads=[99])
        with pytest.raises(attnd.Error, match=r"Out of range: queries\[0\] is 99"):
            captured.attend(1, queries=[99])
        if not kept:
            captured.put(client)


def test_file_that_exists_is_replaced_where_that_is_said(path):
    before, captured = path.read_bytes(), make_captured()
    captured.tokens = None
    with pytest.raises(OSError, match="text.safetensors exists already; choose another name, or say overwrite=True"):
        captured.save(path)
    assert path.read_bytes() == before
    captured.save(path, overwrite=True)
    assert path.read_bytes() == captured.to_bytes() and list(path.parent.iterdir()) == [path]


def test_server_keeps_no_hidden_states_and_says_so(client, path):
    described = client.put_capture("text", path)
    assert described["left_out"] == ["hidden_states"]
    assert all(layer["token_ids"] and layer["targets"] for layer in described["layers"])
    with pytest.raises(attnd.AttentionError, match="Missing key: the file has hidden_states and no layers"):
        client.put_capture(None, VLLM)


# --- attnd inspect ---

def inspect(path):
    return subprocess.run([BINARY, "inspect", path], capture_output=True, text=True, timeout=60)


def test_inspect_says_what_a_file_has_and_lacks(path):
    whole, bare, states = inspect(path), inspect(TINY / "capture.safetensors"), inspect(VLLM)
    for result in (whole, bare, states):
        assert (result.returncode, result.stderr) == (0, ""), result
    assert "a capture of 2 layers; put it, or drop it on the page\n" in whole.stdout
    assert "  0                4 heads, 4 of keys, of size 16; 31 queries, 31 keys\n" in whole.stdout
    assert "  hidden_states    [2,31,64]\n" in whole.stdout and "none" not in whole.stdout
    assert bare.stdout.count("none: ") == 3 and "hidden_states    none: no layers of a folder" in bare.stdout
    assert "hidden states; python3 -m attnd heads FOLDER takes it as --data\n" in states.stdout
    assert "targets          none: no column target" in states.stdout


def test_inspect_says_what_is_wrong_with_a_capture(tmp_path):
    tensors = {"0.queries": normal(3, 2, 4), "x": normal(2)}
    for layers, words in ((["0"], "'0.keys' is missing"), ([], "'layers' in __metadata__")):
        safetensors.numpy.save_file(tensors, tmp_path / "x", {"layers": json.dumps(layers)})
        result = inspect(tmp_path / "x")
        assert result.returncode == 1 and words in result.stderr and result.stdout == ""
