# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol by hand: requests in JSON and binary, and replies."""

import json

import numpy as np
import requests

HEADER = "Inference-Header-Content-Length"
NUMPY = {"FP32": np.float32, "FP16": np.float16, "FP64": np.float64, "INT32": np.int32,
         "INT64": np.int64}


def bfloat16_bytes(array):
    """The upper halves of float32, cut off."""
    return (np.asarray(array, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


def tensor(name, array, datatype="FP32", binary=False, flat=True):
    """An input, and its binary data (b"" when it is JSON)."""
    array = np.asarray(array)
    told = {"name": name, "shape": list(array.shape), "datatype": datatype}
    if not binary:
        return told | {"data": (array.flatten() if flat else array).tolist()}, b""
    data = bfloat16_bytes(array) if datatype == "BF16" else array.astype(NUMPY[datatype]).tobytes()
    return told | {"parameters": {"binary_data_size": len(data)}}, data


def pack(inputs, pad=None, **members):
    """Body and headers of (input, binary data) pairs. With `pad`, spaces after the JSON bring the
    first binary data to an address of that remainder by 4."""
    text = json.dumps({"inputs": [told for told, _ in inputs]} | members).encode()
    if pad is not None:
        text += b" " * ((pad - len(text)) % 4)
    data = b"".join(data for _, data in inputs)
    return text + data, {HEADER: str(len(text))} if data else {}


def post(server, model, body, headers, path="/v2/models/{}/infer"):
    return requests.post(server.url + path.format(model), data=body, headers=headers, timeout=60)


def unpack(response):
    """The reply's JSON, and its tensors by name; checks that all of it agrees."""
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
    """An error as the protocol tells it; those about /v2 have no other form."""
    assert response.status_code == status, response.text
    assert response.headers["Content-Type"] == "application/json"
    answer = response.json()
    assert list(answer) == ["error"] and contains in answer["error"], answer
    return answer["error"]
