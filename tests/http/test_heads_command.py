# SPDX-License-Identifier: Apache-2.0
"""attnd heads: what it prints about each head, and which requests it refuses."""

import json
import os
import re
import subprocess
import time

import numpy as np
import pytest

from head_requests import contributions, error_of, layer, table  # noqa: F401 (layer: a fixture)
from reference import attend
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
        assert result.returncode == 1 and "has no request; write" in error_of(result), result


def test_heads_reads_a_pipe(layer):
    result = subprocess.run([BINARY, "heads", layer[0], "--data", "/dev/stdin"], timeout=60,
                            input=layer[1].read_text(), capture_output=True, text=True,
                            env=clean_environment())
    assert result.stdout == run_attnd("heads", layer[0], "--data", layer[1]).stdout != ""


def test_heads_without_data_exits_2(layer):
    result = run_attnd("heads", layer[0])
    assert result.returncode == 2 and "--data is missing" in error_of(result), result


def test_progress_is_reported_while_it_takes_long(layer):
    path, _, _, requests = layer
    with subprocess.Popen([BINARY, "heads", path, "--data", "/dev/stdin"], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=clean_environment()) as process:
        process.stdin.write(json.dumps(requests[0]) + "\n")
        process.stdin.flush()
        time.sleep(1.2)
        _, progress = process.communicate(json.dumps(requests[1]) + "\n", timeout=60)
    assert process.returncode == 0
    assert re.fullmatch(r"attnd: 2 requests analysed in \d s\n", progress), progress
