# SPDX-License-Identifier: Apache-2.0
"""Folders that are refused: one line, the exit code of a bad model, and no memory taken."""

import json

import numpy as np
import pytest

from folders import FOLDERS, change_config, copy_folder, copy_layers, refusal_of, rewrite
from peak import peak_of
from server import is_sanitized, run_attnd

# How config.json of a folder is spoilt, and what the line says.
BAD_CONFIGS = {
    "unknown family": ("gpt2", {"model_type": "gpt9"}, "does not know model_type 'gpt9'"),
    "latent attention": ("llama", {"model_type": "kimi_k2"}, "multi-head latent attention"),
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
    "too few layers": ("gemma2", {"num_hidden_layers": 1}, "the number of layers in config.json is 1, but there is"),
    "too many layers": ("gpt2", {"n_layer": 2}, "'h.1.attn.c_attn.weight' is missing"),
    "endless layers": ("gpt2", {"n_layer": 16384}, "'h.1.attn.c_attn.weight' is missing"),
    "2^24 layers without attention": ("lfm2", {"num_hidden_layers": 2**24, "layer_types": ...,
        "full_attn_idxs": [1]}, "there are 16777216 layers, but attnd serves at most 16384"),
    "many numbers of layers": ("lfm2", {"layer_types": ..., "full_attn_idxs": [1] * 9},
        "full_attn_idxs must be a list of numbers, at most one for each of"),
    "numbers of layers as text": ("lfm2", {"layer_types": ..., "full_attn_idxs": "1"}, "full_attn_idxs must be a list"),
    "no number of a layer": ("lfm2", {"layer_types": ..., "full_attn_idxs": []}, "by full_attn_idxs none of"),
    "another width": ("bert", {"hidden_size": 96}, "expected [96,96]"),
    "relative positions": ("bert", {"position_embedding_type": "relative_key"}, "must be absolute"),
    "rope base 0": ("llama", {"rope_parameters": {"rope_theta": 0}}, "rope_theta is 0"),
    "unknown rope type": ("llama", {"rope_parameters": {"rope_type": "spiral"}}, "rope_type 'spiral'"),
    "llama3 without factor": ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "factor is missing"),
    "window -1": ("mistral", {"sliding_window": -1}, "sliding_window is -1"),
    "softcap 0": ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping is 0"),
    "unknown layer type": ("gemma2", {"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
    "few layer types": ("gemma2", {"layer_types": ["full_attention"]}, "layer_types must be a list"),
    "chunks of no size": ("llama4_text", {"attention_chunk_size": None}, "but attention_chunk_size is not set"),
    "rope as a number": ("llama", {"rope_parameters": 5}, "rope_parameters must be an object"),
    "rope of a kind as a number": ("gemma3_text", {"rope_parameters": {"full_attention": 5}},
        "rope_parameters must be an object"),
    "window that no layer may have": ("qwen2", {"layer_types": ["sliding_attention"] * 3, "sliding_window": 8},
        "layer 0 has sliding attention, but use_sliding_window is not true"),
    "bias announced": ("llama", {"attention_bias": True}, "q_proj.bias' is missing"),
    "bias not announced": ("starcoder2", {"use_bias": False}, "is a bias that"),
    "cross attention": ("gpt2", {"add_cross_attention": True}, "add_cross_attention is true, but no tensor"),
    "cross attention of bert": ("bert", {"add_cross_attention": True}, "add_cross_attention is true, but no tensor"),
    "width 2^31": ("llama", {"hidden_size": 2**31}, "hidden_size is 2147483648"),
    "heads of 2^24": ("llama", {"head_dim": 2**24, "num_attention_heads": 2**24}, "has shape [64,64], expected"),
    "eps 0": ("llama", {"rms_norm_eps": 0}, "rms_norm_eps is 0"),
    "negative eps": ("vit", {"layer_norm_eps": -1e-5}, "layer_norm_eps is -1e-05"),
    "eps as text": ("vit", {"layer_norm_eps": "NaN"}, "layer_norm_eps is 'NaN'"),
    "negative factor": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": -2}}, "factor is -2"),
    "original length 0": ("llama", {"rope_parameters": {
        "rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4,
        "original_max_position_embeddings": 0}}, "original_max_position_embeddings is 0"),
    "frequencies the wrong way round": ("llama", {"rope_parameters": {
        "rope_type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 1,
        "original_max_position_embeddings": 16}}, "high_freq_factor is 1, but must not be less"),
    "few factors": ("phi3", {"rope_parameters": {
        "rope_type": "longrope", "short_factor": [1], "long_factor": [1]}}, "short_factor must be a list of 8"),
    "rope type as number": ("llama", {"rope_parameters": {"rope_type": 3}}, "rope_type is 3"),
    "rotated more than all": ("gpt_neox", {"rotary_pct": 2, "rope_parameters": ...}, "would be 0 numbers"),
    "many layer types": ("gpt_oss", {"layer_types": [5, 5]}, "layer_types must be a list"),
    "layer types as text": ("gemma2", {"layer_types": "full_attention"}, "layer_types must be a list"),
    "buckets 0": ("t5", {"relative_attention_num_buckets": 0}, "relative_attention_num_buckets is 0"),
    "many buckets": ("t5", {"relative_attention_num_buckets": 2**24}, "buckets up to distance"),
    "no clip": ("mpt", {"attn_config": {"clip_qkv": -6}}, "attn_config.clip_qkv is -6"),
    "scalar 0": ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0"),
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
    "deep": (b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}", "maximum parsing depth reached"),
    "100 MB": (b" " * 100_000_000, "has 100000000 bytes"),
    "not quite NaN": (b'{"layer_norm_epsilon": NaNa}', "config.json: is not valid JSON: line 1"),
    "a file of another kind": (b"GGUF\3", "config.json: is a GGUF file"),
    "infinity": (b'{"layer_norm_epsilon": 1e999}', "config.json: is not valid JSON: line 1"),
    "long integer": (b'{"n_head": 123456789012345678901234567890}', "config.json: is not valid JSON: line 1"),
    "no UTF-8": (b'{"model_type": "\xff"}', "config.json: is not valid JSON: line 1"),
}


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_bad_text_of_config_is_refused(name, tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    text, words = BAD_TEXTS[name]
    (folder / "config.json").write_bytes(text)
    assert words in refusal_of("--model", f"m={folder}")


@pytest.mark.parametrize("value, words", [
    (float("nan"), "layer_norm_epsilon is of another type, but must be a number larger than 0"),
    (float("inf"), "layer_norm_epsilon is 'inf', but must be"), (-float("inf"), "layer_norm_epsilon is '-inf', but")])
def test_numbers_that_python_writes_are_refused_in_a_key_that_counts(value, words, tmp_path):
    """They are read anywhere else, as transformers does; a text is not changed."""
    folder = copy_folder("gpt2", tmp_path)
    change_config(folder, time_step_limit=[0.0, value], NaN={"a \"-Infinity\\": "NaN Infinity"})
    assert "Infinity" in (folder / "config.json").read_text()
    assert run_attnd("--check-config", "--model", f"m={folder}").returncode == 0
    change_config(folder, layer_norm_epsilon=value)
    assert words in refusal_of("--model", f"m={folder}")


@pytest.mark.skipif(is_sanitized(), reason="sanitizers use memory of their own")
def test_refusal_of_a_huge_config_takes_no_memory(tmp_path):
    """The 100 MB are not read; half of them is more than anything else may differ by."""
    peaks = []
    for text in (b"{", b" " * 100_000_000):
        folder = copy_folder("gpt2", tmp_path / str(len(text)))
        (folder / "config.json").write_bytes(text)
        peaks.append(peak_of("--check-config", "--model", f"m={folder}", exit_code=1))
    assert peaks[1] < peaks[0] + 50_000_000, peaks


@pytest.mark.parametrize("shape, words", [
    ([2**62, 48], "size"), ([2**32, 2**32], "size"), ([48, 2**40], "size"), ([-48, 144], "shape")])
def test_sizes_that_overflow_are_refused(shape, words, tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    path = folder / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8:8 + size])
    header["h.0.attn.c_attn.weight"]["shape"] = shape
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size:])
    line = refusal_of("--model", f"m={folder}")
    assert "model.safetensors: tensor 'h.0.attn.c_attn.weight'" in line and words in line


