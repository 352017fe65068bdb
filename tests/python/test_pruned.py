# SPDX-License-Identifier: Apache-2.0
"""layer.prune(): heads that are chosen by what they do, and files that compute what head_mask computes."""

import json
import re
import resource
import subprocess
import sys

import attnd
import numpy as np
import pytest
from attnd._safetensors import from_safetensors
from attnd.prune import order_heads

from checkpoints import additive_tensors, random_tensors, write_layer
from folders import FOLDERS, copy_folder
from head_lines import contributions, layer, table  # noqa: F401 (layer: a fixture)
from safetensors_file import parse_safetensors, read_safetensors, write_safetensors
from server import ROOT, Server

LAYOUTS = ("d2l", "torch_split", "llms_from_scratch", "two_stage", "torch_packed", "wrapper")
UNCUT = {"torch_packed": "layout torch cannot have", "wrapper": "no output projection"}
CASES = [f"{layout}{bias}{scoring}" for layout in LAYOUTS for bias in ("", "-bias")
         for scoring in ("", "-additive")]


def make_layer(directory, name):
    """Returns a random layer of a layout, and heads to remove."""
    rng = np.random.default_rng(CASES.index(name))
    layout, *kinds = name.split("-")
    num_heads, head_size = int(rng.integers(2, 7)), int(rng.integers(1, 9))
    tensors = random_tensors(rng, layout, num_heads, head_size, bias="bias" in kinds)
    if layout == "two_stage" and "bias" in kinds:
        for weight in [key for key in tensors if key.endswith(".weight")]:
            tensors[weight.replace(".weight", ".bias")] = rng.normal(size=len(tensors[weight]))
    if "additive" in kinds:
        tensors |= additive_tensors(rng, head_size)
    path = directory / "whole.safetensors"
    write_safetensors(path, tensors)
    options = {"causal": bool(rng.random() < 0.5), "context_length": 9}
    if layout not in ("wrapper", "two_stage"):
        options["num_heads"] = num_heads
    return attnd.load(path, **options)[0], rng.permutation(num_heads)[:rng.integers(1, num_heads)].tolist(), rng


def random_rows(rng, layer):
    return {key: rng.normal(size=(2, tokens, layer.info[f"{size}_size"])).astype(np.float32)
            for key, size, tokens in (("queries", "query", 5), ("keys", "key", 7), ("values", "value", 7))}


def assert_like_head_mask(whole, mask, pruned, rows):
    want, got = whole(**rows, valid_lens=[3, 7], head_mask=mask), pruned(**rows, valid_lens=[3, 7])
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize("name", CASES)
def test_pruned_file_is_like_head_mask(tmp_path, name):
    whole, removed, rng = make_layer(tmp_path, name)
    rows = random_rows(rng, whole)
    pruned = whole.prune(**rows, remove=removed)
    assert pruned.predicted > 0 and abs(pruned.predicted - pruned.measured) <= 1e-5
    assert pruned.kept == [head for head in range(whole.num_heads) if pruned.head_mask[head] == 1]
    path = tmp_path / "pruned.safetensors"
    if name.split("-")[0] in UNCUT:
        with pytest.raises(NotImplementedError, match=UNCUT[name.split("-")[0]]):
            pruned.save(path)
        assert not path.exists()
        return
    pruned.save(path)
    saved = attnd.load(path)[0]
    assert (saved.num_heads, saved.info["layout"]) == (len(pruned.kept), whole.info["layout"])
    assert saved.info["causal"] == whole.info["causal"] and saved.info["context_length"] == 9
    assert_like_head_mask(whole, pruned.head_mask, saved, rows)


