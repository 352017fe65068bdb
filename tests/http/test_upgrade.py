# SPDX-License-Identifier: Apache-2.0
"""docs/upgrade.md: what a version does with what it does not know."""

import re

import numpy as np

from safetensors_file import write_safetensors
from server import ROOT, run_attnd


def write_file(path, **metadata):
    rng = np.random.default_rng(1)
    write_safetensors(path, {f"W_{name}.weight": rng.standard_normal((4, 4)).astype(np.float32) for name in "qkvo"},
                      "F32", {"num_heads": "2"} | metadata)


PAGE = (ROOT / "docs/upgrade.md").read_text()


def test_page_checks_as_the_unit_would_start():
    """The same user, variables and models: what the check finds is what the start would."""
    unit = dict(re.findall(r"(?m)^(\w+)=(.*)$", (ROOT / "deploy/attnd.service").read_text()))
    command, = re.findall(r"sudo systemd-run (.*?) &&$", PAGE.replace("\\\n", ""), re.M)
    for setting in ("DynamicUser", "User", "EnvironmentFile"):
        assert f"-p {setting}={unit[setting]} " in command
    models, = re.findall(r"ATTND_MODEL_DIR=\S+", unit["Environment"])
    assert f"-E {models} " in command and command.endswith("attnd --check-config")
    assert PAGE.index("systemd-run") < PAGE.index("sudo apt-get install")


def test_page_goes_back_by_the_files_that_it_names():
    compose, stack = ((ROOT / "deploy" / name).read_text() for name in ("docker-compose.yml", "stack.yml"))
    assert "image: localhost/attnd:${ATTND_COMMIT:-latest}" in compose and "REVISION: \"${ATTND_COMMIT:-" in compose
    line = 'echo "ATTND_COMMIT=$(git rev-parse HEAD)" >> deploy/.env'
    assert PAGE.count(line) == 2 and line in (ROOT / "docs/deploy.md").read_text()
    assert "${ATTND_IMAGE" in stack and re.search(r"failure_action: rollback", stack)
    assert "--allow-downgrades" in PAGE and "docker service rollback attnd_attnd" in PAGE
    for name in ("base/deployment.yaml", "one-node/deployment.yaml"):  # what `kubectl set image` changes
        assert re.search(r"- name: attnd$", (ROOT / "deploy/kubernetes" / name).read_text(), re.M)


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
