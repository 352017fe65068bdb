# SPDX-License-Identifier: Apache-2.0
"""docs/upgrade.md: what a version does with what it does not know, and what 0.1.0 does not know."""

import re

import numpy as np
import pytest

from safetensors_file import write_safetensors
from server import ROOT, run_attnd

PAGE = (ROOT / "docs/upgrade.md").read_text()
# The options that attnd serve had in 0.1.0.
OLD = set("""
    causal check-config config cpu demo engine fill grace help http-threads idle-timeout json listen
    log-format log-level man max-body max-connections max-memory model model-dir part precision queue
    seconds shape version weights workers
""".split())


def write_file(path, **metadata):
    rng = np.random.default_rng(1)
    write_safetensors(path, {f"W_{name}.weight": rng.standard_normal((4, 4)).astype(np.float32) for name in "qkvo"},
                      "F32", {"num_heads": "2"} | metadata)


def test_page_names_the_options_that_the_first_version_lacks():
    table = (ROOT / "src/config/options.c").read_text()
    entries = re.findall(r'\{OPTION\("([\w-]+)",(.*?)\},\n', table, re.S)
    served = {name for name, entry in entries if ".command = " not in entry and name not in OLD}
    (listed,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.S | re.M)
    assert set(listed.split()) == served


def test_unknown_option_is_refused_by_name():
    result = run_attnd("--demo", "--check-config", "--of-next-year", "1")
    assert result.returncode == 2 and "unknown option '--of-next-year'" in result.stderr, result


def test_unknown_key_of_the_file_is_refused_by_name(tmp_path):
    (tmp_path / "c.json").write_text('{"demo": true, "of_next_year": 1}')
    result = run_attnd("--config", tmp_path / "c.json", "--check-config")
    assert result.returncode == 2 and "c.json" in result.stderr and "of_next_year" in result.stderr, result


def test_unknown_variable_is_a_warning():
    result = run_attnd("--demo", "--check-config", ATTND_OF_NEXT_YEAR="1")
    assert result.returncode == 0 and "ATTND_OF_NEXT_YEAR" in result.stderr, result


def test_unknown_layout_is_refused_by_name_or_left_out(tmp_path):
    write_file(tmp_path / "a.safetensors")
    write_file(tmp_path / "b.safetensors", layout="of_next_year")
    result = run_attnd("--check-config", "--model-dir", tmp_path)
    assert result.returncode == 1 and "b.safetensors" in result.stderr and "of_next_year" in result.stderr, result
    result = run_attnd("--check-config", "--model-dir", tmp_path, "--skip-bad-models")
    assert (result.returncode, result.stdout) == (0, "configuration ok: 1 model, 1 skipped\n"), result


def test_unknown_entry_of_metadata_is_ignored(tmp_path):
    write_file(tmp_path / "a.safetensors", of_next_year="1")
    assert run_attnd("--check-config", "--model-dir", tmp_path).returncode == 0
