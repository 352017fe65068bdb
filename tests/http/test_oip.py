# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol v2, with requests made by hand and by tritonclient."""

import re
import threading

import numpy as np
import pytest
import requests
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from compare import assert_close
from oip import HEADER, NUMPY, assert_error, pack, post, tensor, unpack
from reference import no_mask
from server import Server
from test_golden import CASES, model_argument

ENCODINGS = [("FP32", False), ("FP64", False), ("FP16", False), ("FP32", True), ("FP64", True)]
BOTH = [{"name": "outputs"}, {"name": "attention_weights"}]
RANDOM = np.random.default_rng(5).standard_normal((2, 3, 100)).astype(np.float32)


@pytest.fixture(scope="module")
def server():
    models = [word for case in CASES.values() for word in ("--model", model_argument(case))]
    with Server(*models) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    yield client
    client.close()


def inputs_of(request, datatype="FP32", binary=False, flat=True):
    types = {"valid_lens": "INT64"}
    return [tensor(name, request[name], types.get(name, datatype), binary, flat)
            for name in ("queries", "keys", "values", "valid_lens", "head_mask")
            if name in request]


def parameters_of(request):
    return {"causal": request["causal"]} if "causal" in request else {}


# --- infer ---

@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("datatype,binary", ENCODINGS)
@pytest.mark.parametrize("binary_output", [False, True])
def test_golden_case_gets_its_reply(server, name, datatype, binary, binary_output):
    case = CASES[name]
    parameters = parameters_of(case["request"]) | {"binary_data_output": binary_output}
    body, headers = pack(inputs_of(case["request"], datatype, binary, flat=binary_output),
                         outputs=BOTH, parameters=parameters, id="a\u00e9\"")
    reply, got = unpack(post(server, name, body, headers))
    assert (reply["model_name"], reply["model_version"], reply["id"]) == (name, "1", "a\u00e9\"")
    assert list(got) == ["outputs", "attention_weights"]
    for key in got:
        assert_close(got[key], case["expected"][key], key)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("binary,binary_output", [(False, False), (True, True), (False, True),
                                                  (True, False)])
def test_tritonclient_gets_the_reply_of_a_golden_case(client, name, binary, binary_output):
    case, inputs = CASES[name], []
    types = {"valid_lens": ("INT64", np.int64)}
    for key in ("queries", "keys", "values", "valid_lens", "head_mask"):
        if key in case["request"]:
            datatype, dtype = types.get(key, ("FP32", np.float32))
            array = np.array(case["request"][key], dtype)
            inputs.append(triton.InferInput(key, list(array.shape), datatype))
            inputs[-1].set_data_from_numpy(array, binary_data=binary)
    outputs = [triton.InferRequestedOutput(output["name"], binary_data=binary_output)
               for output in BOTH]
    reply = client.infer(name, inputs, outputs=outputs, request_id="7",
                          parameters=parameters_of(case["request"]))
    assert reply.get_response()["id"] == "7"
    for key in ("outputs", "attention_weights"):
        assert_close(reply.as_numpy(key), case["expected"][key], key)
    alone = client.infer(name, inputs, model_version="1",
                         parameters=parameters_of(case["request"]))
    assert [output["name"] for output in alone.get_response()["outputs"]] == ["outputs"]
    assert (alone.as_numpy("outputs") == reply.as_numpy("outputs")).all()


def test_codec_that_clients_of_mlserver_state_is_accepted(demo_server):
    codec = {"parameters": {"content_type": "np"}}
    plain = pack([tensor("queries", RANDOM)], outputs=[{"name": "outputs"}])
    coded = pack([(queries | codec, data) for queries, data in [tensor("queries", RANDOM)]], **codec,
                 outputs=[{"name": "outputs"} | codec])
    replies = [post(demo_server, "d2l", *request) for request in (plain, coded)]
    assert replies[0].status_code == 200 and replies[0].content == replies[1].content


