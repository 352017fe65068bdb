# SPDX-License-Identifier: Apache-2.0
"""Masks of folders: by is_causal of config.json, by the names of classes, and by causal= of --model."""

import json

import numpy as np
import pytest

from folders import FOLDERS, change_config, copy_folder, expected_layers, refusal_of
from safetensors_file import read_safetensors
from server import Server, run_attnd

# Families whose classes do not read is_causal; nor do the chunked layers of Llama 4.
ALWAYS_CAUSAL = {"openai-gpt", "imagegpt"}


def set_everywhere(value, key, setting):
    """Sets a key in config.json and in each object inside it, as texts and decoders have one."""
    if not isinstance(value, dict):
        return value
    return {name: set_everywhere(item, key, setting) for name, item in value.items()} | {key: setting}


def ask(server, model, cases, part, **options):
    body = {"model": model, "queries": cases[f"{part}/queries"].tolist(), "need": ["outputs", "weights"], **options}
    if f"{part}/keys" in cases:
        body["keys"] = body["values"] = cases[f"{part}/keys"].tolist()
    if f"{part}/values" in cases:
        body["values"] = cases[f"{part}/values"].tolist()
    reply = server.attention(body).json()
    return {key: reply[key] for key in ("outputs", "attention_weights")}


def test_is_causal_false_shows_both_sides_in_every_family(tmp_path):
    """As a request with causal=false does to the layers of the same folder without the key."""
    models = []
    for name in expected_layers():
        folder = copy_folder(name, tmp_path)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(set_everywhere(config, "is_causal", False)))
        models += ["--model", f"{name}={FOLDERS / name}", "--model", f"{name}-changed={folder}"]
    changed = 0
    with Server(*models) as server:
        described = {model["name"]: model for model in server.get("/v1/models").json()["models"]}
        for name, layers in expected_layers().items():
            cases = read_safetensors(FOLDERS / name / "cases.safetensors")
            for part, features in layers.items():
                before, after = described[f"{name}.{part}"], described[f"{name}-changed.{part}"]
                stays = not before["causal"] or name in ALWAYS_CAUSAL or "chunks" in features
                assert after["causal"] == (before["causal"] and stays), (name, part)
                assert after.get("window") == before.get("window"), (name, part)
                changed += not stays
                options = {} if stays else {"causal": False}
                assert (ask(server, f"{name}-changed.{part}", cases, part)
                        == ask(server, f"{name}.{part}", cases, part, **options)), (name, part)
    assert changed > 100


# The weights that transformers 5.24 (eager, float64) computes with is_causal false: query 4 of head 1.
RECORDED = {
    "ministral 0": [0.07996, 0.07105, 0.06631, 0.12755, 0.0949, 0.07601, 0.03868, 0.02266, 0.0027, 0.42017, 0, 0, 0],
    "gemma3_text 0": [0.05232, 0.22805, 0.04662, 0.33381, 0.18635, 0.06498, 0.023, 0.0311, 0.02376, 0.01, 0, 0, 0],
    "modernbert-decoder 1": [0.02242, 0.03636, 0.43325, 0.01966, 0.20485, 0.04029, 0.05974, 0.05505, 0.12838, 0, 0, 0, 0],
    "t5 decoder.0": [0.00492, 0.00002, 0.0017, 0, 0.00005, 0.04011, 0.89551, 0.03047, 0.02722],
}


@pytest.mark.parametrize("layer", RECORDED)
def test_windows_and_buckets_without_a_causal_mask_are_those_of_transformers(layer, tmp_path):
    name, part = layer.split()
    folder = copy_folder(name, tmp_path)
    change_config(folder, is_causal=False)
    cases = read_safetensors(folder / "cases.safetensors")
    with Server("--model", f"m={folder},pre_norm=false") as server:
        weights = np.array(ask(server, f"m.{part}", cases, part)["attention_weights"])
    assert np.abs(weights.reshape(-1, *weights.shape[-3:])[0, 1, 4] - RECORDED[layer]).max() < 1e-5


@pytest.mark.parametrize("name, keys", [
    ("llama", {"architectures": ["LlamaBidirectionalModel"]}),
    ("qwen2", {"auto_map": {"AutoModel": "modeling_bi.Qwen2BiModel"}}),
    ("qwen2", {"auto_map": {"AutoModelForMaskedLM": "McGill-NLP/x--modeling_bi.Qwen2BiForMNTP"}}),
    ("llama", {"architectures": ["LlamaEncoderModel"]}),
    ("lfm2", {"architectures": ["Lfm2BidirectionalModel"]}),
    ("qwen3", {"architectures": ["Qwen3BidirectionalModel"], "use_bidirectional_attention": True}),
    ("qwen3", {"architectures": ["Qwen3BidirectionalModel"], "is_causal": False}),
    ("qwen3", {"use_bidirectional_attention": True})])
