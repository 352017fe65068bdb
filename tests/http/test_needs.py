# SPDX-License-Identifier: Apache-2.0
"""What a request needs (outputs, weights, heads, lse), positions and windows: the same in JSON,
safetensors and the Open Inference Protocol. test_property.py compares them with float64."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import requests

from checkpoints import read_layer, slow_request, write_layer, write_slow_layer
from compare import assert_close, assert_problem
from http1 import Connection, post_bytes
from oip import assert_error, pack, post, tensor, unpack
from reference import compute
from safetensors_file import make_safetensors, parse_safetensors
from scrape import wait_for_value
from server import ROOT, Server

NEEDS = ["outputs", "weights", "heads", "lse"]
KEYS = ["outputs", "attention_weights", "heads", "lse"]
SAFETENSORS = {"Content-Type": "application/vnd.safetensors"}
FOLDER = ROOT / "tests/data/hf/whisper"


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    """4 heads of size 3 on rows of 5 numbers."""
    path = tmp_path_factory.mktemp("needs") / "layer.safetensors"
    write_layer(path, num_heads=4, head_size=3, query_size=5)
    return path, read_layer(path)


@pytest.fixture(scope="module")
def server(layer):
    with Server("--model", f"m={layer[0]}", "--model", f"w={FOLDER},layers=0",
                "--workers", 2) as running:
        yield running


def rows(*shape, seed=1):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def ask(server, request):
    response = server.attention({"model": "m"} | request)
    assert response.status_code == 200, response.text
    return response.json()


def ask_in_tensors(server, tensors, dtype, **metadata):
    response = requests.post(server.url + "/v1/attention", timeout=60, headers=SAFETENSORS,
                             data=make_safetensors(tensors, dtype, {"model": "m"} | metadata))
    assert response.status_code == 200, response.text
    return parse_safetensors(response.content)[0]


def nan_to_minus(array):
    return np.where(np.isnan(array), -np.inf, array).astype(np.float32)


def test_each_need_has_the_bits_that_all_have_together(server):
    request = {"queries": rows(2, 6, 5).tolist(), "valid_lens": [4, 0], "causal": True, "window": 3}
    everything = ask(server, request | {"need": NEEDS})
    assert list(everything) == ["model", *KEYS]
    for need, key in zip(NEEDS, KEYS):
        assert ask(server, request | {"need": [need]}) == {"model": "m", key: everything[key]}
    assert ask(server, request) == {"model": "m", "outputs": everything["outputs"]}


def test_protocols_have_the_same_bits(server):
    queries, positions = rows(2, 3, 5), [[4, 1, 7], [0, 9, 9]]
    options = {"valid_lens": [3, 0], "window": 4}
    json = ask(server, {"queries": queries.tolist(), "positions": positions, "need": NEEDS} | options)
    expected = {key: nan_to_minus(np.array(json[key], float)) for key in KEYS}
    assert np.isneginf(expected["lse"][1]).all() and np.isfinite(expected["lse"][0]).all()

    tensors = {"queries": queries, "positions": np.array(positions), "valid_lens": np.array([3, 0])}
    dtype = {"queries": "F32", "positions": "I64", "valid_lens": "I32"}
    got = ask_in_tensors(server, tensors, dtype, need="outputs, weights,heads,lse", window="4")
    for key in KEYS:
        assert (got[key] == expected[key]).all(), key
        assert got[key].shape == expected[key].shape

    inputs = [tensor("queries", queries), tensor("positions", positions, "INT32", flat=False),
              tensor("valid_lens", [3, 0], "INT64")]
    for binary in True, False:
        body, headers = pack(inputs, outputs=[{"name": key} for key in KEYS[::-1]],
                             parameters={"window": 4, "binary_data_output": binary})
        response = post(server, "m", body, headers)
        reply, outputs = unpack(response)
        assert [output["name"] for output in reply["outputs"]] == KEYS[::-1]
        for key in KEYS:
            assert (nan_to_minus(outputs[key]) == expected[key]).all(), key
        assert binary or reply["outputs"][0]["data"][-4:] == [None] * 4


def test_ragged_tensors_follow_each_other(server):
    queries, lens = rows(5, 5), [2, 3]
    json = ask(server, {"queries": [queries[:2].tolist(), queries[2:].tolist()], "need": NEEDS,
                        "positions": [[3, 4], [0, 1, 2]], "causal": True})
    got = ask_in_tensors(server, {"queries": queries, "query_lens": np.array(lens),
                                  "positions": np.array([3, 4, 0, 1, 2])},
                         {"queries": "F32", "query_lens": "I64", "positions": "F32"},
                         need=",".join(NEEDS), causal="true")
    assert got["heads"].shape == (5, 4, 3) and got["lse"].shape == (5, 4)
    for key in "outputs", "heads", "lse":
        assert (got[key] == np.concatenate([np.array(rows, np.float32) for rows in json[key]])).all()
    assert got["attention_weights"].shape == (4 * (2 * 2 + 3 * 3),)
    assert got["query_lens"].tolist() == got["key_lens"].tolist() == lens


def test_inference_without_outputs_has_outputs_alone(server):
    body, headers = pack([tensor("queries", rows(3, 5))])
    reply, _ = unpack(post(server, "m", body, headers))
    assert [output["name"] for output in reply["outputs"]] == ["outputs"]


def test_heads_are_what_the_output_projection_gets(server, layer):
    queries, mask = rows(1, 4, 5), [1, 0, 0.5, -2]
    reply = ask(server, {"queries": queries.tolist(), "need": ["heads", "outputs", "lse"],
                         "head_mask": mask})
    heads = np.array(reply["heads"][0])
    assert (heads[:, 1] == 0).all()
    assert_close(layer[1].output(heads.reshape(4, -1)), reply["outputs"][0], "outputs")
    expected = compute(layer[1], queries[0], queries[0], queries[0])
    assert_close(reply["lse"][0], expected.lse, "lse of all heads, those with factor 0 too", 1)


def test_new_queries_after_kept_keys_are_the_last_rows_of_all(server):
    """Causal masks align at the bottom right when positions say so."""
    tokens = rows(9, 5).tolist()
    for window in 0, 4:
        options = {"causal": True, "window": window, "need": NEEDS}
        whole = ask(server, {"queries": tokens} | options)
        last = ask(server, {"queries": tokens[7:], "keys": tokens, "positions": [7, 8]} | options)
        for key in "outputs", "heads", "lse":
            assert_close(last[key], whole[key][7:], key, 1)
        assert_close(last["attention_weights"], np.array(whole["attention_weights"])[:, 7:], "weights")
        if window:
            assert (np.array(last["attention_weights"])[:, 0, :4] == 0).all()


def test_selected_weights_go_with_a_need_that_lists_them(server):
    request = {"queries": rows(6, 5).tolist()}
    whole = ask(server, request | {"need": ["weights"]})["attention_weights"]
    some = ask(server, request | {"need": ["lse", "weights"], "weights_heads": [2, 0],
                                  "weights_queries": [5]})
    assert some["attention_weights"] == [[whole[2][5]], [whole[0][5]]]
    assert np.shape(some["lse"]) == (6, 4)
    refused = server.attention({"model": "m"} | request | {"need": ["lse"], "weights_heads": [0]})
    assert_problem(refused, 400, "Nothing to select from", "weights_heads")


def test_large_replies_of_heads_and_lse_are_streamed(server):
    queries = rows(4, 3000, 5)
    request = {"queries": queries.tolist(), "need": ["heads", "lse"], "window": 1, "causal": True,
               "valid_lens": [3000, 0, 7, 3000]}
    response = server.attention({"model": "m"} | request)
    assert response.headers["Transfer-Encoding"] == "chunked"
    got = ask_in_tensors(server, {"queries": queries, "valid_lens": np.array([3000, 0, 7, 3000])},
                         {"queries": "F32", "valid_lens": "I32"}, need="heads,lse", window="1",
                         causal="true")
    for key in "heads", "lse":
        listed = nan_to_minus(np.array(response.json()[key], float))
        assert (listed == got[key]).all(), key
    assert np.isneginf(got["lse"][1]).all() and np.isneginf(got["lse"][2, 7:]).all()
    assert np.isfinite(got["lse"][2, :7]).all()


def test_memory_of_all_results_is_reserved(start_server, layer):
    """A reply that is streamed holds its numbers: 4 bytes for each."""
    server = start_server("--model", f"m={layer[0]}", "--max-memory", "1MiB", "--workers", 1)
    data = rows(20000, 5)

    def needed(need):
        response = requests.post(server.url + "/v1/attention", timeout=60, headers=SAFETENSORS,
                                 data=make_safetensors({"queries": data}, "F32", {"need": need}))
        problem = assert_problem(response, 413, "Request too large")
        return int(re.search(r"would need (\d+) bytes", problem["detail"])[1])

    outputs = needed("outputs")
    assert needed("outputs,lse") - outputs >= 4 * 20000 * 4
    assert needed("outputs,heads") - outputs >= 4 * 20000 * 4 * 3


def test_analysis_of_heads_does_not_depend_on_the_need(server):
    request = {"model": "m", "queries": rows(7, 5).tolist()}
    plain = server.heads(request).json()
    for need in ["lse"], ["heads", "weights"]:
        assert server.heads(request | {"need": need}).json() == plain
    assert server.heads(request | {"causal": True, "window": 2}).json() != plain


def test_cross_attention_layer_takes_keys_and_no_positions(server):
    model = "w.decoder.0.cross"
    assert server.get("/v1/models/" + model).json()["kind"] == "cross"
    queries, keys = rows(2, 48).tolist(), rows(3, 48, seed=2).tolist()
    request = {"model": model, "queries": queries}
    assert_problem(server.attention(request), 400, "Missing key", "keys")
    assert server.attention(request | {"keys": keys}).status_code == 200
    for field, value in ("positions", [0, 1]), ("key_positions", [0, 1, 2]):
        problem = assert_problem(server.attention(request | {"keys": keys, field: value}), 400,
                                 "Unknown key", field)
        assert "cross-attention" in problem["detail"]
    body, headers = pack([tensor("queries", queries), tensor("keys", keys),
                          tensor("positions", [0, 1], "INT64")])
    assert_error(post(server, model, body, headers), 400, "Unknown key: positions was sent")
    inputs = server.get(f"/v2/models/{model}").json()["inputs"]
    assert not {"positions", "key_positions"} & {entry["name"] for entry in inputs}


def test_layer_of_a_folder_says_what_it_is(server):
    model = server.get("/v1/models/w.decoder.0").json()
    expected = {"family": "whisper", "layer": 0, "kind": "self", "causal": True, "num_kv_heads": 3,
                "window": None, "sinks": False, "rope": None, "norms": None}
    assert expected.items() <= model.items(), model
    assert model["scale"] == pytest.approx(model["head_size"] ** -0.5)
    assert model["pre_norm"]["applied"] is True and model["pre_norm"]["type"] == "layer"
    assert model["pre_norm"]["name"].endswith("self_attn_layer_norm.weight"), model
    assert model["queries"] == "hidden states before the norm"
    assert server.get("/v1/models/w.decoder.0.cross").json()["queries"] == "what enters cross attention, before its norm"


def joinable(number):
    """Requests of one row; those of one kind can be computed as one."""
    queries = rows(1, 1024, seed=number).tolist()
    kinds = [{"need": ["lse"]}, {"need": ["heads", "lse"]}, {"window": 3}, {"window": 3, "causal": True},
             {"positions": [number]}, {"keys": rows(3, 1024, seed=99).tolist(), "causal": True,
                                       "positions": [number % 4]}]
    return {"model": "m", "queries": queries} | kinds[number % len(kinds)]


def test_requests_of_different_needs_wait_together_and_keep_their_bits(start_server, tmp_path):
    write_layer(tmp_path / "wide.safetensors", num_heads=8, head_size=128, query_size=1024)
    write_slow_layer(tmp_path / "slow.safetensors")
    server = start_server("--model", f"m={tmp_path / 'wide.safetensors'}",
                          "--model", f"slow={tmp_path / 'slow.safetensors'}", "--workers", 1,
                          "--engine", "native", "--max-queue-delay", 3600000)
    alone = [server.attention(joinable(number)).content for number in range(24)]
    slow = slow_request(tokens=20000) | {"model": "slow", "timeout_ms": 60000}
    with ThreadPoolExecutor(24) as clients, Connection(server.port) as connection:
        connection.send(post_bytes(json.dumps(slow).encode()))
        wait_for_value(server, 1, "attnd_workers_busy")
        for _ in range(20):  # until some of them come while the worker has another task
            together = clients.map(server.attention, map(joinable, range(24)))
            assert [reply.content for reply in together] == alone
            statistics, = server.get("/v2/models/m/stats").json()["model_stats"]
            if statistics["execution_count"] < statistics["inference_count"]:
                return
    raise AssertionError("no two requests were computed together")
