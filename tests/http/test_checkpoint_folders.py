# SPDX-License-Identifier: Apache-2.0
"""Folders of Hugging Face: how their layers are called and served, and how bad folders are refused.

tests/unit/test_weights_families.c compares the results of every family with transformers."""

import hashlib
import json
import os
import re
import shutil

import numpy as np
import pytest
import requests

from reload import names, reload, wait_for_log
from safetensors_file import read_safetensors, write_safetensors
from server import ROOT, Server, run_attnd

FOLDERS = ROOT / "tests/data/hf"


def copy_folder(name, target):
    """Copies a folder of the data, so that a test may spoil it."""
    return shutil.copytree(FOLDERS / name, target / name)


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


def test_files_are_those_of_the_manifest():
    lines = (FOLDERS / "MANIFEST.sha256").read_text().splitlines()
    listed = {line.split("  ")[1]: line.split("  ")[0] for line in lines}
    found = {str(path.relative_to(FOLDERS)): hashlib.sha256(path.read_bytes()).hexdigest()
             for path in FOLDERS.glob("*/*")}
    assert found == listed and len({name.split("/")[0] for name in found}) == 35


def test_page_lists_every_family():
    table = (ROOT / "src/weights/families/table.c").read_text()
    table = table[table.index("static const struct family families[]"):]
    families = re.findall(r'(?:\.type = |^ {4}[A-Z0-9]+\(|TOWER\()"([^"]+)"', table, re.M)
    page = (ROOT / "docs/checkpoints.md").read_text()
    assert len(families) > 50
    assert [family for family in families if f"`{family}`" not in page] == []


@pytest.mark.parametrize("folder, parts", [
    ("gpt2", ["0", "1", "2"]), ("albert", ["0"]), ("clip", ["text.0", "text.1", "vision.0", "vision.1"]),
    ("whisper", [f"{part}.{layer}{cross}" for part, cross in
                 [("encoder", ""), ("decoder", ""), ("decoder", ".cross")] for layer in (0, 1)])])
def test_layers_are_served_under_their_names(folder, parts):
    with Server("--model", f"m={FOLDERS / folder}") as server:
        names = [model["name"] for model in server.get("/v1/models").json()["models"]]
        assert names == [f"m.{part}" for part in parts]
        for part in parts:
            cases = read_safetensors(FOLDERS / folder / "cases.safetensors")
            body = {"model": f"m.{part}", "queries": cases[f"{part}/queries"].tolist(),
                    "need_weights": True}
            if f"{part}/keys" in cases:
                body["keys"] = body["values"] = cases[f"{part}/keys"].tolist()
            reply = server.attention(body).json()
            for key, kind in ("outputs", "outputs"), ("attention_weights", "weights"):
                want = cases[f"{part}/{kind}"]
                error = np.abs(np.array(reply[key]) - want).max() / np.abs(want).max()
                assert error <= 2e-5, (part, kind, error)


def test_selection_of_layers_may_have_commas():
    with Server("--model", f"m={FOLDERS / 'gpt2'},layers=0,2,context_length=5") as server:
        models = server.get("/v1/models").json()["models"]
        assert [(model["name"], model["context_length"]) for model in models] == [("m.0", 5), ("m.2", 5)]


def test_model_dir_takes_folders_beside_files(tmp_path):
    copy_folder("vit", tmp_path)
    copy_folder("llama", tmp_path)
    (tmp_path / "notes").mkdir()
    rng = np.random.default_rng(1)
    write_safetensors(tmp_path / "one.safetensors",
                      {f"W_{name}.weight": rng.standard_normal((4, 4)).astype(np.float32)
                       for name in "qkvo"}, "F32", {"num_heads": "2"})
    assert "family llama needs" in refusal_of("--model-dir", tmp_path)
    with Server("--model-dir", tmp_path, "--skip-bad-models") as server:
        names = [model["name"] for model in server.get("/v1/models").json()["models"]]
        assert names == ["one", "vit.0", "vit.1"]
        assert "llama" in server.read_log()


def test_reload_takes_new_folders_and_changed_ones(tmp_path):
    copy_folder("vit", tmp_path)
    with Server("--model-dir", tmp_path) as server:
        assert names(server) == ["vit.0", "vit.1"]
        copy_folder("albert", tmp_path)
        rewrite(tmp_path / "vit", lambda tensors: tensors.update(
            {name: 2 * tensor for name, tensor in tensors.items() if "value" in name}))
        cases = read_safetensors(FOLDERS / "vit/cases.safetensors")
        request = {"model": "vit.1", "queries": cases["1/queries"].tolist()}
        before = server.attention(request).json()["outputs"]
        reload(server)
        wait_for_log(server, "models reloaded loaded=3 new=3 removed=0 unavailable=0")
        assert names(server) == ["albert.0", "vit.0", "vit.1"]
        assert server.attention(request).json()["outputs"] != before
        reload(server)
        wait_for_log(server, "models reloaded loaded=3 new=0 removed=0 unavailable=0")


