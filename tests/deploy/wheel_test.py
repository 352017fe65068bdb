# SPDX-License-Identifier: Apache-2.0
"""wheel_test.py: uses an installed wheel of attnd as a newcomer does. Needs numpy alone; wheel.sh runs it."""

import importlib.metadata
import importlib.util
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import urllib.request

import attnd
import numpy as np

FOLDER = pathlib.Path(attnd.__file__).parent
EXAMPLE = pathlib.Path("/tiny-gpt2")  # of docs/examples
RNG = np.random.default_rng(0)


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def test_it_needs_numpy_alone():
    needed = [line for line in importlib.metadata.requires("attnd") if "extra" not in line]
    assert len(needed) == 1 and needed[0].startswith("numpy"), needed
    assert importlib.util.find_spec("torch") is None


def test_attention_is_computed_in_the_process():
    queries, keys, values = RNG.standard_normal((3, 2, 50, 4, 16)).astype("f4")
    scores = np.einsum("bqhd,bkhd->bhqk", queries, keys).astype("f8") / 4
    scores[..., np.triu(np.ones((50, 50), bool), 1)] = -np.inf
    weights = softmax(scores)
    got = attnd.dot_product(queries, keys, values, causal=True, need=["heads", "weights", "received"])
    assert np.allclose(got["weights"], weights, atol=1e-5)
    assert np.allclose(got["received"], weights.sum(2), atol=1e-4)
    assert np.allclose(got["heads"], np.einsum("bhqk,bkhd->bqhd", weights, values), atol=1e-5)
    q, k, v = (array.swapaxes(1, 2) for array in (queries, keys, values))
    assert np.allclose(attnd.sdpa(q, k, v, is_causal=True), weights @ v, atol=1e-5)


def test_its_library_is_its_own_and_without_openblas():
    maps = pathlib.Path("/proc/self/maps").read_text()
    assert f"{FOLDER}/libattnd.so.1" in maps
    assert not any("openblas" in name.name for name in [*FOLDER.iterdir(), *FOLDER.with_name("attnd.libs").iterdir()])


def test_address_space_may_be_limited():
    code = "import attnd, numpy; attnd.dot_product(*numpy.ones((2, 1, 9, 2, 8), 'f4'), need='entropy')"
    subprocess.run([sys.executable, "-c", code], check=True,
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)))


def test_command_is_the_server():
    assert subprocess.check_output(["attnd", "--version"], text=True).startswith("attnd 0.1.0")
    command = ["attnd", "--demo", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().split()[-1]
        body = {"model": "journey", "queries": [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66]]}
        request = urllib.request.Request(f"{url}/v1/attention", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            outputs = json.load(reply)["outputs"]
        process.terminate()
    assert process.returncode == 0
    assert np.allclose(outputs, [[0.3190, 0.4858], [0.2943, 0.3897]], atol=1e-4)


def test_layers_of_a_folder_are_computed():
    model = attnd.load(EXAMPLE)
    rows = RNG.standard_normal((7, model[0].info["query_size"])).astype("f4")
    found = model[0](rows, need=["outputs", "weights"])
    assert found["outputs"].shape == rows.shape and np.allclose(found["weights"].sum(-1), 1, atol=1e-5)
    assert len(model[0].heads(rows).sort("entropy")["head"]) == model[0].num_heads
    pruned = model[0].prune(rows, keep=1)
    with tempfile.TemporaryDirectory() as folder:
        pruned.save(f"{folder}/pruned.safetensors")
        assert pathlib.Path(f"{folder}/pruned.safetensors").stat().st_size < 4 * model[0].info["parameters"]


def test_a_stored_capture_is_opened_and_drawn():
    capture = attnd.open(EXAMPLE / "capture.safetensors")
    layer = next(iter(capture.layers))
    weights = capture.attend(layer, "weights")
    assert np.allclose(weights.sum(-1), 1, atol=1e-5)
    assert "<svg" in capture.show(layer, 0).svg()


def test_heads_are_a_command():
    table = subprocess.run([sys.executable, "-m", "attnd", "heads", "--data", EXAMPLE / "capture.safetensors"],
                           stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "entropy" in table.splitlines()[0]


def test_a_block_has_a_server():
    with attnd.serve(demo=True) as client:
        outputs, _ = client.attend("journey", np.ones((4, 3)), need_weights=True)
    assert outputs.shape == (4, 2)


def test_each_bundled_library_has_a_licence():
    [licences] = FOLDER.parent.glob("attnd-*.dist-info/licenses")
    lines = (licences / "bundled.md").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| lib") and ".so" in line]
    bundled = {path.name.split("-")[0] for path in FOLDER.with_name("attnd.libs").iterdir()}
    assert {row[0].removeprefix("| ").split(".so")[0].split("-")[0] for row in rows} == bundled
    assert all((licences / f"{row[1]}.copyright").stat().st_size > 1000 for row in rows)


def main():
    for name, test in [*globals().items()]:
        if name.startswith("test_"):
            test()
            print("ok  ", name, flush=True)


main()
