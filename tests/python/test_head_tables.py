# SPDX-License-Identifier: Apache-2.0
"""What the heads of many layers do: hidden states of a folder, captures, and what is refused."""

import contextlib
import json
import os
import re
import subprocess

import attnd
import numpy as np
import pytest

from folders import FOLDERS, change_config, copy_folder
from head_lines import error_of, run_heads, start_heads, table
from safetensors_file import parse_safetensors, write_safetensors
from server import ROOT

GPT_OSS = FOLDERS / "gpt_oss"  # two layers of four heads, with sinks
TOKENS = 6


def cases(family):
    """Returns the tensors of a family's cases: its input before the norm, and the weights."""
    return parse_safetensors((FOLDERS / family / "cases.safetensors").read_bytes())[0]


def write_states(path, states, dtype="F32", **others):
    tensors = {"hidden_states": states, "token_ids": np.arange(len(states)), **others}
    write_safetensors(path, tensors, {"hidden_states": dtype, "token_ids": "I64", "targets": "I64", "x": "F32"}, {})
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
    result = run_heads(FOLDERS / family, "--data", states, "--ids", ",".join(map(str, layers)))
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
    texts = [run_heads(FOLDERS / "gpt_neo", "--ids", "0-1", "--data", write_states(tmp_path / name, part, dtype)).stdout
             for name, part in (("vllm", states), ("other", states.transpose(1, 0, 2)))]
    assert texts[0] == texts[1] != ""
    square = states[:2]  # [2, 2, width] is read as vLLM writes it
    whole, first = (run_heads(FOLDERS / "gpt_neo", "--data", write_states(tmp_path / "x", part), "--ids", ids)
                    for part, ids in ((square, "0,1"), (square[:, :1], "0")))
    assert [row[1:] for row in table(whole.stdout, "layer ")][:4] == table(first.stdout, "head ")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_shown_to_who_watches(tmp_path, is_terminal):
    states = write_states(tmp_path / "states", hidden_states("gpt_oss", [0, 1]))
    reader, writer = os.openpty() if is_terminal else os.pipe()
    with start_heads(GPT_OSS, "--data", states, "--ids", "0-1", stderr=writer) as process:
        os.close(writer)
        assert len(process.stdout.read().splitlines()) == 1 + 2 * 4
    shown = b""
    with open(reader, "rb", buffering=0) as file, contextlib.suppress(OSError):  # a terminal ends with EIO
        while part := file.read(1000):
            shown += part
    expected = b"attnd: 1 of 2 layers are done\r\nattnd: 2 of 2 layers are done\r\n" if is_terminal else b""
    assert shown == expected


