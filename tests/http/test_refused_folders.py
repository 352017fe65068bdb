# SPDX-License-Identifier: Apache-2.0
"""Types that are refused: each refusal says why, has a place on the page, and ends with what works.

A folder under the model_type of another family must be refused too, unless its layers are those."""

import json
import re

import numpy as np
import pytest

from folders import FOLDERS, REMEDY, change_config, copy_folder, refusal_of, rewrite
from safetensors_file import read_safetensors
from server import ROOT, Server, run_attnd

PAGE = ROOT / "docs/checkpoints.md"


def refusal_table():
    """Returns the patterns of types, the place on the page and the reason of each refusal."""
    text = (ROOT / "src/weights/families/table.c").read_text()
    text = re.sub(r'"\s*\n\s*"', "", text[text.index("refusals[] = {"):text.index("has_pattern")])
    return re.findall(r'\{"([^"]+)",\s*"([^"]+)",\s*"([^"]+)"\}', text)


def test_refusals_say_why_and_end_with_what_works(tmp_path):
    folder, page = copy_folder("llama", tmp_path), PAGE.read_text()
    table = refusal_table()
    assert len(table) > 8
    for patterns, anchor, reason in table:
        assert f'<a id="{anchor}"></a>' in page, anchor
        for pattern in patterns.split():
            change_config(folder, model_type=pattern.replace("*", "_of_tomorrow"))
            line = refusal_of("--model", f"m={folder}").strip()
            assert reason in line and f"docs/checkpoints.md#{anchor})" in line and line.endswith(REMEDY), line


@pytest.mark.parametrize("kind", ["gpt9", ...])
def test_refusals_of_unknown_types_end_with_what_works(kind, tmp_path):
    folder = copy_folder("llama", tmp_path)
    change_config(folder, model_type=kind)
    assert refusal_of("--model", f"m={folder}").strip().endswith(REMEDY)


# A key that the family does not know, with a value that changes its layers and one that does not.
KEYS = {
    "attention_multiplier": ("llama", 0.2, None), "clip_qkv": ("llama", 8, None),
    "no_rope_layers": ("llama", [1, 0], [1, 1]), "use_qk_norm": ("mistral", True, False),
    "qk_norm": ("qwen2", True, False), "sliding_window": ("gpt2", 4, None), "alibi": ("llama", True, False),
    "layer_types": ("llama", ["sliding_attention"] * 2, ["full_attention"] * 2),
    "attention_chunk_size": ("llama", 8192, None), "key_multiplier": ("llama", 0.5, 1.0),
    "position_embedding_type": ("vit", "relative_key", "absolute"), "num_kv_shared_layers": ("gemma2", 2, 0),
    "attn_temperature_tuning": ("llama", True, False), "attention_type": ("opt", "block_sparse", "original_full"),
    "is_prefix_lm": ("gpt2", True, False), "attn_type": ("llama", "sliding", "full"),
    "use_cla": ("hunyuan_v1_dense", True, False),
}


@pytest.mark.parametrize("key", KEYS)
def test_key_that_a_family_does_not_know_is_refused_by_name(key, tmp_path):
    name, bad, good = KEYS[key]
    folder = copy_folder(name, tmp_path)
    change_config(folder, **{key: good})
    assert run_attnd("--check-config", "--model", f"m={folder}").returncode == 0
    change_config(folder, **{key: bad})
    line = refusal_of("--model", f"m={folder}").strip()
    assert f"config.json has {key}," in line and line.endswith(REMEDY), line


