# SPDX-License-Identifier: Apache-2.0
"""Files of one layer whose classes share key heads, norm queries and keys, and rotate them, compared with the
formulas of those classes in float64."""

import re

import numpy as np
import pytest

from safetensors_file import write_safetensors
from server import ROOT, Server, run_attnd

NOTE = "served without rotation; Llama 3 and Qwen3 rotate: rope_theta=500000 or 1000000"
WIDTH, ROWS = 24, 11


def random_file(path, heads, key_heads, size, bias=False, norms=False, names=("W_query", "W_key", "W_value", "out_proj")):
    """Writes a layer of Raschka's GroupedQueryAttention, and returns its tensors in float64."""
    rng = np.random.default_rng([heads, key_heads, size])
    rows = (heads * size, key_heads * size, key_heads * size, WIDTH)
    tensors = {}
    for name, count in zip(names, rows):
        columns = heads * size if name == names[3] else WIDTH
        tensors[f"{name}.weight"] = rng.normal(size=(count, columns)) * columns ** -0.5
        if bias:
            tensors[f"{name}.bias"] = rng.normal(size=count)
    if norms:
        tensors |= {f"{name}_norm.scale": rng.normal(1, 0.5, size) for name in "qk"}
    tensors = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
    write_safetensors(path, tensors)
    return {name: tensor.astype(float) for name, tensor in tensors.items()}


def rms(rows, scale, eps):
    return rows / np.sqrt((rows ** 2).mean(-1, keepdims=True) + eps) * scale


def rotate(rows, theta):
    """Rotates [H, T, D]: number i of a head and number i + D/2 are a pair."""
    half = rows.shape[-1] // 2
    angles = np.arange(rows.shape[1])[:, None] * theta ** (-np.arange(half) / half)
    first, second = rows[..., :half], rows[..., half:]
    return np.concatenate([first * np.cos(angles) - second * np.sin(angles),
                           second * np.cos(angles) + first * np.sin(angles)], axis=-1)


