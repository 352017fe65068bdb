# SPDX-License-Identifier: Apache-2.0
"""NaN and infinities in binary tensors: allowed where the mask hides them, refused elsewhere."""

import numpy as np
import pytest
import requests

from compare import assert_problem
from oip import assert_error, pack, post, tensor, unpack
from reference import no_mask
from safetensors_file import make_safetensors, parse_safetensors
from server import Server, skip_without
from test_golden import CASES, model_argument

MODELS = ("d2l_example", "torch_kdim_vdim", "additive_scoring")
ENGINES = (("auto", "f32"), ("openblas", "f32"), ("native", "bf16"))
BAD = (np.nan, np.inf, -np.inf)
FLOATS = ("queries", "keys", "values", "head_mask")


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def server(request):
    engine, precision = request.param
    models = [word for name in MODELS for word in ("--model", model_argument(CASES[name]))]
    skip_without("--engine", engine, "--precision", precision)
    with Server(*models, "--engine", engine, "--precision", precision) as running:
        yield running


def random_request(rng, info, longest):
    """Returns the arrays of a batch, and its options."""
    batch, queries, keys = rng.integers(1, 4), rng.integers(1, 50), rng.integers(1, longest)
    only_queries = info["query_size"] == info["key_size"] == info["value_size"] and \
        rng.random() < 0.3
    rows = {"queries": queries} if only_queries else \
        {"queries": queries, "keys": keys, "values": keys}
    arrays = {name: rng.standard_normal((batch, count, info[name.rstrip("s").replace(
        "querie", "query") + "_size"])).astype("f4") for name, count in rows.items()}
    keys = queries if only_queries else keys
    shape = ((batch,), (batch, queries))[rng.integers(2)]
    arrays["valid_lens"] = np.array(no_mask(rng.integers(0, keys + 1, shape)))
    return arrays, {"causal": bool(rng.random() < 0.5)}


def visible(arrays, options):
    """Returns, for each tensor, which of its rows [B, T] reach the result."""
    batch, queries = arrays["queries"].shape[:2]
    keys = arrays.get("keys", arrays["queries"]).shape[1]
    lens = arrays["valid_lens"].reshape(batch, -1) + np.zeros((1, queries), int)
    if options["causal"]:
        lens = np.minimum(lens, np.arange(queries) + 1)
    last = lens.max(axis=1)
    last_value = np.where((lens == 0).any(axis=1), keys, last)
    rows = {"queries": lens > 0, "keys": np.arange(keys) < last[:, None],
            "values": np.arange(keys) < last_value[:, None]}
    if "keys" not in arrays:
        return {"queries": rows["queries"] | rows["keys"] | rows["values"]}
    return rows


def send_oip(server, model, arrays, options):
    inputs = [tensor(name, array, "FP32" if name in FLOATS else "INT64", binary=True)
              for name, array in arrays.items()]
    body, headers = pack(inputs, outputs=[{"name": "outputs"}, {"name": "attention_weights"}],
                         parameters=options | {"binary_data_output": True})
    return post(server, model, body, headers)


def send_safetensors(server, model, arrays, options, packed=False):
    if packed:
        batch, queries = arrays["queries"].shape[:2]
        lens = {"query_lens": [queries] * batch}
        if "keys" in arrays:
            lens["key_lens"] = [arrays["keys"].shape[1]] * batch
        arrays = {name: array.reshape(-1, array.shape[-1]) if name in FLOATS else array.ravel()
                  for name, array in arrays.items()} | lens
    body = make_safetensors(arrays, {name: "F32" if name in FLOATS else "I64" for name in arrays},
                            {"model": model, "causal": str(options["causal"]).lower(),
                             "need_weights": "true"})
    return requests.post(server.url + "/v1/attention", data=body, timeout=60,
                         headers={"Content-Type": "application/vnd.safetensors"})


