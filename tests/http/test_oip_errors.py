# SPDX-License-Identifier: Apache-2.0
"""What the Open Inference Protocol refuses: a table of malformed requests, each with the error it
must get. The server must still be alive afterwards."""

import copy
import json
import struct

import numpy as np
import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoints import write_layer
from oip import HEADER, assert_error, pack, post, tensor, unpack
from server import Server

QUERIES = {"name": "queries", "shape": [2, 3, 4], "datatype": "FP32", "data": [0.5] * 24}
NESTED = [[[0.5] * 4] * 3] * 2
LENS = {"name": "valid_lens", "shape": [2], "datatype": "INT64", "data": [3, 1]}
GOOD = {"inputs": [QUERIES, LENS]}


def queries(**changes):
    """Returns a request with one input. A change to None removes the member."""
    input = {key: value for key, value in (QUERIES | changes).items() if value is not None}
    return {"inputs": [input]}


def lens(**changes):
    return {"inputs": [QUERIES, LENS | changes]}


def also(*inputs, **members):
    return {"inputs": [QUERIES, *inputs]} | members


def outputs(*names, **members):
    return also(outputs=[{"name": name} if isinstance(name, str) else name for name in names],
                **members)


KEYS = QUERIES | {"name": "keys"}
VALUES = QUERIES | {"name": "values"}
MASK = {"name": "head_mask", "shape": [2], "datatype": "FP32", "data": [1, 0]}
HEADS = {"name": "weights_heads", "shape": [1], "datatype": "INT64", "data": [1]}
ROWS_LIST = {"name": "weights_queries", "shape": [1], "datatype": "INT64", "data": [1]}
WEIGHTS = {"outputs": [{"name": "attention_weights"}]}
BIG = 1 << 60


def selected(heads):
    return also(**WEIGHTS, parameters={"weights_heads": heads})


NOT_A_LIST = "; send a string with indices and commas between them, such as \"0,3\", or an input"

