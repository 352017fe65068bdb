# SPDX-License-Identifier: Apache-2.0
"""Variables that no option has, options of other programs, and names that no model can have."""

import json
import shutil

import pytest

from http1 import closed_port
from server import GOLDEN, run_attnd

MODEL = f"{GOLDEN}/torch_packed.safetensors,num_heads=6"
SERVICE_LINKS = {"ATTND_CANARY_SERVICE_HOST": "10.0.0.1", "ATTND_CANARY_SERVICE_PORT": "80",
                 "ATTND_CANARY_SERVICE_PORT_HTTP": "80", "ATTND_CANARY_PORT": "tcp://10.0.0.1:80",
                 "ATTND_CANARY_PORT_80_TCP_ADDR": "10.0.0.1", "ATTND_PORT_80_TCP_PORT": "80", "ATTND_PORT": "tcp://10.0.0.1:80",
                 "ATTND_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize("arguments", [["--demo", "--check-config"], ["health", "--listen", "127.0.0.1:PORT"]],
                         ids=["serve", "health"])
def test_service_links_and_empty_variables_are_ignored(arguments):
    """Compose files pass on variables that may be unset; Kubernetes adds those of its services."""
    with closed_port() as port:
        arguments = [word.replace("PORT", str(port)) for word in arguments]
        expected = run_attnd(*arguments)
        result = run_attnd(*arguments, ATTND_LOG_LEVEL="", **SERVICE_LINKS)
    assert result.returncode == expected.returncode, result
    assert "ATTND_" not in result.stderr, result


def test_unknown_variable_is_named_and_the_start_goes_on():
    """ATTND_PORT=9000 is a person's mistake, while Kubernetes sets ATTND_PORT=tcp://10.0.0.1:80."""
    result = run_attnd("--demo", "--check-config", ATTND_CAUSAL="true", ATTND_PORT="9000")
    assert result.returncode == 0, result
    for name in ("ATTND_CAUSAL", "ATTND_PORT"):
        assert f'warn unknown environment variable ignored name={name} remedy="' in result.stderr


@pytest.mark.parametrize("option", ["port", "host", "bind", "address", "api-key", "verbose"])
def test_option_of_another_program_is_refused_with_what_to_do_instead(option, tmp_path):
    name = option.replace("-", "_")
    (tmp_path / "c.json").write_text(json.dumps({"demo": True, name: True}))
    for arguments in (["--demo", f"--{option}"], ["--config", tmp_path / "c.json"]):
        result = run_attnd("--check-config", *arguments)
        assert result.returncode == 2 and result.stderr.count("\n") == 1, result
        assert "is not an option; " in result.stderr, result
    result = run_attnd("--demo", "--check-config", **{f"ATTND_{name.upper()}": "1"})
    assert result.returncode == 0 and f"ignored name=ATTND_{name.upper()} remedy=" in result.stderr, result


@pytest.mark.parametrize("command", ["heads", "prune"])
def test_command_that_moved_to_python_says_where_it_is(command):
    result = run_attnd(command, "layer.safetensors", "--data", "x")
    assert result.returncode == 2 and result.stderr == (
        f"attnd: unknown command '{command}'; it is in the Python package attnd: see docs/heads.md\n"), result


@pytest.mark.parametrize("name", ["stats", ".", ".."])
def test_name_that_a_path_cannot_have_is_refused(name, tmp_path):
    result = run_attnd("--check-config", "--model", f"{name}={MODEL}")
    assert result.returncode == 2, result
    assert f"--model: no model can be called '{name}'" in result.stderr

    if name != "stats":
        return  # the file would be a hidden one
    shutil.copy(GOLDEN / "torch_packed.safetensors", tmp_path / f"{name}.safetensors")
    result = run_attnd("--check-config", "--model-dir", tmp_path)
    assert result.returncode == 1, result
    assert f"{tmp_path}/{name}.safetensors: no model can be called '{name}'" in result.stderr
    result = run_attnd("--check-config", "--model-dir", tmp_path, "--skip-bad-models", "--demo")
    assert result.returncode == 0 and "4 models, 1 skipped" in result.stdout, result
