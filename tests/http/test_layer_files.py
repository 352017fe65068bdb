# SPDX-License-Identifier: Apache-2.0
"""Files of one layer whose classes share key heads, norm queries and keys, and rotate them, or whose tensors have names
of their own, compared with the formulas of those classes in float64."""

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


def rotate(rows, theta, interleaved=False):
    """Rotates [H, T, D]: number i of a head and number i + D/2 are a pair, or neighbours are."""
    if interleaved:
        apart = rotate(np.concatenate([rows[..., ::2], rows[..., 1::2]], axis=-1), theta)
        return np.stack(np.split(apart, 2, axis=-1), axis=-1).reshape(rows.shape)
    half = rows.shape[-1] // 2
    angles = np.arange(rows.shape[1])[:, None] * theta ** (-np.arange(half) / half)
    first, second = rows[..., :half], rows[..., half:]
    return np.concatenate([first * np.cos(angles) - second * np.sin(angles),
                           second * np.cos(angles) + first * np.sin(angles)], axis=-1)


def attend(tensors, x, heads, theta=None, eps=None, causal=True, interleaved=False, names=("W_query", "W_key", "W_value", "out_proj")):
    """Returns weights [H, T, T] and outputs [T, WIDTH]."""
    def project(name, rows):
        return rows @ tensors[f"{name}.weight"].T + tensors.get(f"{name}.bias", 0)
    size = len(tensors[f"{names[0]}.weight"]) // heads
    q, k, v = (project(name, x).reshape(len(x), -1, size).transpose(1, 0, 2) for name in names[:3])
    if eps:
        q, k = rms(q, tensors["q_norm.scale"], eps), rms(k, tensors["k_norm.scale"], eps)
    if theta:
        q, k = rotate(q, theta, interleaved), rotate(k, theta, interleaved)
    k, v = (np.repeat(rows, heads // len(rows), axis=0) for rows in (k, v))
    scores = q @ k.transpose(0, 2, 1) / size ** 0.5
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    heads_out = (weights @ v).transpose(1, 0, 2).reshape(len(x), -1)
    return weights, project(names[3], heads_out) if f"{names[3]}.weight" in tensors else heads_out


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


def assert_attends(server, name, case, x):
    """The weights and outputs of a case are those of float64."""
    reply = server.attention({"model": name, "queries": x.tolist(), "need": ["weights", "outputs"]}).json()
    weights, outputs = attend(case.tensors, x.astype(float), case.heads, **case.expected)
    assert np.abs(np.array(reply["attention_weights"]) - weights).max() <= 1e-5, name
    assert np.abs(np.array(reply["outputs"]) - outputs).max() <= 1e-5 * np.abs(outputs).max(), name


def test_results_are_those_of_the_classes(served):
    """Halves of a head are rotated; queries and keys are normed before."""
    cases, server, _ = served
    x = np.random.default_rng(8).normal(size=(ROWS, WIDTH)).astype(np.float32)
    for name, case in cases.items():
        assert_attends(server, name, case, x)


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


# --- names of one's own ---

BOOK = ("W_query", "W_key", "W_value", "out_proj")
DIFFUSERS = dict(zip(BOOK, ("to_q", "to_k", "to_v", "to_out.0")))
LLAMA = dict(zip(BOOK, ("wq", "wk", "wv", "wo")))
KEYS = "q=to_q,k=to_k,v=to_v,o=to_out.0"


def rename(tensors, names, before="", transposed=False, bare=False):
    """Returns the tensors under other names: with a prefix, as [in, out], or without ".weight"."""
    renamed = {}
    for name, tensor in tensors.items():
        module, kind = name.rsplit(".", 1)
        if transposed and kind == "weight":
            tensor = np.ascontiguousarray(tensor.T)
        renamed[before + names.get(module, module) + ("" if bare and kind == "weight" else "." + kind)] = tensor
    return renamed


def own_case(folder, name, options, names, heads=8, key_heads=8, size=8, bias=False, expected=None, stored=rename, metadata=None):
    """A file of the tensors that stored() makes of those of the book."""
    path = folder / f"{name}.safetensors"
    tensors = random_file(path, heads, key_heads, size, bias)
    write_safetensors(path, stored(tensors, names), "F32", metadata)
    return Case(name, path, options, tensors, heads, **({"causal": False} | (expected or {})))


def packed(tensors, names, transposed=False):
    stored = {names["out_proj"] + kind: tensors["out_proj" + kind] for kind in (".weight", ".bias")}
    stored |= {"to_qkv" + kind: np.concatenate([tensors[name + kind] for name in BOOK[:3]]) for kind in (".weight", ".bias")}
    return {name: np.ascontiguousarray(tensor.T) if transposed else tensor for name, tensor in stored.items()}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    meta = {"prefix": "a.", "num_heads": "8", "q": "wq", "k": "wk", "v": "wv", "o": "wo", "causal": "true", "rope_theta": "1e4",
            "rope_interleaved": "true"}
    shared = {"q": "to_q", "k": "to_kv", "v": "to_kv"}
    cases = [
        own_case(folder, "diffusers", f"num_heads=8,{KEYS}", DIFFUSERS, bias=True),
        own_case(folder, "whole_names", "num_heads=8," + KEYS.replace(",", ".weight,") + ".weight", DIFFUSERS, bias=True),
        own_case(folder, "metadata", "causal=true", LLAMA, key_heads=2, metadata=meta,
                 stored=lambda tensors, names: rename(tensors, names, "a.") | {"b.w": np.ones(2)},
                 expected={"theta": 1e4, "causal": True, "interleaved": True}),
        own_case(folder, "halves", "num_heads=8,q=wq,k=wk,v=wv,o=wo,rope_theta=10000,causal=true", LLAMA, key_heads=2,
                 expected={"theta": 1e4, "causal": True}),
        own_case(folder, "bare", "prefix=x.y.,num_heads=4,q=wq,k=wk,v=wv,o=wo", LLAMA, 4, 4,
                 stored=lambda tensors, names: rename(tensors, names, "x.y.", bare=True)),
        own_case(folder, "no_output", "num_heads=4,q=wq,k=wk,v=wv", LLAMA, 4, 2, bias=True),
        own_case(folder, "shared", "num_heads=8," + ",".join(f"{key}={name}" for key, name in shared.items()) + ",o=to_out.0",
                 DIFFUSERS | {"W_key": "to_kv", "W_value": "to_kv"}),
        own_case(folder, "turned", "num_heads=6,transposed=true," + KEYS, DIFFUSERS, 6, 2, 4, bias=True,
                 stored=lambda tensors, names: rename(tensors, names, transposed=True)),
        own_case(folder, "square", "num_heads=3,transposed=true," + KEYS, DIFFUSERS, 3, 3, 8,
                 stored=lambda tensors, names: rename(tensors, names, transposed=True)),
        own_case(folder, "packed", "num_heads=8,qkv=to_qkv,o=to_out.0", DIFFUSERS, bias=True, stored=packed),
        own_case(folder, "packed_turned", "num_heads=6,qkv=to_qkv,o=to_out.0,transposed=true", DIFFUSERS, 6, 6, 4, bias=True,
                 stored=lambda tensors, names: packed(tensors, names, True)),
        own_case(folder, "underscores", "num_heads=8,q=q_weight,k=k_weight,v=v_weight,o=out.weight", {}, bias=True,
                 stored=lambda tensors, names: {
                     name.replace("W_query.", "q_").replace("W_key.", "k_").replace("W_value.", "v_").replace("out_proj", "out"):
                     tensor for name, tensor in tensors.items()}),
    ]
    for case in cases:
        if case.name == "shared":
            case.tensors["W_key.weight"] = case.tensors["W_value.weight"]
        if case.name == "no_output":
            stored = {name: tensor for name, tensor in case.tensors.items() if "out_proj" not in name}
            write_safetensors(folder / "no_output.safetensors", rename(stored, LLAMA))
            case.tensors = stored
    with Server(*(word for case in cases for word in ("--model", f"{case.name}={case.argument}"))) as server:
        yield {case.name: case for case in cases}, server


def test_tensors_with_names_of_ones_own_make_the_same_layer(own):
    cases, server = own
    x = np.random.default_rng(8).normal(size=(ROWS, WIDTH)).astype(np.float32)
    for name, case in cases.items():
        assert_attends(server, name, case, x)
        assert server.get(f"/v1/models/{name}").json()["layout"] == "own"
    assert f"model=no_output reason=\"{NOTE}\"" in server.read_log()


def refuse_own(tmp_path, options, words, add=(), drop=(), command="inspect"):
    path = tmp_path / "m.safetensors"
    tensors = rename(random_file(path, 4, 4, 6), DIFFUSERS) | dict(add)
    write_safetensors(path, {name: tensor for name, tensor in tensors.items() if name not in drop})
    arguments = [f"m={path},num_heads=4,{options}"] if command == "--model" else [f"{path},num_heads=4,{options}"]
    refused = run_attnd(command, *arguments)
    assert refused.returncode != 0 and words in refused.stderr, refused.stderr
    return refused


@pytest.mark.parametrize("beside", ["norm_q.weight", "norm_k.weight", "q_norm.weight", "k_norm.scale", "add_k_proj.weight", "to_k_ip.weight",
                                    "relative_attention_bias.weight", "rotary.inv_freq", "to_q.weight_scale", "to_q.lora_A.weight",
                                    "to_out.1.weight", "heads.1.to_q.weight", "mask", "to_q.bias.weight"])
def test_tensors_beside_them_are_refused_by_name(tmp_path, beside):
    for command in ("inspect", "--model"):
        refuse_own(tmp_path, KEYS, f"tensor '{beside}' has none of the given names and might change the results; if it does not, "
                   "save the file without it, or write the prefix= of the layer's module", {beside: np.ones((2, 2))}, command=command)


def test_a_name_that_looks_like_one_of_a_head_stands_for_itself(tmp_path):
    path = tmp_path / "m.safetensors"
    names = {name: f"heads.0.{name}" for name in BOOK}
    tensors = rename(random_file(path, 4, 4, 6), names)
    options = f"{path},num_heads=4,q=heads.0.W_query,k=heads.0.W_key,v=heads.0.W_value,o=heads.0.out_proj"
    write_safetensors(path, tensors)
    assert run_attnd("inspect", options).returncode == 0
    write_safetensors(path, tensors | {"heads.1.W_query.weight": np.ones((6, 6))})
    assert "tensor 'heads.1.W_query.weight' has none" in run_attnd("inspect", options).stderr


@pytest.mark.parametrize("options,add,words", [
    ("q=toq,k=to_k,v=to_v", {}, "q=toq names no tensor; with the prefix that is given, or none, there are 'to_k.weight', "
     "'to_out.0.weight', 'to_q.weight' and 1 more; 'attnd inspect FILE' lists all"),
    ("q=to_q,k=to_k,v=to_v,o=", {}, "'o=' is not KEY=VALUE"),
    ("prefix=x.," + KEYS, {}, "q=to_q names no tensor; with the prefix that is given, or none, there are no tensors"),
    (KEYS, {"to_v": np.ones((24, 24))}, "v=to_v names 'to_v' and 'to_v.weight'; remove the one that is not used"),
    ("q=to_q,v=to_v", {}, "k= is missing; write q=, k= and v=, or qkv= alone, and o= for the output projection"),
    ("o=to_out.0", {}, "q= is missing; write"),
    ("qkv=to_q,v=to_v", {}, "v= is beside qkv=; write"),
    ("layout=torch," + KEYS, {}, "layout=torch and names of tensors (q=, k=, v=, qkv=, o=) exclude each other; leave one out"),
    (KEYS, {"to_k.weight": np.ones(24)}, "'to_k.weight' has shape [24], expected [24,any]"),
    (KEYS, {"to_q.weight": np.ones((24, 24, 1))}, "'to_q.weight' has shape [24,24,1], expected [any,any]"),
    (KEYS, {"to_k.weight": np.ones((12, 20))}, "write transposed=true if weights are [in, out]"),
    (KEYS, {"to_q.bias": np.ones(7)}, "'to_q.bias' has shape [7], expected [24]"),
    ("qkv=to_q,o=to_out.0", {}, "tensor 'to_k.weight' has none of the given names"),
    (KEYS + ",transposed=maybe", {}, "transposed 'maybe' is not true or false"),
    (KEYS + ",eps=1e-6", {}, "eps is for norms"),
    (KEYS + ",rope_interleaved=true", {}, "rope_interleaved is for layers that rotate; write rope_theta=, or leave it out"),
    ("transposed=true", {}, "no layout fits"),
])
def test_own_names_that_do_not_fit_are_explained(tmp_path, options, add, words):
    refuse_own(tmp_path, options, words, add)


def test_a_packed_weight_must_be_said_to_be_transposed(tmp_path):
    path = tmp_path / "m.safetensors"
    write_safetensors(path, {"qkv.weight": np.ones((24, 72)), "o.weight": np.ones((24, 24))})
    refused = run_attnd("inspect", f"{path},num_heads=4,qkv=qkv,o=o")
    assert "has shape [24,72], expected [72,24]" in refused.stderr
    assert refused.stderr.endswith("is it transposed?; write transposed=true if weights are [in, out]\n")
    assert run_attnd("inspect", f"{path},num_heads=4,qkv=qkv,o=o,transposed=true").returncode == 0
    write_safetensors(path, {"qkv.weight": np.ones((70, 24)), "o.weight": np.ones((24, 24))})
    assert "has shape [70,24], expected [72,24]" in run_attnd("inspect", f"{path},num_heads=4,qkv=qkv,o=o").stderr
    write_safetensors(path, {"W_q.weight": np.ones((24, 24)), "W_k.weight": np.ones((24, 24)), "W_v.weight": np.ones((24, 24)),
                             "W_o.weight": np.ones((24, 24))})
    assert "transposed is for tensors that are named by q=, k=" in run_attnd("inspect", f"{path},num_heads=4,transposed=true").stderr


def test_names_of_the_command_line_replace_those_of_the_file(tmp_path):
    path = tmp_path / "m.safetensors"
    tensors = rename(random_file(path, 4, 4, 6), DIFFUSERS)
    write_safetensors(path, tensors, "F32", {"num_heads": "4", "qkv": "gone"})
    assert "qkv=gone names no tensor" in run_attnd("inspect", path).stderr
    assert run_attnd("inspect", f"{path},{KEYS}").returncode == 0
    write_safetensors(path, tensors, "F32", {"num_heads": "4", "layout": "d2l"})
    assert run_attnd("inspect", f"{path},{KEYS}").returncode == 0
    write_safetensors(path, tensors, "F32", {"num_heads": "4", "q": "to_q", "layout": "d2l"})
    assert "layout=d2l and names of tensors" in run_attnd("inspect", path).stderr


@pytest.mark.parametrize("key", ["q=to_q", "qkv=x", "o=x", "transposed=true", "rope_interleaved=false"])
def test_folders_have_names_of_their_own(key):
    refused = run_attnd("inspect", f"{ROOT}/docs/examples/tiny-gpt2,{key}")
    assert f"{key.split('=')[0]} of a folder comes from its config.json; leave it out" in refused.stderr


# --- attnd inspect of a file that no layout fits ---

@pytest.mark.parametrize("names,before,bare,proposal", [
    (("to_q", "to_k", "to_v", "to_out.0"), "", False, "q=to_q,k=to_k,v=to_v,o=to_out.0"),
    (("wq", "wk", "wv", "wo"), "layers.0.attention.", False, "prefix=layers.0.attention.,q=wq,k=wk,v=wv,o=wo"),
    (("query", "key", "value", "out"), "mha.", False, "prefix=mha.,q=query,k=key,v=value,o=out"),
    (("q_proj", "k_proj", "v_proj", "o_proj"), "a.q.", False, "prefix=a.q.,q=q_proj,k=k_proj,v=v_proj,o=o_proj"),
    (("W_query", "W_key", "W_value", "W_out"), "", True, "q=W_query,k=W_key,v=W_value,o=W_out"),
    (("query.linear", "key.linear", "value.linear", "linear"), "", False, "q=query.linear,k=key.linear,v=value.linear,o=linear"),
])
def test_inspect_proposes_names_that_then_serve(tmp_path, names, before, bare, proposal):
    path = tmp_path / "m.safetensors"
    tensors = random_file(path, 4, 2, 6, bias=not bare)
    other = {"other.weight": np.ones((3, 5))} if before else {}
    write_safetensors(path, rename(tensors, dict(zip(BOOK, names)), before, bare=bare) | other)
    printed = run_attnd("inspect", path)
    assert printed.returncode == 1 and "'attnd inspect FILE' lists all, and may tell what to write" in printed.stderr
    for name, tensor in rename(tensors, dict(zip(BOOK, names)), before, bare=bare).items():
        assert re.search(rf"(?m)^  {re.escape(name)} +\[{','.join(map(str, tensor.shape))}\]$", printed.stdout), printed.stdout
    line = printed.stdout.splitlines()[-1]
    assert line == f"  --model NAME={path},num_heads=N,{proposal}"
    assert run_attnd("inspect", line.split("NAME=")[1].replace("N,", "4,")).returncode == 0


@pytest.mark.parametrize("shape,turned", [((72, 24), ""), ((24, 72), ",transposed=true")])
def test_inspect_proposes_a_packed_weight(tmp_path, shape, turned):
    path = tmp_path / "m.safetensors"
    write_safetensors(path, {"b.Wqkv.weight": np.ones(shape), "b.out_proj.weight": np.ones((24, 24)), "emb": np.ones((9, 4))})
    line = run_attnd("inspect", path).stdout.splitlines()[-1]
    assert line == f"  --model NAME={path},num_heads=N{turned},prefix=b.,qkv=Wqkv,o=out_proj"
    assert run_attnd("inspect", line.split("NAME=")[1].replace("N,", "4,")).returncode == 0


@pytest.mark.parametrize("names,options", [(("qkv", "proj"), ""), (("in", "out"), ",qkv=in,o=out")])
def test_a_packed_weight_of_narrow_heads_is_not_transposed(tmp_path, names, options):
    """Its shape alone could be [E, 3E]; the output weight says that heads are together 3 wide."""
    path = tmp_path / "m.safetensors"
    write_safetensors(path, {f"{names[0]}.weight": np.ones((9, 27)), f"{names[1]}.weight": np.ones((27, 3))})
    printed = run_attnd("inspect", f"{path},num_heads=3{options}")
    assert printed.returncode == 0 and "query 27, key 27" in printed.stdout, (printed.stdout, printed.stderr)


@pytest.mark.parametrize("tensors", [
    {"to_q.weight": (8, 8), "to_k.weight": (8, 8), "to_v.weight": (8, 8), "to_out.0.weight": (8, 8), "norm_q.weight": (8,)},
    {"to_q.weight": (8, 8), "to_k.weight": (8, 8), "to_v.weight": (8, 8), "to_out.0.weight": (8, 8), "to_k_ip.weight": (8, 8)},
    {"to_q.weight": (8, 8), "to_k.weight": (8, 8), "to_v.weight": (4, 8), "to_out.0.weight": (8, 8)},
    {"to_q.weight": (8, 8), "to_k.weight": (8, 8), "to_v.weight": (8, 8), "to_out.0.weight": (8, 7)},
    {"to_q.weight": (8, 8), "to_k.weight": (8, 8), "to_v.weight": (8, 8, 1), "to_out.0.weight": (8, 8)},
    {"to_q.weight": (0, 8), "to_k.weight": (0, 8), "to_v.weight": (0, 8), "to_out.0.weight": (8, 0)},
    {"$(id).q": (8, 8), "$(id).k": (8, 8), "$(id).v": (8, 8), "$(id).o": (8, 8)},
    {"q,a": (8, 8), "k,a": (8, 8), "v,a": (8, 8), "o,a": (8, 8)},
    {"conv1.weight": (8, 8), "fc.weight": (8, 8), "q" * 300: (8, 8), "k" + "q" * 299: (8, 8)},
])
def test_inspect_proposes_nothing_that_would_be_refused(tmp_path, tensors):
    path = tmp_path / "m.safetensors"
    write_safetensors(path, {name: np.ones(shape) for name, shape in tensors.items()})
    printed = run_attnd("inspect", path)
    assert printed.returncode == 1 and "--model" not in printed.stdout
    assert len(printed.stdout.splitlines()) == 1 + len(tensors)


def test_the_list_is_bounded_and_shows_no_control_characters(tmp_path):
    path = tmp_path / "m.safetensors"
    write_safetensors(path, {f"\x1b[31m\n{i:03}" + "\u202e" * 200: np.ones(1) for i in range(30)})
    printed = run_attnd("inspect", path)
    lines = printed.stdout.splitlines()
    assert len(lines) == 22 and lines[-1] == "  and 10 more"
    assert all(32 <= ord(letter) < 127 and len(line) < 200 for line in lines[1:] for letter in line)


def test_files_with_a_layout_are_not_listed(tmp_path):
    path = tmp_path / "m.safetensors"
    tensors = random_file(path, 4, 4, 6)
    assert run_attnd("inspect", path).stdout == ""
    write_safetensors(path, tensors | {"extra": np.ones(2)})
    assert run_attnd("inspect", path).stdout == ""
