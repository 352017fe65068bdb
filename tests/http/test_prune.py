# SPDX-License-Identifier: Apache-2.0
"""attnd prune: files that are served like the whole model with head_mask, and what is refused."""

import resource
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest

from checkpoints import additive_tensors, random_tensors, write_layer
from safetensors_file import parse_safetensors, write_safetensors
from server import BINARY, Server, clean_environment, run_attnd

LAYOUTS = ("d2l", "torch_packed", "torch_split", "llms_from_scratch", "wrapper", "two_stage")
CASES = [f"{layout}{bias}{scoring}" for layout in LAYOUTS for bias in ("", "-bias")
         for scoring in ("", "-additive")]


@dataclass
class Pruned:
    """A random checkpoint, the options that it needs, and the heads that its copy lacks."""
    whole: str
    pruned: str
    num_heads: int
    removed: list
    causal: bool

    def mask(self):
        return [0.0 if head in self.removed else 1.0 for head in range(self.num_heads)]


def prune_case(rng, directory, name):
    layout, *kinds = name.split("-")
    num_heads, head_size = int(rng.integers(2, 7)), int(rng.integers(1, 9))
    tensors = random_tensors(rng, layout, num_heads, head_size, bias="bias" in kinds)
    if layout == "two_stage" and "bias" in kinds:
        for weight in [key for key in tensors if key.endswith(".weight")]:
            tensors[weight.replace(".weight", ".bias")] = rng.normal(size=len(tensors[weight]))
    if "additive" in kinds:
        tensors |= additive_tensors(rng, head_size)
    path, output = directory / f"{name}.safetensors", directory / f"{name}-pruned.safetensors"
    write_safetensors(path, tensors)

    causal = bool(rng.random() < 0.5)
    options = f"causal={str(causal).lower()},context_length=9"
    if layout not in ("wrapper", "two_stage"):
        options += f",num_heads={num_heads}"
    removed = rng.permutation(num_heads)[:rng.integers(1, num_heads)].tolist()
    result = run_attnd("prune", f"{path},{options}", "--heads", ",".join(map(str, removed)),
                       "--output", output)
    assert (result.returncode, result.stderr) == (0, ""), result
    assert result.stdout == f"{output}: {num_heads - len(removed)} of {num_heads} heads\n"
    return Pruned(f"{path},{options}", str(output), num_heads, removed, causal)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """One server of all cases: each model, and its pruned file without options."""
    directory = tmp_path_factory.mktemp("prune")
    rng = np.random.default_rng(10)
    cases = {name: prune_case(rng, directory, name) for name in CASES}
    models = [word for name, case in cases.items()
              for word in ("--model", f"{name}={case.whole}",
                           "--model", f"{name}-pruned={case.pruned}")]
    with Server(*models) as server:
        yield server, cases


@pytest.mark.parametrize("name", CASES)
def test_pruned_file_is_served_like_head_mask(served, name):
    server, cases = served
    case = cases[name]
    info = server.get(f"/v1/models/{name}").json()
    rng = np.random.default_rng(CASES.index(name))
    request = {key: rng.normal(size=(2, tokens, info[f"{size}_size"])).tolist()
               for key, size, tokens in (("queries", "query", 5), ("keys", "key", 7),
                                         ("values", "value", 7))}
    request["valid_lens"] = [3, 7]

    replies = [server.attention(request | {"model": name, "head_mask": case.mask()}),
               server.attention(request | {"model": f"{name}-pruned"})]
    whole, pruned = (np.array(reply.json()["outputs"]) for reply in replies)
    assert np.abs(pruned - whole).max() <= 1e-6 * np.abs(whole).max()


@pytest.mark.parametrize("name", CASES)
def test_pruned_file_describes_itself(served, name):
    server, cases = served
    case = cases[name]
    whole, pruned = (server.get(f"/v1/models/{model}").json()
                     for model in (name, f"{name}-pruned"))
    same = ("query_size", "key_size", "value_size", "out_size", "head_size")
    assert [pruned[key] for key in same] == [whole[key] for key in same]
    assert pruned["num_heads"] == case.num_heads - len(case.removed)
    assert (pruned["causal"], pruned["context_length"]) == (case.causal, 9)
    assert pruned["layout"] == "d2l"