@pytest.mark.parametrize("objects, words", [
    ({"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}}, "llama_4_scaling_beta"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 2, "alpha": 1000}, "rope_parameters": ...}, "alpha"),
    ({"rms_norm_eps": ..., "layer_norm_eps": 1e-5}, "has layer_norm_eps, but family llama has rms_norm_eps"),
    ({"architectures": ["HeliumForCausalLM"]}, "architectures is HeliumForCausalLM")])
def test_what_else_tells_another_layer_is_refused(objects, words, tmp_path):
    folder = copy_folder("llama", tmp_path)
    change_config(folder, **objects)
    assert words in refusal_of("--model", f"m={folder}")


@pytest.mark.parametrize("objects, words", [
    ({"llama_4_scaling_beta": 0.3}, "config.json has llama_4_scaling_beta,"),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, "llama_4_scaling_beta or original_max_position_embeddings is missing"),
    ({"attn_config": {"sliding_window": 8}}, "config.json has sliding_window,")])
def test_key_of_a_family_counts_in_the_object_where_it_reads_it(objects, words, tmp_path):
    """The same names are read elsewhere; what rope_scaling replaces changes nothing, as in transformers."""
    folder = copy_folder("ministral3", tmp_path)
    change_config(folder, **objects)
    assert words in refusal_of("--model", f"m={folder}")
    change_config(copy_folder("llama", tmp_path), rope_scaling={"type": "linear", "factor": 2},
                  rope_parameters={"alpha": 1000})
    assert run_attnd("--check-config", "--model", f"m={tmp_path / 'llama'}").returncode == 0


@pytest.mark.parametrize("keys", [{"sliding_window": 4096, "use_sliding_window": False}, {"max_window_layers": 28},
                                  {"use_cache": True, "logits_to_keep": 1, "architectures": ["MyLlamaForReward"]}])
def test_keys_that_change_nothing_are_not_refused(keys, tmp_path):
    folder = copy_folder("llama", tmp_path)
    change_config(folder, **keys)
    assert run_attnd("--check-config", "--model", f"m={folder}").returncode == 0


# Tensors that published files have inside the attention, and that change none of it.
@pytest.mark.parametrize("name, module", [("llama", "layers.0.self_attn."), ("gpt2", "h.0.attn."),
                                          ("deepseek_v3", "model.layers.0.self_attn."),
                                          ("phi3", "layers.0.self_attn.")])
@pytest.mark.parametrize("tensor, size, known", [
    ("k_scale", 1, True), ("v_scale", 1, True), ("k_proj.k_scale", 1, True), ("v_proj.output_scale", 1, True),
    ("q_proj.input_scale", 1, True), ("o_proj.activation_scale", 1, True), ("kv_scale", 1, True), ("prob_scale", 1, True),
    ("qkv_proj.k_scale", 1, True), ("rotary_emb.inv_freq", 8, True), ("k_scale", 8, False), ("o_scale", 1, False)])
def test_scales_of_a_cache_and_old_frequencies_are_passed_over(name, module, tensor, size, known, tmp_path):
    folder = copy_folder(name, tmp_path)
    rewrite(folder, lambda tensors: tensors.update({module + tensor: np.full(size, 0.5, np.float32)}))
    result = run_attnd("--check-config", "--model", f"m={folder}")
    assert (result.returncode == 0) == known and (known or f"{tensor}' is not known" in result.stderr), result.stderr


@pytest.mark.parametrize("name", ["exaone_moe", "mimo_v2_flash", "llama"])
@pytest.mark.parametrize("prefix", ["mtp.", "model.mtp."])
def test_layers_under_mtp_are_left_out(name, prefix, tmp_path):
    """They predict more tokens, and are called as those of the model are."""
    folder = copy_folder(name, tmp_path)
    rewrite(folder, lambda tensors: tensors.update(
        {prefix + key.removeprefix("model."): 2 * tensor for key, tensor in [*tensors.items()] if "layers.0." in key}))
    cases = read_safetensors(folder / "cases.safetensors")
    with Server("--model", f"m={folder},pre_norm=false") as server:
        assert "m.0" in [model["name"] for model in server.get("/v1/models").json()["models"]]
        outputs = server.attention({"model": "m.0", "queries": cases["0/queries"].tolist()}).json()["outputs"]
    assert np.abs(np.array(outputs) - cases["0/outputs"]).max() <= 2e-5 * np.abs(cases["0/outputs"]).max()


@pytest.mark.parametrize("name", ["glm4_moe", "glm4v_moe"])
def test_layer_that_predicts_more_tokens_is_left_out(name, tmp_path):
    folder = copy_folder(name, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    last, more = (f"layers.{text['num_hidden_layers'] + i}." for i in (-1, 0))
    rewrite(folder, lambda tensors: tensors.update(
        {key.replace(last, more): tensor for key, tensor in [*tensors.items()] if last in key}))
    for count in 0, 1:
        text["num_nextn_predict_layers"] = count
        (folder / "config.json").write_text(json.dumps(config))
        result = run_attnd("--check-config", "--model", f"m={folder}")
        assert result.returncode == 1 - count and ("but there is a tensor" in result.stderr) == (count == 0)


@pytest.mark.parametrize("name, key, value", [("apertus", "qk_norm", True), ("hunyuan_v1_dense", "use_qk_norm", True),
                                              ("minimax_m2", "use_qk_norm", True),
                                              ("mimo_v2_flash", "attention_chunk_size", 128)])
def test_key_that_published_files_have_is_not_refused(name, key, value, tmp_path):
    """They say what the family has anyway, or nothing that transformers reads."""
    folder = copy_folder(name, tmp_path)
    change_config(folder, **{key: value})
    assert run_attnd("--check-config", "--model", f"m={folder}").returncode == 0


def test_every_family_knows_its_keys_with_one_of_its_layers():
    models = []
    for path in sorted(path for path in FOLDERS.iterdir() if path.is_dir()):
        for part in sorted({name.rpartition("/")[0] for name in read_safetensors(path / "cases.safetensors")} - {""}):
            for option in f"layer={part}", f"layers={''.join(filter(str.isdigit, part))}":
                models += "--model", f"m{len(models)}={path},{option}"
    result = run_attnd("--check-config", *models)
    assert result.returncode == 0 and "which changes the attention" not in result.stderr, result.stderr


def rename(path, kind, target):
    """Makes a folder of the same files under another model_type; that of a text inside takes the place of the whole."""
    folder = target / path.name
    folder.mkdir()
    for file in path.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((path / "config.json").read_text())
    config = config.get("text_config", config) | {"model_type": kind}
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))


