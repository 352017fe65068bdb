# SPDX-License-Identifier: Apache-2.0
"""Bad requests are refused with a status and problem+json, and the server survives them."""

import json
import re
from contextlib import ExitStack

import numpy as np
import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoints import write_layer
from compare import assert_problem
from http1 import Connection
from oip import assert_error, pack, tensor
from oip import post as post_oip
from safetensors_file import make_safetensors
from server import BINARY, ROOT, Server

DEFECTS = {defect["name"]: defect for defect in map(
    json.loads, (ROOT / "tests/data/invalid/native.jsonl").read_text().splitlines())}
BOTH = ("d2l", "narrow")  # loaded if a defect does not name its models
JSON = {"Content-Type": "application/json"}
SMALL = {"model": "journey", "queries": [[0.1, 0.2, 0.3]]}
ROUTES = {"/v1/attention": "POST", "/v1/models": "GET, HEAD", "/v1/models/d2l": "GET, HEAD",
          "/openapi.json": "GET, HEAD"}
OIP_ROUTES = {path: "GET, HEAD" for path in (
    "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/models/d2l",
    "/v2/models/d2l/versions/1", "/v2/models/d2l/ready", "/v2/models/d2l/versions/1/ready",
    "/v2/models/d2l/config", "/v2/models/d2l/versions/1/config", "/v2/models/d2l/stats",
    "/v2/models/d2l/versions/1/stats")}
ALL_ROUTES = ROUTES | OIP_ROUTES
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS")


def post(server, data, **headers):
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.post(server.url + "/v1/attention", data=data, headers=names, timeout=60)


def write_models(directory):
    """Writes the models of tests/data/invalid/README.md. Returns arguments of --model."""
    write_layer(directory / "d2l.safetensors", num_heads=2, head_size=2, query_size=4)
    write_layer(directory / "narrow.safetensors", num_heads=1, head_size=2, query_size=3,
                key_size=2, causal="true", context_length="6")
    return {name: f"{name}={directory}/{name}.safetensors" for name in ("d2l", "narrow")}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """Maps names of models to a server that has loaded exactly these, in this order."""
    arguments = write_models(tmp_path_factory.mktemp("models"))
    with ExitStack() as stack:
        running = {}
        for names in {tuple(defect.get("models", BOTH)) for defect in DEFECTS.values()}:
            words = (word for name in names for word in ("--model", arguments[name]))
            running[names] = stack.enter_context(Server(*words))
        yield running


def test_corpus_of_invalid_bodies_was_found():
    assert len(DEFECTS) >= 200


@pytest.mark.parametrize("defect", DEFECTS)
def test_invalid_body_is_refused(servers, defect):
    expected = DEFECTS[defect]
    server = servers[tuple(expected.get("models", BOTH))]
    body = expected["body"].encode("latin-1")
    response = post(server, body + body[-1:] * (expected.get("repeat_last", 1) - 1), **JSON)
    problem = assert_problem(response, expected["status"], expected["title"])
    for key in ("field", "expected", "got"):
        assert (key in problem, problem.get(key)) == (key in expected, expected.get(key)), problem
    assert expected.get("detail_contains", "") in problem["detail"], problem
    assert server.is_alive()


@pytest.mark.parametrize("path", ["/index.html", "/v1", "/v1/attention/", "/v1/attentions", "/V1/models",
                                  "/v22", "/V2", "//"])
def test_unknown_route_is_404(demo_server, path):
    assert_problem(demo_server.get(path), 404, "Unknown route")
    assert_problem(requests.post(demo_server.url + path, json=SMALL, timeout=60),
                   404, "Unknown route")


def test_unknown_route_gets_routes_that_are_there(demo_server):
    detail = demo_server.get("/v1/attention/").json()["detail"]
    assert "there is no route /v1/attention/, and only / ends in a slash; " in detail
    named = re.findall(r"\b(GET|POST) (/[^ ,]*)", detail)
    assert ("POST", "/v1/attention/dot-product") in named
    assert ("POST", "/v1/captures/NAME/attention") in named and len(named) == 7
    for method, path in named:
        reply = requests.request(method, demo_server.url + path, json=SMALL, timeout=60)
        assert reply.status_code != 405, (method, path)
        assert reply.status_code != 404 or "route" not in reply.json()["title"], path
    assert "slash" not in demo_server.get("/v1/attentions").json()["detail"]


@pytest.mark.parametrize("name", ["D2L", "nobody", "d2l.safetensors", "x" * 10000, "d2l%20",
                                  "%64%32%6", "%ff%fe", "*", "d2l;x", "d2l/x"])
def test_unknown_model_is_404(demo_server, name):
    assert demo_server.get("/v1/models/" + name).status_code == 404
    assert_problem(demo_server.attention(SMALL | {"model": name}), 404, "Unknown model", "model")