@pytest.mark.parametrize("shard, words", [
    ("../llama/model.safetensors", "not the name of a file in this folder"),
    ("..", "not the name of a file"), ("", "not the name of a file"), (5, "not the name of a file"),
    ("a\\b", "not the name of a file"), ("gone.safetensors", "gone.safetensors: cannot be opened: No such file or directory; copy the folder again"),
    ("config.json", "config.json: "), ("model-00002-of-00002.safetensors", "which lacks it")])
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


@pytest.mark.parametrize("name, words", [
    ("h.0.attn.c_attn.lora_A.weight", "it is of LoRA"),
    ("h.0.attn.c_attn.weight_scale_inv", "the weights are quantized"),
    ("h.0.attn.rotary.weight", "it might change the results")])
def test_unknown_tensor_inside_the_attention_is_refused(name, words, tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    rewrite(folder, lambda tensors: tensors.update({name: np.ones(3, np.float32)}))
    line = refusal_of("--model", f"m={folder}")
    assert words in line and name in line


def test_missing_bias_is_refused(tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    rewrite(folder, lambda tensors: tensors.pop("h.0.attn.c_proj.bias"))
    assert "'h.0.attn.c_proj.bias' is missing" in refusal_of("--model", f"m={folder}")


def test_folder_with_an_adapter_is_refused(tmp_path):
    folder = copy_folder("gpt2", tmp_path)
    (folder / "adapter_config.json").write_text("{}")
    assert "adapter_config.json" in refusal_of("--model", f"m={folder}")


def test_folder_without_config_is_refused(tmp_path):
    assert "is a directory without config.json" in refusal_of("--model", f"m={tmp_path}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")  # transformers needs config.json, too
    assert "is a directory without config.json" in refusal_of("--model", f"m={tmp_path}")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    assert "has no config.json and no model.safetensors; x.gguf is a GGUF file; give attnd the safetensors" in \
        refusal_of("--model", f"m={tmp_path}")
    copy_folder("gpt2", tmp_path / "b").rename(tmp_path / "whole")
    (tmp_path / "whole/config.json").unlink()
    (tmp_path / "whole/x.gguf").write_bytes(b"GGUF")
    assert "is a directory without config.json" in refusal_of("--model", f"m={tmp_path / 'whole'}")


@pytest.mark.parametrize("path", ["meta-llama/Llama-3.2-1B", "gpt2", "gpt2,layer=3"])
def test_name_at_hugging_face_is_told_how_to_become_a_folder(path, tmp_path):
    name = path.split(",")[0]
    hint = f"; if that is a model of Hugging Face: hf download {name} --local-dir {name.split('/')[-1]}\n"
    assert run_attnd("--check-config", "--model", f"m={path}", cwd=tmp_path).stderr.endswith(hint)
    result = run_attnd("inspect", path, cwd=tmp_path)
    assert result.returncode == 1 and result.stderr.endswith(hint), result.stderr


@pytest.mark.parametrize("path", ["x.safetensors", "a/x.safetensors", "./gpt2", "/gpt2", "a/b/c", "a b/c", "a/",
                                  "x.npz", "a" * 97, "../gpt2"])
def test_path_that_is_no_name_at_hugging_face_gets_no_hint(path, tmp_path):
    result = run_attnd("inspect", path, cwd=tmp_path)
    assert result.returncode == 1 and result.stderr.endswith("cannot be opened: No such file or directory\n")


@pytest.mark.parametrize("folder, part, use", [
    ("gemma2", "7", "0 to 1"), ("gemma2", "h.0", "0 to 1"), ("albert", "1", "0"),
    ("t5", "0", "encoder.0 to encoder.1, decoder.0 to decoder.1 or decoder.0.cross to decoder.1.cross")])
def test_layer_that_there_is_not_is_refused_with_those_that_there_are(folder, part, use):
    line = refusal_of("--model", f"m={FOLDERS / folder},layer={part}")
    assert line.endswith(f": there is no layer={part}; use {use}\n"), line


def test_weight_that_is_not_finite_is_refused(tmp_path):
    folder = copy_layers("gpt2", tmp_path, 3)

    def spoil(tensors):
        tensors["h.2.attn.c_proj.weight"] = tensors["h.2.attn.c_proj.weight"].copy()
        tensors["h.2.attn.c_proj.weight"][0, 1] = np.nan

    rewrite(folder, spoil)
    line = refusal_of("--model", f"m={folder}")
    assert "layer 2: tensor 'h.2.attn.c_proj.weight': element 1 is nan" in line

    inspected = run_attnd("inspect", folder, FOLDERS / "gpt_neo")
    assert inspected.returncode == 1 and inspected.stderr == line, inspected
    assert inspected.stdout.count("causal, ") == 5  # the layers of both folders
    assert run_attnd("inspect", f"{folder},layers=0-1").returncode == 0


def test_the_first_bad_layer_is_the_error(tmp_path):
    """Layers are loaded in parallel, but the line is that of the first."""
    folder = copy_layers("gpt2", tmp_path, 3)
    rewrite(folder, lambda tensors: tensors.update(
        {f"h.{layer}.attn.c_proj.bias": np.full(48, np.nan, np.float32) for layer in (1, 2)}))
    for _ in range(10):
        assert "layer 1: tensor 'h.1.attn.c_proj.bias'" in refusal_of("--model", f"m={folder}")


def test_file_of_a_folder_is_refused_with_a_hint_at_the_folder():
    path = FOLDERS / "gpt2/model.safetensors"
    hint = "it is in a folder with config.json: give the folder instead\n"
    assert refusal_of("--model", f"m={path}").endswith(hint)
    result = run_attnd("inspect", path)
    assert result.returncode == 1 and result.stderr.endswith(hint), result.stderr
