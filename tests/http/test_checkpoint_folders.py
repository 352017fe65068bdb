# SPDX-License-Identifier: Apache-2.0
"""Folders of Hugging Face: how their layers are called and served.

tests/unit/test_weights_families.c compares the results of every family with transformers."""

import hashlib
import json
import os
import re

import numpy as np
import pytest
import requests

from folders import FOLDERS, REMEDY, change_config, copy_folder, copy_layers, expected_layers, refusal_of, rewrite
from reload import index, names, reload, wait_for_log
from safetensors_file import read_safetensors, write_safetensors
from server import Server, run_attnd


def test_files_are_those_of_the_manifest():
    lines = (FOLDERS / "MANIFEST.sha256").read_text().splitlines()
    listed = {line.split("  ")[1]: line.split("  ")[0] for line in lines}
    found = {str(path.relative_to(FOLDERS)): hashlib.sha256(path.read_bytes()).hexdigest()
             for path in FOLDERS.glob("*/*")}
    assert found == listed
    assert {name.split("/")[0] for name in found} == expected_layers().keys()


def assert_as_transformers(server, model, cases, part, queries, axes=""):
    """Compares the reply of a layer, to the queries of that name, with what transformers computes; with
    `axes` at positions of three axes."""
    body = {"model": model, "queries": cases[f"{part}/{queries}"].tolist(), "need": ["outputs", "weights", "heads"]}
    if f"{part}/keys" in cases:
        body["keys"] = body["values"] = cases[f"{part}/keys"].tolist()
    if f"{part}/values" in cases:
        body["values"] = cases[f"{part}/values"].tolist()
    if axes:
        body["positions"] = [cases[f"{part}/positions"].astype(int).tolist()]
    reply = server.attention(body).json()
    for key, kind in ("outputs", "outputs"), ("attention_weights", "weights"), ("heads", "heads"):
        want = cases[f"{part}/{axes}{kind}"]
        error = np.abs(np.reshape(reply[key], want.shape) - want).max() / np.abs(want).max()
        assert error <= 2e-5, (model, kind, error)