def test_reload_sees_a_shard_that_is_older_than_the_folder(tmp_path):
    folder = copy_folder("bert", tmp_path)
    with Server("--model-dir", tmp_path) as server:
        cases = read_safetensors(FOLDERS / "bert/cases.safetensors")
        request = {"model": "bert.1", "queries": cases["1/queries"].tolist()}
        before = server.attention(request).json()["outputs"]
        for shard in folder.glob("model-*.safetensors"):
            tensors = read_safetensors(shard)
            write_safetensors(shard, {name: 2 * tensor for name, tensor in tensors.items()}, "F32")
            os.utime(shard, (1, 1))
        reload(server)
        wait_for_log(server, "models reloaded loaded=3 new=3 removed=0 unavailable=0")
        assert server.attention(request).json()["outputs"] != before


def test_reload_of_a_bad_folder_leaves_its_layers(tmp_path):
    config = copy_folder("vit", tmp_path) / "config.json"
    good = config.read_text()
    with Server("--model-dir", tmp_path, "--demo", "--model-control", "explicit") as server:
        cases = read_safetensors(FOLDERS / "vit/cases.safetensors")
        request = {"model": "vit.1", "queries": cases["1/queries"].tolist()}
        before = server.attention(request).json()
        for count in (1, 2):
            config.write_text("{")
            reload(server)
            wait_for_log(server, "models reloaded loaded=6 new=0 removed=0 unavailable=1", count)
            assert server.attention(request).json() == before
        assert "warn model not loaded name=vit reason=" in server.read_log()
        reason = {entry["name"]: entry["reason"] for entry in
                  requests.post(server.url + "/v2/repository/index", timeout=60).json()}["vit"]
        assert reason.startswith("vit: config.json: ") and str(tmp_path) not in reason
        refused = requests.post(server.url + "/v2/repository/models/vit.1/load", timeout=60)
        assert refused.status_code == 409 and "cannot be read now" in refused.text
        config.write_text(good)
        reload(server)
        wait_for_log(server, "models reloaded loaded=6 new=2 removed=1 unavailable=0")
        assert server.attention(request).json() == before


def test_two_models_of_one_name_are_refused_whole(tmp_path):
    folder = copy_folder("vit", tmp_path)
    assert "two models are called 'm.0'" in refusal_of("--model", f"m={folder}", "--model", f"m={folder}")


@pytest.mark.parametrize("options, words", [
    ("num_heads=4", "num_heads of a folder comes from its config.json"),
    ("layout=torch", "layout of a folder comes from its config.json"),
    ("causal=true", "causal of a folder comes from its config.json"),
    ("layers=9", "has layer 9"), ("pre_norm=true", "the norm before the layer")])
def test_options_that_folders_do_not_have_are_refused(options, words):
    assert words in refusal_of("--model", f"m={FOLDERS / 'gpt2'},{options}")


@pytest.mark.parametrize("options", ["layers=0", "pre_norm=true"])
def test_options_of_folders_are_refused_for_files(options):
    path = FOLDERS / "gpt2/model.safetensors"
    assert "is for folders" in refusal_of("--model", f"m={path},{options}")


def test_inspect_prints_a_table_with_reasons():
    result = run_attnd("inspect", FOLDERS / "gpt_neo", FOLDERS / "gpt2")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].endswith("gpt_neo: family gpt_neo, 2 layers")
    assert lines[1].split() == ["layer", "H", "KV", "D", "bytes", "features"]
    assert lines[3].split()[:5] == ["1", "4", "4", "12", "-"]
    assert lines[3].endswith("; cannot be served, needs a scale of 1, a window")
    assert lines[6].endswith("causal, layer norm before") and "cannot" not in lines[6]


