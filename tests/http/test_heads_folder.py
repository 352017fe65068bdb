# SPDX-License-Identifier: Apache-2.0
"""attnd heads of a folder: all layers, over requests or hidden states, and what it refuses."""

import json
import os
import subprocess

import numpy as np
import pytest

from folders import FOLDERS
from head_requests import error_of, table
from safetensors_file import parse_safetensors, write_safetensors
from server import BINARY, clean_environment, run_attnd

GPT_OSS = FOLDERS / "gpt_oss"  # two layers of four heads, with sinks
TOKENS = 6


def cases(family):
    """Returns the tensors of a family's cases: its input before the norm, and the weights."""
    return parse_safetensors((FOLDERS / family / "cases.safetensors").read_bytes())[0]


def write_states(path, states, dtype="F32"):
    write_safetensors(path, {"hidden_states": states, "token_ids": np.arange(len(states), dtype=float)},
                      dtype, {})
    return path


def hidden_states(family, layers, text=0):
    """Returns [tokens, layers, width]: what enters the layers of the first text."""
    known = cases(family)
    return np.stack([known[f"{layer}/hidden"][text] for layer in layers], axis=1)


def numbers(rows, column):
    return np.array([float(row[column]) for row in rows])


@pytest.mark.parametrize("family, layers", [("gpt_oss", [0, 1]), ("gpt_neo", [1, 0]), ("modernbert", [1, 0])])
def test_hidden_states_give_the_figures_of_the_models_own_weights(tmp_path, family, layers):
    """modernbert has no norm before its first layer."""
    states = write_states(tmp_path / "states", hidden_states(family, layers))
    result = run_attnd("heads", FOLDERS / family, "--data", states, "--layers",
                       ",".join(map(str, layers)))
    assert (result.returncode, result.stderr) == (0, ""), result
    header, known = result.stdout.splitlines()[0].split(), cases(family)
    weights = np.concatenate([known[f"{layer}/weights"][0] for layer in layers])  # [layers * H, T, T]
    heads = len(weights) // len(layers)
    rows = table(result.stdout, "layer ")
    assert [(row[0], row[1]) for row in rows] == [(str(layer), str(h)) for layer in layers
                                                  for h in range(heads)]
    at = np.arange(weights.shape[1])
    expected = {"self": weights[:, at, at].mean(1), "first": weights[:, :, 0].mean(1),
                "previous": weights[:, at[1:], at[:-1]].mean(1)}
    if family == "gpt_oss":
        expected["sink"] = 1 - weights.sum(2).mean(1)
    assert ("sink" in header) == (family == "gpt_oss")
    for name, column in expected.items():
        assert np.abs(numbers(rows, header.index(name)) - column).max() <= 1e-4, name


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_layers_may_come_first(tmp_path, dtype):
    states = hidden_states("gpt_neo", [0, 1]).astype(np.float32)
    texts = [run_attnd("heads", FOLDERS / "gpt_neo", "--layers", "0,1", "--data",
                       write_states(tmp_path / name, part, dtype)).stdout
             for name, part in (("vllm", states), ("other", states.transpose(1, 0, 2)))]
    assert texts[0] == texts[1] != ""
    square = states[:2]  # [2, 2, width] is read as vLLM writes it
    whole, first = (run_attnd("heads", FOLDERS / "gpt_neo", "--data", write_states(tmp_path / "x", part),
                              "--layers", ids)
                    for part, ids in ((square, "0,1"), (square[:, :1], "0")))
    assert [row[1:] for row in table(whole.stdout, "layer ")][:4] == table(first.stdout, "head ")
    assert first.stderr == "" and error_of(whole).endswith(
        f"[2, 2, {states.shape[2]}], read as vLLM writes them: [tokens, layers, width]\n")


@pytest.fixture(name="requests_file", scope="module")
def write_requests(tmp_path_factory):
    path = tmp_path_factory.mktemp("requests") / "requests.jsonl"
    rows = np.random.default_rng(2).normal(size=(3, TOKENS, 48)).round(3).tolist()
    path.write_text("".join(json.dumps({"queries": row, "targets": [[0, 1], None, [2, 3], None, None, [1, 4]]})
                            + "\n" for row in rows))
    return path