def test_text_of_gemma3n_is_served_from_inside(tmp_path):
    """The published files have sound and images beside it, and so another model_type."""
    folder = copy_folder("gemma3n_text", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3n", "text_config": config}))
    rewrite(folder, lambda tensors: [
        tensors.update({name.replace("model.", "model.language_model.", 1): tensors.pop(name)}) for name in [*tensors]])
    cases = read_safetensors(folder / "cases.safetensors")
    with Server("--model", f"m={folder},pre_norm=false") as server:
        for part in sorted({name.rpartition("/")[0] for name in cases} - {""}):
            assert_as_transformers(server, f"m.text.{part}", cases, part, "queries")


def test_sparse_text_of_voxtral_has_defaults_of_its_own(tmp_path):
    """Those of llama are others."""
    folder = copy_folder("voxtral", tmp_path)
    text = json.loads((folder / "config.json").read_text())["text_config"]
    for key in "rope_parameters", "rms_norm_eps":
        del text[key]
    change_config(folder, text_config=text)
    cases = read_safetensors(folder / "cases.safetensors")
    with Server("--model", f"m={folder}") as server:
        assert_as_transformers(server, "m.text.0", cases, "text.0", "hidden")
    change_config(folder, text_config=text | {"model_type": "mistral"})
    assert "model_type is 'mistral', but must be llama" in refusal_of("--model", f"m={folder}")


@pytest.mark.parametrize("name, text, words", [
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true, but must be false"),
    ("paligemma", {"max_position_embeddings": 8, "rope_scaling": {"type": "dynamic", "factor": 2}},
     "count from 1")])
def test_texts_in_models_that_mask_or_count_in_another_way_are_refused(name, text, words, tmp_path):
    """The same text is served by itself."""
    own = {"gemma3": "gemma3_text", "paligemma": "gemma"}[name]
    folder = copy_folder(own, tmp_path)
    change_config(folder, **{"rope_parameters": ...} if name == "paligemma" else {})
    change_config(folder, **text)
    assert run_attnd("--check-config", "--model", f"m={folder}").returncode == 0
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": name, "text_config": config}))
    rewrite(folder, lambda tensors: [
        tensors.update({f"language_model.{key}": tensors.pop(key)}) for key in [*tensors]])
    assert words in refusal_of("--model", f"m={folder}")


def test_last_layer_of_gemma4_has_all_keys(tmp_path):
    """transformers makes it so, whatever layer_types says or the period of windows."""
    folder = copy_folder("gemma4_text", tmp_path)
    for types in ["sliding_attention"] * 2, ...:
        change_config(folder, layer_types=types)
        lines = run_attnd("inspect", str(folder)).stdout.splitlines()
        assert len(lines) == 7 and "window 5" in lines[3] and "window" not in lines[4], lines


@pytest.mark.parametrize("folder, parts", [
    ("gemma2", ["0", "1"]), ("albert", ["0"]), ("clip", ["text.0", "vision.0"]),
    ("t5", [f"{part}.{layer}{cross}" for part, cross in
            [("encoder", ""), ("decoder", ""), ("decoder", ".cross")] for layer in (0, 1)])])
def test_layers_are_served_under_their_names(folder, parts):
    with Server("--model", f"m={FOLDERS / folder},pre_norm=false") as server:
        names = [model["name"] for model in server.get("/v1/models").json()["models"]]
        assert names == [f"m.{part}" for part in parts]
        for part in parts:
            cases = read_safetensors(FOLDERS / folder / "cases.safetensors")
            assert_as_transformers(server, f"m.{part}", cases, part, "queries")


@pytest.mark.parametrize("queries, option", [("queries", ",pre_norm=false"), ("hidden", "")])
def test_layers_of_every_family_reply_what_transformers_computes(queries, option):
    """From the queries of a layer or, with the norm before it, as by default, from the input of its block."""
    folders = [FOLDERS / name for name, layers in expected_layers().items()
               if option or any("norm before" in features.replace("(1+w) ", "") for features in layers.values())]
    models = [word for path in folders for word in ("--model", f"{path.name}={path}{option}")]
    with Server(*models) as server:
        for path in folders:
            cases = read_safetensors(path / "cases.safetensors")
            for name in cases:
                part, _, kind = name.rpartition("/")
                if kind == queries:  # cross attention has no hidden
                    assert_as_transformers(server, f"{path.name}.{part}", cases, part, kind)
                    if f"{part}/positions" in cases:
                        assert_as_transformers(server, f"{path.name}.{part}", cases, part, kind, "axes.")


def test_selection_of_layers_may_have_commas(tmp_path):
    folder = copy_layers("gpt2", tmp_path, 3)
    with Server("--model", f"m={folder},layers=0,2,context_length=5") as server:
        models = server.get("/v1/models").json()["models"]
        assert [(model["name"], model["context_length"]) for model in models] == [("m.0", 5), ("m.2", 5)]


def test_model_dir_takes_folders_beside_files(tmp_path):
    copy_layers("vit", tmp_path, 2)
    change_config(copy_folder("llama", tmp_path), rope_parameters={"rope_type": "spiral"})
    (tmp_path / "notes").mkdir()
    rng = np.random.default_rng(1)
    write_safetensors(tmp_path / "one.safetensors",
                      {f"W_{name}.weight": rng.standard_normal((4, 4)).astype(np.float32)
                       for name in "qkvo"}, "F32", {"num_heads": "2"})
    assert "rope_type 'spiral' is unknown" in refusal_of("--model-dir", tmp_path)
    with Server("--model-dir", tmp_path, "--skip-bad-models") as server:
        names = [model["name"] for model in server.get("/v1/models").json()["models"]]
        assert names == ["one", "vit.0", "vit.1"]
        assert "llama" in server.read_log()


def test_folder_of_an_unknown_family_does_not_stop_a_model_dir(tmp_path):
    """It is left out with a warning, and is listed with the reason, as after a reload."""
    change_config(copy_folder("llama", tmp_path), model_type="gpt9")
    change_config(copy_folder("gpt2", tmp_path), model_type=...)
    pickle = copy_folder("bert", tmp_path)
    change_config(pickle, model_type="kimi_k2_text")
    for path in pickle.glob("model*"):
        path.unlink()
    result = run_attnd("--check-config", "--model-dir", tmp_path)
    assert result.returncode == 1 and "all 3 models in" in result.stderr.splitlines()[-1], result
    copy_layers("vit", tmp_path, 2)
    with Server("--model-dir", tmp_path) as server:
        for _ in range(2):
            assert names(server) == ["vit.0", "vit.1"]
            listed = index(server)
            assert listed["llama"][0] == "UNAVAILABLE" and "model_type 'gpt9'" in listed["llama"][1]
            assert "no model_type" in listed["gpt2"][1] and "#latent-attention" in listed["bert"][1]
            assert all(reason.endswith(REMEDY) for state, reason in listed.values() if state == "UNAVAILABLE")
            reload(server)
            wait_for_log(server, "models reloaded kept=2 added=0 replaced=0 removed=0 failed=3 unloaded=0")
        log = server.read_log()
        assert all(f"warn model skipped file={name} reason=" in log for name in ("bert", "gpt2", "llama"))


def test_reload_takes_new_folders_and_changed_ones(tmp_path):
    copy_layers("vit", tmp_path, 2)
    with Server("--model-dir", tmp_path) as server:
        assert names(server) == ["vit.0", "vit.1"]
        copy_folder("albert", tmp_path)
        rewrite(tmp_path / "vit", lambda tensors: tensors.update(
            {name: 2 * tensor for name, tensor in tensors.items() if "value" in name}))
        cases = read_safetensors(FOLDERS / "vit/cases.safetensors")
        request = {"model": "vit.1", "queries": cases["0/queries"].tolist()}
        before = server.attention(request).json()["outputs"]
        reload(server)
        wait_for_log(server, "models reloaded kept=0 added=1 replaced=2 removed=0 failed=0 unloaded=0")
        assert names(server) == ["albert.0", "vit.0", "vit.1"]
        assert server.attention(request).json()["outputs"] != before
        reload(server)
        wait_for_log(server, "models reloaded kept=3 added=0 replaced=0 removed=0 failed=0 unloaded=0")


def test_reload_sees_a_shard_that_is_older_than_the_folder(tmp_path):
    folder = copy_folder("bert", tmp_path)
    with Server("--model-dir", tmp_path) as server:
        cases = read_safetensors(FOLDERS / "bert/cases.safetensors")
        request = {"model": "bert.0", "queries": cases["0/queries"].tolist()}
        before = server.attention(request).json()["outputs"]
        for shard in folder.glob("model-*.safetensors"):
            tensors = read_safetensors(shard)
            write_safetensors(shard, {name: 2 * tensor for name, tensor in tensors.items()}, "F32")
            os.utime(shard, (1, 1))
        reload(server)
        wait_for_log(server, "models reloaded kept=0 added=0 replaced=1 removed=0 failed=0 unloaded=0")
        assert server.attention(request).json()["outputs"] != before


def test_reload_of_a_bad_folder_leaves_its_layers(tmp_path):
    config = copy_layers("vit", tmp_path, 2) / "config.json"
    good = config.read_text()
    with Server("--model-dir", tmp_path, "--demo", "--model-control", "explicit") as server:
        cases = read_safetensors(FOLDERS / "vit/cases.safetensors")
        request = {"model": "vit.1", "queries": cases["0/queries"].tolist()}
        before = server.attention(request).json()
        for count in (1, 2):
            config.write_text("{")
            reload(server)
            wait_for_log(server, "models reloaded kept=6 added=0 replaced=0 removed=0 failed=1 unloaded=0", count)
            assert server.attention(request).json() == before
        assert "warn model not loaded name=vit reason=" in server.read_log()
        reason = {entry["name"]: entry["reason"] for entry in
                  requests.post(server.url + "/v2/repository/index", timeout=60).json()}["vit"]
        assert reason.startswith("vit: config.json: ") and str(tmp_path) not in reason
        refused = requests.post(server.url + "/v2/repository/models/vit.1/load", timeout=60)
        assert refused.status_code == 409 and "cannot be read now" in refused.text
        config.write_text(good)
        reload(server)
        wait_for_log(server, "models reloaded kept=4 added=0 replaced=2 removed=0 failed=0 unloaded=0")
        assert server.attention(request).json() == before


def test_name_of_a_folder_is_refused_with_that_of_a_layer(tmp_path):
    copy_folder("vit", tmp_path)
    with Server("--model-dir", tmp_path, "--model-control", "explicit") as server:
        for verb in ("load", "unload"):
            reply = requests.post(f"{server.url}/v2/repository/models/vit/{verb}", timeout=60)
            assert reply.status_code == 404
            assert "'vit' is a folder; name its layers one by one, such as 'vit.0'" in reply.json()["error"]


def make_wide_folder(folder, width):
    """Makes a folder of one layer whose file has no data: a hole of the right size."""
    shapes = {"c_attn.weight": [width, 3 * width], "c_attn.bias": [3 * width],
              "c_proj.weight": [width, width], "c_proj.bias": [width]}
    header, at = {}, 0
    for key, shape in shapes.items():
        end = at + 2 * int(np.prod(shape))
        header[f"h.0.attn.{key}"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(
        {"model_type": "gpt2", "n_embd": width, "n_head": width // 64, "n_layer": 1}))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    return folder


def test_folders_must_fit_into_memory_together(tmp_path):
    """Nothing is read, since the sizes say enough: each folder needs more than half of the memory."""
    line = refusal_of("--model", f"a={make_wide_folder(tmp_path / 'huge', 1 << 20)}")
    memory = int(re.search(r"its 1 layers need \d+ bytes, but this process may use (\d+);", line)[1])
    width = int((memory * 0.6 / 16) ** 0.5) // 64 * 64
    wide = make_wide_folder(tmp_path / "wide", width)
    line = refusal_of("--model", f"a={wide}", "--model", f"b={wide}")
    left = int(re.search(r"but this process may use (\d+) beside other folders", line)[1])
    assert left < memory / 2


# Folders of transformers 5 with save_original_format=False.
@pytest.mark.parametrize("name, config, spelling", [
    ("vit", {}, [("encoder.layer.", "layers."), ("attention.attention.query", "attention.q_proj"),
                 ("attention.attention.key", "attention.k_proj"),
                 ("attention.attention.value", "attention.v_proj"),
                 ("attention.output.dense", "attention.o_proj")]),
    ("vit", {"model_type": "dinov2"},
     [("attention.attention.query", "attention.q_proj"), ("attention.attention.key", "attention.k_proj"),
      ("attention.attention.value", "attention.v_proj"), ("attention.output.dense", "attention.o_proj"),
      ("layernorm_before", "norm1")]),
    ("clip", "vision", [("vision_model.", "")]), ("clip", "text", [("text_model.", "")])])
def test_names_of_version_5_are_the_same_weights(name, config, spelling, tmp_path):
    folder, part = copy_folder(name, tmp_path), "0"
    is_tower = isinstance(config, str)
    if is_tower:
        part = f"{config}.0"
        whole = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(
            whole[f"{config}_config"] | {"model_type": f"clip_{config}_model"}))
    else:
        change_config(folder, **config)
    tensors = read_safetensors(folder / "model.safetensors")
    renamed = {}
    for key, tensor in tensors.items():
        if is_tower and not key.startswith(f"{config}_model."):
            continue
        for old, new in spelling:
            key = key.replace(old, new)
        renamed[key] = tensor
    write_safetensors(folder / "model.safetensors", renamed, "F32")
    cases = read_safetensors(FOLDERS / name / "cases.safetensors")
    with Server("--model", f"m={folder},pre_norm=false") as server:
        reply = server.attention({"model": "m.0", "queries": cases[f"{part}/queries"].tolist()}).json()
    want = cases[f"{part}/outputs"]
    assert np.abs(np.array(reply["outputs"]) - want).max() <= 2e-5 * np.abs(want).max()


@pytest.mark.parametrize("family, changes, key_heads", [
    ("RefinedWebModel", {}, 1), ("RefinedWebModel", {"multi_query": False}, 4), ("RefinedWeb", {"n_head_kv": 1}, 1)])
def test_falcon_has_the_names_of_its_own_code(family, changes, key_heads, tmp_path):
    folder = copy_folder("falcon_rw" if key_heads == 4 else "falcon", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    change_config(folder, model_type=family, new_decoder_architecture=..., num_attention_heads=..., num_kv_heads=...,
                  num_hidden_layers=..., n_head=config["num_attention_heads"], n_layer=config["num_hidden_layers"],
                  **{"multi_query": ...} | changes)
    result = run_attnd("inspect", folder)
    assert result.stdout.splitlines()[3].split()[:3] == ["0", "4", str(key_heads)], result.stdout + result.stderr


def attend(queries, keys, weights, heads):
    """Multi-head attention without a mask in float64; weights of q, k, v and o are [in, out] and a bias."""
    q, k, v = (np.einsum("bte,ef->btf", rows, weight) + bias
               for rows, (weight, bias) in zip((queries, keys, keys), weights))
    q, k, v = (x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    attention = np.exp(scores - scores.max(3, keepdims=True))
    out = attention / attention.sum(3, keepdims=True) @ v
    return out.transpose(0, 2, 1, 3).reshape(*queries.shape[:2], -1) @ weights[3][0] + weights[3][1]


def test_cross_attention_of_gpt2_is_computed(tmp_path):
    """Queries have a tensor of their own; keys and values share one."""
    folder, rng = copy_layers("gpt2", tmp_path, 3), np.random.default_rng(5)
    change_config(folder, add_cross_attention=True)
    parts = {key: (rng.standard_normal((48, size)), rng.standard_normal(size))
             for key, size in (("q_attn", 48), ("c_attn", 96), ("c_proj", 48))}
    rewrite(folder, lambda tensors: tensors.update(
        {f"h.{layer}.crossattention.{key}.{kind}": tensor.astype(np.float32)
         for layer in range(3) for key, pair in parts.items() for kind, tensor in zip(("weight", "bias"), pair)}))
    queries, keys = rng.standard_normal((2, 5, 48)), rng.standard_normal((2, 7, 48))
    weight, bias = parts["c_attn"]
    want = attend(queries, keys, [parts["q_attn"], (weight[:, :48], bias[:48]), (weight[:, 48:], bias[48:]),
                                  parts["c_proj"]], 4)
    with Server("--model", f"m={folder},pre_norm=false") as server:
        assert names(server) == ["m.0", "m.0.cross", "m.1", "m.1.cross", "m.2", "m.2.cross"]
        reply = server.attention({"model": "m.1.cross", "queries": queries.tolist(), "keys": keys.tolist(),
                                  "values": keys.tolist()}).json()
    assert np.abs(np.array(reply["outputs"]) - want).max() <= 2e-5 * np.abs(want).max()


def round_bf16(numbers):
    """Rounds numbers to the 8 bits of bfloat16, to even."""
    fraction, exponent = np.frexp(np.asarray(numbers, np.float64))
    return np.ldexp(np.rint(np.ldexp(fraction, 8)), exponent - 8)


def falcon_weights(x, weight, bias, heads):
    """The attention weights [H, T, T] of a falcon layer with ALiBi, as its code has them: slopes, positions
    and their products are bfloat16, and the scale multiplies scores and products alike."""
    power = 2 ** int(np.log2(heads))
    steps = [(h + 1) / power if h < power else (2 * (h - power) + 1) / (2 * power) for h in range(heads)]
    slopes = round_bf16(2.0 ** (-8 * np.array(steps)))
    alibi = round_bf16(slopes[:, None] * round_bf16(np.arange(len(x))))
    # Of each head, the rows of its query, key and value.
    q, k, _ = (x @ weight.T + bias).reshape(len(x), heads, 3, -1).transpose(2, 1, 0, 3)
    scores = (q @ k.swapaxes(1, 2) + alibi[:, None]) / np.sqrt(q.shape[2])
    scores[:, np.triu(np.ones((len(x), len(x)), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(2, keepdims=True))
    return weights / weights.sum(2, keepdims=True)


@pytest.mark.parametrize("first", [0, 395], ids=["all rows", "the last rows"])
def test_falcon_rounds_the_products_of_its_alibi(first, tmp_path):
    """With 12 heads slopes are no powers of 2, and 400 tokens need more bits than bfloat16 has."""
    heads, tokens = 12, 400
    folder, rng = copy_folder("falcon_rw", tmp_path), np.random.default_rng(6)
    width = 4 * heads
    weight = rng.normal(scale=width ** -0.5, size=(3 * width, width)).astype(np.float32)
    bias = rng.normal(size=3 * width).astype(np.float32)
    change_config(folder, hidden_size=width, num_attention_heads=heads, num_kv_heads=heads, num_hidden_layers=1)
    rewrite(folder, lambda tensors: [tensors.clear(), tensors.update({
        "h.0.self_attention.query_key_value.weight": weight, "h.0.self_attention.query_key_value.bias": bias,
        "h.0.self_attention.dense.weight": np.eye(width, dtype=np.float32),
        "h.0.self_attention.dense.bias": np.zeros(width, np.float32)})])
    x = rng.normal(size=(tokens, width)).astype(np.float32)
    with Server("--model", f"m={folder}") as server:
        reply = server.attention({"queries": x[first:].tolist(), "keys": x.tolist(), "values": x.tolist(),
                                  "positions": list(range(first, tokens)), "need": ["weights"]}).json()
        assert server.read_log().count("warn norm before layers is missing ") == 1
    want = falcon_weights(x.astype(np.float64), weight, bias, heads)[:, first:]
    assert np.abs(np.array(reply["attention_weights"]) - want).max() <= 1e-5


def test_two_models_of_one_name_are_refused_whole(tmp_path):
    folder = copy_folder("vit", tmp_path)
    assert "two models are called 'm.0'" in refusal_of("--model", f"m={folder}", "--model", f"m={folder}")


@pytest.mark.parametrize("options, words", [
    ("num_heads=4", "num_heads of a folder comes from its config.json"),
    ("layout=torch", "layout of a folder comes from its config.json"),
    ("layers=9", "has layer 9"), ("layer=9", "there is no layer=9"), ("pre_norm=true", "no norm before them")])
def test_options_that_folders_do_not_have_are_refused(options, words):
    assert words in refusal_of("--model", f"m={FOLDERS / 'bert'},{options}")


@pytest.mark.parametrize("options", ["layers=0", "layer=0", "pre_norm=true"])
def test_options_of_folders_are_refused_for_files(options):
    path = FOLDERS / "gpt2/model.safetensors"
    assert "is for folders" in refusal_of("--model", f"m={path},{options}")


def test_inspect_prints_a_table():
    result = run_attnd("inspect", FOLDERS / "gpt_neo", FOLDERS / "gpt2")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].endswith("gpt_neo: family gpt_neo, 2 layers")
    assert lines[1] == "  queries: hidden states before the norm"
    assert lines[2].split() == ["layer", "H", "KV", "D", "bytes", "features"]
    assert lines[4].split()[:4] == ["1", "4", "4", "12"] and int(lines[4].split()[4]) > 4 * 48 * 48 * 4
    assert lines[4].endswith("  causal, scale 1, window 6, layer norm before")
    assert [re.sub(r"[0-9a-f]{32}$", "", line).split() for line in lines[5:7]] == [["0", "fingerprint"], ["1", "fingerprint"]]
    assert lines[10].endswith("  causal, layer norm before")


def test_masks_of_old_files_are_skipped(tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    rewrite(folder, lambda tensors: tensors.update(
        {"h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32), "h.0.attn.masked_bias": np.ones(1, np.float32)}))
    assert run_attnd("--check-config", "--model", f"m={folder}").returncode == 0


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
        with Server("--model", f"m={folder},pre_norm=false") as server:
            reply = server.attention({"model": "m.0", "queries": cases["0/queries"].tolist()}).json()
            want = cases["0/outputs"]
            assert np.abs(np.array(reply["outputs"]) - want).max() <= 2e-5 * np.abs(want).max()
            assert server.get("/v1/models/m.0").json()["layout"] == "nanogpt"
