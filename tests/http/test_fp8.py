# SPDX-License-Identifier: Apache-2.0
"""Weights in FP8: each published form gives the bits of the same numbers in float32."""

import json

import numpy as np
import pytest

from folders import FOLDERS, change_config
from fp8 import FORMS, make_fp8, read_tensors, write_folder, write_fp8
from peak import peak_of
from safetensors_file import read_safetensors, write_safetensors
from server import Server, is_sanitized, run_attnd, skip_without

# Separate and fused projections, transposed ones, latent rows, gates, borrowed keys, several stacks.
SAMPLE = ["bert", "deepseek_v3", "gemma3n_text", "gpt2", "gpt_neox", "llama", "mimo_v2_flash", "minimax_m2",
          "ministral3", "phi3", "qwen3_next", "t5"]


def reply_of(server, model, cases):
    """Returns the outputs and weights of a layer, as text, for the recorded queries of that layer."""
    part = model["name"].split(".", 1)[1]
    body = {"model": model["name"], "queries": cases[f"{part}/queries"].tolist(), "need": ["outputs", "weights"]}
    for field in "keys", "values":
        if f"{part}/{field}" in cases:
            body[field] = cases[f"{part}/{field}"].tolist()
    if f"{part}/keys" in cases and f"{part}/values" not in cases:
        body["values"] = body["keys"]
    response = server.attention(body)
    assert response.status_code == 200, response.text
    reply = response.json()
    return reply["outputs"], reply["attention_weights"]


@pytest.mark.parametrize("name", SAMPLE)
def test_every_form_gives_the_bits_of_its_twin(name, tmp_path):
    cases = read_safetensors(FOLDERS / name / "cases.safetensors")
    models = []
    for number, form in enumerate(FORMS):
        made = write_fp8(FOLDERS / name, form, tmp_path / str(number))
        for kind, folder in zip("qt", made):
            models += ["--model", f"{kind}{number}={folder}"]
    compared = 0
    with Server(*models) as server:
        served = {model["name"]: model for model in server.get("/v1/models").json()["models"]}
        for key, model in served.items():
            if key[0] != "q" or f"{key.split('.', 1)[1]}/queries" not in cases:
                continue
            assert reply_of(server, model, cases) == reply_of(server, served["t" + key[1:]], cases), key
            compared += 1
    assert compared >= len(FORMS)


def test_bfloat16_rounds_the_numbers_once(tmp_path):
    skip_without("--precision", "bf16")
    cases = read_safetensors(FOLDERS / "llama/cases.safetensors")
    fp8, twin = write_fp8(FOLDERS / "llama", "block", tmp_path)
    with Server("--precision", "bf16", "--model", f"q={fp8}", "--model", f"t={twin}") as server:
        models = {model["name"]: model for model in server.get("/v1/models").json()["models"]}
        assert reply_of(server, models["q.0"], cases) == reply_of(server, models["t.0"], cases)


@pytest.mark.parametrize("form, words", [("large block", "FP8, scales of 128 x 128"), ("mxfp8", "FP8, scales of 1 x 32"),
                                         ("channel", "FP8, one scale a row"), ("static", "FP8, one scale a matrix")])
def test_inspect_says_what_has_a_scale(form, words, tmp_path):
    fp8, twin = write_fp8(FOLDERS / "qwen3", form, tmp_path)
    lines = [line for line in run_attnd("inspect", fp8).stdout.splitlines()[3:] if " fingerprint " not in line]
    assert lines and all(line.endswith(", " + words) for line in lines)
    assert "FP8" not in run_attnd("inspect", twin).stdout


def test_layer_of_which_some_matrices_are_plain_says_so(tmp_path):
    """As in MiMo V2, whose output projections are bfloat16."""
    fp8, twin = write_fp8(FOLDERS / "llama", "block", tmp_path)
    stored, types, plain = make_fp8(read_tensors(FOLDERS / "llama"), "block")
    for name in [key for key in stored if "o_proj" in key]:
        del stored[name], types[name]
    stored |= {name: plain[name] for name in plain if "o_proj" in name}
    types |= {name: "F32" for name in plain if "o_proj" in name}
    write_safetensors(fp8 / "model.safetensors", stored, types)
    result = run_attnd("inspect", fp8)
    assert ", FP8 in part, scales of 24 x 16" in result.stdout, result.stderr


def test_scale_may_be_in_another_shard_than_its_weight(tmp_path):
    fp8, twin = write_fp8(FOLDERS / "llama", "block", tmp_path)
    stored, types, _ = make_fp8(read_tensors(FOLDERS / "llama"), "block")
    shards = {"model-00001-of-00002.safetensors": {}, "model-00002-of-00002.safetensors": {}}
    for name in stored:
        shards[f"model-0000{1 if 'scale' in name else 2}-of-00002.safetensors"][name] = stored[name]
    for file, tensors in shards.items():
        write_safetensors(fp8 / file, tensors, types)
    (fp8 / "model.safetensors").unlink()
    (fp8 / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {name: file for file, tensors in shards.items() for name in tensors}}))
    cases = read_safetensors(FOLDERS / "llama/cases.safetensors")
    with Server("--model", f"q={fp8}", "--model", f"t={twin}") as server:
        models = {model["name"]: model for model in server.get("/v1/models").json()["models"]}
        assert reply_of(server, models["q.0"], cases) == reply_of(server, models["t.0"], cases)


