# SPDX-License-Identifier: Apache-2.0
"""python -m attnd heads of one layer: what it prints about each head, and which requests it refuses."""

import json
import os
import re

import numpy as np
import pytest

from head_lines import contributions, error_of, layer, run_heads, start_heads, table  # noqa: F401 (layer: a fixture)
from reference import attend
from safetensors_file import write_safetensors


def test_heads_prints_what_each_head_does(layer):
    path, data, reference, requests = layer
    result = run_heads(path, "--data", data)
    assert (result.returncode, result.stderr) == (0, ""), result
    parts, outputs = contributions(reference, requests)
    rows = table(result.stdout, "head ")
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    importance = np.linalg.norm(parts, axis=(1, 2)) / np.linalg.norm(outputs)
    assert np.abs([float(row[1]) for row in rows] - importance).max() <= 1e-5

    weights = [attend(reference, request["queries"], keys, keys, request.get("valid_lens"))[1]
               for request in requests for keys in [request.get("keys", request["queries"])]]
    own = weights[:2]  # the keys are the queries
    for head, row in enumerate(rows):
        every = [w for weight in weights for w in weight[head]]
        entropy = np.mean([-np.sum(w[w > 0] * np.log(w[w > 0])) for w in every])
        distance = np.mean([w @ np.abs(np.arange(len(w)) - i)
                            for weight in own for i, w in enumerate(weight[head])])
        on_self = np.mean([w[i] for weight in own for i, w in enumerate(weight[head])])
        previous = np.mean([w[i] for weight in own for i, w in enumerate(weight[head][1:])])
        expected = [entropy, distance, on_self, np.mean([w[0] for w in every]), previous]
        assert np.abs(np.array(row[2:7], float) - expected).max() <= 1e-4, (head, row, expected)


def test_heads_prints_a_dash_where_keys_are_not_queries(tmp_path, layer):
    data = tmp_path / "data"
    data.write_text(json.dumps(layer[3][2]))
    result = run_heads(layer[0], "--data", data)
    assert result.returncode == 0, result
    for row in table(result.stdout, "head "):
        assert (row[3], row[4], row[6]) == ("-", "-", "-") and row[5] != "-", row


def test_request_may_have_many_lines(tmp_path, layer):
    (tmp_path / "one").write_text(json.dumps(layer[3][0]))
    (tmp_path / "lines").write_text("\n" + json.dumps(layer[3][0], indent=1) + "\n")
    results = [run_heads(layer[0], "--data", tmp_path / name) for name in ("one", "lines")]
    assert results[0].stdout == results[1].stdout != "", results


