# SPDX-License-Identifier: Apache-2.0
"""Names that no model can have."""

import shutil

import pytest

from server import GOLDEN, run_attnd

MODEL = f"{GOLDEN}/torch_packed.safetensors,num_heads=6"


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
