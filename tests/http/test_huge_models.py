# SPDX-License-Identifier: Apache-2.0
"""Models that are larger than the memory: refused by their header, before any weight is read."""

import os
import re

import pytest
import requests

from cgroup import memory_cgroup
from checkpoints import write_layer
from reload import write_huge_layer
from server import is_sanitized, run_attnd
from test_checkpoint_folders import make_wide_folder

MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
REFUSAL = r"its weights need \d+ bytes as float32, but this process may use \d+; use a smaller model"


@pytest.fixture
def huge(tmp_path):
    """A folder with a good model, and a hole of the right size for one of twice the memory."""
    folder = tmp_path / "models"
    folder.mkdir()
    write_layer(folder / "good.safetensors", 2, 3, 4)
    write_huge_layer(folder / "huge.safetensors", 2 * MEMORY)
    return folder


@pytest.fixture(params=["machine", "cgroup"])
def limit(request):
    """Runs attnd with the memory of the machine, or in a cgroup of 512 MiB."""
    if request.param == "machine":
        yield MEMORY
        return
    if is_sanitized():
        pytest.skip("sanitizers use memory of their own")
    with memory_cgroup(512 << 20) as cgroup:
        if not cgroup:
            pytest.skip("no memory cgroup can be made here")
        with cgroup.holds_new_servers():
            yield 512 << 20
        assert cgroup.num_killed == 0


@pytest.mark.parametrize("command", [
    ["--check-config", "--model", "x={}/huge.safetensors"], ["--check-config", "--model-dir", "{}"]], ids=lambda words: " ".join(words[:2]))
def test_model_larger_than_the_memory_is_refused_before_it_is_read(huge, limit, command):
    result = run_attnd(*(word.format(huge) for word in command))
    assert result.returncode == 1, result
    assert re.search(r"huge\.safetensors: " + REFUSAL, result.stderr), result
    assert int(re.search(r"may use (\d+)", result.stderr)[1]) <= limit


@pytest.mark.usefixtures("limit")
def test_model_larger_than_the_memory_is_skipped_if_so_wished(huge, start_server):
    make_wide_folder(huge / "wide", 1 << 20)
    server = start_server("--model-dir", huge, "--skip-bad-models")
    assert [model["name"] for model in server.get("/v1/models").json()["models"]] == ["good"]
    index = {entry["name"]: entry for entry in
             requests.post(server.url + "/v2/repository/index", timeout=60).json()}
    assert "may use" in index["huge"]["reason"] and "may use" in index["wide"]["reason"]
    server.stop()


def test_models_larger_than_the_memory_together_are_refused_before_any_is_read(tmp_path):
    """Each needs more than half of what this process may use."""
    write_huge_layer(tmp_path / "a.safetensors", 2 * MEMORY)
    line = run_attnd("--check-config", "--model-dir", tmp_path).stderr
    memory = int(re.search(r"may use (\d+)", line)[1])
    for name in "ab":
        write_huge_layer(tmp_path / f"{name}.safetensors", int(memory * 0.6))
    for options in ([], ["--skip-bad-models"]):
        result = run_attnd("--check-config", "--model-dir", tmp_path, *options)
        assert result.returncode == 1, result
        assert f"bytes together, but this process may use {memory}; name fewer of them" in result.stderr, result