def test_pruned_file_has_only_the_rows_and_columns_of_its_heads(tmp_path):
    path, output = tmp_path / "whole", tmp_path / "pruned"
    write_layer(path, num_heads=4, head_size=3, query_size=5, causal="true")
    attnd.load(path)[0].prune(remove=[2, 0]).save(output)
    whole, _ = parse_safetensors(path.read_bytes())
    pruned, metadata = parse_safetensors(output.read_bytes())
    assert metadata == {"num_heads": "2", "causal": "true"}
    kept = [3, 4, 5, 9, 10, 11]
    assert pruned.keys() == whole.keys()
    for name in ("W_q.weight", "W_k.weight", "W_v.weight"):
        assert (pruned[name] == whole[name][kept]).all()
    assert (pruned["W_o.weight"] == whole["W_o.weight"][:, kept]).all()


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F64"])
def test_types_and_other_tensors_stay(tmp_path, dtype):
    """Names of one's own, transposed weights and a tensor that the layer does not read."""
    rng = np.random.default_rng(2)
    tensors = {f"m.{name}.weight": rng.integers(-8, 9, (8, 8)) / 8 for name in ("to_q", "to_k", "to_v", "to_out")}
    path = tmp_path / "whole"
    write_safetensors(path, tensors | {"other": np.ones(3)}, dtype)
    layer = attnd.load(path, prefix="m.", q="to_q", k="to_k", v="to_v", o="to_out", transposed=True, num_heads=4)[0]
    pruned = layer.prune(remove=[3, 1])
    pruned.save(tmp_path / "pruned")
    header = json.loads((tmp_path / "pruned").read_bytes()[8:].split(b"}}")[0] + b"}}")
    assert {entry["dtype"] for name, entry in header.items() if name != "__metadata__"} == {dtype}
    saved = from_safetensors((tmp_path / "pruned").read_bytes())
    assert saved["m.to_q.weight"].shape == (8, 4) and saved["m.to_out.weight"].shape == (4, 8) and len(saved) == 5
    rows = {"queries": rng.normal(size=(2, 7, 8))}
    assert_like_head_mask(layer, pruned.head_mask, attnd.load(tmp_path / "pruned")[0], rows)


def test_server_serves_what_was_saved_without_options(tmp_path, layer):
    pruned = attnd.load(layer[0])[0].prune(layer[1], keep=2)
    pruned.save(tmp_path / "pruned.safetensors")
    rows = layer[3][0]["queries"]
    with Server("--model", f"whole={layer[0]}", "--model", f"pruned={tmp_path / 'pruned.safetensors'}") as server:
        want = server.attention({"model": "whole", "queries": rows, "head_mask": pruned.head_mask.tolist()}).json()
        got = server.attention({"model": "pruned", "queries": rows}).json()
    assert np.abs(np.array(got["outputs"]) - np.array(want["outputs"])).max() <= 1e-6 * np.abs(want["outputs"]).max()


# --- layers of folders ---

def find_removed(whole, cut):
    """Returns what zeros the numbers of `whole` that `cut` does not have: an axis and rows."""
    axis = next((axis for axis in range(whole.ndim) if whole.shape[axis] != cut.shape[axis]), 0)
    kept, rows = 0, []
    for i in range(whole.shape[axis]):
        if kept < cut.shape[axis] and (whole.take(i, axis) == cut.take(kept, axis)).all():
            kept += 1
        else:
            rows.append(i)
    assert kept == cut.shape[axis]
    return axis, rows


FAMILIES = ("llama", "qwen3", "gpt_oss", "phi3", "gpt_neox", "bloom", "gpt2", "bert", "whisper", "olmoe",
            "qwen3_next", "dbrx", "persimmon", "vit", "gptj", "albert", "opt")


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_of_a_folder_lose_what_its_heads_have(tmp_path, family):
    """Zeros in place of what was cut, in the whole folder, are what head_mask computes."""
    folder = copy_folder(family, tmp_path)
    model = attnd.load(folder)
    layer = next(layer for layer in model if layer.num_kv_heads > 1)
    size = layer.num_heads // layer.num_kv_heads
    pruned = layer.prune(remove=range(size, 2 * size))
    try:
        pruned.save(tmp_path / "cut")
    except NotImplementedError as error:
        assert family in ("bloom", "olmoe") and "cannot be cut by heads" in str(error), error
        return
    rows = np.random.default_rng(1).normal(size=(2, 7, layer.info["query_size"]))
    want = layer(rows, head_mask=pruned.head_mask)
    cut = read_safetensors(tmp_path / "cut")
    assert len(cut) >= 2
    for file in folder.glob("model*.safetensors"):
        whole = read_safetensors(file)
        for name in whole.keys() & cut.keys():
            axis, removed = find_removed(whole[name], cut[name])
            zeros = np.swapaxes(whole[name].copy(), 0, axis)
            zeros[removed] = 0
            whole[name] = np.swapaxes(zeros, 0, axis)
        write_safetensors(file, whole)
    got = attnd.load(folder)[layer.name](rows)
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


