# SPDX-License-Identifier: Apache-2.0
"""A model and a file of requests for what looks at heads, and what `python -m attnd heads` prints."""

import contextlib
import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from attnd.__main__ import main

from checkpoints import read_layer, write_layer
from reference import attend
from server import ROOT


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    """A model of 4 heads and 3 requests for it: (path, path of the requests, Layer, requests)."""
    directory = tmp_path_factory.mktemp("layer")
    write_layer(directory / "layer", num_heads=4, head_size=3, query_size=6, seed=3)
    rng = np.random.default_rng(4)
    requests = [{"model": f"any-{i}", "queries": rng.normal(size=(4 + i, 6)).tolist()}
                for i in range(2)]
    rows = rng.normal(size=(5, 6)).tolist()
    requests.append({"queries": rng.normal(size=(3, 6)).tolist(), "keys": rows,
                     "valid_lens": 4, "head_mask": [1, 0.5, 2, 1], "need_weights": True})
    data = directory / "requests.jsonl"
    data.write_text("\n".join(map(json.dumps, requests)) + "\n\n")
    return directory / "layer", data, read_layer(directory / "layer"), requests


def contributions(layer, requests):
    """Returns what each head adds to the outputs, [H, rows, out_size], and all outputs."""
    parts, outputs = [], []
    for request in requests:
        queries = request["queries"]
        keys = request.get("keys", queries)
        factors = request.get("head_mask", [1] * len(layer.heads))

        def run(mask):
            return attend(layer, queries, keys, keys, request.get("valid_lens"), head_mask=mask)[0]

        nothing = run([0] * len(factors))
        outputs.append(run(factors))
        parts.append([run([factor if i == h else 0 for i, factor in enumerate(factors)]) - nothing
                      for h in range(len(factors))])
    return np.concatenate(parts, axis=1), np.concatenate(outputs)


def run_heads(*arguments):
    """Runs `python -m attnd heads` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(["heads", *map(str, arguments)])
        except SystemExit as end:
            code = end.code
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def start_heads(*arguments, **options):
    """Starts `python -m attnd heads` as a process of its own."""
    options = {"stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, "-m", "attnd", "heads", *map(str, arguments)], stdout=subprocess.PIPE,
                            env=os.environ | {"PYTHONPATH": str(ROOT / "src/python")}, **options)


def table(stdout, first_line):
    """Returns the rows of words below the line that begins with `first_line`."""
    lines = stdout.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(first_line)) + 1
    end = next((i for i in range(begin, len(lines)) if not lines[i]), len(lines))
    return [line.split() for line in lines[begin:end]]


def error_of(result):
    assert result.returncode == 1 and result.stdout == "", result
    assert result.stderr.startswith("attnd: ") and result.stderr.count("\n") == 1, result
    return result.stderr
