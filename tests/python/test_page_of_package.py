# SPDX-License-Identifier: Apache-2.0
"""The snippets of docs/python.md print what the page shows, each in a process of its own."""

import os
import re
import subprocess
import sys

import pytest

from programs import BINARY, ROOT
from test_clients import assert_output

SNIPPETS = re.findall(r"^```python\n(.*?)^```\n+```text\n(.*?)^```$", (ROOT / "docs/python.md").read_text(), re.M | re.S)


@pytest.mark.parametrize("code, shown", SNIPPETS)
def test_snippet_prints_what_the_page_shows(code, shown, tmp_path):
    (tmp_path / "attnd").symlink_to(BINARY)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=150)
    assert result.returncode == 0, result.stderr
    assert_output(result.stdout, shown)


def test_page_has_snippets():
    assert len(SNIPPETS) >= 3
