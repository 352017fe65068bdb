# SPDX-License-Identifier: Apache-2.0
"""How models are loaded: the memory that it takes, and the check of their engine."""

import numpy as np
import pytest

from openblas import HAS_OPENBLAS, needs_openblas
from peak import peak_of
from safetensors_file import write_safetensors
from server import is_sanitized, run_attnd

WIDTH = 2048
WEIGHTS = 4 * WIDTH * WIDTH * 4  # 64 MiB
# A loader may take this share of the weights besides: for its stack, the buffers of BLAS, huge pages
# and the arenas of the C library, which differ by processor. It is less than a matrix and the 0.1
# that loading takes everywhere, so one more copy of a matrix exceeds the bound.
ROOM = 0.3


@pytest.fixture(scope="module")
def wide_layers(tmp_path_factory):
    """Returns a folder with a layer, once more the same, and another folder with additive scoring."""
    folder = tmp_path_factory.mktemp("wide")
    rng = np.random.default_rng(1)

    def weight(rows, columns):
        return rng.standard_normal((rows, columns), np.float32) / columns ** 0.5

    tensors = {f"{name}.weight": weight(WIDTH, WIDTH) for name in ("W_q", "W_k", "W_v", "W_o")}
    write_safetensors(folder / "wide.safetensors", tensors, "F32", {"num_heads": "16"})
    (folder / "same.safetensors").symlink_to(folder / "wide.safetensors")
    tensors |= {"attention.W_q.weight": weight(128, 128), "attention.W_k.weight": weight(128, 128),
                "attention.w_v.weight": weight(1, 128)}
    (folder / "additive").mkdir()
    write_safetensors(folder / "additive/wide.safetensors", tensors, "F32", {"num_heads": "16"})
    return folder


@pytest.mark.skipif(is_sanitized(), reason="sanitizers use memory of their own")
@pytest.mark.parametrize("name, arguments, most", [
    ("native", ["--check-config", "--engine", "native", "--model", "x={}/wide.safetensors"], 1 + ROOM),
    pytest.param("openblas", ["--check-config", "--engine", "openblas", "--model", "x={}/wide.safetensors"], 1 + ROOM,
                 marks=needs_openblas),
    ("additive", ["--check-config", "--model", "x={}/additive/wide.safetensors"], 1.1 + ROOM),
    ("two files", ["--check-config", "--model-dir", "{}"], 2 * (1 + ROOM)),
    ("inspect", ["inspect", "{}/wide.safetensors"], 1 + ROOM)],
    ids=lambda value: value if isinstance(value, str) else "")
def test_loading_takes_little_more_memory_than_the_weights(wide_layers, name, arguments, most):
    idle = peak_of("--check-config", "--demo")
    peak = peak_of(*(argument.format(wide_layers) for argument in arguments))
    print(f"{name}: {(peak - idle) / WEIGHTS:.2f} of the weights, over {idle >> 20} MiB")
    assert peak - idle <= most * WEIGHTS


def test_model_whose_engines_disagree_is_served_by_the_other(start_server, tmp_path):
    """The native engine starts its sums with the bias, and OpenBLAS, or plain, adds it at the end. A large one,
    which then cancels in the output projection, leaves what they round."""
    rng = np.random.default_rng(1)
    tensors = {f"{name}.weight": 20 * rng.standard_normal((4, 3)) for name in ("W_q", "W_k", "W_v")}
    tensors |= {"W_v.bias": np.full(4, 1e8), "W_o.weight": np.array([[1.0, -1.0, 1.0, -1.0]])}
    write_safetensors(tmp_path / "x.safetensors", tensors)
    server = start_server("--engine", "native", "--model", f"x={tmp_path}/x.safetensors,num_heads=2")
    engine, words = ("openblas", "openblas") if HAS_OPENBLAS else ("plain", "plain loops")
    assert f"warn engines disagree, using {words} model=x parts_per_million_apart=" in server.read_log()
    assert server.get("/v1/models/x").json()["engine"] == engine
    assert server.attention({"queries": [[1.0, 2.0, 3.0]]}).status_code == 200


def test_every_worker_computes_a_request_of_each_model_before_attnd_listens(start_server):
    server = start_server("--demo", "--workers", 3, "--log-level", "debug")
    before, _ = server.read_log().split("info listening")
    assert before.count("debug worker warmed up models=4 of=4") == 3
