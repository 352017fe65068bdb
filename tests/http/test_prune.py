# SPDX-License-Identifier: Apache-2.0
"""attnd prune: files that are served like the whole model with head_mask, heads that are chosen by
what they do over a file of requests, and what is refused."""

import json
import os
import re
import resource
import subprocess
from dataclasses import dataclass

import numpy as np
import pytest

from checkpoints import additive_tensors, random_tensors, write_layer
from folders import FOLDERS
from head_requests import contributions, error_of, layer, table  # noqa: F401 (layer: a fixture)
from safetensors_file import parse_safetensors, read_safetensors, write_safetensors
from server import BINARY, ROOT, Server, clean_environment, run_attnd

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
def test_predicted_change_is_the_measured_one(served, tmp_path, name):
    server, cases = served
    case, data = cases[name], tmp_path / "data"
    info = server.get(f"/v1/models/{name}").json()
    rng = np.random.default_rng(CASES.index(name))
    with data.open("w") as lines:
        for tokens in (3, 9):
            request = {key: rng.normal(size=(tokens, info[size])).tolist() for key, size in
                       (("queries", "query_size"), ("keys", "key_size"), ("values", "value_size"))}
            print(json.dumps(request), file=lines)
    result = run_attnd("prune", case.whole, "--heads", ",".join(map(str, case.removed)),
                       "--data", data, "--output", tmp_path / "out")
    assert (result.returncode, result.stderr) == (0, ""), result
    predicted, measured = numbers(result.stdout)
    assert predicted > 0 and abs(predicted - measured) <= 1e-5


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


@pytest.mark.parametrize("words", ["outputs", "weights", "heads", "lse", "outputs,heads", "heads,lse"])
def test_need_does_not_change_what_is_measured(tmp_path, layer, words):
    data = tmp_path / "data"
    data.write_text(json.dumps({"queries": layer[3][0]["queries"], "need": words.split(",")}))
    result = run_attnd("prune", layer[0], "--heads", "1", "--data", data, "--output",
                       tmp_path / "out")
    assert (result.returncode, result.stderr) == (0, ""), result
    predicted, measured = numbers(result.stdout)
    assert predicted > 0.01 and abs(predicted - measured) <= 1e-5


# --- what is refused ---

REFUSED = {
    "no heads": (["--output", "OUT"], 2, "give either --heads"),
    "heads and keep": (["--heads", "1", "--keep", "2", "--output", "OUT"], 2, "either --heads"),
    "no output": (["--heads", "1"], 2, "--output is missing"),
    "empty list": (["--heads", "", "--output", "OUT"], 2, "--heads: must not be empty"),
    "empty number": (["--heads", "1,,2", "--output", "OUT"], 2, "--heads: '1,,2' is not a list"),
    "comma at the end": (["--heads", "1,", "--output", "OUT"], 2, "--heads: '1,' is not a list"),
    "not a number": (["--heads", "1,x", "--output", "OUT"], 2, "--heads: '1,x' is not a list"),
    "negative": (["--heads", "-1", "--output", "OUT"], 2, "--heads: '-1' is not a list"),
    "out of range": (["--heads", "0,4", "--output", "OUT"], 2, "there is no head 4; the last one is 3"),
    "over 64 bits": (["--heads", "18446744073709551617", "--output", "OUT"], 2, "there is no head"),
    "twice": (["--heads", "1,3,1", "--output", "OUT"], 2, "--heads: head 1 is listed twice"),
    "all heads": (["--heads", "3,1,2,0", "--output", "OUT"], 2, "--heads: every head of 4 is listed"),
    "keep none": (["--keep", "0", "--data", "DATA", "--output", "OUT"], 2, "--keep: '0'"),
    "keep all": (["--keep", "4", "--data", "DATA", "--output", "OUT"], 2, "--keep: 4 of 4 heads"),
    "keep without data": (["--keep", "2", "--output", "OUT"], 2, "--data is missing, which --keep"),
    "data is a folder": (["--keep", "2", "--data", "/tmp", "--output", "OUT"], 2, "regular file"),
    "no data": (["--keep", "2", "--data", "/nonexistent", "--output", "OUT"], 1,
                "--data: cannot read /nonexistent: No such file"),
    "no folder": (["--heads", "2", "--output", "/nonexistent/x"], 1,
                  "/nonexistent/x cannot be created: No such file"),
    "two files": (["second", "--heads", "2", "--output", "OUT"], 2, "2 files are given"),
}


