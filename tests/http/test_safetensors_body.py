# SPDX-License-Identifier: Apache-2.0
"""POST /v1/attention with safetensors as the request, the reply, or both."""

import json
import struct

import numpy as np
import pytest
import requests

from compare import assert_close, assert_problem
from http1 import Connection, post_bytes
from safetensors_file import as_stored, make_raw, make_safetensors, parse_safetensors
from test_golden import CASES, model_argument
from server import Server

JSON, SAFETENSORS = "application/json", "application/vnd.safetensors"
OCTETS = "application/octet-stream"
FLOATS = ("queries", "keys", "values", "head_mask")
X = np.arange(6, dtype="f4").reshape(2, 3) / 8  # a sequence for `journey`
RAGGED = [np.arange(n * 3, dtype="f4").reshape(n, 3) / 16 for n in (2, 5, 1)]


def body_of(request, model, dtype="F32"):
    """Returns a JSON request as safetensors."""
    tensors = {name: np.asarray(value) for name, value in request.items()
               if name not in ("causal", "need_weights") and value is not None}
    metadata = {"model": model} | {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in request.items() if name in ("causal", "need_weights")}
    return make_safetensors(tensors, {name: dtype if name in FLOATS else "I64"
                                      for name in tensors}, metadata)


def post(server, body, content_type=SAFETENSORS, accept=None):
    headers = {"Content-Type": content_type, "Accept": accept}
    return requests.post(server.url + "/v1/attention", data=body, headers=headers, timeout=60)


def parse(response, content_type=SAFETENSORS):
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == content_type
    assert int(response.headers["Content-Length"]) == len(response.content)
    return parse_safetensors(response.content)


def send(server, tensors, dtype=None, **metadata):
    dtypes = {name: "F32" if name in FLOATS else "I64" for name in tensors}
    return post(server, make_safetensors(tensors, dtypes | (dtype or {}),
                                         {"model": "journey"} | metadata))


def as_json(server, request):
    response = server.attention({"model": "journey"} | request)
    assert response.status_code == 200, response.text
    return response.json()


def assert_same_bits(binary, text):
    got = np.asarray(text, np.float64).astype("f4")
    assert binary.shape == got.shape and binary.tobytes() == got.tobytes()


@pytest.fixture(scope="module")
def golden_server():
    with Server(*(word for case in CASES.values()
                  for word in ("--model", model_argument(case)))) as server:
        yield server


@pytest.mark.parametrize("name", CASES)
def test_golden_case_has_the_same_bits_in_every_pair_of_formats(golden_server, name):
    case = CASES[name]
    request = {"need_weights": True} | case["request"]
    bodies = {JSON: json.dumps({"model": case["name"]} | request),
              SAFETENSORS: body_of(request, case["name"])}
    replies = []
    for content_type, body in bodies.items():
        tensors, metadata = parse(post(golden_server, body, content_type, SAFETENSORS))
        assert metadata == {"model": case["name"]}
        assert_close(tensors["outputs"], case["expected"]["outputs"], "outputs")
        assert_close(tensors["attention_weights"], case["expected"]["attention_weights"],
                     "weights")
        replies.append(tensors)
        response = post(golden_server, body, content_type, JSON)
        assert response.headers["Content-Type"] == JSON
        for key in ("outputs", "attention_weights"):
            assert_same_bits(tensors[key], response.json()[key])
    assert all(replies[0][key].tobytes() == replies[1][key].tobytes() for key in replies[0])


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F64"])
def test_every_float_dtype_is_accepted(demo_server, dtype):
    tensors, _ = parse(send(demo_server, {"queries": X}, {"queries": dtype}))
    expected = as_json(demo_server, {"queries": as_stored(X, dtype).tolist()})
    assert_same_bits(tensors["outputs"], expected["outputs"])