# How config.json of a folder is spoilt, and what the line says.
BAD_CONFIGS = {
    "unknown family": ("gpt2", {"model_type": "gpt9"}, "does not know model_type 'gpt9'"),
    "latent attention": ("llama", {"model_type": "deepseek_v3"}, "multi-head latent attention"),
    "no family": ("bert", {"model_type": ...}, "has no model_type"),
    "family is a number": ("bert", {"model_type": 5}, "model_type is 5"),
    "2^31 heads": ("gpt2", {"n_head": 2**31}, "n_head is 2147483648"),
    "no heads": ("gpt2", {"n_head": 0}, "n_head is 0"),
    "half a head": ("gpt2", {"n_head": 1.5}, "n_head is 1.5"),
    "heads as text": ("gpt2", {"n_head": "4"}, "n_head is '4'"),
    "heads as a list": ("gpt2", {"n_head": [4]}, "n_head is of another type"),
    "heads that do not divide": ("gpt2", {"n_head": 5}, "do not divide the width"),
    "key heads that do not divide": ("llama", {"num_key_value_heads": 3}, "cannot share 3 key heads"),
    "aliases disagree": ("gpt2", {"num_attention_heads": 2}, "mean the same, but differ"),
    "too few layers": ("gpt2", {"n_layer": 2}, "config.json has 2 layers, but there is"),
    "too many layers": ("gpt2", {"n_layer": 4}, "'h.3.attn.c_attn.weight' is missing"),
    "endless layers": ("gpt2", {"n_layer": 16777216}, "'h.3.attn.c_attn.weight' is missing"),
    "another width": ("bert", {"hidden_size": 96}, "expected [96,96]"),
    "relative positions": ("bert", {"position_embedding_type": "relative_key"}, "must be absolute"),
    "rope base 0": ("llama", {"rope_parameters": {"rope_theta": 0}}, "rope_theta is 0"),
    "unknown rope type": ("llama", {"rope_parameters": {"rope_type": "spiral"}}, "rope_type 'spiral'"),
    "llama3 without factor": ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "factor is missing"),
    "window -1": ("mistral", {"sliding_window": -1}, "sliding_window is -1"),
    "softcap 0": ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping is 0"),
    "unknown layer type": ("gemma2", {"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
    "few layer types": ("gemma2", {"layer_types": ["full_attention"]}, "layer_types must be a list"),
    "bias announced": ("llama", {"attention_bias": True}, "q_proj.bias' is missing"),
    "bias not announced": ("starcoder2", {"use_bias": False}, "is a bias that"),
    "cross attention": ("gpt2", {"add_cross_attention": True}, "add_cross_attention is true"),
    "norms of mpt": ("mpt", {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln is true"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_bad_config_is_refused_by_its_key(name, tmp_path):
    folder, changes, words = BAD_CONFIGS[name]
    folder = copy_folder(folder, tmp_path)
    change_config(folder, **changes)
    line = refusal_of("--model", f"m={folder}")
    assert words in line and str(folder) in line


# Texts of config.json that are no good, and what the line says.
BAD_TEXTS = {
    "empty": (b"", "config.json: is not valid JSON"),
    "list": (b"[]", "config.json: is not a JSON object"),
    "NUL": (b'{"a": 1}\0', "config.json: has a NUL byte"),
    "twice": (b'{"model_type": "gpt2", "model_type": "bert"}', "duplicate object key"),
    "deep": (b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}", "more than 32 deep"),
    "100 MB": (b" " * 100_000_000, "has 100000000 bytes"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_bad_text_of_config_is_refused(name, tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    text, words = BAD_TEXTS[name]
    (folder / "config.json").write_bytes(text)
    assert words in refusal_of("--model", f"m={folder}")


@pytest.mark.parametrize("shard, words", [
    ("../llama/model-00001-of-00005.safetensors", "not the name of a file in this folder"),
    ("..", "not the name of a file"), ("", "not the name of a file"), (5, "not the name of a file"),
    ("a\\b", "not the name of a file"), ("gone.safetensors", "gone.safetensors: cannot be opened"),
    ("config.json", "config.json: "), ("model-00002-of-00005.safetensors", "which lacks it")])
def test_bad_index_is_refused(shard, words, tmp_path):
    folder = copy_folder("bert", tmp_path)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    name = next(key for key, file in index["weight_map"].items() if "00001" in file)
    index["weight_map"][name] = shard
    path.write_text(json.dumps(index))
    assert words in refusal_of("--model", f"m={folder}")


def test_index_without_map_is_refused(tmp_path):
    folder = copy_folder("bert", tmp_path)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": []}')
    assert "weight_map is not an object" in refusal_of("--model", f"m={folder}")


def rewrite(folder, change):
    """Lets `change` work on the tensors of model.safetensors."""
    tensors = read_safetensors(folder / "model.safetensors")
    change(tensors)
    write_safetensors(folder / "model.safetensors", tensors, "F32")


@pytest.mark.parametrize("name, words", [
    ("h.1.attn.c_attn.lora_A.weight", "it is of LoRA"),
    ("h.1.attn.c_attn.weight_scale_inv", "the weights are quantized"),
    ("h.1.attn.rotary.weight", "it might change the results")])
def test_unknown_tensor_inside_the_attention_is_refused(name, words, tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    rewrite(folder, lambda tensors: tensors.update({name: np.ones(3, np.float32)}))
    line = refusal_of("--model", f"m={folder}")
    assert words in line and name in line


def test_masks_of_old_files_are_skipped(tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    rewrite(folder, lambda tensors: tensors.update(
        {"h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32), "h.0.attn.masked_bias": np.ones(1, np.float32)}))
    assert run_attnd("--check-config", "--model", f"m={folder}").returncode == 0


def test_missing_bias_is_refused(tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    rewrite(folder, lambda tensors: tensors.pop("h.2.attn.c_proj.bias"))
    assert "'h.2.attn.c_proj.bias' is missing" in refusal_of("--model", f"m={folder}")


def test_two_towers_of_the_same_names_need_a_prefix(tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    rewrite(folder, lambda tensors: tensors.update(
        {f"second.{name}": tensor for name, tensor in [*tensors.items()]}))
    line = refusal_of("--model", f"m={folder}")
    assert "choose one of their prefixes: prefix=, prefix=second." in line
    assert run_attnd("--check-config", "--model", f"m={folder},prefix=second.").returncode == 0


def test_name_inside_a_word_is_no_suffix(tmp_path):
    """wav2vec2 has tensors that end as those of its layers do, but in the middle of a name."""
    folder = copy_folder("gpt2", tmp_path)
    rewrite(folder, lambda tensors: tensors.update(
        {"graph.0.attn.c_attn.weight": np.ones((2, 2), np.float32)}))
    assert run_attnd("--check-config", "--model", f"m={folder}").returncode == 0


def test_nanogpt_is_told_from_gpt2_by_shape(tmp_path):
    """The same weights, transposed, compute the same; biases are optional, and model_type may be absent."""
    folder = copy_folder("gpt2", tmp_path)

    def transpose(tensors):
        for name in [*tensors]:
            if re.search(r"attn\.c_(attn|proj)\.weight$", name):
                tensors[name] = np.ascontiguousarray(tensors[name].T)

    rewrite(folder, transpose)
    change_config(folder, model_type=..., block_size=64)
    cases = read_safetensors(FOLDERS / "gpt2/cases.safetensors")
    for changes in {}, {"model_type": "gpt2"}, {"model_type": "nanogpt"}:
        change_config(folder, **changes)
        with Server("--model", f"m={folder}") as server:
            reply = server.attention({"model": "m.1", "queries": cases["1/queries"].tolist()}).json()
            want = cases["1/outputs"]
            assert np.abs(np.array(reply["outputs"]) - want).max() <= 2e-5 * np.abs(want).max()
            assert server.get("/v1/models/m.1").json()["layout"] == "nanogpt"


@pytest.mark.parametrize("file, words", [
    ("pytorch_model.bin", 'AutoModel.from_pretrained(sys.argv[1])'),
    ("pytorch_model.bin.index.json", 'AutoModel.from_pretrained(sys.argv[1])'),
    ("adapter_model.safetensors", "merge_and_unload"), ("consolidated.safetensors", "Meta and Mistral"),
    ("other.txt", "has neither model.safetensors nor")])
def test_folder_without_safetensors_says_what_to_do(file, words, tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    (folder / "model.safetensors").rename(folder / file)
    assert words in refusal_of("--model", f"m={folder}")


def test_folder_with_an_adapter_is_refused(tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    (folder / "adapter_config.json").write_text("{}")
    assert "adapter_config.json" in refusal_of("--model", f"m={folder}")


def test_folder_without_config_is_refused(tmp_path):
    assert "is a directory without config.json" in refusal_of("--model", f"m={tmp_path}")


def test_weight_that_is_not_finite_is_refused(tmp_path):
    folder = copy_folder("gpt2", tmp_path)

    def spoil(tensors):
        tensors["h.2.attn.c_proj.weight"] = tensors["h.2.attn.c_proj.weight"].copy()
        tensors["h.2.attn.c_proj.weight"][0, 1] = np.nan

    rewrite(folder, spoil)
    line = refusal_of("--model", f"m={folder}")
    assert "layer 2: tensor 'h.2.attn.c_proj.weight': element 1 is nan" in line