def test_targets_beside_hidden_states_find_heads(tmp_path):
    """The natural file of a researcher: the columns are there, and sort."""
    states = hidden_states("gpt_oss", [0, 1])
    weights = np.concatenate([cases("gpt_oss")[f"{layer}/weights"][0] for layer in (0, 1)])
    at = np.arange(len(states))
    targets = np.stack([np.maximum(at - 2, 0), at], axis=1)  # none in the first row
    data = write_states(tmp_path / "states", states, targets=targets)
    result = run_heads(GPT_OSS, "--data", data, "--ids", "0-1", "--sort", "target")
    rows, header = table(result.stdout, "layer "), result.stdout.splitlines()[0].split()
    on_targets = np.array([[w[i, begin:end].sum() for i, (begin, end) in enumerate(targets) if end > begin]
                           for w in weights]).mean(1)
    expected = {(str(h // 4), str(h % 4)): mass for h, mass in enumerate(on_targets)}
    column = numbers(rows, header.index("target"))
    assert np.abs(column - [expected[row[0], row[1]] for row in rows]).max() <= 1e-4
    assert (np.diff(column) <= 0).all() and header[-3:] == ["target", "largest", "tags"]

    model = attnd.load(GPT_OSS)
    same = model.heads(states.astype(np.float32), ids=[0, 1], targets=targets).sort("target")
    assert repr(same) == result.stdout.rstrip("\n") and repr(model.heads(data, ids="0,1").sort("target")) == repr(same)


def test_states_of_transformers_need_no_ids():
    states = hidden_states("gpt_oss", [0, 1]).astype(np.float32)
    model = attnd.load(GPT_OSS)
    layers = [states[:, 0], states[np.newaxis, :, 1]]
    expected = repr(model.heads(states, ids=[0, 1]))
    assert repr(model.heads(layers)) == repr(model.heads(tuple([*layers, states[:, 1]]))) == expected
    with pytest.raises(attnd.Error, match="ids are missing"):
        model.heads(states)


def test_albert_passes_its_layer_many_times(tmp_path):
    folder = FOLDERS / "albert"
    config = json.loads((folder / "config.json").read_text())
    passes = 3
    change_config(copy_folder("albert", tmp_path), num_hidden_layers=passes * config.get("num_hidden_groups", 1))
    model = attnd.load(tmp_path / "albert")
    layer = model[0]
    states = np.random.default_rng(1).normal(size=(5, passes, layer.info["query_size"])).astype(np.float32)
    result = run_heads(tmp_path / "albert", "--data", write_states(tmp_path / "states", states), "--ids", "0-2")
    rows = table(result.stdout, "layer ")
    assert [row[0] for row in rows[::layer.num_heads]] == ["0", "0.1", "0.2"]
    for i in range(passes):
        assert rows[i * layer.num_heads:][:layer.num_heads] == [
            [str(rows[i * layer.num_heads][0]), *row] for row in table(repr(layer.heads(states[:, i])), "head ")]
    last = passes * len(model)
    assert f"state {last} enters no layer" in error_of(
        run_heads(tmp_path / "albert", "--data", tmp_path / "states", "--ids", f"0,1,{last}"))


def test_states_do_not_say_which_stack_they_enter(tmp_path):
    states = write_states(tmp_path / "states", np.zeros((TOKENS, 1, 4)))
    error = error_of(run_heads(FOLDERS / "whisper", "--data", states, "--ids", "0"))
    assert "such as encoder.0, and hidden states do not say" in error and "whisper,layer=encoder.0" in error


@pytest.fixture(name="requests_file", scope="module")
def write_requests(tmp_path_factory):
    path = tmp_path_factory.mktemp("requests") / "requests.jsonl"
    rows = np.random.default_rng(2).normal(size=(3, TOKENS, 48)).round(3).tolist()
    path.write_text("".join(json.dumps({"queries": row, "targets": [[0, 1], None, [2, 3], None, None, [1, 4]]})
                            + "\n" for row in rows))
    return path


def test_rows_of_one_layer_are_not_those_of_several(requests_file):
    error = error_of(run_heads(GPT_OSS, "--data", requests_file))
    assert f"has rows of one layer, but {GPT_OSS} has 2 layers, whose rows differ" in error
    assert f"choose one, as in {GPT_OSS},layer=0" in error
    result = run_heads(f"{GPT_OSS},layer=1", "--data", requests_file)
    assert result.stdout.splitlines()[0].split()[-4:] == ["sink", "target", "largest", "tags"]


@pytest.mark.parametrize("column", ["importance", "entropy", "distance", "self", "first", "previous", "sink",
                                    "target", "largest"])
def test_table_is_sorted_by_any_column(requests_file, column):
    plain, ordered = (run_heads(f"{GPT_OSS},layer=1", "--data", requests_file, *options).stdout
                      for options in ((), ("--sort", column)))
    at = plain.splitlines()[0].split().index(column)
    assert table(ordered, "head ") == sorted(table(plain, "head "), key=lambda row: -float(row[at]))
    back = attnd.load(GPT_OSS)["1"].heads(requests_file).sort(column).sort("layer")
    assert repr(back) == plain.rstrip("\n")


def test_rows_without_a_number_are_last(tmp_path):
    rows = np.eye(4, 48)
    layer = attnd.load(GPT_OSS)[0]
    texts = [repr(layer.heads(rows, keys=rows).sort(column)) for column in ("layer", "distance")]
    assert table(texts[0], "head ") == table(texts[1], "head ") and " - " in texts[0]


def test_columns_and_rows_of_a_table():
    found = attnd.load(GPT_OSS)[1].heads(np.random.default_rng(1).normal(size=(2, 5, 48)))
    assert found.columns == ["importance", "residual", "entropy", "distance", "self", "first", "previous", "sink"]
    assert found["entropy"].shape == (4,) and len(found[:2]) == 2 and np.asarray(found).dtype.names[:2] == ("layer", "head")
    assert found[1]["head"] == 1 and [row["layer"] for row in found] == ["1"] * 4
    assert np.array(found.replies["1"]["gram"]).shape == (4, 4)


def test_json_is_what_the_route_replies(requests_file, tmp_path, start_server):
    one = tmp_path / "one"
    one.write_text(requests_file.read_text().splitlines()[0])
    served = start_server("--model", f"m={GPT_OSS}")
    for layer in "01":
        found, = json.loads(run_heads(f"{GPT_OSS},layer={layer}", "--data", one, "--json").stdout)["layers"]
        reply = served.heads(json.loads(one.read_text()) | {"model": f"m.{layer}"}).json()
        assert reply | {"model": layer} == found
    states = write_states(tmp_path / "states", hidden_states("gpt_oss", [0, 1]))
    layers = json.loads(run_heads(GPT_OSS, "--data", states, "--ids", "0,1", "--json").stdout)["layers"]
    assert [layer["model"] for layer in layers] == ["0", "1"]


# --- captures ---

def write_capture(path, layers=("0", "3"), **metadata):
    rng = np.random.default_rng(3)
    tensors = {f"{layer}.{name}": rng.normal(size=(7, heads, 4)) for layer in layers
               for name, heads in (("queries", 4), ("keys", 2), ("values", 2))}
    write_safetensors(path, tensors, "F32", {"layers": json.dumps(layers), "tokens": "null", **metadata})
    return {name: array.astype(np.float32) for name, array in tensors.items()}


def test_capture_is_data(tmp_path):
    tensors = write_capture(tmp_path / "c", **{"3.causal": "true", "3.scale": "0.25"})
    result = run_heads("--data", tmp_path / "c")
    assert "importance" not in result.stdout and (result.returncode, result.stderr) == (0, "")
    rows, header = table(result.stdout, "layer "), result.stdout.splitlines()[0].split()
    assert [row[0] for row in rows] == ["0"] * 4 + ["3"] * 4
    for layer, options in (("0", {}), ("3", {"causal": True, "scale": 0.25})):
        entropy = attnd.dot_product(tensors[f"{layer}.queries"], tensors[f"{layer}.keys"], need="entropy", **options)["entropy"]
        printed = numbers([row for row in rows if row[0] == layer], header.index("entropy"))
        assert np.abs(printed - entropy.mean(0)).max() <= 1e-4
    assert "need no folder: leave it out" in error_of(run_heads(GPT_OSS, "--data", tmp_path / "c"))


@pytest.mark.parametrize("metadata, words", [
    ({"3.colour": "1"}, "'3.colour', which is nothing of its layers 0, 3"), ({"7.causal": "true"}, "'7.causal', which"),
    ({"x": "1"}, "'x', which"), ({"3.scale": '"a"'}, "scale")])
def test_bad_captures_are_refused(tmp_path, metadata, words):
    write_capture(tmp_path / "c", **metadata)
    assert words in error_of(run_heads("--data", tmp_path / "c"))


# --- what is refused ---

BAD = {  # shape of hidden_states, options, what the error has
    "no ids": ((5, 2, 48), [], "ids are missing"),
    "too few": ((5, 3, 48), ["--ids", "0,1"], "are [5, 3, 48], but ids are 2; list one for each"),
    "one": ((5, 2, 48), ["--ids", "0"], "ids are 1; "),
    "after the last": ((5, 2, 48), ["--ids", "1-2"], "state 2 enters no layer of"),
    "no list": ((5, 2, 48), ["--ids", "0,,1"], "'0,,1' is not a list of ids, such as 0,8,16 or 0-29"),
    "negative": ((5, 2, 48), ["--ids=-1,0"], "is not a list of ids"),
    "backward": ((5, 2, 48), ["--ids", "1-0"], "but ids are 0"),
    "endless": ((5, 2, 48), ["--ids", "0-999999999"], "ids: "),
    "twice": ((5, 2, 48), ["--ids", "1,1"], "ids: "),
    "width": ((5, 2, 47), ["--ids", "0,1"], "layer 0: "),
    "rank": ((5, 48), ["--ids", "0,1"], "hidden_states have 2 axes; save [tokens, layers, width]"),
    "no tokens": ((0, 2, 48), ["--ids", "0,1"], "layer 0: "),
    "not finite": (None, ["--ids", "0,1"], "layer 0: "),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_hidden_states_are_refused(tmp_path, name):
    shape, options, words = BAD[name]
    states = np.full((5, 2, 48), np.nan) if shape is None else np.ones(shape)
    assert words in error_of(run_heads(GPT_OSS, "--data", write_states(tmp_path / "states", states), *options))


def test_tensors_that_mean_nothing_are_refused(tmp_path):
    data = write_states(tmp_path / "states", np.ones((5, 2, 48)), x=np.ones(3))
    error = error_of(run_heads(GPT_OSS, "--data", data, "--ids", "0,1"))
    assert "'x', which is nothing of its layers (none); beside these it may have token_ids, targets, hidden_states" in error


def test_states_without_the_rows_of_a_cached_prefix_are_refused(tmp_path):
    """vLLM writes such a file where it takes the beginning of a prompt from its cache."""
    data = write_states(tmp_path / "states", np.ones((5, 2, 48)), token_ids=np.arange(13))
    error = error_of(run_heads(GPT_OSS, "--data", data, "--ids", "0,1"))
    assert "have 5 rows, but there are 13 token_ids: " in error
    assert "start vllm with --no-enable-prefix-caching" in error


def test_states_do_not_make_the_keys_of_layers_that_borrow_them(tmp_path):
    states = write_states(tmp_path / "states", hidden_states("gemma3n_text", [1, 2]))
    error = error_of(run_heads(FOLDERS / "gemma3n_text", "--data", states, "--ids", "1,2"))
    assert "layer 2 takes the keys of layer 0, which state 2 does not make" in error


def test_states_are_for_a_folder(tmp_path):
    states = write_states(tmp_path / "states", hidden_states("gpt_oss", [0, 1]))
    path = FOLDERS / "../golden/torch_packed.safetensors"
    assert "is one layer; name the folder" in error_of(run_heads(f"{path},num_heads=6", "--data", states, "--ids", "0,1"))
    with pytest.raises(attnd.Error, match="rows of many layers"):
        attnd.load(GPT_OSS)[0].heads(states)
    with pytest.raises(attnd.Error, match="leave these out"):
        attnd.load(GPT_OSS)[0].heads(states, causal=True)


def test_pipe_of_one_layer_is_opened_once(tmp_path, requests_file):
    """A reader that leaves a pipe before the first byte ends the writer."""
    os.mkfifo(tmp_path / "pipe")
    for _ in range(3):
        with subprocess.Popen(["cp", requests_file, tmp_path / "pipe"]) as writer:
            result = run_heads(f"{GPT_OSS},layer=0", "--data", tmp_path / "pipe")
        assert (result.returncode, writer.returncode) == (0, 0), result


def test_reader_that_leaves_is_no_error(tmp_path, requests_file):
    with start_heads(f"{GPT_OSS},layer=0", "--data", requests_file) as process:
        process.stdout.close()
        assert process.wait(60) == 0 and process.stderr.read() == b""


def test_loop_of_the_page_asks_each_layer(tmp_path, start_server):
    """What docs/heads.md has for those without Python is the same."""
    folder = ROOT / "docs/examples/tiny-gpt2"
    model = attnd.load(folder)
    rows = {f"gpt2.{layer.name}": np.random.default_rng(i).normal(size=(5, layer.info["query_size"])).round(3)
            for i, layer in enumerate(model)}
    for name, queries in rows.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"model": name, "queries": queries.tolist()}))
    served = start_server("--model", f"gpt2={folder}")
    loop, = re.findall(r"```sh\n(for name in .*?)```", (ROOT / "docs/heads.md").read_text(), re.S)
    printed = subprocess.run(["sh", "-ec", loop.replace("http://127.0.0.1:8080", served.url)], cwd=tmp_path, timeout=60,
                             capture_output=True, text=True, check=True).stdout
    replies = list(read_objects(printed))
    table = model.heads(list(rows.values()))
    assert [reply["heads"] for reply in replies] == [reply["heads"] for reply in table.replies.values()]


def read_objects(text):
    """Returns the objects of JSON that follow each other."""
    while text:
        found, end = json.JSONDecoder().raw_decode(text)
        yield found
        text = text[end:].lstrip()
