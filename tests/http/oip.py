# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol by hand: requests in JSON and binary, and replies."""

import json

import numpy as np
import requests

HEADER = "Inference-Header-Content-Length"
NUMPY = {"FP32": np.float32, "FP16": np.float16, "FP64": np.float64, "INT32": np.int32,
         "INT64": np.int64, "BOOL": np.bool_}


def bfloat16_bytes(array):
    """Returns the upper halves of float32: truncated, not rounded."""
    return (np.asarray(array, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


def tensor(name, array, datatype="FP32", binary=False, flat=True):
    """Returns an input and its binary data (b"" if its data is JSON)."""
    array = np.asarray(array)
    entry = {"name": name, "shape": list(array.shape), "datatype": datatype}
    if not binary:
        return entry | {"data": (array.flatten() if flat else array).tolist()}, b""
    data = bfloat16_bytes(array) if datatype == "BF16" else array.astype(NUMPY[datatype]).tobytes()
    return entry | {"parameters": {"binary_data_size": len(data)}}, data


def pack(inputs, pad=None, **members):
    """Returns body and headers of (input, binary data) pairs. With `pad`, spaces after the JSON
    move the first binary data to an offset that is `pad` modulo 4."""
    text = json.dumps({"inputs": [entry for entry, _ in inputs]} | members).encode()
    if pad is not None:
        text += b" " * ((pad - len(text)) % 4)
    data = b"".join(data for _, data in inputs)
    return text + data, {HEADER: str(len(text))} if data else {}


def post(server, model, body, headers, path="/v2/models/{}/infer"):
    return requests.post(server.url + path.format(model), data=body, headers=headers, timeout=60)


def unpack(response):
    """Returns the JSON of a reply and its tensors by name. Checks that headers and sizes agree."""
    assert response.status_code == 200, response.text
    size = int(response.headers.get(HEADER, len(response.content)))
    reply, data = json.loads(response.content[:size]), response.content[size:]
    tensors = {}
    for output in reply["outputs"]:
        assert output["datatype"] == "FP32"
        binary_size = output.get("parameters", {}).get("binary_data_size")
        if binary_size is None:
            array = np.array(output["data"], np.float32)
        else:
            array, data = np.frombuffer(data[:binary_size], "<f4"), data[binary_size:]
        tensors[output["name"]] = array.reshape(output["shape"])
    assert data == b""
    assert (HEADER in response.headers) == (
        response.headers["Content-Type"] == "application/octet-stream")
    return reply, tensors


def assert_error(response, status, contains):
    """Checks an error in the format of the protocol, which all errors of /v2 have."""
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/json"
    reply = response.json()
    assert list(reply) == ["error"] and contains in reply["error"], reply
    return reply["error"]
