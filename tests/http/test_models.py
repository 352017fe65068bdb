# SPDX-License-Identifier: Apache-2.0
"""GET /v1/models, GET /v1/models/NAME, health, and how a request selects its model."""

import json

import numpy as np

from checkpoints import read_layer, write_layer
from compare import assert_close, assert_problem
from reference import attend
from safetensors_file import read_safetensors, write_safetensors
from server import GOLDEN, run_attnd

TOKENS = [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64],
          [0.22, 0.58, 0.33], [0.77, 0.25, 0.10], [0.05, 0.80, 0.55]]


def test_models_are_listed(demo_server):
    response = demo_server.get("/v1/models")
    assert response.headers["Content-Type"] == "application/json"
    names = [model["name"] for model in response.json()["models"]]
    assert names == ["journey", "d2l", "patterns", "stacked"]


def test_model_describes_itself(demo_server):
    journey = demo_server.get("/v1/models/journey").json()
    expected = {"name": "journey", "layout": "llms_from_scratch", "query_size": 3, "key_size": 3,
                "value_size": 3, "out_size": 2, "num_heads": 2, "head_size": 1, "causal": True,
                "context_length": 6}
    assert expected.items() <= journey.items(), journey
    assert journey["parameters"] == 3 * 2 * 3 + 2 * 2 + 2
    assert journey["bytes"] == 4 * journey["parameters"] == 96
    d2l = demo_server.get("/v1/models/d2l").json()
    expected = {"layout": "d2l", "query_size": 100, "out_size": 100, "num_heads": 5,
                "head_size": 20, "causal": False, "parameters": 4 * 100 * 100}
    assert expected.items() <= d2l.items(), d2l
    stacked = demo_server.get("/v1/models/stacked").json()
    expected = {"layout": "llms_from_scratch_wrapper", "query_size": 3, "out_size": 4, "num_heads": 2,
                "head_size": 2, "causal": True, "context_length": 6, "output_projection": False}
    assert expected.items() <= stacked.items(), stacked


def test_list_and_single_model_agree(demo_server):
    for model in demo_server.get("/v1/models").json()["models"]:
        assert demo_server.get("/v1/models/" + model["name"]).json() == model


def test_additive_scores_have_no_scale(start_server, tmp_path):
    write_layer(tmp_path / "additive.safetensors", num_heads=2, head_size=4, query_size=3,
                additive_size=5)
    server = start_server("--model", f"additive={tmp_path}/additive.safetensors")
    model = server.get("/v1/models/additive").json()
    assert (model["scoring"], model["scale"]) == ("additive", None)


def test_query_string_changes_nothing(demo_server):
    assert (demo_server.get("/v1/models?x=1&y").json() == demo_server.get("/v1/models").json())


def test_health_routes_report_live_and_ready(demo_server):
    for kind in ("live", "ready"):
        response = demo_server.get("/v2/health/" + kind)
        assert (response.status_code, response.json()) == (200, {kind: True})


def test_health_subcommand_reports_whether_a_server_runs(start_server):
    server = start_server("--demo")
    address = server.url.removeprefix("http://")
    assert run_attnd("health", "--listen", address).returncode == 0
    server.stop()
    assert run_attnd("health", "--listen", address).returncode == 1


def test_journey_demo_gives_the_outputs_of_the_golden_case(demo_server):
    case = json.loads((GOLDEN / "llms_from_scratch_split.json").read_text())
    reply = demo_server.attention({"model": "journey", "queries": [TOKENS, TOKENS]}).json()
    assert_close(reply["outputs"], case["expected"]["outputs"], "outputs")


def test_stacked_demo_gives_the_table_that_the_book_prints(demo_server):
    case = json.loads((GOLDEN / "llms_from_scratch_wrapper.json").read_text())
    outputs = demo_server.attention({"model": "stacked", "queries": [TOKENS, TOKENS]}).json()["outputs"]
    assert np.round(outputs, 4).tolist() == case["expected"]["printed_in_book"]
    assert np.round(outputs[0][0], 4).tolist() == [-0.4519, 0.2216, 0.4772, 0.1063]


def test_context_length_limits_a_sequence(demo_server):
    response = demo_server.attention({"model": "journey", "queries": TOKENS + TOKENS[:1]})
    assert_problem(response, 400, "Too many tokens", "queries")


def test_sole_model_need_not_be_named(start_server, tmp_path):
    write_layer(tmp_path / "x.safetensors", num_heads=2, head_size=3, query_size=4)
    server = start_server("--model", f"only={tmp_path}/x.safetensors")
    rows = [[1.0, 2.0, 3.0, 4.0], [0.5, 0.0, -1.0, 1.0]]
    reply = server.attention({"queries": rows})
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == "only"
    assert_close(reply.json()["outputs"], attend(read_layer(tmp_path / "x.safetensors"), rows, rows, rows)[0], "outputs")


def test_model_must_be_named_if_there_are_several(demo_server):
    assert_problem(demo_server.attention({"queries": TOKENS}), 400, "Model not named", "model")


def write_two_layers(directory):
    """Writes a file of two layers with different prefixes. Returns it and the second reference."""
    first, second, both = (directory / f"{name}.safetensors" for name in ("1", "2", "both"))
    write_layer(first, 2, 3, 4, seed=1)
    write_layer(second, 2, 3, 4, seed=2)
    tensors = {"h.0.norm.weight": [1.0] * 4}
    for i, path in enumerate((first, second)):
        tensors |= {f"h.{i}.att.{name}": tensor
                    for name, tensor in read_safetensors(path).items()}
    write_safetensors(both, tensors)
    return both, read_layer(second)


def test_prefix_selects_a_layer_of_a_larger_checkpoint(start_server, tmp_path):
    path, layer = write_two_layers(tmp_path)
    rows = [[1.0, 2.0, 3.0, 4.0]]
    server = start_server("--model", f"x={path},num_heads=2,prefix=h.1.att.")
    reply = server.attention({"queries": rows}).json()
    assert_close(reply["outputs"], attend(layer, rows, rows, rows)[0], "outputs")


def test_larger_checkpoint_without_prefix_is_refused(tmp_path):
    path, _ = write_two_layers(tmp_path)
    result = run_attnd("--check-config", "--model", f"x={path},num_heads=2")
    assert result.returncode == 1 and "prefix" in result.stderr, result


def test_option_overrides_the_metadata_of_the_file(start_server, tmp_path):
    path = tmp_path / "x.safetensors"
    write_layer(path, 2, 6, 4, causal="true", context_length="5")
    models = ["--model", f"file={path}", "--model",
              f"option={path},num_heads=3,causal=false,context_length=9"]
    server = start_server(*models)
    reported = {name: server.get("/v1/models/" + name).json() for name in ("file", "option")}
    keys = ("num_heads", "causal", "context_length")
    assert [reported["file"][key] for key in keys] == [2, True, 5]
    assert [reported["option"][key] for key in keys] == [3, False, 9]