def fill_in(arguments, directory, data):
    names = {"OUT": directory / "out", "DATA": data}
    return [names.get(argument, argument) for argument in arguments]


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_options_are_refused_and_nothing_is_written(tmp_path, layer, name):
    arguments, exit_code, words = REFUSED[name]
    result = run_attnd("prune", layer[0], *fill_in(arguments, tmp_path, layer[1]))
    assert result.returncode == exit_code and words in error_of(result), result
    assert list(tmp_path.iterdir()) == []


def test_file_that_exists_is_not_replaced(tmp_path, layer):
    copy = tmp_path / "copy"
    copy.write_bytes(layer[0].read_bytes())
    result = run_attnd("prune", copy, "--heads", "1", "--output", copy)
    assert result.returncode == 1 and "copy exists already; remove it" in error_of(result)
    assert copy.read_bytes() == layer[0].read_bytes()
    assert list(tmp_path.iterdir()) == [copy]


def test_full_disk_is_reported_and_leaves_no_file(tmp_path, layer):
    result = subprocess.run(
        [BINARY, "prune", layer[0], "--heads", "1", "--output", tmp_path / "out"], timeout=60,
        capture_output=True, text=True, env=clean_environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)))
    assert result.returncode == 1, result
    assert "out cannot be written: File too large" in error_of(result)
    assert list(tmp_path.iterdir()) == []


def test_operand_is_a_file_and_its_options(tmp_path, layer):
    for operand, exit_code, words in ((f"{layer[0]},num_heads=0", 2, "num_heads '0'"),
                                      (f"{layer[0]},heads=2", 2, "unknown key 'heads'"),
                                      (f"{layer[0]},num_heads=5", 1, "num_heads=5 does not divide"),
                                      (",", 2, "not FILE[,KEY=VALUE]..."),
                                      (tmp_path / "none", 1, "none: cannot be opened")):
        result = run_attnd("prune", operand, "--heads", "1", "--output", tmp_path / "out")
        assert result.returncode == exit_code and words in error_of(result), result


# --- with requests ---

def greedy_order(parts, outputs):
    """Returns [(head, change)]: each head is the one whose loss, with those before it, is least."""
    order, left = [], list(range(len(parts)))
    while left:
        changes = [np.linalg.norm(parts[[h for h, _ in order] + [head]].sum(axis=0))
                   for head in left]
        best = int(np.argmin(changes))
        order.append((left.pop(best), changes[best] / np.linalg.norm(outputs)))
    return order


def numbers(stdout):
    """Returns the predicted and the measured change."""
    return [float(re.search(rf"^{word} change +(\S+)$", stdout, re.M)[1])
            for word in ("predicted", "measured")]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_keep_removes_the_heads_that_matter_least(tmp_path, layer, keep):
    path, data, reference, requests = layer
    result = run_attnd("prune", path, "--keep", keep, "--data", data, "--output", tmp_path / "out")
    assert (result.returncode, result.stderr) == (0, ""), result
    order = greedy_order(*contributions(reference, requests))
    rows = table(result.stdout, "kept ")
    assert [row[:2] for row in rows] == [[str(3 - i), str(h)] for i, (h, _) in enumerate(order)]
    changes = [change for _, change in order]
    assert np.abs([float(row[2]) for row in rows] - np.array(changes)).max() <= 1e-5
    assert np.abs(np.array(numbers(result.stdout)) - changes[3 - keep]).max() <= 1e-5

    listed = tmp_path / "listed"
    heads = ",".join(str(h) for h, _ in order[:4 - keep])
    assert run_attnd("prune", path, "--heads", heads, "--output", listed).returncode == 0
    assert listed.read_bytes() == (tmp_path / "out").read_bytes()


def test_listed_heads_have_a_predicted_and_a_measured_change(tmp_path, layer):
    path, data, reference, requests = layer
    result = run_attnd("prune", path, "--heads", "1,2", "--data", data,
                       "--output", tmp_path / "out")
    assert result.returncode == 0, result
    parts, outputs = contributions(reference, requests)
    change = np.linalg.norm(parts[1] + parts[2]) / np.linalg.norm(outputs)
    assert np.abs(np.array(numbers(result.stdout)) - change).max() <= 1e-5