@pytest.mark.parametrize("pad", range(4))
def test_binary_data_at_any_alignment_gives_the_same_bytes(demo_server, pad):
    plain, _ = pack([tensor("queries", RANDOM)], parameters={"binary_data_output": True})
    body, headers = pack([tensor("queries", RANDOM, binary=True)], pad,
                         parameters={"binary_data_output": True})
    assert int(headers[HEADER]) % 4 == pad
    expected = unpack(post(demo_server, "d2l", plain, {}))[1]["outputs"]
    got = unpack(post(demo_server, "d2l", body, headers))[1]["outputs"]
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_binary_input_of_16_bits_is_read_exactly(demo_server, datatype):
    exact = np.round(RANDOM * 8) / 8  # both types can represent it
    body, headers = pack([tensor("queries", exact, datatype, binary=True)])
    expected = unpack(post(demo_server, "d2l", *pack([tensor("queries", exact)])))[1]["outputs"]
    got = unpack(post(demo_server, "d2l", body, headers))[1]["outputs"]
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("lens,datatype", [([3, 1], "INT32"), ([[3, 1, 2], [1, 2, 0]], "INT64"),
                                           ([[3, 1, 2], [1, 2, 0]], "INT32"), ([3, 1], "FP64"),
                                           ([[3, 1, 2], [1, 2, 0]], "FP32")])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("flat", [False, True])
def test_valid_lens_may_have_any_shape_and_encoding(demo_server, lens, datatype, binary, flat):
    body, headers = pack([tensor("valid_lens", lens, datatype, binary, flat),
                          tensor("queries", RANDOM, binary=not binary)], outputs=BOTH)
    native = demo_server.attention({"model": "d2l", "queries": RANDOM.tolist(),
                                    "valid_lens": lens, "need_weights": True}).json()
    _, got = unpack(post(demo_server, "d2l", body, headers))
    for key in got:
        assert_close(got[key], native[key], key)


@pytest.mark.parametrize("lens", [[2], [1, 2, 3]])
def test_unbatched_request_gets_an_unbatched_reply(demo_server, lens):
    body, headers = pack([tensor("queries", RANDOM[0]), tensor("valid_lens", lens, "INT64")],
                         outputs=BOTH)
    native = demo_server.attention({"model": "d2l", "queries": RANDOM[0].tolist(),
                                    "valid_lens": lens[0] if len(lens) == 1 else lens,
                                    "need_weights": True}).json()
    _, got = unpack(post(demo_server, "d2l", body, headers))
    assert got["outputs"].shape == (3, 100) and got["attention_weights"].shape == (5, 3, 3)
    for key in got:
        assert_close(got[key], native[key], key)


@pytest.mark.parametrize("seed", range(60))
def test_random_request_gets_the_bits_of_the_native_protocol(server, seed):
    """Both protocols decode to the same request, so their float32 results have the same bits."""
    random = np.random.default_rng(seed)
    name = ("d2l_example", "d2l_head_mask", "torch_kdim_vdim", "additive_scoring")[seed % 4]
    info = server.get("/v1/models/" + name).json()
    batch, queries, keys = random.integers(1, 6, 3)
    batched = random.random() < 0.7
    request = {
        key: random.standard_normal((batch, rows, info[size])).astype(np.float32)
        for key, rows, size in (("queries", queries, "query_size"), ("keys", keys, "key_size"),
                                ("values", keys, "value_size"))}
    if random.random() < 0.7:
        request["valid_lens"] = np.array(no_mask(random.integers(0, keys + 1, (batch, queries)[:seed % 2 + 1])))
    if not batched:
        request = {key: array[0] for key, array in request.items()}
        if request.get("valid_lens", np.zeros(1)).ndim == 0:
            request["valid_lens"] = request["valid_lens"][None]
    if random.random() < 0.5:
        request["head_mask"] = random.random(info["num_heads"]).astype(np.float32)
    options = {"causal": bool(seed % 3 == 0), "need_weights": (True, "mean")[seed % 5 == 0]}
    types = {"valid_lens": "INT32"}
    inputs = [tensor(key, array, types.get(key, "FP32"), random.random() < 0.5,
                     random.random() < 0.5) for key, array in request.items()]
    random.shuffle(inputs)
    body, headers = pack(inputs, outputs=BOTH, parameters=options | {
        "binary_data_output": bool(seed % 2)})
    _, got = unpack(post(server, name, body, headers))
    native = {key: array.tolist() for key, array in request.items()} | options | {"model": name}
    if not batched and len(native.get("valid_lens", ())) == 1:
        native["valid_lens"] = native["valid_lens"][0]
    reply = server.attention(native).json()
    for key in got:
        expected = np.array(reply[key], np.float32)
        assert got[key].shape == expected.shape and (got[key] == expected).all(), key


