# SPDX-License-Identifier: Apache-2.0
"""The snippets of README.md do what it shows, and what it does not do is so. tests/deploy/readme.sh runs its
set-up commands."""

import json
import re
import shutil

import numpy as np
import pytest
import requests

from folders import FOLDERS
from safetensors_file import make_safetensors
from server import ROOT, run_attnd
from stored import PATH, small_file
from test_clients import PAGE_ADDRESS, assert_output, run

README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.M | re.S)
# The points of "What it does not do", each in one line.
LIMITS = [" ".join(point.split()) for point in re.split(r"^- ", README.split(
    "## What it does not do\n")[1].split("\n## ")[0], flags=re.M)[1:]]


@pytest.fixture
def snippet(demo_server):
    """Returns a function that finds the one snippet of a language which contains a text."""
    def find(language, text):
        found, = (code for name, code in SNIPPETS if name == language and text in code)
        return found.replace(PAGE_ADDRESS, f"127.0.0.1:{demo_server.port}")
    return find


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_first_request_gets_the_reply_that_is_shown(snippet, tmp_path):
    reply = run("sh", snippet("sh", "curl"), tmp_path)
    shown = json.dumps(json.loads(snippet("json", "journey")), separators=(",", ":"))
    assert_output(reply, shown)


def test_file_to_inspect_is_there():
    path, = re.findall(r"^attnd inspect (\S+)", (ROOT / "README.md").read_text(), re.M)
    assert run_attnd("inspect", ROOT / path).returncode == 0


def limit_about(word):
    """Returns the one point of "What it does not do" that has the word."""
    (point,) = (point for point in LIMITS if word in point)
    return point


def post(server, path, **body):
    return requests.post(f"{server.url}{path}", json=body, timeout=60)


def test_masks_and_biases_are_not_for_ragged_batches_nor_for_heads(demo_server):
    """What README denies is refused; that it does not deny it of other requests is tried, too."""
    point = limit_about("mask matrix")
    assert "ragged batches" in point and "`POST /v1/heads`" in point and "`bias`" in point
    rows = [[0.4, 0.1, 0.8], [0.5, 0.8, 0.6]]
    for name in ("attn_mask", "bias"):
        mask = {name: [[0, None], [0, 0]]}
        reply = post(demo_server, "/v1/attention", model="journey", queries=[rows, rows[:1]], **mask)
        assert reply.status_code == 400 and "equal lengths" in reply.json()["detail"], reply.text
        reply = post(demo_server, "/v1/heads", model="journey", queries=rows, **mask)
        assert reply.status_code == 400 and "what heads do is found without" in reply.json()["detail"], reply.text
        reply = post(demo_server, "/v1/attention", model="journey", queries=rows, need=["weights"], **mask)
        assert reply.json()["attention_weights"][0][0] == [1, 0], reply.text
    reply = post(demo_server, "/v1/attention/dot-product", queries=rows, keys=rows, num_heads=1,
                 bias=[[0, None], [0.5, 0]], need=["weights"])
    (first, second), = reply.json()["attention_weights"]
    assert first == [1, 0] and 0 < second[0] < 1, reply.text


def test_only_captures_are_kept(start_server):
    point = limit_about("KV cache")
    assert "captures" in point and "--capture-memory" in point
    server = start_server("--demo", "--capture-memory", "1MiB")
    assert requests.put(f"{server.url}{PATH}/kept", small_file(), timeout=60).status_code == 201
    reply = post(server, f"{PATH}/kept/attention", need=["weights"])
    assert reply.status_code == 200 and "attention_weights" in reply.json()


def test_head_mask_multiplies(demo_server):
    """README says so; a factor need not be 0 or 1."""
    assert "`head_mask` multiplies the output of each head" in README
    rows = [[0.4, 0.1, 0.8], [0.5, 0.8, 0.6]]
    heads = [post(demo_server, "/v1/attention", model="journey", queries=rows, need=["heads"], head_mask=mask)
             for mask in ([1, 1], [1, 2])]
    once, twice = (reply.json()["heads"][1] for reply in heads)
    assert twice[0] == once[0] and twice[1] == pytest.approx([2 * number for number in once[1]], rel=1e-6)


def test_three_axes_are_only_for_models_that_rotate_by_them(start_server):
    assert "three axes (time, row, column) are only for models that rotate by them" in limit_about("three axes")
    server = start_server("--demo", "--model", f"vl={FOLDERS}/qwen2_vl")
    width = requests.get(f"{server.url}/v1/models/vl.text.0", timeout=60).json()["query_size"]
    axes = [[0, 1], [0, 2], [0, 3]]
    reply = post(server, "/v1/attention", model="vl.text.0", queries=[[0.5] * width] * 2, positions=axes)
    assert reply.status_code == 200, reply.text
    rows = [[0.4, 0.1, 0.8], [0.5, 0.8, 0.6]]
    for path, body in (("/v1/attention", {"model": "journey"}),
                       ("/v1/attention/dot-product", {"keys": rows, "num_heads": 1})):
        reply = post(server, path, queries=rows, positions=axes, **body)
        assert (reply.status_code, reply.json()["title"]) == (400, "Wrong rank"), reply.text


def test_what_is_refused_says_so(demo_server):
    """Neither text nor a mask of another name is taken."""
    rows = [[0.4, 0.1, 0.8], [0.5, 0.8, 0.6]]
    assert "no tokenizer" in limit_about("tokenizer")
    for body in ({"queries": "Your journey"}, {"queries": rows, "attention_mask": [1, 0]}):
        reply = post(demo_server, "/v1/attention", model="journey", **body)
        assert reply.status_code == 400 and reply.json()["detail"], reply.text


def test_masked_keys_cost_no_attention_in_whole_blocks():
    """README names the kernels' block. That they read no masked one, test_math_few.c shows by pages without access."""
    block, = re.findall(r"Keys that a mask hides cost no attention, in whole\s+blocks of (\d+)", README)
    kernels = (ROOT / "src/math/kernels/kernels.h").read_text()
    assert re.findall(r"#define KEY_BLOCK +(\d+)", kernels) == [block]
