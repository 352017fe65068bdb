# SPDX-License-Identifier: Apache-2.0
"""The snippets of docs/clients.md print the output that the page shows.

They run in the order of the page and in one folder. A fence of `sh` or `python` is a program; the
`json` or `text` that follows is its output. If the first line of `python` or `lua` is the name of a
file, the snippet is written to that file and not run."""

import json
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from http1 import Connection, post_bytes
from server import ROOT, Server, clean_environment

PAGE = ROOT / "docs/clients.md"
EXAMPLES = ROOT / "docs/examples"
sys.path.insert(0, str(EXAMPLES))

from attention_client import Client
PAGE_ADDRESS = "127.0.0.1:8080"  # replaced by that of our server
TOLERANCE = 2e-6
NUMBER = re.compile(r"-?\d+\.\d*(?:e[-+]\d+)?")
# Snippets that are not run: the test does itself what they do.
PREPARATION = {"attnd --demo\n",
               "python3 -m venv venv && venv/bin/pip install numpy requests aiohttp safetensors "
               "'tritonclient[http]'\n",
               "cp docs/examples/attention_client.py .\n"}


def read_page():
    """Returns [language, text, expected output or None] for every snippet."""
    snippets = []
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
        if language in ("json", "text"):
            assert snippets and snippets[-1][2] is None, f"output without a program:\n{text}"
            snippets[-1][2] = text
        else:
            assert language in ("sh", "python", "lua"), f"unknown language {language!r}"
            snippets.append([language, text, None])
    return snippets


def assert_line(got, expected):
    """Compares two lines, but for `...` and the last digits of numbers with a point."""
    pattern = ""
    for piece in re.split(r"( ?\.\.\.)", NUMBER.sub("\0", expected)):
        pattern += ".*" if piece.endswith("...") else re.escape(piece)
    pattern = re.sub(r"(\\ )+", " +", pattern)  # numpy pads by the number of digits
    match = re.fullmatch(pattern.replace(re.escape("\0"), f"({NUMBER.pattern})"), got)
    assert match, f"printed {got!r}, but the page shows {expected!r}"
    for number, wanted in zip(match.groups(), NUMBER.findall(expected)):
        assert abs(float(number) - float(wanted)) <= TOLERANCE, \
            f"printed {got!r}, but the page shows {expected!r}"


def assert_output(got, expected):
    """Compares the lines of two outputs. A line of `...` matches any number of lines."""
    got, expected = got.rstrip("\n").splitlines(), expected.splitlines()
    if "..." in expected:
        at = expected.index("...")
        tail = len(expected) - at - 1
        assert len(got) >= len(expected) - 1, got
        got, expected = got[:at] + got[len(got) - tail:], expected[:at] + expected[at + 1:]
    assert len(got) == len(expected), "\n".join(got)
    for line, wanted in zip(got, expected):
        assert_line(line, wanted)


def run(language, text, folder):
    program = ["sh", "-e", "-c", text] if language == "sh" else [sys.executable, "-c", text]
    environment = clean_environment(PYTHONDONTWRITEBYTECODE="1")
    result = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True,
                            timeout=60)
    assert result.returncode == 0, f"{text}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_snippets_print_what_the_page_shows(tmp_path):
    ran = 0
    with Server("--demo") as server:
        address = f"127.0.0.1:{server.port}"
        client = (EXAMPLES / "attention_client.py").read_text().replace(PAGE_ADDRESS, address)
        (tmp_path / "attention_client.py").write_text(client)
        for language, text, expected in read_page():
            if text in PREPARATION:
                continue
            text = text.replace(PAGE_ADDRESS, address)
            name = re.match(r"(?:#|--) (\w+\.(?:py|lua))\n", text)
            if name:
                assert expected is None
                (tmp_path / name[1]).write_text(text)
                continue
            assert expected is not None, f"the page does not show what this prints:\n{text}"
            assert_output(run(language, text, tmp_path), expected.replace(PAGE_ADDRESS, address))
            ran += 1
    assert ran >= 8


def test_wrong_output_is_detected():
    assert_output("a 1.0000001 b\nx\ny\nz\n", "a 1.0 b\n...\nz\n")
    for got, expected in (("a 1.1 b\n", "a 1.0 b\n"), ("a\nb\n", "a\n"), ("a\n", "a\nb\n"),
                          ("[1.0, 2.0]\n", "[1.0]\n"), ("a c\n", "a b ...\n"), ("1\n", "2\n")):
        with pytest.raises(AssertionError):
            assert_output(got, expected)


def wait_for_refusals(server, count):
    """Waits until the log, which has a line for every request, has `count` replies of 503."""
    deadline = time.monotonic() + 30
    while server.read_log().count("status=503") < count:
        assert time.monotonic() < deadline, server.read_log()
        time.sleep(0.01)


@pytest.mark.alone
def test_python_client_retries_after_503(start_server):
    """A reply that its client does not read holds most of the memory until the client leaves."""
    server = start_server("--demo", "--max-memory", 11_100_000, "--log-level", "debug")
    client, histories = Client(server.url), []
    client.session.hooks["response"].append(
        lambda reply, *_, **__: histories.append([r.status for r in reply.raw.retries.history]))
    tokens = np.random.default_rng(0).normal(size=(1000, 100)).astype(np.float32)  # 2 MB
    with Connection(server.port) as holder, ThreadPoolExecutor(1) as thread:
        request = {"model": "d2l", "queries": [[0.5] * 100] * 500, "need_weights": True}
        holder.send(post_bytes(json.dumps(request).encode()))
        assert holder.receive()  # the reply has begun, and holds 5 MB of weights
        future = thread.submit(client.attend, "d2l", tokens)
        wait_for_refusals(server, 1)
        holder.socket.close()
        outputs, weights = future.result(timeout=60)
    assert outputs.shape == (1000, 100) and weights is None
    assert histories[0] and set(histories[0]) == {503}