BAD_LINES = {
    "width": ('{"queries": [[1, 2]]}', "queries are 2 wide"),
    "JSON": ('{"queries": [[1, 2', "line 1 column"),
    "unknown key": ('{"queries": [[1,2,3,4,5,6]], "colour": 1}', "colour"),
    "key twice": ('{"queries": [[1,2,3,4,5,6]], "queries": [[1,2,3,4,5,6]]}', "twice"),
    "not an object": ("[1]", "object"),
    "NUL": ('{"queries": [[1,2,3,4,5,6]]}\0', "line 1 column 29"),
    "no UTF-8": ('{"queries": [[1,2,3,4,5,6]], "\udcff": 1}', "utf-8"),
    "not a number": ('{"queries": [[1,2,3,4,5,NaN]]}', "NaN"),
    "head_mask": ('{"queries": [[1,2,3,4,5,6]], "head_mask": [1]}', "head_mask"),
    "too large numbers": ('{"queries": [[3e38,3e38,3e38,3e38,3e38,3e38]]}', "not finite"),
    "too large scores": ('{"queries": [[3e38,3e38,3e38,3e38,3e38,3e38],[1,2,3,4,5,6]],'
                         '"head_mask": [0,0,0,0]}', "not finite"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_line_is_named_with_its_field(tmp_path, layer, name):
    line, words = BAD_LINES[name]
    data = tmp_path / "data"
    data.write_bytes((json.dumps(layer[3][0]) + f"\n\r\n{line}\n").encode(errors="surrogateescape"))
    error = error_of(run_heads(layer[0], "--data", data))
    assert error.startswith(f"attnd: {data}:3: ") and words in error, error


def test_file_without_a_request_is_refused(tmp_path, layer):
    (tmp_path / "data").write_text("\n \t\r\n")
    for data in (tmp_path / "data", os.devnull):
        assert "has no request; give the JSON" in error_of(run_heads(layer[0], "--data", data))
    assert "No such file" in error_of(run_heads(layer[0], "--data", tmp_path / "none"))
    assert "Is a directory" in error_of(run_heads(layer[0], "--data", tmp_path))


def test_heads_reads_a_pipe(layer):
    with start_heads(layer[0], "--data", "/dev/stdin", stdin=layer[1].open()) as process:
        printed, error = process.communicate(timeout=60)
    assert printed.decode() == run_heads(layer[0], "--data", layer[1]).stdout != "", error


@pytest.mark.parametrize("words", ["outputs", "weights", "heads", "lse", "outputs,heads"])
def test_need_does_not_change_what_heads_prints(tmp_path, layer, words):
    path, data, _, requests = layer
    lines = [{key: value for key, value in request.items() if key != "need_weights"}
             | {"need": words.split(",")} for request in requests]
    (tmp_path / "data").write_text("\n".join(map(json.dumps, lines)))
    plain, other = (run_heads(path, "--data", file) for file in (data, tmp_path / "data"))
    assert plain.stdout == other.stdout != "" and other.returncode == 0, other


# --- requests that are not JSON ---

@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F64"])
def test_data_may_be_safetensors(tmp_path, layer, dtype):
    rng = np.random.default_rng(5)
    tensors = {"queries": rng.integers(-8, 9, (4, 6)) / 8, "keys": rng.integers(-8, 9, (5, 6)) / 8}
    (tmp_path / "data").write_text(json.dumps({name: rows.tolist() for name, rows in tensors.items()} | {"causal": True}))
    write_safetensors(tmp_path / "data.safetensors", tensors, dtype,
                      {"causal": "true", "model": "any", "need": "heads", "format": "pt"})
    results = [run_heads(layer[0], "--data", tmp_path / name) for name in ("data", "data.safetensors")]
    assert results[0].stdout == results[1].stdout != "", results


def test_safetensors_with_a_line_feed_in_their_size_are_read_through_a_pipe(tmp_path, layer):
    """The size of the header is 2,560 + n bytes, whose second byte is a line feed."""
    write_safetensors(tmp_path / "data", {"queries": np.eye(6)}, "F32", {"format": 2500 * "x"})
    assert (tmp_path / "data").read_bytes()[1] == ord("\n")
    os.mkfifo(tmp_path / "pipe")
    with start_heads(layer[0], "--data", tmp_path / "pipe") as process:
        (tmp_path / "pipe").write_bytes((tmp_path / "data").read_bytes())
        printed, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, b"") and printed


BAD_TENSORS = {
    "width": ({"queries": np.eye(3)}, {}, "queries are 3 wide"),
    "name": ({"queries": np.eye(6), "x": np.eye(6)}, {}, "x"),
    "no queries": ({"x": np.eye(6)}, {}, "x"),
    "option": ({"queries": np.eye(6)}, {"colour": "1"}, "colour"),
    "not finite": ({"queries": np.full((2, 6), np.nan)}, {}, "queries[0][0] is not a number"),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_bad_safetensors_are_named_with_their_field(tmp_path, layer, name):
    tensors, metadata, words = BAD_TENSORS[name]
    data = tmp_path / "data"
    write_safetensors(data, tensors, metadata=metadata)
    error = error_of(run_heads(layer[0], "--data", data))
    assert error.startswith(f"attnd: {data}: ") and words in error


@pytest.mark.parametrize("change", [lambda raw: raw[:-1], lambda raw: raw[:20], lambda raw: raw.replace(b"F32", b"X32"),
                                    lambda raw: raw.replace(b"[6, 6]", b"[6, 7]"), lambda raw: b"\xff" * 5 + raw[5:],
                                    lambda raw: raw.replace(b'"shape"', b'"sha\\u0"')])
def test_damaged_safetensors_are_refused(tmp_path, layer, change):
    write_safetensors(tmp_path / "data", {"queries": np.eye(6)})
    (tmp_path / "data").write_bytes(change((tmp_path / "data").read_bytes()))
    assert "is not safetensors, is damaged" in error_of(run_heads(layer[0], "--data", tmp_path / "data"))


@pytest.mark.parametrize("data, words", [
    (b"PK\3\4" + bytes(300), "is a file of torch.save(), of NumPy or a pickle; give its rows"),
    (b"\x80\4\x95" + bytes(300), "or a pickle; give its rows"), (b"\x93NUMPY\1", "of NumPy"), (b"\x93NUM", ":1: "),
    (bytes(8), ":1: "),
    (b"\x10" + bytes(7) + b"[", ":1: ")])
def test_other_bytes_are_refused_by_what_they_are(tmp_path, layer, data, words):
    (tmp_path / "data").write_bytes(data)
    assert words in error_of(run_heads(layer[0], "--data", tmp_path / "data"))


# --- the command line ---

@pytest.mark.parametrize("arguments, words", [
    (["x"], "the following arguments are required: --data"),
    (["x", "--data", "a", "--data", "b"], "--data is given twice; give it once"),
    (["x", "--data", "a", "--ids", "0", "--ids", "1"], "--ids is given twice"),
    (["x", "--data", "a", "--sort", "mass"], "--sort: invalid choice: 'mass'"),
    (["x", "--data", "a", "--sort", "self", "--json"], "--sort is for the table; leave it or --json out"),
    (["x", "y", "--data", "a"], "unrecognized arguments: y"), (["x", "--dat", "a"], "--data")])
def test_wrong_options_exit_2(arguments, words):
    result = run_heads(*arguments)
    assert (result.returncode, result.stdout) == (2, "") and words in result.stderr, result


@pytest.mark.parametrize("options, words", [
    (",num_heads=0", "num_heads"), (",heads=2", "heads"), (",num_heads=5", "num_heads=5 does not divide"),
    (",num_heads", "layer,num_heads: cannot be opened"), (",num_heads=", "num_heads"), (",path=3", "unknown key 'path'"),
    (",self=3", "unknown key 'self'"), (",=1", "cannot be opened"), ("x", "layerx")])
def test_wrong_operands_are_refused(layer, options, words):
    assert words in error_of(run_heads(f"{layer[0]}{options}", "--data", layer[1]))


@pytest.mark.parametrize("column", ["sink", "target", "largest"])
def test_column_that_is_not_there_is_no_order(layer, column):
    error = error_of(run_heads(layer[0], "--data", layer[1], "--sort", column))
    assert f"there is no column '{column}' to sort by" in error and "importance, entropy" in error


def test_rows_need_a_layer(layer):
    assert "name its file or folder, too" in error_of(run_heads("--data", layer[1]))
    assert "it has no hidden_states, whose layers --ids lists" in error_of(
        run_heads(layer[0], "--data", layer[1], "--ids", "0"))