def test_every_pruned_layer_makes_a_folder_again(tmp_path):
    """A model of transformers takes the tensors so: fewer heads and key heads of the same size."""
    folder = copy_folder("llama", tmp_path)
    model = attnd.load(folder)
    rows = np.random.default_rng(1).normal(size=(3, 6, model[0].info["query_size"]))
    keep = model[0].num_heads - model[0].num_heads // model[0].num_kv_heads
    pruned = [layer.prune(rows, keep=keep, groups=True) for layer in model]
    tensors = read_safetensors(folder / "model.safetensors")
    for number, each in enumerate(pruned):
        each.save(tmp_path / f"{number}")
        tensors |= read_safetensors(tmp_path / f"{number}")
    want = [layer(rows, head_mask=each.head_mask) for layer, each in zip(model, pruned)]

    write_safetensors(folder / "model.safetensors", tensors)
    config = json.loads((folder / "config.json").read_text())
    config |= {"head_dim": model[0].info["head_size"], "num_attention_heads": keep,
               "num_key_value_heads": model[0].num_kv_heads - 1}
    (folder / "config.json").write_text(json.dumps(config))
    for layer, outputs in zip(attnd.load(folder), want):
        assert np.abs(layer(rows) - outputs).max() <= 1e-6 * np.abs(outputs).max()


@pytest.mark.parametrize("family, layer, words", [
    ("t5", "decoder.1", "a bias by distance"), ("mpt", "0", "a bias by distance"), ("olmo2", "0", "norms of all heads"),
    ("bitnet", "0", "a norm of the heads' outputs"), ("deepseek_v3", "0", "latent rows")])
