# SPDX-License-Identifier: Apache-2.0
"""The snippets of README.md do what it shows. tests/deploy/readme.sh runs its set-up commands."""

import json
import re
import shutil

import pytest

from server import ROOT, run_attnd
from test_clients import PAGE_ADDRESS, assert_output, run

SNIPPETS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)


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