# Name: (body, text that the error contains). A body that is text is sent as it is. All are 400.
JSON_DEFECTS = {
    "empty body": ("", "Malformed JSON: line 1, column 1: the body is empty"),
    "byte order mark": ("\ufeff{}", "byte order mark"),
    "not an object": ("[]", "the body is of type array, not a JSON object"),
    "not JSON": ("{inputs}", "Malformed JSON: line 1, column 7: a key expected"),
    "cut": ('{"inputs":[{"name":"queries"', "'}' expected near end of file"),
    "bytes after the end": (json.dumps(GOOD) + "x", "end of file expected"),
    "nested too deeply": ('{"inputs":' + "[" * 250000, "Nested too deeply"),
    "nested data too deeply": (queries(data=json.loads("[" * 31 + "]" * 31)),
                               "Nested too deeply"),
    "unknown key": (GOOD | {"model": "x"}, "'model' is not a key of a request"),
    "duplicate key": ('{"id":"a","id":"b"}', "Duplicate key"),
    "no inputs": ({}, "Missing key: queries is required"),
    "empty inputs": ({"inputs": []}, "Missing key: queries is required"),
    "inputs an object": ({"inputs": {}}, "inputs is an object; send an array"),
    "input a number": ({"inputs": [1]}, "inputs[0] is an integer; send an object"),
    "missing comma between inputs": ('{"inputs":[' + json.dumps(QUERIES) + " {}]}",
                                     "inputs[0]: ',' or ']' expected near '{'"),
    "id a number": (GOOD | {"id": 7}, "id is an integer; send a string"),
    "id not UTF-8": (b'{"id":"\xff","inputs":[' + json.dumps(QUERIES).encode() + b"]}",
                     "Malformed JSON"),
    "id with a NUL": (GOOD | {"id": "\0"}, "Malformed JSON"),
    "id with a lone surrogate": ('{"id":"\\ud800","inputs":[' + json.dumps(QUERIES) + "]}",
                                 "Malformed JSON"),
    # names
    "no name": (queries(name=None), "inputs[0] has no name"),
    "name a number": (queries(name=1), "name is an integer; send a string"),
    "unknown input": (queries(name="rows"), "inputs[0] has the name 'rows'; use one of queries"),
    "long name": (queries(name="q" * 100000), "Unknown key"),
    "name with a NUL": (queries(name="queries\0"), "Malformed JSON"),
    "duplicate input": (also(QUERIES), "inputs[1] has the name 'queries', which appears twice"),
    "duplicate lens": (also(LENS, LENS), "inputs[2] has the name 'valid_lens', which appears twice"),
    "many inputs": ({"inputs": [QUERIES] * 1000}, "Duplicate input"),
    "unknown key of an input": (queries(size=3), "'size' is not a key of an input"),
    "unknown parameter of an input": (
        queries(parameters={"shared_memory_region": "x"}),
        "'shared_memory_region' is not a key of an input's parameters"),
    "input's parameters a list": (queries(parameters=[]), "parameters is an array"),
    # datatypes
    "no datatype": (queries(datatype=None), "queries has no datatype"),
    "datatype a number": (queries(datatype=32), "datatype is an integer"),
    "BYTES": (queries(datatype="BYTES", data=["a"]), "queries has datatype 'BYTES'; send it as"),
    "unknown datatype": (queries(datatype="FP8"), "Wrong dtype"),
    "lower case datatype": (queries(datatype="fp32"), "Wrong dtype"),
    "integers for queries": (queries(datatype="INT64"), "queries has datatype 'INT64'"),
    "BOOL": (queries(datatype="BOOL"), "Wrong dtype"),
    "BF16 in JSON": (queries(datatype="BF16"), "BF16, which must be binary data"),
    "half floats for lens": (lens(datatype="FP16"), "send it as INT32, INT64, FP32 or FP64"),
    "unsigned lens": (lens(datatype="UINT32"), "send it as INT32, INT64, FP32 or FP64"),
    # shapes
    "no shape": (queries(shape=None), "queries has no shape"),
    "empty shape": (queries(shape=[]), "queries.shape is an empty list"),
    "shape a number": (queries(shape=24), "Wrong rank"),
    "shape of strings": (queries(shape=["2", 3, 4]), "queries.shape[0] is a string"),
    "shape of fractions": (queries(shape=[2.5, 3, 4]), "queries.shape[0] is 2.5; send a whole"),
    "shape of null": (queries(shape=[None, 3, 4]), "queries.shape[0] is null"),
    "negative size": (queries(shape=[-2, 3, 4]), "queries.shape[0] is -2"),
    "two negative sizes": (queries(shape=[-2, -3, 4]), "queries.shape[0] is -2"),
    "variable size": (queries(shape=[-1, 3, 4]), "queries.shape[0] is -1"),
    "size of zero": (queries(shape=[0, 3, 4], data=[]), "queries.shape[0] is 0"),
    "size of 2^63": (queries(shape=[1 << 63, 1, 4]), "Out of range"),
    "size of 2^64": (queries(shape=[1 << 64, 1, 4]), "queries.shape[0] is 18446744073709551616"),
    "size of many digits": (queries(shape=[10 ** 400, 1, 4]), "Out of range"),
    "overflow to 32": (queries(shape=[1 << 4, BIG + 2]), "has more elements than fit into memory"),
    "overflow to 8": (queries(shape=[1 << 2, BIG + 2]), "has more elements than fit into memory"),
    "overflow to 0": (queries(shape=[1 << 32, 1 << 32]), "has more elements than fit into memory"),
    "overflow in bytes": (queries(shape=[1, 1, 1 << 62]), "has more elements than fit"),
    "overflow by lens": (lens(shape=[1 << 4, BIG + 2]), "has more elements than fit into memory"),
    "one dimension": (queries(shape=[24]), "queries has shape [24]; send it with shape"),
    "five dimensions": (queries(shape=[1, 2, 3, 4, 5]), "more than 4 dimensions"),
    "ten thousand dimensions": (queries(shape=[1] * 10000), "more than 4 dimensions"),
    "four dimensions of queries": (queries(shape=[1, 2, 3, 4], data=[0] * 24), "queries has shape [1,2,3,4]; send it with"),
    "another width": (queries(shape=[2, 4, 3]), "queries are 3 wide, but model 'd2l'"),
    "keys of another batch": (also(KEYS | {"shape": [1, 6, 4]}), "keys has 1 sequence, but"),
    "keys without batch": (also(KEYS | {"shape": [6, 4]}), "keys has shape [6,4]"),
    "keys with batch alone": ({"inputs": [QUERIES | {"shape": [6, 4]}, KEYS]},
                              "[T, width], as queries have no batch axis"),
    "values of another length": (also(KEYS, VALUES | {"shape": [2, 2, 4], "data": [1] * 16}),
                                 "values has 2 rows in sequence 0"),
    # data
    "no data": (queries(data=None), "queries has no data"),
    "null data": ('{"inputs":[{"name":"queries","shape":[1,1,4],"datatype":"FP32","data":null}]}',
                  "queries has no data"),
    "data a number": (queries(data=1), "its data has at most 1"),
    "data a number of one": (queries(shape=[1, 1, 1], data=1), "queries are 1 wide"),
    "too few numbers": (queries(data=[0.5] * 23), "shape of 24 elements, but its data has at most 23"),
    "too many numbers": (queries(data=[0.5] * 25), "has shape [2,3,4], which is 24 elements, "
                                                   "but its data has 25"),
    "no numbers": (queries(data=[]), "its data has at most 1"),
    "huge shape, small data": (queries(shape=[10 ** 9, 10 ** 8, 4]), "its data has at most 24"),
    "nested in another order": (queries(data=[[[0.5] * 4] * 2] * 3), "is nested in another way"),
    "nested one level less": (queries(data=[[0.5] * 4] * 6), "data with 2 levels of lists"),
    "nested one level more": (queries(data=[NESTED]), "data with 4 levels of lists"),
    "ragged": (queries(data=[NESTED[0], [[0.5] * 4] * 2 + [[0.5] * 3]]), "at most 23"),
    "ragged in rows": (queries(data=[[[0.5] * 4] * 3, [[0.5] * 4] * 2 + [[0.5] * 5]]),
                       "Uneven rows"),
    "string among the numbers": (queries(data=[0.5] * 23 + ["0.5"]), "queries[23] is a string"),
    "list among the numbers": (queries(data=[0.5] * 23 + [[0.5]]), "Wrong rank"),
    "null among the numbers": (queries(data=[0.5] * 23 + [None]), "queries[23] is null"),
    "NaN": (json.dumps(queries(data=[0.5] * 23 + [float("nan")])), "JSON has no NaN"),
    "Infinity": (json.dumps(queries(data=[float("inf")] * 24)), "Malformed JSON"),
    "over float32": (queries(data=[0.5] * 23 + [1e39]), "which is out of range for float32"),
    "over double": (json.dumps(queries()).replace("0.5", "1e999"), "which is out of range for float32"),
    # valid_lens and head_mask
    "lens negative": (lens(data=[3, -1]), "valid_lens[1] is -1, but its sequence has 3 keys"),
    "lens over the keys": (lens(data=[4, 1]), "valid_lens[0] is 4, but its sequence has 3 keys"),
    "lens of 2^64": (lens(data=[1 << 64, 1]), "Out of range"),
    "lens a fraction": (lens(data=[1.5, 1]), "valid_lens[0] is 1.5; send a whole number"),
    "lens too many": (lens(data=[1, 1, 1]), "valid_lens has shape [2]"),
    "lens too few": (lens(data=[1]), "at most 1"),
    "lens of another batch": (lens(shape=[3], data=[1, 1, 1]), "send it with shape [2,3], or [2]"),
    "lens of another rank": (lens(shape=[2, 1], data=[[1], [1]]), "send it with shape [2,3], or"),
    "lens nested where flat": (lens(data=[[1, 1]]), "data with 2 levels of lists"),
    "lens uneven": (lens(shape=[2, 3], data=[[1, 1], [1, 1, 1, 1]]), "has fewer than 3 in a list"),
    "lens of too many lists": (lens(shape=[2, 3], data=[[1] * 3] * 3), "has more than 2 in a list"),
    "lens of an empty list": (lens(shape=[2, 3], data=[[1] * 6, []]), "has more than 3 in a list"),
    "head_mask of another size": (also(MASK | {"shape": [3], "data": [1, 1, 1]}),
                                  "head_mask has 3 numbers, but model 'd2l' has 2 heads"),
    "head_mask of another rank": (also(MASK | {"shape": [1, 2]}), "one number for each head"),
    # weights_heads and weights_queries
    "head out of range": (also(HEADS | {"data": [2]}, **WEIGHTS),
                          "weights_heads[0] is 2, but there are 2 heads; send 0 to 1"),
    "head negative": (also(HEADS | {"data": [-1]}, **WEIGHTS), "weights_heads[0] is -1, but there"),
    "row out of range": (also(ROWS_LIST | {"data": [3]}, **WEIGHTS),
                         "weights_queries[0] is 3, but there are 3 rows of queries in the shortest"),
    "head twice": (also(HEADS | {"shape": [2], "data": [1, 1]}, **WEIGHTS),
                   "Duplicate index: weights_heads[1] is 1"),
    "heads of rank 2": (also(HEADS | {"shape": [1, 1]}, **WEIGHTS),
                        "weights_heads has shape [1,1]; send it with shape [N]"),
    "head a fraction": (also(HEADS | {"datatype": "FP32", "data": [0.5]}, **WEIGHTS),
                        "weights_heads[0] is 0.5; send a whole number"),
    "row before the first": (also(ROWS_LIST | {"data": [-4]}, **WEIGHTS),
                             "weights_queries[0] is -4, but there are 3 rows of queries in the shortest sequence"
                             "; send -3 to 2"),
    "row from both ends": (also(ROWS_LIST | {"shape": [2], "data": [2, -1]}, **WEIGHTS),
                           "Duplicate index: weights_queries[1] is -1"),
    "row of a parameter": (also(**WEIGHTS, parameters={"weights_queries": "0,-4"}),
                           "weights_queries[1] is -4, but there are 3 rows"),
    "heads without weights": (also(HEADS), "Nothing to select from: weights_heads selects heads of "
                              "the weights, and of what is made of them; name attention_weights in "
                              "outputs"),
    "heads of the mean": (also(HEADS, **WEIGHTS, parameters={"need_weights": "mean"}),
                          "and leave need_weights out"),
    "rows without weights": (also(ROWS_LIST), "name attention_weights in outputs, or leave"),
    "heads twice": (also(HEADS, **WEIGHTS, parameters={"weights_heads": "1"}),
                    "Duplicate input: weights_heads is an input as well as a parameter"),
    "parameter out of range": (selected("0,2"), "weights_heads[1] is 2, but there are 2 heads"),
    "parameter negative": (selected(-1), "weights_heads[0] is -1, but there are 2 heads"),
    "parameter twice": (selected("0,1, 0"), "Duplicate index: weights_heads[2] is 0"),
    "parameter a fraction": (selected("0,0.5"), "weights_heads[1] is 0.5; send a whole number"),
    "parameter a list": (selected([0, 1]), "the parameter weights_heads is [0, 1]" + NOT_A_LIST),
    "parameter empty": (selected(""), 'the parameter weights_heads is ""' + NOT_A_LIST),
    "parameter with a comma at its end": (selected("0,"), 'is "0,"' + NOT_A_LIST),
    "parameter with two commas": (selected("0,,1"), 'is "0,,1"' + NOT_A_LIST),
    "parameter with spaces": (selected("0 1"), 'is "0 1"' + NOT_A_LIST),
    "parameter of words": (selected("first"), 'is "first"' + NOT_A_LIST),
    "parameter true": (selected(True), "is true" + NOT_A_LIST),
    "parameter misspelled": ('{"parameters":{"weights_heads":1x},"inputs":['
                             + json.dumps(QUERIES) + "]}", "is 1x" + NOT_A_LIST),
    "parameter of 10,000 indices": (selected(",".join(["0"] * 10000)), "Duplicate index"),
    # outputs and parameters
    "unknown output": (outputs("output"), "outputs[0] has the name 'output'"),
    "duplicate output": (outputs("outputs", "outputs"),
                         "outputs[1] has the name 'outputs', which appears twice"),
    "many outputs": (outputs(*["attention_weights"] * 10000), "Duplicate output"),
    "output without name": (outputs({}), "outputs[0] has no name"),
    "output a string": (also(outputs=["outputs"]), "outputs[0] is a string; send an object"),
    "output's name a number": (outputs({"name": 1}), "name is an integer"),
    "outputs a string": (also(outputs="outputs"), "outputs is a string; send an array"),
    "classification": (outputs({"name": "outputs", "parameters": {"classification": 2}}),
                       "'classification' is not a key of an output's parameters"),
    "binary_data a number": (outputs({"name": "outputs", "parameters": {"binary_data": 1}}),
                             "binary_data is an integer; send a boolean"),
    "unknown parameter": (also(parameters={"shared": 3}), "'shared' is not a key of a request's parameters; remove it"),
    "sequence of Triton": (also(parameters={"sequence_id": 3}), "each request stands alone; leave it out"),
    "codec of text": (also(parameters={"content_type": "str"}), "content_type is 'str', but tensors are arrays"),
    "codec of an input": (queries(parameters={"content_type": "hg_json"}), "send np, or leave it out"),
    "codec of an output": (outputs({"name": "outputs", "parameters": {"content_type": "base64"}}),
                           "content_type is 'base64', but tensors are arrays of numbers; send np"),
    "codec a number": (also(parameters={"content_type": 1}), "content_type is an integer; send a string"),
    "bits of bfloat16": (queries(datatype="UINT16"), "bits of bfloat16 are BF16"),
    "mask of booleans": (also(LENS | {"datatype": "BOOL"}), "lengths; of an attention_mask they are mask.sum(-1)"),
    "mask as lengths": (GOOD | {"inputs": [QUERIES, LENS | {"shape": [2, 3], "data": [1, 1, 1, 1, 1, 0]}]},
                        "where padding is at the end"),
    "parameters a list": (also(parameters=[]), "parameters is an array"),
    "causal a string": (also(parameters={"causal": "true"}), "causal is a string"),
    "causal misspelled": ('{"parameters":{"causal":truth}}', "Malformed JSON"),
    "binary_data_output a number": (also(parameters={"binary_data_output": 1}),
                                    "binary_data_output is an integer"),
    "need_weights of another word": (also(parameters={"need_weights": "max"}), "must be false, true"),
    "need_weights a number": (also(parameters={"need_weights": 1}), "need_weights must be false"),
    "timeout negative": (also(parameters={"timeout": -1}), "timeout is -1, but it is a number of"),
    "timeout over a day": (also(parameters={"timeout": 86400000001}), "send 0 to 86400000000"),
    "timeout with a point": (also(parameters={"timeout": 1.5}), "timeout is 1.5; send a whole number"),
    "timeout a list": (also(parameters={"timeout": [1]}), "Wrong rank"),
    "priority a string": (also(parameters={"priority": "1"}), "priority is a string"),
    "priority over 31 bits": (also(parameters={"priority": 1 << 31}), "send 0 to 2147483647"),
    "id over 64 KiB": (GOOD | {"id": "x" * 65535}, "id has 65537 bytes; send at most 65536"),
    "weights requested, not named": (also(parameters={"need_weights": True}),
                                     "Outputs disagree: need_weights asks for weights"),
    "weights named, not requested": (outputs("attention_weights", parameters={"need_weights": False}),
                                  "Outputs disagree: outputs has attention_weights"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "d2l.safetensors"
    write_layer(path, num_heads=2, head_size=2, query_size=4)
    with Server("--model", f"d2l={path}", "--max-body", 1 << 20) as running:
        yield running


def check(server, body, headers, contains, status=400):
    error = assert_error(post(server, "d2l", body, headers), status, contains)
    assert server.is_alive()
    return error


def test_request_without_a_defect_gets_a_reply(server):
    assert unpack(post(server, "d2l", json.dumps(GOOD), {}))[1]["outputs"].shape == (2, 3, 4)
    assert unpack(post(server, "d2l", json.dumps(queries(data=NESTED)), {}))


@pytest.mark.parametrize("name", JSON_DEFECTS)
def test_json_defect_is_refused(server, name):
    body, contains = JSON_DEFECTS[name]
    if isinstance(body, str):
        body = body.encode()
    check(server, body if isinstance(body, bytes) else json.dumps(body), {}, contains)


# --- binary data ---

ROWS = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
BINARY = tensor("queries", ROWS, binary=True)


def sized(size, shape=(2, 3, 4), datatype="FP32", data=None, **parameters):
    """Returns a binary input that declares `size` bytes."""
    input = {"name": "queries", "shape": list(shape), "datatype": datatype,
             "parameters": {"binary_data_size": size} | parameters}
    return input | ({} if data is None else {"data": data})


BYTES = struct.pack("<I", 1) + b"a"
# Name: (input, its bytes, text that the error contains)
BINARY_DEFECTS = {
    "too few bytes": (sized(96), b"\0" * 95, "needs 96 bytes of binary data, but the body has only 95"),
    "no bytes": (sized(96), b"", "the body has only 0 left"),
    "bytes too many": (sized(96), b"\0" * 97, "the body has 1 byte after the binary data of the last input"),
    "size too small": (sized(92), b"\0" * 96, "binary_data_size 92, but its shape in FP32 needs 96"),
    "size too large": (sized(100), b"\0" * 100, "binary_data_size 100"),
    "size of zero": (sized(0), b"", "binary_data_size 0"),
    "size negative": (sized(-96), b"\0" * 96, "binary_data_size -96"),
    "size of 2^64": (sized(1 << 64), b"\0" * 96, "binary_data_size 18446744073709551616"),
    "size a string": (sized("96"), b"\0" * 96, "binary_data_size is a string"),
    "size a fraction": (sized(96.5), b"\0" * 96, "binary_data_size is 96.5; send a whole"),
    "size a list": (sized([96]), b"\0" * 96, "Wrong rank"),
    "size for another datatype": (sized(96, datatype="FP64"), b"\0" * 96,
                                  "its shape in FP64 needs 192"),
    "data as well": (sized(96, data=[0.5] * 24), b"\0" * 96, "both data and binary_data_size"),
    "BYTES": (sized(5, [1], "BYTES"), BYTES, "queries has datatype 'BYTES'"),
    "shape of more": (sized(96, [2, 3, 5]), b"\0" * 96, "needs 120"),
    "shape that overflows": (sized(32, [1 << 4, BIG + 2]), b"\0" * 32,
                             "has more elements than fit"),
    "shape that overflows in bytes": (sized(0, [1, 1, 1 << 62]), b"", "has more elements than fit"),
    "shape of 2^50": (sized(96, [1 << 24, 1 << 24, 4]), b"\0" * 96, "needs 4503599627370496"),
    "shape of 2^50 with its size": (sized(4 << 50, [1 << 24, 1 << 24, 4]), b"\0" * 96,
                                 "the body has only 96 left"),
    "unknown parameter": (sized(96, shared_memory_offset=0), b"\0" * 96, "Unknown key"),
}


@pytest.mark.parametrize("name", BINARY_DEFECTS)
def test_binary_defect_is_refused(server, name):
    input, data, contains = BINARY_DEFECTS[name]
    text = json.dumps({"inputs": [input]}).encode()
    check(server, text + data, {HEADER: str(len(text))}, contains)


def test_inputs_share_the_bytes_of_the_body(server):
    keys = BINARY[0] | {"name": "keys"}
    check(server, *pack([BINARY, (keys, b"\0" * 92)]),
          "keys needs 96 bytes of binary data, but the body has only 92")


@pytest.mark.parametrize("lens,datatype", [([3, -1], "INT32"), ([3, -1], "INT64"),
                                           ([1 << 31, 1], "INT64"), ([3, 4], "INT32"),
                                           ([-(1 << 63), 1], "INT64"), ([3, 4], "FP32"),
                                           ([3, -1], "FP64")])
def test_binary_lens_out_of_range_are_refused(server, lens, datatype):
    bad = next(i for i, length in enumerate(lens) if not 0 <= length <= 3)
    check(server, *pack([BINARY, tensor("valid_lens", lens, datatype, binary=True)]),
          f"valid_lens[{bad}] is {lens[bad]}, but its sequence has 3 keys; send 0 to 3")


def test_binary_lens_that_are_not_whole_are_refused(server):
    lens = tensor("valid_lens", [[3, 1, 2], [1, 0.5, 0]], "FP32", binary=True)
    check(server, *pack([BINARY, lens]), "valid_lens[1][1] is 0.5; send a whole number")


@pytest.mark.parametrize("datatype", ["FP32", "FP16", "FP64", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_binary_input_that_is_not_finite_is_refused(server, datatype, value):
    rows = ROWS.copy()
    rows[1, 2, 3] = value
    check(server, *pack([tensor("queries", rows, datatype, binary=True)]),
          "Out of range: queries[1][2][3] is ")


def test_binary_double_over_float32_is_refused(server):
    check(server, *pack([tensor("queries", ROWS.astype(np.float64) * 1e300, "FP64", binary=True)]),
          "is infinite, or out of range for float32; send numbers within")


def test_overflow_of_the_result_is_422_in_json_and_binary(server):
    for binary in (False, True):
        check(server, *pack([tensor("queries", np.full((1, 2, 4), 3e38), binary=binary)]),
              "Result not finite", 422)


# --- the header ---

TEXT = json.dumps({"inputs": [BINARY[0]]}).encode()
BODY = TEXT + BINARY[1]
SIZE = len(TEXT)
HEADERS = {
    "99999999999": "but the body has", "999999999999999999999999999": "but the body has",
    "18446744073709551616": "but the body has", str(len(BODY) + 1): "but the body has",
    "-1": "is '-1'; send the size of the JSON", "+5": "is '+5'", "": "is ''", "x": "is 'x'",
    "5x": "is '5x'", "0x10": "is '0x10'", "1e3": "is '1e3'", "5.0": "is '5.0'",
    f"{SIZE}, {SIZE}": "send the size of the JSON in bytes",
    "0": "is 0, but binary data needs JSON before it", "000": "is 0",
    str(SIZE - 1): "'}' expected", str(SIZE + 1): "end of file expected",
    str(SIZE + 96): "end of file expected", "1": "expected",
}


@pytest.mark.parametrize("value", HEADERS)
def test_wrong_header_is_refused(server, value):
    check(server, BODY, {HEADER: value}, HEADERS[value])


def test_header_left_out(server):
    check(server, TEXT, {}, "nothing states where binary data begins; send the header " + HEADER)
    check(server, BODY, {}, "end of file expected")


@pytest.mark.parametrize("second", [SIZE, 5])
def test_header_given_twice_is_refused(server, second):
    names = (HEADER, HEADER.lower())
    request = requests.Request("POST", server.url + "/v2/models/d2l/infer", data=BODY).prepare()
    request.headers = {"Content-Length": str(len(BODY)), names[0]: str(SIZE),
                       names[1]: str(second)}
    assert_error(requests.Session().send(request, timeout=60), 400, HEADER + " appears twice")


def test_header_may_count_the_whole_body_and_have_leading_zeros(server):
    body = json.dumps(GOOD)
    unpack(post(server, "d2l", body, {HEADER: str(len(body))}))
    unpack(post(server, "d2l", BODY, {HEADER: f"000{SIZE}"}))


# --- everything else under /v2 ---

@pytest.mark.parametrize("path", [
    "/v2/", "/v2/health", "/v2/health/liver", "/v2/models", "/v2/models/", "/v2/models//infer",
    "/v2/models/d2l/", "/v2/models/d2l/versions", "/v2/models/d2l/versions//infer",
    "/v2/models/d2l/versions/1/", "/v2/models/d2l/versions/1/load", "/v2/models/d2l/infer/",
    "/v2/models/d2l/generate", "/v2/repository/models/d2l", "/v2/repository",
    "/v2/systemsharedmemory/status", "/v2/models/../../etc/passwd"])
def test_unknown_route_is_404(server, path):
    for method in ("GET", "POST"):
        prepared = requests.Request(method, server.url, data=b"").prepare()
        prepared.url = server.url + path
        assert_error(requests.Session().send(prepared, timeout=60), 404, "Unknown route")


@pytest.mark.parametrize("name", ["D2L", "nobody", "x" * 10000, "d2l%20", "%ff%fe", "*", "..",
                                  "%2e%2e", "d2l.safetensors", "d2l%2fready"])
@pytest.mark.parametrize("rest", ["", "/config", "/stats", "/ready", "/versions/1"])
def test_unknown_model_is_404(server, name, rest):
    prepared = requests.Request("GET", server.url).prepare()
    prepared.url = f"{server.url}/v2/models/{name}{rest}"
    error = requests.Session().send(prepared, timeout=60)
    assert_error(error, 404, "Unknown model: there is no model")


def test_infer_of_unknown_model_or_version_is_404(server):
    assert_error(post(server, "nobody", BODY, {HEADER: str(SIZE)}), 404, "Unknown model")
    for version in ("2", "0", "01", "latest", "-1"):
        path = "/v2/models/{}/versions/" + version + "/infer"
        assert_error(post(server, "d2l", BODY, {HEADER: str(SIZE)}, path), 404,
                     f"model 'd2l' has no version '{version}'")


def test_errors_before_the_body_have_the_same_format(server):
    assert_error(post(server, "d2l", BODY, {"Content-Type": "text/plain"}), 415,
                 "application/json or application/octet-stream")
    assert_error(post(server, "d2l", BODY, {"Content-Encoding": "gzip"}), 415,
                 "Content-Encoding 'gzip' is not supported")
    assert_error(post(server, "d2l", b" " * ((1 << 20) + 1), {}), 413, "Body too large")
    assert_error(post(server, "d2l", BODY, {"Expect": "200-maybe"}), 417, "Expectation failed")


def test_request_and_reply_over_their_limits_are_413(start_server, tmp_path):
    write_layer(tmp_path / "d2l.safetensors", num_heads=2, head_size=2, query_size=4)
    server = start_server("--model", f"d2l={tmp_path}/d2l.safetensors", "--max-memory", 16 << 20)
    rows = np.zeros((1, 786432, 4), np.float16)  # 6 MiB, and 12 as float32
    check(server, *pack([tensor("queries", rows, "FP16", binary=True)]),
          "Request too large: request, results and reply would need", 413)
    rows = np.zeros((1, 1 << 17, 4), np.float32)
    check(server, *pack([tensor("queries", rows, binary=True)],
                        outputs=[{"name": "attention_weights"}]), "Reply too large", 413)


# --- any bytes ---

ANY = settings(max_examples=100, derandomize=True, deadline=None, database=None,
               suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_result_or_refusal(response):
    assert response.status_code in (200, 400, 413, 422), response.text
    if response.status_code == 200:
        unpack(response)
    else:
        assert_error(response, response.status_code, ": ")


@ANY
@given(st.data())
def test_damaged_request_gets_a_result_or_a_refusal(server, data):
    body, headers = pack([BINARY, tensor("valid_lens", [3, 1], "INT32")],
                         outputs=[{"name": "attention_weights"}, {"name": "outputs"}],
                         parameters={"binary_data_output": True})
    body = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        if data.draw(st.booleans()):
            body[at] = data.draw(st.integers(0, 255))
        else:
            del body[at]
    assert_result_or_refusal(post(server, "d2l", bytes(body), headers))


VALUES_OF_ANY_KIND = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) |
    st.sampled_from(["queries", "FP32", "outputs", [2, 3, 4]]),
    lambda values: st.lists(values, max_size=4) |
    st.dictionaries(st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), values,
                    max_size=4), max_leaves=15)


@ANY
@given(st.lists(st.tuples(st.sampled_from(["shape", "datatype", "data", "name", "parameters"]),
                          VALUES_OF_ANY_KIND), max_size=3),
       st.dictionaries(st.sampled_from(["id", "outputs", "parameters"]), VALUES_OF_ANY_KIND))
def test_request_with_any_member_gets_a_result_or_a_refusal(server, changes, members):
    request = copy.deepcopy(GOOD) | members
    for key, value in changes:
        request["inputs"][0][key] = value
    assert_result_or_refusal(post(server, "d2l", json.dumps(request), {}))