@pytest.mark.parametrize("path", ALL_ROUTES)
@pytest.mark.parametrize("method", METHODS)
def test_route_accepts_only_its_methods_and_names_them(demo_server, path, method):
    if method in ALL_ROUTES[path].split(", "):
        assert requests.request(method, demo_server.url + path, json=SMALL,
                                timeout=60).status_code == 200
        return
    response = requests.request(method, demo_server.url + path, timeout=60)
    if path in OIP_ROUTES:
        assert_error(response, 405, "Method not allowed")
    else:
        assert_problem(response, 405, "Method not allowed")
    assert set(response.headers["Allow"].split(", ")) == set(ALL_ROUTES[path].split(", "))


@pytest.mark.parametrize("path", [path for path in ALL_ROUTES if "HEAD" in ALL_ROUTES[path]])
def test_head_gets_the_reply_of_get_without_a_body(demo_server, path):
    got = demo_server.get(path)
    with Connection(demo_server.port) as connection:
        for _ in range(2):  # the second shows that no body was sent between
            connection.send(f"HEAD {path} HTTP/1.1\r\nHost: attnd\r\n\r\n".encode())
            reply = connection.read_reply(head_only=True)
            assert (reply.status, reply.headers["content-type"]) == (
                200, got.headers["Content-Type"])
            assert int(reply.headers["content-length"]) == len(got.content)


def test_head_of_a_post_route_is_405(demo_server):
    response = requests.head(demo_server.url + "/v1/attention", timeout=60)
    assert (response.status_code, response.headers["Allow"]) == (405, "POST")


@pytest.mark.parametrize("content_type", [
    None, "text/plain", "application/jsonp", "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x", "json", ""])
def test_other_content_type_is_415(demo_server, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}
    assert_problem(post(demo_server, json.dumps(SMALL), **headers), 415,
                   "Unsupported media type", "Content-Type")


@pytest.mark.parametrize("content_type", [
    "application/json", "Application/JSON", "application/json; charset=utf-8",
    "application/json;charset=UTF-8"])
def test_json_content_type_is_accepted_in_any_spelling(demo_server, content_type):
    response = post(demo_server, json.dumps(SMALL), Content_Type=content_type)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "x"])
def test_content_encoding_is_415(demo_server, encoding):
    response = post(demo_server, b"\x1f\x8b", Content_Encoding=encoding, **JSON)
    assert_problem(response, 415, "Unsupported media type", "Content-Encoding")


def test_no_error_reveals_a_path_or_an_address(demo_server):
    """Neither of the program nor of its models, whatever the client asks for."""
    replies = [demo_server.get(path) for path in ("/v1/models/../../etc/passwd", "/v1/models/%2e%2e%2fmodels")]
    replies += [demo_server.attention(body) for body in ({}, {"model": "../x"}, {"model": "d2l", "queries": 1})]
    for reply in replies:
        assert reply.status_code in (400, 404), reply
        assert str(ROOT) not in reply.text and str(BINARY.parent) not in reply.text, reply.text
        assert not re.search("0x[0-9a-f]{4}", reply.text), reply.text


LEAVES = (st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) |
          st.sampled_from(["journey", "d2l", "mean", [[0.1, 0.2, 0.3]]]))
VALUES = st.recursive(LEAVES, lambda values: st.lists(values, max_size=4) |
                      st.dictionaries(st.text(max_size=3), values, max_size=3), max_leaves=20)
KEYS = st.sampled_from(["model", "queries", "keys", "values", "valid_lens", "causal",
                        "need_weights", "head_mask", "", "x"])


@settings(max_examples=100, derandomize=True, deadline=None, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES, max_size=6) | VALUES)
def test_any_json_gets_a_result_or_a_problem(demo_server, body):
    """json.dumps() also writes NaN and Infinity, which are not JSON."""
    response = post(demo_server, json.dumps(body), **JSON)
    assert response.status_code in (200, 400, 404, 422), response.text
    if response.status_code != 200:
        assert_problem(response, response.status_code, response.json()["title"])