@pytest.mark.parametrize("pad", range(8))
def test_tensors_at_any_alignment_give_the_same_bits(demo_server, pad):
    header = json.dumps({"__metadata__": {"model": "journey"}, "queries": {
        "dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
    header += b" " * (-len(header) % 8 + pad)
    body = struct.pack("<Q", len(header)) + header + X.tobytes()
    tensors, _ = parse(post(demo_server, body))
    assert_same_bits(tensors["outputs"], as_json(demo_server, {"queries": X.tolist()})["outputs"])


@pytest.mark.parametrize("dtype", ["I32", "I64"])
@pytest.mark.parametrize("per_query", [False, True])
def test_options_and_integer_tensors_mean_the_same_as_in_json(demo_server, dtype, per_query):
    batch = np.stack([X, X + 1])
    lens = [[1, 2], [2, 0]] if per_query else [1, 2]
    tensors, _ = parse(send(
        demo_server, {"queries": batch, "valid_lens": lens, "weights_queries": [1]},
        {"valid_lens": dtype, "weights_queries": dtype}, causal="true", need_weights="mean"))
    expected = as_json(demo_server, {"queries": batch.tolist(), "valid_lens": lens, "causal": True,
                                     "weights_queries": [1], "need_weights": "mean"})
    for key in ("outputs", "attention_weights"):
        assert_same_bits(tensors[key], expected[key])


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_whole_floats_are_integers(demo_server, dtype):
    rows = np.concatenate(RAGGED)
    tensors = {"queries": rows, "query_lens": [2, 5, 1], "valid_lens": [1, 3, -0.0],
               "weights_heads": [1, 0], "weights_queries": [0]}
    as_floats = {name: dtype for name in tensors if name != "queries"}
    plain, floats = (parse(send(demo_server, tensors, types, need_weights="true"))[0]
                     for types in ({}, as_floats))
    assert all(plain[name].tobytes() == floats[name].tobytes() for name in plain)


@pytest.mark.parametrize("valid_lens", [np.int64(1), [1], [1, 2]])
def test_unbatched_request_gets_an_unbatched_reply(demo_server, valid_lens):
    tensors, _ = parse(send(demo_server, {"queries": X, "valid_lens": valid_lens},
                            need_weights="true"))
    expected = as_json(demo_server, {"queries": X.tolist(), "need_weights": True,
                                     "valid_lens": valid_lens[0] if np.shape(valid_lens) == (1,)
                                     else np.asarray(valid_lens).tolist()})
    for key in ("outputs", "attention_weights"):
        assert_same_bits(tensors[key], expected[key])


@pytest.mark.parametrize("per_query", [False, True])
def test_ragged_batch_is_sent_as_rows_and_lengths(demo_server, per_query):
    lens = [len(rows) for rows in RAGGED]
    valid = [[1] * n for n in lens] if per_query else [1, 3, 0]
    tensors, _ = parse(send(
        demo_server, {"queries": np.concatenate(RAGGED), "query_lens": lens,
                      "valid_lens": np.concatenate(valid) if per_query else valid},
        need_weights="true"))
    expected = as_json(demo_server, {"queries": [rows.tolist() for rows in RAGGED],
                                     "valid_lens": valid, "need_weights": True})
    assert tensors["query_lens"].tolist() == tensors["key_lens"].tolist() == lens
    assert_same_bits(tensors["outputs"], np.concatenate(expected["outputs"]))
    flat = np.concatenate([np.ravel(weights) for weights in expected["attention_weights"]])
    assert_same_bits(tensors["attention_weights"], flat)


def test_lengths_are_returned_even_if_they_are_equal(demo_server):
    rows = np.concatenate([X, X])
    tensors, _ = parse(send(demo_server, {"queries": rows, "query_lens": [2, 2]}))
    assert tensors["outputs"].shape[0] == 4 and tensors["query_lens"].tolist() == [2, 2]


def test_keys_and_values_may_have_their_own_lengths(demo_server):
    keys = np.concatenate([X, X + 1, X + 2])
    tensors, _ = parse(send(demo_server, {
        "queries": np.stack([X, X]), "keys": keys, "values": keys, "key_lens": [1, 5]}))
    expected = as_json(demo_server, {
        "queries": np.stack([X, X]).tolist(),
        "keys": [keys[:1].tolist(), keys[1:].tolist()]})
    assert_same_bits(tensors["outputs"], np.concatenate(expected["outputs"]))


def test_large_reply_has_a_length_and_every_byte(journey_server):
    rows = np.random.default_rng(5).standard_normal((1, 300, 3)).astype("f4")
    body = make_safetensors({"queries": rows}, "F32", {"need_weights": "true"})
    tensors, _ = parse(post(journey_server, body))
    assert tensors["attention_weights"].nbytes > 300 * 1024
    expected = journey_server.attention({"queries": rows.tolist(), "need_weights": True}).json()
    assert_same_bits(tensors["attention_weights"], expected["attention_weights"])


SMALL = {JSON: json.dumps({"model": "journey", "queries": X.tolist()}),
         SAFETENSORS: make_safetensors({"queries": X}, "F32", {"model": "journey"})}
SMALL[OCTETS] = SMALL[SAFETENSORS]
# Content-Type of the request, its Accept, and Content-Type of the reply.
NEGOTIATIONS = [
    (JSON, None, JSON), (JSON, "*/*", JSON), (SAFETENSORS, None, SAFETENSORS),
    (SAFETENSORS, "*/*", SAFETENSORS), (OCTETS, "*/*", SAFETENSORS), (OCTETS, OCTETS, OCTETS),
    (JSON, OCTETS, OCTETS), (SAFETENSORS, "application/*", SAFETENSORS),
    (JSON, "application/json;q=0.5, application/vnd.safetensors", SAFETENSORS),
    (JSON, "*/*, application/json;q=0", SAFETENSORS), (SAFETENSORS, "Application/JSON", JSON),
    (JSON, "text/html, application/xhtml+xml, */*;q=0.8", JSON)]


@pytest.mark.parametrize("sent, accept, expected", NEGOTIATIONS)
def test_accept_selects_the_format_of_the_reply(demo_server, sent, accept, expected):
    response = post(demo_server, SMALL[sent], sent, accept)
    assert (response.status_code, response.headers["Content-Type"]) == (200, expected)


@pytest.mark.parametrize("accept", ["", " ", ",", " , "])
def test_accept_without_a_range_is_none(demo_server, accept):
    with Connection(demo_server.port) as connection:
        connection.send(post_bytes(SMALL[JSON].encode(), f"Accept: {accept}"))
        reply = connection.read_reply()
        assert (reply.status, reply.headers["content-type"]) == (200, JSON)


@pytest.mark.parametrize("accept", ["text/html", "application/*;q=0", "image/*", "x",
                                    "application/json;q=0, application/xml"])
def test_accept_without_a_supported_format_is_406(demo_server, accept):
    problem = assert_problem(post(demo_server, SMALL[JSON], JSON, accept), 406, "Not acceptable",
                             "Accept")
    assert all(media in problem["detail"] for media in (JSON, SAFETENSORS, OCTETS))


def entry(shape="[2,3]", offsets="[0,24]", dtype="F32", name="queries"):
    return f'"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


def headed(*entries, data=24):
    return make_raw(("{" + ",".join(entries) + "}").encode(), bytes(data))


BROKEN = "Malformed safetensors"
# The body; title, field, expected, got, and text that the detail contains.
DEFECTS = {
    "empty": (b"", BROKEN, None, None, None, "is too small"),
    "length_cut": (b"\x10\0\0", BROKEN, None, None, None, "is too small"),
    "length_over_body": (struct.pack("<Q", 99) + b"{}", BROKEN, None, None, None, "the file has only 2 of them"),
    "length_huge": (b"\xff" * 8 + b"{}", BROKEN, None, None, None, "at most 65536"),
    "length_zero": (bytes(8), BROKEN, None, None, None, "cannot be a JSON object"),
    "json_body": (b'{"queries":[[1,2,3]]}', BROKEN, None, None, None, "application/json"),
    "not_an_object": (make_raw(b"[1]", b""), BROKEN, None, None, None, "begin with '{'"),
    "not_json": (make_raw(b'{"a"', b""), BROKEN, None, None, None, "expected"),
    "nested_deeply": (make_raw(b'{"a":' + b"[" * 99 + b"]" * 99 + b"}", b""), BROKEN, None, None,
                      None, "more than 32 levels deep"),
    "behind_header": (make_raw(b"{}" + b"[" * 99, b""), BROKEN, None, None, None, "trailing bytes"),
    "twice": (headed(entry(), entry(offsets="[24,48]"), data=48), BROKEN, None, None, None,
              "duplicate"),
    "overlap": (headed(entry(), entry(name="keys", offsets="[12,36]"), data=36), BROKEN, "keys",
                None, None, "overlaps"),
    "hole": (headed(entry(offsets="[4,28]"), data=28), BROKEN, "queries", None, None, "hole"),
    "rest": (headed(entry(), data=28), BROKEN, None, None, None, "4 bytes after the last tensor"),
    "past_end": (headed(entry(), data=20), BROKEN, "queries", None, None, "exceed"),
    "span_and_shape": (headed(entry(shape="[2,2]")), BROKEN, "queries", None, None,
                       "its shape needs 16"),
    "backwards": (headed(entry(offsets="[24,0]")), BROKEN, "queries", None, None, "before"),
    "negative": (headed(entry(shape="[-2,3]")), BROKEN, "queries", None, None, "0 or more"),
    "overflow": (headed(entry(shape="[4294967296,4294967296]")), BROKEN, "queries", None, None,
                 "overflow"),
    "no_dtype": (headed('"queries":{"shape":[2,3],"data_offsets":[0,24]}'), BROKEN, "queries",
                 None, None, "dtype is missing"),
    "unknown_dtype": (headed(entry(dtype="F31")), BROKEN, "queries", None, None, "F31"),
    "metadata_number": (headed('"__metadata__":{"causal":1}', entry()), BROKEN, None, None, None,
                        "not a string"),
    "unknown_tensor": (headed(entry(), entry(name="query", offsets="[24,24]", shape="[0]")),
                       "Unknown key", "query", None, None, "queries"),
    "unknown_option": (headed('"__metadata__":{"casual":"true"}', entry()), "Unknown key",
                       "casual", None, None, "causal"),
    "causal_1": (headed('"__metadata__":{"causal":"1"}', entry()), "Wrong type", "causal",
                 ["false", "true"], "string", "'1'"),
    "need_weights_max": (headed('"__metadata__":{"need_weights":"max"}', entry()), "Wrong type",
                         "need_weights", ["false", "true", "mean"], "string", "'max'"),
    "timeout_word": (headed('"__metadata__":{"timeout_ms":"soon"}', entry()), "Wrong type",
                     "timeout_ms", "number", "string", "'soon'"),
    "timeout_unit": (headed('"__metadata__":{"timeout_ms":"5 ms"}', entry()), "Wrong type",
                     "timeout_ms", "number", "string", "'5 ms'"),
    "timeout_0": (headed('"__metadata__":{"timeout_ms":"0"}', entry()), "Out of range",
                  "timeout_ms", [0, 86400000], None, "above 0"),
    "priority_empty": (headed('"__metadata__":{"priority":""}', entry()), "Wrong type", "priority",
                       "number", "string", "''"),
    "priority_point": (headed('"__metadata__":{"priority":"1.5"}', entry()), "Wrong type",
                       "priority", "integer", "number", "priority is 1.5; send a whole number"),
    "priority_negative": (headed('"__metadata__":{"priority":"-1"}', entry()), "Out of range",
                          "priority", [0, 2147483647], -1, "send 0 to 2147483647"),
    "nul_behind_a_number": (headed(entry().replace("[0,24]", "[0,24\0]")), BROKEN, None, None, None,
                            "header has a NUL byte"),
    "no_queries": (headed(entry(name="keys")), "Missing key", "queries", None, None, "required"),
    "integers": (headed(entry(dtype="I32")), "Wrong dtype", "queries",
                 ["F32", "F16", "BF16", "F64"], "I32", "F32"),
    "rank_1": (headed(entry(shape="[6]")), "Wrong rank", "queries", [2, 3], 1, "[B, T, width]"),
    "rank_4": (headed(entry(shape="[1,1,2,3]")), "Wrong rank", "queries", [2, 3], 4, "[1,1,2,3]"),
    "no_rows": (headed(entry(shape="[0,3]", offsets="[0,0]"), data=0), "Empty tensor", "queries",
                None, None, "dimension of 0"),
    "width": (headed(entry(shape="[3,2]")), "Shape mismatch", "queries", [3, 3], [3, 2], "2 wide"),
    "batch_mixed": (headed(entry(shape="[1,2,3]"), entry(name="keys", offsets="[24,48]"), data=48),
                    "Wrong rank", "keys", 3, 2, "key_lens"),
    "lens_of_padded": (headed(entry(shape="[1,2,3]"), entry("[1]", "[24,32]", "I64", "query_lens"),
                              data=32), "Wrong rank", "queries", 2, 3, "batch axis"),
    "lens_zero": (headed(entry(), entry("[1]", "[24,32]", "I64", "query_lens"), data=32),
                  "Out of range", "query_lens", [1, 2], 0, "query_lens[0] is 0, but its tensor has 2 rows"),
    "lens_f16": (headed(entry(), entry("[2]", "[24,28]", "F16", "query_lens"), data=28),
                 "Wrong dtype", "query_lens", ["I64", "I32", "F64", "F32"], "F16", "I64"),
    "lens_unsigned": (headed(entry(), entry("[]", "[24,32]", "U64", "valid_lens"), data=32),
                      "Wrong dtype", "valid_lens", ["I64", "I32", "F64", "F32"], "U64", "I64"),
    "lens_rank": (headed(entry(), entry("[1,1]", "[24,32]", "I64", "query_lens"), data=32),
                  "Wrong rank", "query_lens", 1, 2, "[N]"),
    "key_lens_alone": (headed(entry(), entry("[1]", "[24,32]", "I64", "key_lens"), data=32),
                       "Missing key", "keys", None, None, "key_lens"),
    "key_lens_of_single": (headed(entry(), entry(name="keys", offsets="[24,48]"),
                                  entry("[1]", "[48,56]", "I64", "key_lens"), data=56),
                           "Missing key", "query_lens", None, None, "single"),
    "valid_lens_rank": (headed(entry(), entry("[1,1]", "[24,32]", "I64", "valid_lens"), data=32),
                        "Wrong rank", "valid_lens", [0, 1], 2, "[1,1]"),
    "head_mask_rank": (headed(entry(), entry("[]", "[24,28]", "F32", "head_mask"), data=28),
                       "Wrong rank", "head_mask", 1, 0, "[H]"),
    "heads_of_nothing": (headed(entry(), entry("[1]", "[24,32]", "I64", "weights_heads"), data=32),
                         "Nothing to select from", "weights_heads", None, None, "need_weights"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_malformed_body_is_refused_with_its_problem(journey_server, name):
    body, title, field, expected, got, detail = DEFECTS[name]
    problem = assert_problem(post(journey_server, body), 400, title)
    assert (problem.get("field"), problem.get("expected"), problem.get("got")) == (
        field, expected, got), problem
    assert detail in problem["detail"], problem
    assert journey_server.is_alive()


@pytest.fixture(scope="module")
def journey_server(tmp_path_factory):
    """A server of one model, which need not be named. Its rows are 3 wide."""
    from checkpoints import write_layer
    path = tmp_path_factory.mktemp("model") / "three.safetensors"
    write_layer(path, num_heads=1, head_size=3, query_size=3)
    with Server("--model", f"three={path}") as server:
        yield server


NUMBERS = {
    "nan": ({"queries": np.array([[1, np.nan, 0]])}, "queries", None, "queries[0][1]"),
    "infinite": ({"queries": np.array([[1, 2, -np.inf]])}, "queries", None, "infinite"),
    "lens_do_not_add_up": ({"queries": X, "query_lens": [1, 2]}, "queries", [2, 3], "add up to 3"),
    "valid_lens_over": ({"queries": X, "valid_lens": 3}, "valid_lens", 3, "has 2 keys"),
    "valid_lens_negative": ({"queries": X, "valid_lens": [1, -1]}, "valid_lens", -1,
                            "valid_lens[1] is -1"),
    "valid_lens_count": ({"queries": X, "valid_lens": [1, 1, 1]}, "valid_lens", [3], "shape [3]"),
    "head_too_high": ({"queries": X, "weights_heads": [0, 9]}, "weights_heads", 9, "heads"),
    "head_negative": ({"queries": X, "weights_heads": [0, -1]}, "weights_heads", -1,
                      "weights_heads[1] is -1, but there"),
    "query_negative": ({"queries": X, "weights_queries": [-3]}, "weights_queries", -3,
                       "but there are 2 rows of queries in the shortest sequence; send -2 to 1"),
    "length_negative": ({"queries": X, "query_lens": [-2]}, "query_lens", -2, "send 1 to 2"),
    "query_twice": ({"queries": X, "weights_queries": [1, 1]}, "weights_queries", None, "duplicates"),
    "sums_overflow": ({"queries": X, "query_lens": [2**63 - 1, 2**63 - 1, 4]}, "queries", [2, 3],
                      "add up"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_wrong_numbers_are_refused(journey_server, name):
    tensors, field, got, detail = NUMBERS[name]
    dtypes = {key: "F32" if key in FLOATS else "I64" for key in tensors}
    body = make_safetensors(tensors, dtypes, {"need_weights": "true"})
    response = post(journey_server, body)
    problem = assert_problem(response, 400, response.json()["title"], field)
    assert problem.get("got") == got and detail in problem["detail"], problem


# The number; `got` and text that the detail contains.
WRONG_LENS = {1.5: ("number", "valid_lens[1] is 1.5; send a whole number"),
              np.nan: ("number", "valid_lens[1] is NaN; send"),
              -np.inf: ("number", "valid_lens[1] is -inf; send"),
              -1.0: (-1, "valid_lens[1] is -1, but its sequence has 2 keys; send 0 to 2"),
              3.0: (3, "valid_lens[1] is 3, but"), 2.0 ** 80: (2 ** 80, "valid_lens[1] is 1.2089")}


@pytest.mark.parametrize("value", WRONG_LENS)
@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_float_that_is_not_a_length_is_refused(journey_server, value, dtype):
    got, detail = WRONG_LENS[value]
    response = post(journey_server, make_safetensors({"queries": X, "valid_lens": [1, value]},
                                                     {"queries": "F32", "valid_lens": dtype}))
    problem = assert_problem(response, 400, "Wrong type" if got == "number" else "Out of range",
                             "valid_lens")
    assert problem["got"] == got and detail in problem["detail"], problem


def test_f64_over_float32_is_out_of_range(journey_server):
    problem = assert_problem(post(journey_server, make_safetensors(
        {"queries": np.array([[1, 2, 1e300]])}, "F64")), 400, "Out of range", "queries")
    assert "queries[0][2] is infinite, or out of range for float32" in problem["detail"]


def test_unknown_model_is_404_and_no_model_is_400(demo_server):
    body = make_safetensors({"queries": X}, "F32", {"model": "nobody"})
    assert_problem(post(demo_server, body), 404, "Unknown model", "model")
    assert_problem(post(demo_server, make_safetensors({"queries": X})), 400, "Model not named")


def test_body_with_any_byte_changed_gets_a_result_or_a_refusal(journey_server):
    body = make_safetensors({"queries": X, "valid_lens": [1, 2]},
                            {"queries": "F32", "valid_lens": "I64"}, {"need_weights": "true"})
    generator = np.random.default_rng(11)
    for _ in range(400):
        changed = bytearray(body)
        changed[generator.integers(len(body))] = generator.integers(256)
        response = post(journey_server, bytes(changed))
        assert response.status_code in (200, 400, 404, 422), response.text