def test_pruned_file_has_only_the_rows_and_columns_of_its_heads(tmp_path):
    path, output = tmp_path / "whole", tmp_path / "pruned"
    write_layer(path, num_heads=4, head_size=3, query_size=5, causal="true")
    assert run_attnd("prune", path, "--heads", "2,0", "--output", output).returncode == 0
    whole, _ = parse_safetensors(path.read_bytes())
    pruned, metadata = parse_safetensors(output.read_bytes())
    assert metadata == {"num_heads": "2", "causal": "true"}
    kept = [3, 4, 5, 9, 10, 11]
    assert pruned.keys() == whole.keys()
    for name in ("W_q.weight", "W_k.weight", "W_v.weight"):
        assert (pruned[name] == whole[name][kept]).all()
    assert (pruned["W_o.weight"] == whole["W_o.weight"][:, kept]).all()


# --- what is refused ---

@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    """The path of a model of 4 heads."""
    path = tmp_path_factory.mktemp("layer") / "layer"
    write_layer(path, num_heads=4, head_size=3, query_size=6)
    return path


REFUSED = {
    "no heads": (["--output", "OUT"], 2, "--heads is missing"),
    "no output": (["--heads", "1"], 2, "--output is missing"),
    "empty list": (["--heads", "", "--output", "OUT"], 2, "--heads: must not be empty"),
    "empty number": (["--heads", "1,,2", "--output", "OUT"], 2, "--heads: '1,,2' is not a list"),
    "comma at the end": (["--heads", "1,", "--output", "OUT"], 2, "--heads: '1,' is not a list"),
    "not a number": (["--heads", "1,x", "--output", "OUT"], 2, "--heads: '1,x' is not a list"),
    "negative": (["--heads", "-1", "--output", "OUT"], 2, "--heads: '-1' is not a list"),
    "out of range": (["--heads", "0,4", "--output", "OUT"], 2, "there is no head 4; the last one is 3"),
    "over 64 bits": (["--heads", "18446744073709551617", "--output", "OUT"], 2, "there is no head"),
    "twice": (["--heads", "1,3,1", "--output", "OUT"], 2, "--heads: head 1 is listed twice"),
    "all heads": (["--heads", "3,1,2,0", "--output", "OUT"], 2, "--heads: all 4 heads are listed"),
    "no folder": (["--heads", "2", "--output", "/nonexistent/x"], 1,
                  "/nonexistent/x cannot be created: No such file"),
    "two files": (["second", "--heads", "2", "--output", "OUT"], 2, "2 files are given"),
}


def error_of(result):
    assert result.stderr.startswith("attnd: ") and result.stderr.count("\n") == 1, result
    return result.stderr


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_options_are_refused_and_nothing_is_written(tmp_path, layer, name):
    arguments, exit_code, words = REFUSED[name]
    names = {"OUT": tmp_path / "out"}
    result = run_attnd("prune", layer, *(names.get(word, word) for word in arguments))
    assert result.returncode == exit_code and words in error_of(result), result
    assert list(tmp_path.iterdir()) == []


def test_file_that_exists_is_not_replaced(tmp_path, layer):
    copy = tmp_path / "copy"
    copy.write_bytes(layer.read_bytes())
    result = run_attnd("prune", copy, "--heads", "1", "--output", copy)
    assert result.returncode == 1 and "copy exists already; remove it" in error_of(result)
    assert copy.read_bytes() == layer.read_bytes()
    assert list(tmp_path.iterdir()) == [copy]


def test_full_disk_is_reported_and_leaves_no_file(tmp_path, layer):
    result = subprocess.run(
        [BINARY, "prune", layer, "--heads", "1", "--output", tmp_path / "out"], timeout=60,
        capture_output=True, text=True, env=clean_environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)))
    assert result.returncode == 1, result
    assert "out cannot be written: File too large" in error_of(result)
    assert list(tmp_path.iterdir()) == []


def test_operand_is_a_file_and_its_options(tmp_path, layer):
    for operand, exit_code, words in ((f"{layer},num_heads=0", 2, "num_heads '0'"),
                                      (f"{layer},heads=2", 2, "unknown key 'heads'"),
                                      (f"{layer},num_heads=5", 1, "num_heads=5 does not divide"),
                                      (",", 2, "not FILE[,KEY=VALUE]..."),
                                      (tmp_path / "none", 1, "none: cannot be opened")):
        result = run_attnd("prune", operand, "--heads", "1", "--output", tmp_path / "out")
        assert result.returncode == exit_code and words in error_of(result), result