def test_class_that_says_so_makes_a_decoder_bidirectional(name, keys, tmp_path):
    folder = copy_folder(name, tmp_path)
    change_config(folder, **keys)
    with Server("--model", f"m={folder}") as server:
        assert not any(model["causal"] for model in server.get("/v1/models").json()["models"])
        assert "mask may differ" not in server.read_log()


def test_window_of_such_a_class_must_be_said(tmp_path):
    folder = copy_folder("mistral", tmp_path)
    change_config(folder, architectures=["MistralBiModel"])
    line = refusal_of("--model", f"m={folder}")
    assert "class MistralBiModel is not causal" in line and "set causal=false" in line, line
    shown = run_attnd("inspect", f"{folder},causal=false")
    assert shown.returncode == 0 and "on each side" in shown.stdout, shown.stdout + shown.stderr


@pytest.mark.parametrize("name, keys", [
    ("t5", {"architectures": ["T5EncoderModel"]}), ("bert", {"architectures": ["BertForMaskedLM"]}),
    ("gemma3_text", {"architectures": ["Gemma3ForCausalLM"]}), ("gpt2", {"architectures": ["GPT2LMHeadModel"]}),
    ("qwen2_vl", {"architectures": ["Qwen2VLForConditionalGeneration"]}),
    ("ernie4_5_moe", {"architectures": ["Ernie4_5_MoeForCausalLM"]}),
    ("ernie4_5", {"architectures": ["Ernie4_5_ForCausalLM"]}),
    ("falcon", {"model_type": "RefinedWebModel", "architectures": ["RWForCausalLM"], "alibi": False}),
    ("llama", {"architectures": ["LLaMAForSequenceClassification"]}),
    ("deepseek_v3", {"auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config",
                                  "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM"}})])
def test_classes_of_a_type_have_no_note(name, keys, tmp_path):
    folder = copy_folder(name, tmp_path)
    change_config(folder, **keys)
    shown = run_attnd("inspect", folder)
    assert "note:" not in shown.stdout, shown.stdout


def test_folders_of_transformers_have_no_note_but_for_prefixes():
    shown = run_attnd("inspect", *(FOLDERS / name for name in expected_layers())).stdout.splitlines()
    notes = [shown[at - 1] for at, line in enumerate(shown) if line.startswith("  note: ")]
    assert len(notes) == 1 and "paligemma: family gemma" in notes[0], notes


@pytest.mark.parametrize("name, keys, words", [
    ("llama", {"architectures": ["MyLlamaForCausalLM"]}, "class MyLlamaForCausalLM is not one of llama"),
    ("llama", {"architectures": ["LlamaForMaskedLM"]}, "class LlamaForMaskedLM is not one of llama"),
    ("llama", {"auto_map": {"AutoModel": "modeling_diffusion.LlamaDiffusion"}}, "class LlamaDiffusion is"),
    ("bert", {"architectures": ["BertForDiffusion"]}, "class BertForDiffusion is not one of bert"),
    ("qwen3", {"architectures": ["Qwen3BidirectionalModel"], "is_causal": True}, "class Qwen3BidirectionalModel is"),
    ("openai-gpt", {"architectures": ["OpenAIGPTBidirectionalModel"]}, "class OpenAIGPTBidirectionalModel is"),
    ("paligemma", {}, "a prompt of paligemma is a prefix")])
def test_mask_that_is_not_certain_is_noted(name, keys, words, tmp_path):
    """In the output of inspect and in the log, once for a folder, until --model decides."""
    folder = copy_folder(name, tmp_path)
    change_config(folder, **keys)
    usual = "false" if name == "bert" else "true"
    shown = run_attnd("inspect", folder)
    note = shown.stdout.splitlines()[1]
    assert shown.returncode == 0 and note.startswith(f"  note: {words}") and "causal=" in note, shown.stdout
    with Server("--model", f"m={folder}", "--model", f"n={folder},causal={usual}") as server:
        log = server.read_log()
        assert log.count("warn mask may differ ") == 1 and words in log, log
        masks = {model["name"][0]: model["causal"] for model in server.get("/v1/models").json()["models"]}
        assert masks == {"m": usual == "true", "n": usual == "true"}


@pytest.mark.parametrize("name, keys", [
    ("gpt2", {}), ("openai-gpt", {}), ("llama4_text", {}), ("bert", {}), ("t5", {}), ("clip", {}),
    ("gemma", {"use_bidirectional_attention": True}), ("llama", {"causal": False})])
def test_causal_of_a_folder_is_that_of_all_layers_but_cross_ones(name, keys, tmp_path):
    folder = copy_folder(name, tmp_path)
    change_config(folder, **keys)
    with Server("--model", f"yes={folder},causal=true", "--model", f"no={folder},causal=false") as server:
        for model in server.get("/v1/models").json()["models"]:
            assert model["causal"] == (model["name"].startswith("yes") and model.get("kind") != "cross"), model