def attend(tensors, x, heads, theta=None, eps=None, causal=True, names=("W_query", "W_key", "W_value", "out_proj")):
    """Returns weights [H, T, T] and outputs [T, WIDTH]."""
    def project(name, rows):
        return rows @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0)
    size = len(tensors[f"{names[0]}.weight"]) // heads
    q, k, v = (project(name, x).reshape(len(x), -1, size).transpose(1, 0, 2) for name in names[:3])
    if eps:
        q, k = rms(q, tensors["q_norm.scale"], eps), rms(k, tensors["k_norm.scale"], eps)
    if theta:
        q, k = rotate(q, theta), rotate(k, theta)
    k, v = (np.repeat(rows, heads // len(rows), axis=0) for rows in (k, v))
    scores = q @ k.transpose(0, 2, 1) / size ** 0.5
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights, project(names[3], (weights @ v).transpose(1, 0, 2).reshape(len(x), -1))


class Case:
    """A file, its options, and what attend() needs besides."""

    def __init__(self, name, path, options, tensors, heads, **expected):
        self.name, self.argument, self.expected = name, f"{path},{options}", expected
        self.tensors, self.heads = tensors, heads


def grouped_case(folder, heads, key_heads, size, bias):
    path = folder / f"grouped{heads}-{key_heads}.safetensors"
    return Case(path.stem, path, f"num_heads={heads}", random_file(path, heads, key_heads, size, bias), heads)


def rotated_case(folder, theta, norms):
    path = folder / f"rotated{theta:.0f}{norms}.safetensors"
    return Case(path.stem, path, f"num_heads=8,rope_theta={theta:g}" + (",eps=1e-6" if norms else ""),
                random_file(path, 8, 2, 8, norms=norms), 8, theta=theta, eps=1e-6 if norms else None)


def metadata_case(folder, name, options, **expected):
    path = folder / f"{name}.safetensors"
    tensors = random_file(path, 4, 2, 8, norms=True)
    write_safetensors(path, tensors, "F32", {"num_heads": "4", "rope_theta": "1e6", "eps": "0.5"})
    return Case(name, path, options, tensors, 4, **expected)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Serves all cases, by their names. Returns cases, server, and what attnd inspect prints of each."""
    folder = tmp_path_factory.mktemp("files")
    cases = [grouped_case(folder, *sizes) for sizes in ((8, 2, 8, False), (6, 3, 4, True), (4, 1, 6, False), (3, 3, 8, True))]
    cases += [rotated_case(folder, theta, norms) for theta in (500000, 1e6, 10000) for norms in (False, True)]
    cases += [metadata_case(folder, "metadata", "causal=true", theta=1e6, eps=0.5),
              metadata_case(folder, "overridden", "eps=1e-5,rope_theta=100", theta=100, eps=1e-5)]
    inspected = run_attnd("inspect", *(case.argument for case in cases)).stdout
    texts = dict(zip((case.name for case in cases), re.split(r"(?m)^(?=/)", inspected)[1:]))
    with Server(*(word for case in cases for word in ("--model", f"{case.name}={case.argument}"))) as server:
        yield {case.name: case for case in cases}, server, texts


def test_results_are_those_of_the_classes(served):
    """Halves of a head are rotated; queries and keys are normed before."""
    cases, server, _ = served
    x = np.random.default_rng(8).normal(size=(ROWS, WIDTH)).astype(np.float32)
    for name, case in cases.items():
        reply = server.attention({"model": name, "queries": x.tolist(), "need": ["weights", "outputs"]}).json()
        weights, outputs = attend(case.tensors, x.astype(float), case.heads, **case.expected)
        assert np.abs(np.array(reply["attention_weights"]) - weights).max() <= 1e-5, name
        assert np.abs(np.array(reply["outputs"]) - outputs).max() <= 1e-5 * np.abs(outputs).max(), name


def test_start_and_inspect_say_that_shared_keys_are_not_rotated(served):
    cases, server, texts = served
    log = server.read_log()
    for name, case in cases.items():
        plain = name.startswith("grouped") and name != "grouped3-3"
        assert (f"model={name} reason=\"{NOTE}\"" in log) == (f"  note: {NOTE}\n" in texts[name]) == plain, name
    assert "  heads           8 of size 8\n  key heads       2\n" in texts["grouped8-2"]
    assert "key heads" not in texts["grouped3-3"] and "features" not in texts["grouped3-3"]
    assert server.get("/v1/models/grouped8-2").json()["num_kv_heads"] == 2


def test_inspect_says_how_a_layer_is_rotated_and_normed(served):
    _, _, texts = served
    assert "  features        causal, rope 500000 of 8\n" in texts["rotated500000False"]
    assert "  features        causal, rope 1e+06 of 8, RMS norm of each head\n" in texts["rotated1000000True"]


def test_malformed_metadata_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    tensors = random_file(path, 4, 2, 8, norms=True)
    for key, value in (("eps", "0"), ("eps", "small"), ("rope_theta", "-1"), ("rope_theta", "inf"), ("rope_theta", "")):
        write_safetensors(path, tensors, "F32", {"num_heads": "4", "rope_theta": "1e6", "eps": "0.5", key: value})
        refused = run_attnd("inspect", path)
        assert refused.returncode == 1
        assert f"{key} is '{value}' in __metadata__, but must be a number greater than 0" in refused.stderr


def test_additive_scoring_shares_key_heads(tmp_path):
    path = tmp_path / "m.safetensors"
    tensors = random_file(path, 6, 2, 4)
    rng = np.random.default_rng(3)
    added = {"attention.W_q.weight": rng.normal(size=(5, 4)), "attention.W_k.weight": rng.normal(size=(5, 4)),
             "attention.w_v.weight": rng.normal(size=5)}
    write_safetensors(path, tensors | added)
    x = rng.normal(size=(5, WIDTH))
    with Server("--model", f"m={path},num_heads=6,causal=false") as server:
        reply = server.attention({"queries": x.tolist(), "need": ["weights"]}).json()
    q, k = (x @ tensors[f"{name}.weight"].T for name in ("W_query", "W_key"))
    q, k = q.reshape(5, 6, 1, 4), np.repeat(k.reshape(1, 5, 2, 4).transpose(0, 2, 1, 3), 3, axis=1)
    scores = np.tanh(q @ added["attention.W_q.weight"].T + k @ added["attention.W_k.weight"].T) @ added["attention.w_v.weight"]
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert np.abs(np.array(reply["attention_weights"]) - weights.transpose(1, 0, 2)).max() <= 1e-5


@pytest.mark.parametrize("options,change,words", [
    ("num_heads=8", {}, "write rope_theta= and eps= after the file, for Qwen3 rope_theta=1000000,eps=1e-6"),
    ("num_heads=8,eps=1e-6", {}, "write rope_theta= and eps="),
    ("num_heads=8,rope_theta=1e6", {}, "write rope_theta= and eps="),
    ("num_heads=8,rope_theta=1e6,eps=1e-6", {"k_norm.scale": None},
     "tensor 'q_norm.scale' is there, but 'k_norm.scale' is missing"),
    ("num_heads=8,rope_theta=1e6,eps=1e-6", {"q_norm.scale": None},
     "tensor 'k_norm.scale' is there, but 'q_norm.scale' is missing"),
    ("num_heads=8,rope_theta=1e6,eps=1e-6", {"q_norm.scale": np.ones(64)},
     "tensor 'q_norm.scale' has shape [64], expected [8]: one number for each of a head"),
    ("num_heads=8,rope_theta=1e6,eps=1e-6", {"k_norm.scale": np.ones((1, 8))}, "'k_norm.scale' has shape [1,8], expected [8]"),
    ("num_heads=8,rope_theta=1e6,eps=1e-6", {"q_norm.shift": np.ones(8)}, "'q_norm.shift' is not part of layout"),
    ("num_heads=8,rope_theta=1e6,eps=1e-6", {"q_norm.scale": None, "k_norm.scale": None},
     "eps is for norms of queries and keys (q_norm.scale), which the layer does not have; leave it out"),
    ("num_heads=64,rope_theta=1e6,eps=1e-6", {"q_norm.scale": np.ones(1), "k_norm.scale": np.ones(1)},
     "rope_theta rotates pairs of numbers, but heads have 1; leave it out, or correct num_heads"),
    ("num_heads=8,rope_theta=1e400,eps=1e-6", {}, "rope_theta '1e400' is not a number greater than 0"),
    ("num_heads=8,rope_theta=0,eps=1e-6", {}, "rope_theta '0' is not a number greater than 0"),
    ("num_heads=8,rope_theta=1e6,eps=-1", {}, "eps '-1' is not a number greater than 0"),
    ("num_heads=8,rope_theta=1e6,eps=1e-6", {"W_value.weight": np.ones((8, WIDTH))},
     "tensor 'W_value.weight' has shape [8,24], expected [16,any]: the weights of query, key and value must have the "
     "same number of rows, or those of key and value fewer whole heads, which divide num_heads"),
    ("num_heads=8,rope_theta=1e6,eps=1e-6", {"W_key.weight": np.ones((24, WIDTH))}, "has shape [24,24], expected [64,any]"),
    ("num_heads=8,rope_theta=1e6,eps=1e-6", {"W_key.bias": np.ones(64)}, "'W_key.bias' has shape [64], expected [16]"),
    ("num_heads=8,rope_theta=1e6,eps=1e-6", {"attention.W_q.weight": np.ones((3, 8)), "attention.W_k.weight": np.ones((3, 8)),
                                             "attention.w_v.weight": np.ones(3)},
     "rope_theta is not for additive scoring; leave it out"),
])
def test_what_does_not_fit_is_named(tmp_path, options, change, words):
    path = tmp_path / "m.safetensors"
    tensors = random_file(path, 8, 2, 8, norms=True) | change
    write_safetensors(path, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    refused = run_attnd("inspect", f"{path},{options}")
    assert refused.returncode == 1 and words in refused.stderr, refused.stderr


def test_torch_has_no_shared_keys(tmp_path):
    path = tmp_path / "m.safetensors"
    rng = np.random.default_rng(1)
    write_safetensors(path, {"q_proj_weight": rng.normal(size=(8, 8)), "k_proj_weight": rng.normal(size=(4, 8)),
                             "v_proj_weight": rng.normal(size=(4, 8)), "in_proj_bias": rng.normal(size=24),
                             "out_proj.weight": rng.normal(size=(8, 8))})
    refused = run_attnd("inspect", f"{path},num_heads=4")
    assert refused.returncode == 1 and "'k_proj_weight' has shape [4,8], expected [8,any]" in refused.stderr


@pytest.mark.parametrize("key", ["rope_theta=10000", "eps=1e-6"])
def test_folders_have_their_own_rotation(key):
    refused = run_attnd("inspect", f"{ROOT}/docs/examples/tiny-gpt2,{key}")
    assert refused.returncode == 1
    assert f"{key.split('=')[0]} of a folder comes from its config.json; leave it out" in refused.stderr


def test_a_layer_that_rotates_is_not_pruned(tmp_path):
    path = tmp_path / "m.safetensors"
    random_file(path, 4, 4, 8)
    refused = run_attnd("prune", f"{path},num_heads=4,rope_theta=10000", "--heads", "1", "--output", tmp_path / "p.safetensors")
    assert refused.returncode != 0 and "the layer has rotary positions" in refused.stderr