def test_requests_go_to_every_layer(requests_file):
    whole = run_attnd("heads", GPT_OSS, "--data", requests_file)
    assert (whole.returncode, whole.stderr) == (0, ""), whole
    rows = table(whole.stdout, "layer ")
    assert whole.stdout.splitlines()[0].split()[-4:] == ["sink", "target", "largest", "tags"]
    for layer in "0", "1":
        alone = run_attnd("heads", f"{GPT_OSS},layer={layer}", "--data", requests_file)
        assert table(alone.stdout, "head ") == [row[1:] for row in rows if row[0] == layer]


@pytest.mark.parametrize("column", ["importance", "entropy", "distance", "self", "first", "previous", "sink",
                                    "target", "largest"])
def test_table_is_sorted_by_any_column(requests_file, column):
    plain, ordered = (run_attnd("heads", GPT_OSS, "--data", requests_file, *options).stdout
                      for options in ((), ("--sort", column)))
    at = plain.splitlines()[0].split().index(column)
    rows = sorted(table(plain, "layer "), key=lambda row: -float(row[at]))
    assert table(ordered, "layer ") == rows


def test_rows_without_a_number_are_last(tmp_path):
    rows = np.eye(4, 48).tolist()
    (tmp_path / "data").write_text(json.dumps({"queries": rows, "keys": rows}))
    texts = [run_attnd("heads", GPT_OSS, "--data", tmp_path / "data", *options).stdout
             for options in ((), ("--sort", "distance"))]
    assert table(texts[0], "layer ") == table(texts[1], "layer ") and " - " in texts[0]


def test_json_is_what_the_route_replies(requests_file, tmp_path, start_server):
    result = run_attnd("heads", GPT_OSS, "--data", requests_file, "--json")
    layers = json.loads(result.stdout)["layers"]
    assert [layer["model"] for layer in layers] == ["0", "1"]
    one = tmp_path / "one"
    one.write_text(requests_file.read_text().splitlines()[0])
    served = start_server("--model", f"m={GPT_OSS}")
    for layer in json.loads(run_attnd("heads", GPT_OSS, "--data", one, "--json").stdout)["layers"]:
        reply = served.heads(json.loads(one.read_text()) | {"model": f"m.{layer['model']}"}).json()
        assert reply | {"model": layer["model"]} == layer


def test_file_prints_json_too(requests_file):
    result = run_attnd("heads", f"{GPT_OSS},layer=1", "--data", requests_file, "--json")
    assert len(json.loads(result.stdout)["layers"]) == 1


