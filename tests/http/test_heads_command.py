# SPDX-License-Identifier: Apache-2.0
"""attnd heads: what it prints about each head, and which requests it refuses."""

import json
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from head_requests import contributions, error_of, layer, table  # noqa: F401 (layer: a fixture)
from reference import attend
from safetensors_file import write_safetensors
from server import BINARY, clean_environment, run_attnd


def test_heads_prints_what_each_head_does(layer):
    path, data, reference, requests = layer
    result = run_attnd("heads", path, "--data", data)
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
    result = run_attnd("heads", layer[0], "--data", data)
    assert result.returncode == 0, result
    for row in table(result.stdout, "head "):
        assert (row[3], row[4], row[6]) == ("-", "-", "-") and row[5] != "-", row


BAD_LINES = {
    "width": ('{"queries": [[1, 2]]}', "queries: queries are 2 wide"),
    "JSON": ('{"queries": [[1, 2', "line 1, column"),
    "unknown key": ('{"queries": [[1,2,3,4,5,6]], "colour": 1}', "colour"),
    "not an object": ("[1]", "object"),
    "NUL": ('{"queries": [[1,2,3,4,5,6]]}\0', "line 1, column 29"),
    "head_mask": ('{"queries": [[1,2,3,4,5,6]], "head_mask": [1]}', "head_mask: "),
    "too large numbers": ('{"queries": [[3e38,3e38,3e38,3e38,3e38,3e38]]}', "not finite"),
    "too large scores": ('{"queries": [[3e38,3e38,3e38,3e38,3e38,3e38],[1,2,3,4,5,6]],'
                         '"head_mask": [0,0,0,0]}', "not finite"),
    "too long": ('{"queries": [[1,2,3,4,5,6]' + " " * 3000, "more than 2000 bytes"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_bad_line_is_named_with_its_field(tmp_path, layer, name):
    line, words = BAD_LINES[name]
    data = tmp_path / "data"
    data.write_text(json.dumps(layer[3][0]) + f"\n\r\n{line}\n")
    result = run_attnd("heads", layer[0], "--data", data, "--max-body", 2000)
    assert (result.returncode, result.stdout) == (1, ""), result
    error = error_of(result)
    assert error.startswith(f"attnd: {data}:3: ") and words in error, error


def test_request_that_needs_too_much_memory_is_refused(layer):
    result = run_attnd("heads", layer[0], "--data", layer[1], "--max-memory", 500)
    assert result.returncode == 1, result
    assert "requests.jsonl:1: " in error_of(result) and "--max-memory" in result.stderr


def test_file_without_a_request_is_refused(tmp_path, layer):
    (tmp_path / "data").write_text("\n \t\r\n")
    for data in (tmp_path / "data", os.devnull):
        result = run_attnd("heads", layer[0], "--data", data)
        assert result.returncode == 1 and "has no request; name a file" in error_of(result), result


def test_heads_reads_a_pipe(layer):
    result = subprocess.run([BINARY, "heads", layer[0], "--data", "/dev/stdin"], timeout=60,
                            input=layer[1].read_text(), capture_output=True, text=True,
                            env=clean_environment())
    assert result.stdout == run_attnd("heads", layer[0], "--data", layer[1]).stdout != ""


@pytest.mark.parametrize("words", ["outputs", "weights", "heads", "lse", "outputs,heads"])
def test_need_does_not_change_what_heads_prints(tmp_path, layer, words):
    path, data, _, requests = layer
    lines = [{key: value for key, value in request.items() if key != "need_weights"}
             | {"need": words.split(",")} for request in requests]
    (tmp_path / "data").write_text("\n".join(map(json.dumps, lines)))
    plain, other = (run_attnd("heads", path, "--data", file) for file in (data, tmp_path / "data"))
    assert plain.stdout == other.stdout != "" and other.returncode == 0, other


# --- requests that are not JSON ---

@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F64"])
@pytest.mark.parametrize("command", [["heads"], ["prune", "--heads", "1", "--output", "out"]],
                         ids=["heads", "prune"])
def test_data_may_be_safetensors(tmp_path, layer, command, dtype):
    rng = np.random.default_rng(5)
    tensors = {"queries": rng.integers(-8, 9, (4, 6)) / 8, "keys": rng.integers(-8, 9, (5, 6)) / 8}
    line = json.dumps({name: rows.tolist() for name, rows in tensors.items()} | {"causal": True})
    (tmp_path / "data").write_text(line)
    write_safetensors(tmp_path / "data.safetensors", tensors, dtype,
                      {"causal": "true", "model": "any", "need": "heads", "format": "pt"})

    command, *options = command
    texts = []
    for data in ("data", "data.safetensors"):
        result = run_attnd(command, layer[0], "--data", data, *options, cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, ""), result
        texts.append(result.stdout)
        (tmp_path / "out").unlink(missing_ok=True)
    assert texts[0] == texts[1]


def test_safetensors_with_a_line_feed_in_their_size_are_read_through_a_pipe(tmp_path, layer):
    """The size of the header is 2,560 + n bytes, whose second byte is a line feed."""
    write_safetensors(tmp_path / "data", {"queries": np.eye(6)}, "F32", {"format": 2500 * "x"})
    raw = (tmp_path / "data").read_bytes()
    assert raw[1] == ord("\n")
    result = subprocess.run([BINARY, "heads", layer[0], "--data", "/dev/stdin"], timeout=60,
                            input=raw, capture_output=True, env=clean_environment())
    assert (result.returncode, result.stderr) == (0, b""), result


BAD_TENSORS = {
    "width": ({"queries": np.eye(3)}, {}, "queries: queries are 3 wide"),
    "name": ({"x": np.eye(6)}, {}, "x: 'x' is not a tensor of a request"),
    "option": ({"queries": np.eye(6)}, {"colour": "1"}, "colour: 'colour' is not an option"),
    "too long": ({"queries": np.ones((200, 6))}, {}, "more than 2000 bytes"),
    "not finite": ({"queries": np.full((2, 6), np.nan)}, {}, "queries[0][0] is not a number"),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_bad_safetensors_are_named_with_their_field(tmp_path, layer, name):
    tensors, metadata, words = BAD_TENSORS[name]
    data = tmp_path / "data"
    write_safetensors(data, tensors, metadata=metadata)
    result = run_attnd("heads", layer[0], "--data", data, "--max-body", 2000)
    error = error_of(result)
    assert result.returncode == 1 and error.startswith(f"attnd: {data}: ") and words in error


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_printed_line_converts_rows_of_numpy(tmp_path, layer, name):
    rows = np.asfortranarray(np.random.default_rng(1).normal(size=(5, 6)).astype(np.float32))
    if name == "x.npy":
        np.save(tmp_path / name, rows)
    else:
        np.savez(tmp_path / name, queries=rows)
    error = error_of(run_attnd("heads", layer[0], "--data", name, cwd=tmp_path))
    assert error.startswith(f"attnd: {name}: is an {name[1:]} file of NumPy"), error
    path = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]
    subprocess.run(error[error.index("python3 -c"):], shell=True, check=True, cwd=tmp_path,
                   env=os.environ | {"PATH": path})

    (tmp_path / "data").write_text(json.dumps({"queries": rows.tolist()}))
    results = [run_attnd("heads", layer[0], "--data", data, cwd=tmp_path)
               for data in ("data", f"{name}.safetensors")]
    assert results[0].stdout == results[1].stdout != "", results


@pytest.mark.parametrize("data, words", [
    (b"PK\3\4" + bytes(300), "is a file of torch.save(); convert its tensor, the queries: python3"),
    (b"\x80\4\x95" + bytes(300), "is a pickle of Python; load it with pickle.load()"),
    (b"PK\3\4", "is a file of torch.save()"), (b"\x93NUM", ":1: line 1, column "),
    (bytes(8), ":1: line 1, column "), (b"\x10" + bytes(7) + b"[", ":1: line 1, column ")])
def test_other_bytes_are_refused_by_what_they_are(tmp_path, layer, data, words):
    (tmp_path / "data").write_bytes(data)
    result = run_attnd("heads", layer[0], "--data", tmp_path / "data")
    assert result.returncode == 1 and words in error_of(result), result


def test_longest_name_leaves_the_line_for_rows_whole(tmp_path, layer):
    name = 86 * "x" + ".npz"
    np.savez(tmp_path / name, np.eye(4))
    result = run_attnd("heads", layer[0], "--data", name, cwd=tmp_path)
    assert error_of(result).endswith(f"+ '.safetensors')\" '{name}'\n"), result


def test_heads_without_data_exits_2(layer):
    result = run_attnd("heads", layer[0])
    assert result.returncode == 2 and "--data is missing" in error_of(result), result


def analyse_slowly(path, requests, pause):
    """Returns what a program writes to standard error that gets its second request after a pause."""
    with subprocess.Popen([BINARY, "heads", path, "--data", "/dev/stdin"], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=clean_environment()) as process:
        process.stdin.write(json.dumps(requests[0]) + "\n")
        process.stdin.flush()
        time.sleep(pause)
        _, progress = process.communicate(json.dumps(requests[1]) + "\n", timeout=60)
    assert process.returncode == 0
    return progress


def test_progress_is_reported_while_it_takes_long(layer):
    """On a busy machine a part of the pause passes before the program begins."""
    path, _, _, requests = layer
    progress = next(filter(None, (analyse_slowly(path, requests, pause) for pause in (1.2, 6, 30))), "")
    assert re.fullmatch(r"attnd: 2 requests analysed in \d+ s\n", progress), progress