def test_mean_weights_and_outputs_come_in_the_requested_order(demo_server):
    request = {"outputs": BOTH[::-1], "parameters": {"need_weights": "mean", "causal": True}}
    body, headers = pack([tensor("queries", RANDOM)], **request)
    native = demo_server.attention({"model": "d2l", "queries": RANDOM.tolist(), "causal": True,
                                    "need_weights": "mean"}).json()
    _, got = unpack(post(demo_server, "d2l", body, headers))
    assert list(got) == ["attention_weights", "outputs"]
    for key in got:
        assert_close(got[key], native[key], key)


# The inputs and parameters of tritonclient, and the same for /v1/attention.
SELECTIONS = {
    "inputs": ({"weights_heads": ("INT64", [3, 0]), "weights_queries": ("INT32", [2])}, {}),
    "floats": ({"weights_heads": ("FP32", [3, 0]), "weights_queries": ("FP64", [2])}, {}),
    "parameters": ({}, {"weights_heads": "3,0", "weights_queries": 2}),
    "from the end": ({"weights_heads": ("INT64", [3, 0]), "weights_queries": ("INT64", [-1])}, {}),
    "floats from the end": ({"weights_heads": ("FP32", [3, 0]), "weights_queries": ("FP32", [-1])}, {}),
    "a parameter from the end": ({}, {"weights_heads": "3,0", "weights_queries": "-1"}),
    "a number from the end": ({}, {"weights_heads": "3,0", "weights_queries": -1}),
    "an input and a parameter": ({"weights_queries": ("INT64", [2])}, {"weights_heads": " 3 , 0"}),
}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("binary", [False, True])
def test_tritonclient_selects_heads_and_rows(demo_server, name, binary):
    arrays, parameters = SELECTIONS[name]
    inputs = []
    for key, (datatype, array) in ({"queries": ("FP32", RANDOM)} | arrays).items():
        array = np.array(array, NUMPY[datatype])
        inputs.append(triton.InferInput(key, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    outputs = [triton.InferRequestedOutput(key, binary_data=binary)
               for key in ("outputs", "attention_weights")]
    with triton.InferenceServerClient(f"127.0.0.1:{demo_server.port}") as client:
        got = client.infer("d2l", inputs, outputs=outputs, parameters=parameters)
    native = demo_server.attention({"model": "d2l", "queries": RANDOM.tolist(), "weights_heads": [3, 0],
                                    "weights_queries": [2], "need_weights": True}).json()
    assert got.as_numpy("attention_weights").shape == (2, 2, 1, 3)
    for key in ("outputs", "attention_weights"):
        assert (got.as_numpy(key) == np.array(native[key], np.float32)).all(), key


def test_rows_of_the_mean_are_selected(demo_server):
    body, headers = pack([tensor("queries", RANDOM[0])], outputs=BOTH[1:],
                         parameters={"need_weights": "mean", "weights_queries": "2,1"})
    native = demo_server.attention({"model": "d2l", "queries": RANDOM[0].tolist(),
                                    "weights_queries": [2, 1], "need_weights": "mean"}).json()
    got = unpack(post(demo_server, "d2l", body, headers))[1]["attention_weights"]
    assert_close(got, native["attention_weights"], "weights")


def test_weights_may_be_requested_alone(demo_server):
    body, headers = pack([tensor("queries", RANDOM)], outputs=BOTH[1:])
    assert list(unpack(post(demo_server, "d2l", body, headers))[1]) == ["attention_weights"]


def test_output_overrides_the_request_on_binary_data(demo_server):
    outputs = [BOTH[0] | {"parameters": {"binary_data": False}}, BOTH[1]]
    body, headers = pack([tensor("queries", RANDOM)], outputs=outputs,
                         parameters={"binary_data_output": True})
    reply, got = unpack(post(demo_server, "d2l", body, headers))
    assert ["data" in output for output in reply["outputs"]] == [True, False]
    assert_close(got["attention_weights"].sum(axis=-1), np.ones((2, 5, 3)), "sums")


def test_null_members_and_escaped_keys_do_not_change_the_reply(demo_server):
    plain = pack([tensor("queries", RANDOM)])[0]
    other = plain.replace(b'"inputs"', b'"outputs":[],"id":null,"\\u0069nputs"') \
        .replace(b'"queries"', b'"qu\\u0065ries"')
    assert other != plain
    replies = [post(demo_server, "d2l", body, {}).content for body in (plain, other)]
    assert replies[0] == replies[1]


@pytest.mark.parametrize("content_type", [None, "application/json", "application/octet-stream"])
def test_content_type_may_be_json_or_octets_or_missing(demo_server, content_type):
    headers = {} if content_type is None else {"Content-Type": content_type}
    unpack(post(demo_server, "d2l", pack([tensor("queries", RANDOM)])[0], headers))


def test_chunked_binary_request_gets_a_reply(demo_server):
    body, headers = pack([tensor("queries", RANDOM, binary=True)])
    pieces = (body[i:i + 100] for i in range(0, len(body), 100))
    unpack(post(demo_server, "d2l", pieces, headers))


@pytest.mark.parametrize("binary", [("outputs", "attention_weights"), ("attention_weights",), ()])
def test_large_reply_is_streamed_with_its_length_if_that_is_known(demo_server, binary):
    """2 x 5 x 128 x 128 weights are 640 KiB, too many for a reply that is sent in one piece."""
    queries = np.random.default_rng(1).standard_normal((2, 128, 100)).astype(np.float32)
    outputs = [output | {"parameters": {"binary_data": output["name"] in binary}}
               for output in BOTH]
    body, headers = pack([tensor("queries", queries, binary=True)], outputs=outputs)
    response = post(demo_server, "d2l", body, headers)
    assert ("Content-Length" in response.headers) == (len(binary) > 0)
    if binary:
        assert int(response.headers["Content-Length"]) == len(response.content)
    reply, got = unpack(response)
    assert got["attention_weights"].shape == (2, 5, 128, 128)
    assert_close(got["attention_weights"].sum(axis=-1), np.ones((2, 5, 128)), "sums")
    plain, headers = pack([tensor("queries", queries, binary=True)])
    assert_close(got["outputs"], unpack(post(demo_server, "d2l", plain, headers))[1]["outputs"],
                 "outputs")


def test_reply_over_the_limit_is_refused_with_the_limit_and_a_remedy(start_server):
    server = start_server("--demo", "--max-reply", 2000)
    error = assert_error(post(server, "d2l", *pack([tensor("queries", RANDOM)])), 413,
                         "Reply too large")
    assert "--max-reply 2000" in error and "binary" in error


# --- metadata ---

def test_server_metadata_lists_the_extensions_tested_here(client):
    metadata = client.get_server_metadata()
    assert metadata["name"] == "attnd" and metadata["version"]
    assert metadata["extensions"] == ["binary_tensor_data", "statistics", "model_configuration",
                                      "model_repository"]


def test_tritonclient_sees_health(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("d2l_example") and client.is_model_ready("d2l_example", "1")
    assert not client.is_model_ready("nobody") and not client.is_model_ready("d2l_example", "2")


@pytest.mark.parametrize("version", ["", "1"])
def test_model_metadata_describes_inputs_and_outputs(client, server, version):
    metadata = client.get_model_metadata("torch_kdim_vdim", version)
    info = server.get("/v1/models/torch_kdim_vdim").json()
    assert metadata["versions"] == ["1"] and metadata["platform"] == "attnd"
    inputs = {tensor["name"]: tensor for tensor in metadata["inputs"]}
    assert list(inputs) == ["queries", "keys", "values", "valid_lens", "prefix_lens", "head_mask", "weights_heads",
                            "weights_queries", "bias", "attn_mask", "positions", "key_positions"]
    assert inputs["valid_lens"]["datatype"] == "INT64" and inputs["attn_mask"]["datatype"] == "BOOL"
    outputs = {tensor["name"]: tensor["shape"] for tensor in metadata["outputs"]}
    assert list(outputs) == ["outputs", "attention_weights", "heads", "lse"]
    assert outputs["heads"] == [-1, -1, info["num_heads"], info["head_size"]]
    assert outputs["lse"] == [-1, -1, info["num_heads"]]
    assert inputs["keys"]["shape"] == [-1, -1, info["key_size"]]


def test_model_configuration_describes_the_inputs(client, server):
    info = server.get("/v1/models/torch_kdim_vdim").json()
    config = client.get_model_config("torch_kdim_vdim")
    inputs = {tensor["name"]: tensor for tensor in config["input"]}
    assert config["max_batch_size"] == 0
    # No "optional": keys of another width than queries must be sent.
    assert inputs["keys"] == {"name": "keys", "data_type": "TYPE_FP32",
                              "dims": [-1, -1, info["key_size"]]}
    assert inputs["head_mask"]["optional"] and inputs["head_mask"]["dims"] == [info["num_heads"]]
    assert client.get_model_config("d2l_example")["input"][1]["optional"]


def test_repository_index_lists_every_model(client, server):
    index = client.get_model_repository_index()
    assert [model["name"] for model in index] == list(CASES)
    for model in index:
        assert re.fullmatch("[0-9a-f]{32}", model["fingerprint"]) and model["loaded"] > 1_700_000_000
        assert model | {"name": "", "fingerprint": "", "loaded": 0} == {
            "name": "", "version": "1", "state": "READY", "reason": "", "fingerprint": "", "loaded": 0}
    for body in ("", "{}", '{"ready":true}', '{"ready":false}', '{"ready":null}'):
        reply = requests.post(server.url + "/v2/repository/index", data=body, timeout=60)
        assert reply.json() == index
    for body, error in (('{"ready":1}', "Wrong type"), ("[]", "Wrong type"), ("{", "Malformed"),
                        ('{"name":"x"}', "Unknown key")):
        assert_error(requests.post(server.url + "/v2/repository/index", data=body, timeout=60),
                     400, error)


@pytest.mark.alone
def test_statistics_count_requests_of_both_protocols(start_server):
    server = start_server("--demo")
    with triton.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        for _ in range(3):
            unpack(post(server, "d2l", *pack([tensor("queries", RANDOM)])))
        assert server.attention({"model": "d2l", "queries": RANDOM.tolist()}).status_code == 200
        assert_error(post(server, "d2l", "{}", {}), 400, "Missing key")
        everything = client.get_inference_statistics()["model_stats"]
        statistics = client.get_inference_statistics("d2l")["model_stats"]
    assert [model["name"] for model in everything] == ["journey", "d2l", "patterns", "stacked"]
    assert everything[0]["inference_count"] == 0 and everything[1:2] == statistics
    model = statistics[0]
    assert (model["inference_count"], model["execution_count"]) == (4, 4)
    assert model["last_inference"] > 1.6e12
    times = model["inference_stats"]
    assert {key: value["count"] for key, value in times.items()} == {
        "success": 4, "fail": 1, "queue": 4, "compute_input": 4, "compute_infer": 4,
        "compute_output": 4}
    phases_ns = sum(times[key]["ns"] for key in times if key not in ("success", "fail"))
    assert phases_ns == times["success"]["ns"] > 0


@pytest.mark.alone
def test_statistics_add_up_across_threads(start_server):
    server = start_server("--demo", "--http-threads", 2)
    body, headers = pack([tensor("queries", RANDOM, binary=True)])

    def work():
        for _ in range(20):
            unpack(post(server, "d2l", body, headers))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    model = server.get("/v2/models/d2l/versions/1/stats").json()["model_stats"][0]
    assert model["inference_count"] == model["inference_stats"]["success"]["count"] == 80


def test_head_of_infer_is_405(demo_server):
    response = requests.head(demo_server.url + "/v2/models/d2l/infer", timeout=60)
    assert (response.status_code, response.headers["Allow"]) == (405, "POST")


def queries_of_ones(datatype="FP32", dtype=np.float32):
    queries = triton.InferInput("queries", [1, 1, 100], datatype)
    queries.set_data_from_numpy(np.ones((1, 1, 100), dtype))
    return queries


def in_shared_memory(tensor, size):
    tensor.set_shared_memory("region", size)
    return [tensor]


# docs/protocol-v2.md, "What is refused": a call of tritonclient, and the error that it gets.
REFUSED = {
    "sequence": (lambda c: c.infer("d2l", [queries_of_ones()], sequence_id=3, sequence_start=True),
                 "400", "Unknown key: 'sequence_id'"),
    "own parameter": (lambda c: c.infer("d2l", [queries_of_ones()], parameters={"x": 1}), "400",
                      "Unknown key: 'x'"),
    "classification": (lambda c: c.infer("d2l", [queries_of_ones()], outputs=[
        triton.InferRequestedOutput("outputs", class_count=3)]), "400", "'classification'"),
    "input in shared memory": (lambda c: c.infer("d2l", in_shared_memory(
        triton.InferInput("queries", [1, 1, 100], "FP32"), 400)), "400", "'shared_memory_region'"),
    "output in shared memory": (lambda c: c.infer("d2l", [queries_of_ones()], outputs=in_shared_memory(
        triton.InferRequestedOutput("outputs"), 400)), "400", "'shared_memory_region'"),
    "register": (lambda c: c.register_system_shared_memory("region", "/region", 400), "404",
                 "Unknown route"),
    "gzip": (lambda c: c.infer("d2l", [queries_of_ones()], request_compression_algorithm="gzip"),
             "415", "send the body without one"),
    "booleans": (lambda c: c.infer("d2l", [queries_of_ones("BOOL", bool)]), "400", "Wrong dtype"),
    "trace": (lambda c: c.get_trace_settings("d2l"), "404", "Unknown route"),
    "log settings": (lambda c: c.update_log_settings({"log_info": False}), "404", "Unknown route"),
    "version": (lambda c: c.infer("d2l", [queries_of_ones()], model_version="2"), "404",
                "Unknown version"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_extension_of_triton_is_refused(demo_server, name):
    call, status, contains = REFUSED[name]
    with triton.InferenceServerClient(f"127.0.0.1:{demo_server.port}") as client:
        with pytest.raises(InferenceServerException) as refusal:
            call(client)
    assert refusal.value.status() == status and contains in refusal.value.message()


def test_accepted_encodings_timeout_and_priority_of_triton_are_not_refused(demo_server):
    with triton.InferenceServerClient(f"127.0.0.1:{demo_server.port}") as client:
        for options in ({"response_compression_algorithm": "gzip"}, {"timeout": 10**7},
                        {"priority": 1}, {"request_id": "7"}):
            reply = client.infer("d2l", [queries_of_ones()], **options)
            assert reply.as_numpy("outputs").shape == (1, 1, 100)


def test_error_reaches_tritonclient(client):
    queries = triton.InferInput("queries", [1, 1, 3], "FP32")
    queries.set_data_from_numpy(np.zeros((1, 1, 3), np.float32))
    with pytest.raises(InferenceServerException, match="Shape mismatch: queries are 3 wide"):
        client.infer("d2l_example", [queries])
