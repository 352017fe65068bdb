# SPDX-License-Identifier: Apache-2.0
"""Every golden case of tests/data/golden, sent over HTTP and computed by the reference."""

import json

import numpy as np
import pytest

from compare import assert_close
from reference import attend_request, layer_from_tensors
from safetensors_file import read_safetensors
from server import GOLDEN, Server, skip_without

CASES = {path.stem: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*.json"))}
PRINTED = [name for name, case in CASES.items() if "printed_in_book" in case["expected"]]


def model_argument(case):
    options = {key: str(value).lower() for key, value in case["options"].items()}
    return ",".join([f"{case['name']}={GOLDEN / case['weights']}",
                     *(f"{key}={value}" for key, value in options.items())])


# Every engine, instruction set and precision. Those that this CPU lacks are skipped.
ENGINES = [("auto", "auto", "f32"), ("openblas", "auto", "f32"), ("native", "amx", "f32"),
           ("native", "avx512", "f32"), ("native", "avx2", "f32"), ("native", "neon", "f32"),
           ("native", "portable", "f32"), ("openblas", "portable", "f32"),
           ("native", "auto", "bf16")]


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def server(request):
    engine, cpu, precision = request.param
    options = ["--engine", engine, "--cpu", cpu, "--precision", precision]
    skip_without(*options)
    models = [word for case in CASES.values() for word in ("--model", model_argument(case))]
    with Server(*models, *options) as running:
        for model in running.get("/v1/models").json()["models"]:
            assert engine in ("auto", model["engine"]) and cpu in ("auto", model["cpu"]), model
            assert model["precision"] == precision
        running.precision = precision
        yield running


def post(server, case, **changes):
    response = server.attention({"model": case["name"]} | case["request"] | changes)
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "application/json"
    assert response.json()["model"] == case["name"]
    return response.json()


def expect(server, got, expected, what):
    assert_close(got, expected, what, precision=server.precision)


def test_golden_cases_were_found():
    assert len(CASES) >= 13


@pytest.mark.parametrize("name", CASES)
def test_reference_agrees_with_golden_case(name):
    case = CASES[name]
    layer = layer_from_tensors(read_safetensors(GOLDEN / case["weights"]),
                               case["options"].get("num_heads"), case["options"].get("causal"))
    outputs, weights = zip(*attend_request(layer, case["request"]))
    assert np.allclose(outputs, case["expected"]["outputs"], rtol=0, atol=1e-9)
    assert np.allclose(weights, case["expected"]["attention_weights"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_golden_case_gets_its_reply(server, name):
    case = CASES[name]
    reply = post(server, case)
    expect(server, reply["outputs"], case["expected"]["outputs"], "outputs")
    expect(server, reply["attention_weights"], case["expected"]["attention_weights"], "weights")


@pytest.mark.parametrize("name", PRINTED)
def test_table_printed_in_the_book_is_reproduced(server, name):
    if server.precision == "bf16":
        pytest.skip("four printed digits are more than bfloat16 has")
    case = CASES[name]
    got = np.round(post(server, case)["outputs"], 4)
    assert (got == np.array(case["expected"]["printed_in_book"])).all(), got


@pytest.mark.parametrize("name", CASES)
def test_golden_case_has_mean_weights_on_request(server, name):
    case = CASES[name]
    reply = post(server, case, need_weights="mean")
    mean = np.mean(case["expected"]["attention_weights"], axis=1)
    expect(server, reply["attention_weights"], mean, "mean weights")
    expect(server, reply["outputs"], case["expected"]["outputs"], "outputs")


@pytest.mark.parametrize("name", CASES)
def test_golden_case_has_no_weights_unless_requested(server, name):
    case = CASES[name]
    reply = post(server, case, need_weights=False)
    assert "attention_weights" not in reply
    expect(server, reply["outputs"], case["expected"]["outputs"], "outputs")


@pytest.mark.parametrize("name", CASES)
def test_golden_case_gets_its_reply_unbatched(server, name):
    case = CASES[name]
    per_sequence = ("queries", "keys", "values", "valid_lens")
    for b in range(len(case["request"]["queries"])):
        changes = {key: case["request"][key][b] for key in per_sequence if key in case["request"]}
        reply = post(server, case, **changes)
        expect(server, reply["outputs"], case["expected"]["outputs"][b], "outputs")
        expect(server, reply["attention_weights"], case["expected"]["attention_weights"][b],
               "weights")