BAD = {  # shape of hidden_states, options, what the error has
    "no ids": ((5, 2, 48), [], "--layers is missing"),
    "too few": ((5, 3, 48), ["--layers", "0,1"], "are [5, 3, 48], but --layers has 2 ids; list one for each"),
    "one": ((5, 2, 48), ["--layers", "0"], "--layers has 1 id; "),
    "after the last": ((5, 2, 48), ["--layers", "1,2"], "state 2 enters no layer of the folder, whose last one is 1"),
    "no list": ((5, 2, 48), ["--layers", "0,,1"], "'0,,1' is not a list of ids, such as 0,8,16"),
    "negative": ((5, 2, 48), ["--layers=-1,0"], "is not a list of ids"),
    "width": ((5, 2, 47), ["--layers", "0,1"], "layer 0: "),
    "rank": ((5, 48), ["--layers", "0,1"], "hidden_states have 2 axes; save [tokens, layers, width]"),
    "no tokens": ((0, 2, 48), ["--layers", "0,1"], "layer 0: "),
    "not finite": (None, ["--layers", "0,1"], "hidden_states"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_hidden_states_are_refused(tmp_path, name):
    shape, options, words = BAD[name]
    states = np.full((5, 2, 48), np.nan) if shape is None else np.ones(shape)
    result = run_attnd("heads", GPT_OSS, "--data", write_states(tmp_path / "states", states), *options)
    assert (result.returncode, result.stdout) == (1, "") and words in error_of(result), result


def test_states_without_the_rows_of_a_cached_prefix_are_refused(tmp_path):
    """vLLM writes such a file where it takes the beginning of a prompt from its cache."""
    write_safetensors(tmp_path / "states", {"hidden_states": np.ones((5, 2, 48)), "token_ids": np.arange(13.0)},
                      {"hidden_states": "F32", "token_ids": "F32"}, {})
    result = run_attnd("heads", GPT_OSS, "--data", tmp_path / "states", "--layers", "0,1")
    assert (result.returncode, result.stdout) == (1, "")
    assert "have 5 rows, but there are 13 token_ids: " in error_of(result)
    assert "start vllm with --no-enable-prefix-caching" in error_of(result)


def test_states_do_not_make_the_keys_of_layers_that_borrow_them(tmp_path):
    states = write_states(tmp_path / "states", hidden_states("gemma3n_text", [1, 2]))
    result = run_attnd("heads", FOLDERS / "gemma3n_text", "--data", states, "--layers", "1,2")
    assert (result.returncode, result.stdout) == (1, "")
    assert "layer 2 takes the keys of layer 0, which state 2 does not make" in error_of(result)


@pytest.mark.parametrize("operand, options, words", [
    ("layer", ["--layers", "0,1"], "is one layer; name the folder"),
    (GPT_OSS, ["--json", "--sort", "self"], "--sort is for the table; leave it or --json out"),
    (GPT_OSS, ["--sort", "mass"], "--sort: 'mass' is not one of layer|importance|"),
    (GPT_OSS, ["--max-memory", "2000"], "--max-memory")])
def test_what_does_not_fit_the_operand_is_refused(tmp_path, operand, options, words):
    if operand == "layer":
        operand = GPT_OSS / "model.safetensors"
    states = write_states(tmp_path / "states", hidden_states("gpt_oss", [0, 1]))
    result = run_attnd("heads", operand, "--data", states, *options,
                       *(["--layers", "0,1"] if "--layers" not in options else []))
    assert result.returncode in (1, 2) and words in error_of(result), result


def test_ids_need_hidden_states(tmp_path, requests_file):
    (tmp_path / "q").write_bytes(b"")
    write_safetensors(tmp_path / "q", {"queries": np.eye(4, 48)}, "F32", {})
    for data, words in ((tmp_path / "q", "it has no hidden_states, whose layers --layers lists"),
                        (requests_file, "requests.jsonl: "), (tmp_path / "none", "No such file")):
        result = run_attnd("heads", GPT_OSS, "--data", data, "--layers", "0,1")
        assert result.returncode == 1 and words in error_of(result), result


def test_a_pipe_cannot_be_read_for_each_layer(requests_file):
    result = subprocess.run([BINARY, "heads", GPT_OSS, "--data", "/dev/stdin"], timeout=60,
                            input=requests_file.read_text(), capture_output=True, text=True,
                            env=clean_environment())
    assert result.returncode == 1 and "is read once for each of 2 layers; save it" in error_of(result)


def test_pipe_of_one_layer_is_opened_once(tmp_path, requests_file):
    """A reader that leaves a pipe before the first byte ends the writer."""
    os.mkfifo(tmp_path / "pipe")
    for _ in range(10):
        with subprocess.Popen(["cp", requests_file, tmp_path / "pipe"]) as writer:
            result = run_attnd("heads", f"{GPT_OSS},layer=0", "--data", tmp_path / "pipe")
        assert (result.returncode, writer.returncode) == (0, 0), result


def test_layers_at_a_time_share_the_memory(tmp_path):
    (tmp_path / "data").write_text(json.dumps({"queries": np.ones((6, 48)).tolist()}))

    def least(operand, **options):
        """Returns how many bytes the operand needs, by bisection."""
        too_few, enough = 0, 1 << 20
        while enough - too_few > 1:
            bytes_ = (too_few + enough) // 2
            result = run_attnd("heads", operand, "--data", tmp_path / "data", "--max-memory", bytes_,
                               **options)
            assert result.returncode == 0 or "--max-memory" in error_of(result), result
            too_few, enough = (too_few, bytes_) if result.returncode == 0 else (bytes_, enough)
        return enough

    alone = max(least(f"{GPT_OSS},layer={layer}") for layer in (0, 1))
    one_cpu = {min(os.sched_getaffinity(0))}
    assert least(GPT_OSS, preexec_fn=lambda: os.sched_setaffinity(0, one_cpu)) == alone
    assert least(GPT_OSS) in (alone, 2 * alone)  # a cgroup may leave one CPU


def test_layer_that_fails_is_named(tmp_path):
    (tmp_path / "data").write_text('{"queries": [[1, 2]]}')
    result = run_attnd("heads", GPT_OSS, "--data", tmp_path / "data")
    assert result.returncode == 1 and "layer 0: " in error_of(result) and "2 wide" in result.stderr