def test_layer_that_cannot_be_cut_is_refused(family, layer, words, tmp_path):
    pruned = attnd.load(FOLDERS / family)[layer].prune(remove=[0])
    with pytest.raises(NotImplementedError, match=words + ".*head_mask"):
        pruned.save(tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def test_heads_that_share_a_key_head_go_together(tmp_path):
    layer = attnd.load(FOLDERS / "llama")[0]
    size = layer.num_heads // layer.num_kv_heads
    with pytest.raises(NotImplementedError, match=r"heads 0 to \d share a key head, and \[0\] of them would go"):
        layer.prune(remove=[0]).save(tmp_path / "p")
    with pytest.raises(ValueError, match=f"a multiple of {size}"):
        layer.prune(np.eye(5, layer.info["query_size"]), keep=1, groups=True)


# --- what is chosen ---

def test_equal_heads_go_by_their_number():
    order, changes = order_heads(np.diag([2.0, 1, 2, 1]), 6 ** 0.5, 1)
    assert order == [1, 3, 0, 2] and changes[-1] == pytest.approx(1)


def greedy_order(parts, outputs):
    """Returns [(head, change)]: each head is the one whose loss, with those before it, is least."""
    order, left = [], list(range(len(parts)))
    while left:
        changes = [np.linalg.norm(parts[[h for h, _ in order] + [head]].sum(axis=0))
                   for head in left]
        best = int(np.argmin(changes))
        order.append((left.pop(best), changes[best] / np.linalg.norm(outputs)))
    return order


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_keep_removes_the_heads_that_matter_least(tmp_path, layer, keep):
    path, data, reference, requests = layer
    whole = attnd.load(path)[0]
    pruned = whole.prune(data, keep=keep)
    order = greedy_order(*contributions(reference, requests))
    assert pruned.order == [head for head, _ in order] and pruned.removed == pruned.order[:4 - keep]
    changes = [change for _, change in order]
    assert np.abs(np.array(pruned.changes) - changes).max() <= 1e-5
    assert np.abs(np.array([pruned.predicted, pruned.measured]) - changes[3 - keep]).max() <= 1e-5
    rows = table(repr(pruned), "kept ")
    assert [row[:2] for row in rows] == [[str(3 - i), str(h)] for i, (h, _) in enumerate(order)]

    pruned.save(tmp_path / "out")
    whole.prune(remove=pruned.removed).save(tmp_path / "listed")
    assert (tmp_path / "listed").read_bytes() == (tmp_path / "out").read_bytes()


def test_listed_heads_have_a_predicted_and_a_measured_change(layer):
    path, data, reference, requests = layer
    pruned = attnd.load(path)[0].prune(data, remove=[1, 2])
    parts, outputs = contributions(reference, requests)
    change = np.linalg.norm(parts[1] + parts[2]) / np.linalg.norm(outputs)
    assert np.abs(np.array([pruned.predicted, pruned.measured]) - change).max() <= 1e-5


@pytest.mark.parametrize("words", ["outputs", "weights", "heads", "lse", "outputs,heads", "heads,lse"])
def test_need_does_not_change_what_is_measured(tmp_path, layer, words):
    data = tmp_path / "data"
    data.write_text(json.dumps({"queries": layer[3][0]["queries"], "need": words.split(",")}))
    pruned = attnd.load(layer[0])[0].prune(data, remove=[1])
    assert pruned.predicted > 0.01 and abs(pruned.predicted - pruned.measured) <= 1e-5


REFUSED = {
    "no heads": ({}, "give either keep"),
    "heads and keep": ({"remove": [1], "keep": 2}, "give either keep"),
    "negative": ({"remove": [-1]}, "name at least one of the heads 0 to 3"),
    "out of range": ({"remove": [0, 4]}, "heads 0 to 3, each once"),
    "twice": ({"remove": [1, 3, 1]}, "each once"),
    "all heads": ({"remove": [3, 1, 2, 0]}, "and leave one"),
    "none": ({"remove": []}, "name at least one"),
    "keep none": ({"queries": np.eye(6), "keep": 0}, "keep is 0"),
    "keep all": ({"queries": np.eye(6), "keep": 4}, "keep is 4"),
    "keep without data": ({"keep": 2}, "keep needs rows"),
    "no data": ({"queries": "/nonexistent", "keep": 2}, "No such file"),
    "width": ({"queries": np.eye(5), "keep": 2}, "5 wide"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_refused(layer, name):
    arguments, words = REFUSED[name]
    with pytest.raises((attnd.Error, OSError), match=words):
        attnd.load(layer[0])[0].prune(**arguments)


# --- the file ---

def test_file_that_exists_is_not_replaced(tmp_path, layer):
    copy = tmp_path / "copy"
    copy.write_bytes(layer[0].read_bytes())
    pruned = attnd.load(copy)[0].prune(remove=[1])
    with pytest.raises(OSError, match="copy exists already; choose another name, or say overwrite=True"):
        pruned.save(copy)
    assert copy.read_bytes() == layer[0].read_bytes()
    assert list(tmp_path.iterdir()) == [copy]
    with pytest.raises(OSError, match="No such file"):
        pruned.save(tmp_path / "none/x")
    pruned.save(copy, overwrite=True)
    assert attnd.load(copy)[0].num_heads == 3 and list(tmp_path.iterdir()) == [copy]


def test_file_stays_where_a_new_one_could_not_be_opened(tmp_path):
    (tmp_path / "old").write_bytes(b"old")
    layer = attnd.load(FOLDERS / "../golden/torch_packed.safetensors", num_heads=6)[0]
    with pytest.raises(NotImplementedError, match="layout torch cannot have 5 of these heads, so nothing was written; send head_mask"):
        layer.prune(remove=[0]).save(tmp_path / "old", overwrite=True)
    assert (tmp_path / "old").read_bytes() == b"old" and list(tmp_path.iterdir()) == [tmp_path / "old"]


def test_file_that_was_replaced_is_not_cut(tmp_path, layer):
    copy = tmp_path / "copy"
    copy.write_bytes(layer[0].read_bytes())
    pruned = attnd.load(copy)[0].prune(remove=[1])
    write_layer(copy, num_heads=2, head_size=3, query_size=6)
    with pytest.raises(ValueError, match="was replaced after it was opened"):
        pruned.save(tmp_path / "out")
    assert list(tmp_path.iterdir()) == [copy]


def test_full_disk_is_reported_and_leaves_no_file(tmp_path, layer):
    program = ("import attnd, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
               "attnd.load(sys.argv[1])[0].prune(remove=[1]).save(sys.argv[2])")
    result = subprocess.run([sys.executable, "-c", program, layer[0], tmp_path / "out"], timeout=60, capture_output=True,
                            text=True, cwd=ROOT / "src/python",
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)))
    assert result.returncode == 1 and "File too large" in result.stderr
    assert list(tmp_path.iterdir()) == []


# --- the page ---

def test_page_shows_what_is_printed(tmp_path, monkeypatch):
    """Numbers may differ in the last digit, where another instruction set rounds otherwise."""
    page = (ROOT / "docs/heads.md").read_text()
    monkeypatch.chdir(tmp_path)
    for folder in ("docs", "src"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    names, count = {}, 0
    for block in re.findall(r"```\n(>>> .*?)```", page, re.S):
        for line, shown in re.findall(r"^>>> (.*)\n((?:(?!>>> ).*\n)*)", block, re.M):
            try:
                printed = repr(eval(line, names))
            except SyntaxError:
                exec(line, names)
                printed = "None"
            printed = "" if printed == "None" else printed + "\n"
            assert re.sub(r"\d+\.\d+", "#", printed) == re.sub(r"\d+\.\d+", "#", shown), line
            got, expected = (np.array(re.findall(r"\d+\.\d+", text), float) for text in (printed, shown))
            assert got.size == 0 or np.abs(got - expected).max() <= 2e-4
            count += 1
    assert count >= 6 and (tmp_path / "pruned.safetensors").exists()
