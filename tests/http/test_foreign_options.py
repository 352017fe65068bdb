# SPDX-License-Identifier: Apache-2.0
"""Options of other commands, and names that no model can have."""

import shutil

import pytest

from server import GOLDEN, run_attnd

MODEL = f"{GOLDEN}/torch_packed.safetensors,num_heads=6"
# Options of other commands, with one word of what the error says besides.
FOREIGN_OPTIONS = {"--shape=1,2,8,2": "bench", "--causal": "causal=true", "--weights": "bench",
                   "--data=x": "heads and prune", "--keep=1": "prune", "--output=x": "prune"}


@pytest.mark.parametrize("option", FOREIGN_OPTIONS)
def test_serve_refuses_the_option_of_another_command(option):
    for command in ([], ["serve"]):
        result = run_attnd(*command, "--demo", "--check-config", option)
        assert result.returncode == 2 and result.stderr.count("\n") == 1, result
        assert f"{option.split('=')[0]} is an option of attnd" in result.stderr
        assert FOREIGN_OPTIONS[option] in result.stderr


@pytest.mark.parametrize("name", ["stats", ".", ".."])
def test_name_that_a_path_cannot_have_is_refused(name, tmp_path):
    result = run_attnd("--check-config", "--model", f"{name}={MODEL}")
    assert result.returncode == 2, result
    assert f"--model: no model can be called '{name}'" in result.stderr

    shutil.copy(GOLDEN / "torch_packed.safetensors", tmp_path / f"{name}.safetensors")
    result = run_attnd("--check-config", "--model-dir", tmp_path)
    assert result.returncode == 1, result
    assert f"{tmp_path}/{name}.safetensors: no model can be called '{name}'" in result.stderr
    result = run_attnd("--check-config", "--model-dir", tmp_path, "--skip-bad-models", "--demo")
    assert result.returncode == 0 and "4 models, 1 skipped" in result.stdout, result