@settings(max_examples=100, derandomize=True, deadline=None, database=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_json_gets_a_result_or_a_problem(demo_server, data):
    body = bytearray(json.dumps(SMALL | {"valid_lens": 1, "need_weights": True}).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        if data.draw(st.booleans()):
            body[at] = data.draw(st.integers(0, 255))
        else:
            del body[at]
    response = post(demo_server, bytes(body), **JSON)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert_problem(response, response.status_code, response.json()["title"])


# --- names that other programs use ---

FOREIGN_NAMES = {
    "is_causal": "use causal", "src_mask": "use attn_mask: booleans, true where",
    "attn_bias": "use bias, which is added",
    "key_padding_mask": "the reverse of key_padding_mask", "attention_mask": "use attn_mask, of shape [B][1][1][Tk]",
    "hidden_states": "use queries", "query": "use queries", "encoder_hidden_states": "use keys",
    "value": "use values", "position_ids": "use positions", "sliding_window": "use window",
    "output_attentions": "use need_weights", "seq_lens": "use valid_lens", "layer_head_mask": "use head_mask",
    "head_num": "it belongs to the model; leave it out", "scale": "it belongs to the model; leave it out",
    "dropout_p": "dropout is the identity here; leave it out",
    "validLens": "use valid_lens", "Need_Weights": "use need_weights", "X": "use queries",
    "embed_dim": "sizes are those of the rows", "batch_first": "sequences are the first axis",
    "past_key_values": "attnd keeps no cache", "add_zero_attn": "add such a key",
    "dtype": "results are float32", "sm_scale": "it belongs to the model", "slopes": "it belongs to the model",
}

# Of requests without a model.
GIVEN_NAMES = {
    "Attn_Mask": "use attn_mask: booleans, true where", "attention_mask": "use attn_mask, of shape [B][1][1][Tk]",
    "key_padding_mask": "the reverse of key_padding_mask of torch", "mask": "use attn_mask", "Scale": "use scale",
    "attn_bias": "use bias, which is added",
    "keyPositions": "use key_positions", "need_weights": "list weights in need", "NumHeads": "use num_heads",
    "heads_mask": "leave it out: heads", "model_name": "there is no model",
}


@pytest.mark.parametrize("name", GIVEN_NAMES)
def test_name_of_another_program_is_refused_without_a_model(demo_server, name):
    rows = np.zeros((2, 1, 3), np.float32)
    body = json.dumps({"queries": rows.tolist(), "keys": rows.tolist(), name: 1})
    raw = make_safetensors({"queries": rows, "keys": rows, name: rows})
    for data, kind in ((body, "application/json"), (raw, "application/vnd.safetensors")):
        reply = requests.post(demo_server.url + "/v1/attention/dot-product", data=data, timeout=60,
                              headers={"Content-Type": kind})
        problem = assert_problem(reply, 400, "Unknown key")
        assert problem["field"] == name and GIVEN_NAMES[name] in problem["detail"]


@pytest.mark.parametrize("bias, remedy", [
    ("[[true]]", "send numbers, or booleans as attn_mask, where true is"), ("[[-Infinity]]", "null in bias")])
def test_masks_of_booleans_and_infinities_are_refused_with_null(demo_server, bias, remedy):
    body = f'{{"queries": [[[1]]], "keys": [[[1]]], "bias": {bias}}}'
    reply = requests.post(demo_server.url + "/v1/attention/dot-product", data=body, timeout=60,
                          headers={"Content-Type": "application/json"})
    assert reply.status_code == 400 and remedy in reply.json()["detail"], reply.text
    assert "such as 0" not in reply.text


def test_query_string_does_not_name_the_model(demo_server):
    reply = requests.post(demo_server.url + "/v1/attention?model=journey", json={"queries": [[1, 2, 3]]}, timeout=60)
    assert "(a query string is not read)" in assert_problem(reply, 400, "Model not named")["detail"]


@pytest.mark.parametrize("name", FOREIGN_NAMES)
def test_name_of_another_program_is_refused_with_what_to_use(demo_server, name):
    remedy, rows = FOREIGN_NAMES[name], np.zeros((2, 3), np.float32)
    problem = assert_problem(demo_server.attention(SMALL | {name: 1}), 400, "Unknown key")
    assert problem["field"] == name and f"'{name}' is not a key of a request; " in problem["detail"]
    assert remedy in problem["detail"]

    for tensors, metadata in (({"queries": rows, name: rows}, {}), ({"queries": rows}, {name: "1"})):
        response = post(demo_server, make_safetensors(tensors, metadata={"model": "journey"} | metadata),
                        Content_Type="application/vnd.safetensors")
        problem = assert_problem(response, 400, "Unknown key")
        assert problem["field"] == name and remedy in problem["detail"]
        assert "options are strings in __metadata__" in problem["detail"]

    queries = tensor("queries", rows)
    for body, where in ((pack([queries, tensor(name, rows)]), "options are parameters"),
                        (pack([queries], parameters={name: 1}), "tensors are inputs"),
                        (pack([queries], **{name: 1}), "tensors are inputs, options are parameters")):
        error = assert_error(post_oip(demo_server, "journey", *body), 400, "Unknown key")
        assert remedy in error and where in error


def test_key_of_an_input_gets_no_remedy_for_requests(demo_server):
    queries, data = tensor("queries", np.zeros((2, 3), np.float32))
    body = pack([(queries | {"key": 1}, data)])
    error = assert_error(post_oip(demo_server, "journey", *body), 400, "Unknown key")
    assert "'key' is not a key of an input; remove it, or use one of name, shape" in error
