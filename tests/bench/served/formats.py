# SPDX-License-Identifier: Apache-2.0
"""What is sent to a server and what it replies, in each format. Numbers in JSON are the shortest
that are read as the same float32."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "http"))

from oip import pack, tensor, unpack
from safetensors_file import make_safetensors, parse_safetensors

SAFETENSORS = "application/vnd.safetensors"


class Format(NamedTuple):
    """A way to ask: `encode` returns body and headers for arrays by name, `decode` the outputs."""
    name: str
    path: str
    encode: object
    decode: object


def shorten(array):
    """Returns doubles that are printed with the digits of the shortest float32."""
    return array.astype(str).astype(float) if array.dtype == np.float32 else array


def encode_json(inputs):
    lists = {name: shorten(array).tolist() for name, array in inputs.items()}
    return json.dumps(lists, separators=(",", ":")).encode(), {"Content-Type": "application/json"}


def decode_json(response):
    return np.array(response.json()["outputs"])


def encode_safetensors(inputs):
    types = {name: "F32" if array.dtype == np.float32 else "I32" for name, array in inputs.items()}
    return make_safetensors(inputs, types), {"Content-Type": SAFETENSORS}


def decode_safetensors(response):
    return parse_safetensors(response.content)[0]["outputs"]


def datatype(array):
    """Returns the protocol's name."""
    return "FP32" if array.dtype == np.float32 else "INT32"


def encode_oip(inputs, binary, columns):
    """With `columns`, tensors of one axis get another."""
    if columns:
        inputs = {name: array.reshape(len(array), -1) if array.ndim == 1 else array
                  for name, array in inputs.items()}
    tensors = [tensor(name, array if binary else shorten(array), datatype(array), binary)
               for name, array in inputs.items()]
    if not binary:
        body, headers = pack(tensors)
        return body, headers | {"Content-Type": "application/json"}
    wanted = {"name": "outputs", "parameters": {"binary_data": True}}
    body, headers = pack(tensors, pad=0, outputs=[wanted])
    return body, headers | {"Content-Type": "application/octet-stream"}


def decode_oip(response):
    return unpack(response)[1]["outputs"]


def plain_json(path):
    return Format("JSON", path, encode_json, decode_json)


SAFETENSORS_FORMAT = Format("safetensors", "/v1/attention", encode_safetensors, decode_safetensors)


def oip_format(name, columns=False):
    return Format(name, "/v2/models/layer/infer",
                  partial(encode_oip, binary=name != "JSON", columns=columns), decode_oip)