def test_lines_of_the_page_find_what_prune_does(demo_server, tmp_path, monkeypatch):
    page = (ROOT / "docs/heads.md").read_text()
    (lines,) = [text for text in re.findall(r"```python\n(.*?)```", page, re.S) if "savefig" in text]
    names, drawn = {}, str(tmp_path / "curve.png")
    monkeypatch.chdir(ROOT)
    exec(lines.replace("http://127.0.0.1:8080", demo_server.url).replace("curve.png", drawn), names)
    shown = re.findall(r"^ +\d +(\d) +(\d\.\d{6})$", page, re.M)
    assert names["removed"] == [int(head) for head, _ in shown]
    assert np.abs(names["changes"][1:] - np.array([float(change) for _, change in shown])).max() <= 2e-4
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_page_shows_what_is_printed(tmp_path):
    """Numbers may differ in the last digit, where another instruction set rounds otherwise."""
    page = (ROOT / "docs/heads.md").read_text()
    commands, shown = re.search(r"```\n((?:\$ .*\n(?:    .*\n)*)+)([^`]*)```", page).groups()
    for folder in ("docs", "src"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    path = f"{BINARY.parent}:{os.environ['PATH']}"
    result = subprocess.run(["sh", "-ec", commands.replace("$ ", "")], cwd=tmp_path, text=True,
                            capture_output=True, env=clean_environment(PATH=path))
    assert (result.returncode, result.stderr) == (0, ""), result
    assert re.sub(r"\d+\.\d+", "#", result.stdout) == re.sub(r"\d+\.\d+", "#", shown)
    printed, expected = (np.array(re.findall(r"\d+\.\d+", text), float)
                         for text in (result.stdout, shown))
    assert np.abs(printed - expected).max() <= 2e-4


def test_layer_of_a_folder_is_pruned(tmp_path):
    folder, output = FOLDERS / "whisper", tmp_path / "pruned.safetensors"
    result = run_attnd("prune", f"{folder},layer=decoder.0.cross", "--heads", "0", "--output", output)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == f"{output}: 2 of 3 heads\n"
    cases = read_safetensors(FOLDERS / "whisper/cases.safetensors")
    request = {key: cases[f"decoder.0.cross/{kind}"].tolist()
               for key, kind in (("queries", "queries"), ("keys", "keys"), ("values", "keys"))}
    with Server("--model", f"whole={folder},layer=decoder.0.cross", "--model", f"pruned={output}") as server:
        want = server.attention(request | {"model": "whole.decoder.0.cross", "head_mask": [0, 1, 1]}).json()
        got = server.attention(request | {"model": "pruned"}).json()
    difference = np.abs(np.array(got["outputs"]) - np.array(want["outputs"])).max()
    assert difference <= 1e-6 * np.abs(want["outputs"]).max()


@pytest.mark.parametrize("family, layer, words", [
    ("llama", "0", "heads that share a key head"), ("gptj", "0", "rotary positions"),
    ("t5", "decoder.1", "a scale of its own"), ("mpt", "0", "a bias by distance")])
def test_layer_that_d2l_cannot_hold_is_refused(family, layer, words, tmp_path):
    result = run_attnd("prune", f"{FOLDERS / family},layer={layer}", "--heads", "0,1",
                       "--output", tmp_path / "pruned.safetensors")
    assert result.returncode == 1 and list(tmp_path.iterdir()) == []
    assert words in error_of(result) and "head_mask" in error_of(result)


@pytest.mark.parametrize("options, words", [
    ("", "the folder has 6 layers; choose one, as in FOLDER,layer=encoder.0"),
    (",layers=1", "the folder has 3 layers; choose one, as in FOLDER,layer=encoder.1"),
    (",layer=decoder.2", "there is no layer=decoder.2; use encoder.0 to encoder.1, "
                         "decoder.0 to decoder.1 or decoder.0.cross to decoder.1.cross"),
    (",num_heads=3", "num_heads of a folder comes from its config.json")])
def test_operand_that_is_not_one_layer_is_refused(options, words, tmp_path):
    result = run_attnd("prune", f"{FOLDERS / 't5'}{options}", "--heads", "0", "--output", tmp_path / "p")
    assert result.returncode == 1 and words in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert not (tmp_path / "p").exists()