def results(response):
    if "Inference-Header-Content-Length" in response.headers:
        tensors = unpack(response)[1]
    else:
        assert response.status_code == 200, response.text
        tensors = parse_safetensors(response.content)[0]
    return {name: tensors[name].tobytes() for name in ("outputs", "attention_weights")}


def assert_refused(response, place):
    text = f"{place} is "
    if response.headers["Content-Type"] == "application/json":
        assert text in assert_error(response, 400, "Out of range: ")
    else:
        assert text in assert_problem(response, 400, "Out of range", place[:place.index("[")])[
            "detail"]


@pytest.mark.parametrize("seed", range(40))
def test_hidden_numbers_may_be_anything_and_others_must_be_finite(server, seed):
    rng = np.random.default_rng(seed)
    model = MODELS[seed % 3]
    longest = 50 if seed < 34 else 5000  # long sequences are cut into pieces of keys
    arrays, options = random_request(rng, server.get("/v1/models/" + model).json(), longest)
    clean = results(send_oip(server, model, arrays, options))
    rows = visible(arrays, options)
    for name, seen in rows.items():
        arrays[name][~seen] = rng.choice(BAD, arrays[name][~seen].shape)
    assert results(send_oip(server, model, arrays, options)) == clean
    for packed in (False, True):
        assert results(send_safetensors(server, model, arrays, options, packed)) == clean

    name = rng.choice([name for name, seen in rows.items() if seen.any()] or ["none"])
    if name == "none":
        return
    place = tuple(rng.choice(np.argwhere(rows[name])))
    i = rng.integers(arrays[name].shape[2])
    arrays[name][place][i] = rng.choice(BAD)
    where = f"{name}[{place[0]}][{place[1]}][{i}]"
    assert_refused(send_oip(server, model, arrays, options), where)
    assert_refused(send_safetensors(server, model, arrays, options), where)
    flat = place[0] * arrays[name].shape[1] + place[1]
    assert_refused(send_safetensors(server, model, arrays, options, True), f"{name}[{flat}][{i}]")


@pytest.mark.parametrize("datatype", ["FP16", "FP64", "BF16"])
def test_hidden_numbers_of_other_types_may_be_anything(server, datatype):
    sizes = server.get("/v1/models/d2l_example").json()
    keys = np.ones((1, 3, sizes["key_size"]))
    keys[0, 2] = np.nan
    if datatype == "FP64":
        keys[0, 2, 0] = 1e300
    queries = tensor("queries", np.ones((1, 2, sizes["query_size"])), binary=True)
    for lens, status in (([2], 200), ([3], 400)):
        body, headers = pack([queries, tensor("keys", keys, datatype, binary=True),
                              tensor("valid_lens", lens, "INT64")])
        reply = post(server, "d2l_example", body, headers)
        assert reply.status_code == status, reply.text
        dtype = {"FP16": "F16", "FP64": "F64", "BF16": "BF16"}[datatype]
        body = make_safetensors({"queries": np.ones((1, 2, sizes["query_size"])), "keys": keys,
                                 "valid_lens": lens},
                                {"queries": "F32", "keys": dtype, "valid_lens": "I64"},
                                {"model": "d2l_example"})
        for route in ("attention", "heads"):
            reply = requests.post(f"{server.url}/v1/{route}", data=body, timeout=60,
                                  headers={"Content-Type": "application/octet-stream"})
            assert reply.status_code == status, reply.text


@pytest.mark.parametrize("value", BAD)
def test_head_mask_must_be_finite(server, value):
    info = server.get("/v1/models/d2l_example").json()
    arrays = {"queries": np.ones((1, 2, info["query_size"]), "f4"),
              "head_mask": np.ones(info["num_heads"], "f4")}
    arrays["head_mask"][1] = value
    for send in (send_oip, send_safetensors):
        assert_refused(send(server, "d2l_example", arrays, {"causal": False}), "head_mask[1]")