def names_of_models(server):
    return [model["name"] for model in server.get("/v1/models").json()["models"]]


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "gemma", "gpt2", "bert"])
def test_folder_of_another_type_is_refused_or_right(kind, tmp_path):
    """By a key, a tensor or a shape; else its layers must be those of the family that it names."""
    paths = [path for path in sorted(FOLDERS.iterdir()) if path.is_dir()]
    for path in paths:
        rename(path, kind, tmp_path)
    with Server("--model-dir", tmp_path, "--skip-bad-models") as server:
        taken = {name.partition(".")[0] for name in names_of_models(server)}
    models = [word for path in paths if path.name in taken
              for word in ("--model", f"{path.name}={tmp_path / path.name},pre_norm=false")]
    with Server(*models) as server:
        served = names_of_models(server)
        assert served
        for path in paths:
            cases = read_safetensors(path / "cases.safetensors")
            for name in served:
                part = name.removeprefix(path.name + ".")
                part = part if f"{part}/queries" in cases else f"text.{part}"
                if not name.startswith(path.name + ".") or f"{part}/queries" not in cases:
                    continue
                body = {"model": name, "queries": cases[f"{part}/queries"].tolist()}
                if f"{part}/keys" in cases:
                    body["keys"] = body["values"] = cases[f"{part}/keys"].tolist()
                want = cases[f"{part}/outputs"]
                error = np.abs(np.array(server.attention(body).json()["outputs"]) - want).max()
                assert error <= 2e-5 * np.abs(want).max(), (name, error)