def test_scales_of_a_cache_for_each_head_change_nothing(tmp_path):
    fp8, _ = write_fp8(FOLDERS / "llama", "channel", tmp_path)
    stored, types, _ = make_fp8(read_tensors(FOLDERS / "llama"), "channel")
    stored["layers.0.self_attn.k_scale"] = np.full((2, 1, 1), 0.5)
    write_safetensors(fp8 / "model.safetensors", stored, types | {"layers.0.self_attn.k_scale": "BF16"})
    assert run_attnd("--check-config", "--model", f"m={fp8}").returncode == 0


def test_scale_of_a_plain_weight_is_refused(tmp_path):
    _, twin = write_fp8(FOLDERS / "llama", "block", tmp_path)
    tensors = read_tensors(twin)
    write_safetensors(twin / "model.safetensors", tensors | {"layers.0.self_attn.v_proj.weight_scale": np.float32(2)})
    result = run_attnd("--check-config", "--model", f"m={twin}")
    assert result.returncode == 1 and "v_proj.weight_scale' is not known of family llama" in result.stderr


WEIGHT = "layers.0.self_attn.v_proj.weight"

# What becomes of a tensor of the layer, and what the line says.
SPOILT = {
    "code of NaN": ("block", WEIGHT, lambda tensor: tensor.flat.__setitem__(77, 0xff),
                    f"tensor '{WEIGHT}': element 77 is -nan, not a finite number"),
    "negative scale": ("block", WEIGHT + "_scale_inv", lambda tensor: tensor.flat.__setitem__(3, -0.25),
                       f"tensor '{WEIGHT}_scale_inv': element 3 is -0.25, but a scale is above 0 where numbers"),
    "infinite scale": ("row", WEIGHT + "_scale", lambda tensor: tensor.flat.__setitem__(5, np.inf),
                       f"tensor '{WEIGHT}_scale': element 5 is inf, not a finite number"),
    "scale of 0": ("channel", WEIGHT + "_scale", lambda tensor: tensor.flat.__setitem__(0, 0),
                   f"tensor '{WEIGHT}_scale': element 0 is 0, but a scale is above 0 where numbers of '{WEIGHT}' are not 0"),
    "exponent 255": ("mxfp8", WEIGHT + "_scale", lambda tensor: tensor.flat.__setitem__(9, 255),
                     f"tensor '{WEIGHT}_scale': element 9 is nan, not a finite number"),
    "large scale": ("tensor", WEIGHT + "_scale", lambda tensor: tensor.flat.__setitem__(0, 3e38),
                    "times its scale is too large for float32"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_number_that_cannot_be_is_refused_by_tensor_and_element(case, tmp_path):
    form, name, spoil, words = SPOILT[case]
    fp8, _ = write_fp8(FOLDERS / "llama", form, tmp_path)
    stored, types, _ = make_fp8(read_tensors(FOLDERS / "llama"), form)
    stored[name] = np.array(stored[name])
    spoil(stored[name])
    write_safetensors(fp8 / "model.safetensors", stored, types)
    for arguments in ("inspect", fp8), ("--model", f"m={fp8}"):
        result = run_attnd(*arguments)
        assert result.returncode == 1 and words in result.stderr, result.stderr


@pytest.mark.parametrize("changes, words", [
    ({"quantization_config": {"quant_method": "gptq"}}, "is in FP8, but quant_method of config.json is not one"),
    ({"quantization_config": FORMS["block"][0] | {"fmt": "e5m2"}}, "is in FP8, but fmt of config.json is not one"),
    ({"quantization_config": ...}, "is in FP8, but quantization_config of config.json is missing"),
    ({"quantization_config": FORMS["large block"][0]}, "_scale_inv' has shape ")])
def test_scheme_that_is_not_declared_is_refused(changes, words, tmp_path):
    fp8, _ = write_fp8(FOLDERS / "phi3", "block", tmp_path)
    change_config(fp8, **changes)
    result = run_attnd("--check-config", "--model", f"m={fp8}")
    assert result.returncode == 1 and result.stderr.count("\n") == 1 and words in result.stderr, result.stderr
    assert "qkv_proj.weight" in result.stderr


def test_other_types_of_8_bits_are_refused(tmp_path):
    fp8, _ = write_fp8(FOLDERS / "gpt2", "block", tmp_path)
    path = fp8 / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F8_E4M3"', b'"F8_E5M2"'))
    result = run_attnd("--check-config", "--model", f"m={fp8}")
    assert result.returncode == 1
    assert "has dtype F8_E5M2: the weights are quantized; save them in bfloat16" in result.stderr


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer has memory of its own")
@pytest.mark.parametrize("form", FORMS)
def test_reading_takes_the_memory_of_the_numbers(form, tmp_path):
    width = 1536
    rng = np.random.default_rng(5)
    quantization, ending, dtype, shape, block = FORMS[form]
    peaks = []
    for size in 8, width:
        stored, types = {}, {}
        for name in [f"layers.0.self_attn.{letter}_proj.weight" for letter in "qkvo"]:
            rows, columns = (-(-size // (number or size)) for number in block)
            scale = np.full((rows, columns), 127 if dtype in ("U8", "F8_E8M0") else 0.5, np.float32)
            stored |= {name: rng.integers(0, 127, (size, size), np.uint8), name + ending: shape(scale)}
            types |= {name: "F8_E4M3", name + ending: dtype}
        folder = tmp_path / str(size)
        write_folder(folder, {"model_type": "llama", "hidden_size": size, "num_attention_heads": 2,
                              "num_hidden_layers": 1, "quantization_config": quantization}, stored, types)
        peaks.append(peak_of("inspect", folder))
    assert peaks[1] - peaks[0] <= 1.05 * 4 * width * width * 4
