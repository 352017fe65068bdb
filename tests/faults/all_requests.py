# SPDX-License-Identifier: Apache-2.0
"""One request for each path through attnd, as bytes. All are for `attnd --demo`."""

import functools
import json

import numpy as np

from http1 import get_bytes, post_bytes
from oip import HEADER, pack, tensor
from safetensors_file import make_safetensors

ROWS = [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64]]
INFER = "/v2/models/journey/infer"
SAFETENSORS = "application/vnd.safetensors"


def native(queries, model="journey", **members):
    return json.dumps({"model": model, "queries": queries} | members).encode()


def post_as(media_type, body, *headers, path="/v1/attention"):
    data = post_bytes(body, *headers, path=path)
    return data.replace(b"application/json", media_type.encode(), 1)


def chunked(body, size):
    """Returns a POST whose body arrives in chunks of `size` bytes."""
    chunks = [body[at:at + size] for at in range(0, len(body), size)]
    head = ("POST /v1/attention HTTP/1.1\r\nHost: attnd\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n").encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def infer(binary, inputs=(), **members):
    inputs = [tensor("queries", np.array([ROWS], np.float32), binary=binary), *inputs]
    body, headers = pack(inputs, **members)
    lines = [f"{name}: {value}" for name, value in headers.items()]
    return post_as("application/octet-stream" if headers else "application/json", body, *lines,
                   path=INFER)


@functools.cache
def make_requests():
    """Returns a dict of name to (bytes, the status of their reply when nothing fails)."""
    rng = np.random.default_rng(1)
    many = rng.normal(size=(200, 100)).round(3).tolist()
    body = native(ROWS, need_weights=True, causal=False, valid_lens=2, head_mask=[1, 0.5])
    packed = make_safetensors({"queries": np.array(ROWS)}, "F32", {"model": "journey"})
    seen = np.array([[True, False, False], [True, False, True], [False, True, True]])
    masked = make_safetensors({"queries": np.array(ROWS), "attn_mask": seen, "prefix_lens": [2]},
                              {"queries": "F32", "attn_mask": "BOOL", "prefix_lens": "I64"}, {"model": "journey"})
    half = make_safetensors({"queries": np.array(ROWS)}, "F16",
                            {"model": "journey", "need_weights": "true"})
    binary_outputs = [{"name": "outputs", "parameters": {"binary_data": True}}]
    posts = {
        "native": post_bytes(body),
        "ragged": post_bytes(native([ROWS, ROWS[:2]], valid_lens=[[1, 2, 3], [1, 2]])),
        "large body": post_bytes(native(many, "d2l")),
        "streamed reply": post_bytes(native(many, "d2l", need_weights=True)),
        "chunked": chunked(body, 40),
        "expect": post_bytes(body, "Expect: 100-continue"),
        "bias": post_bytes(native(ROWS, bias=[[0, -1, None]], prefix_lens=2)),
        "attn_mask": post_bytes(native(ROWS, attn_mask=seen.tolist())),
        "attn_mask, safetensors": post_as(SAFETENSORS, masked),
        "bias, OIP": infer(False, inputs=[tensor("bias", np.array([0.5, -1, 2]))]),
        "attn_mask, OIP binary": infer(True, inputs=[tensor("attn_mask", seen, "BOOL", True)]),
        "safetensors": post_as(SAFETENSORS, packed),
        "safetensors, F16 and JSON reply": post_as(SAFETENSORS, half, "Accept: application/json"),
        "OIP, JSON": infer(False),
        "OIP, binary": infer(True, outputs=binary_outputs, id="one"),
        "heads": post_bytes(body, path="/v1/heads"),
        "index": post_bytes(b'{"ready":true}', path="/v2/repository/index"),
    }
    gets = ("/v1/models", "/v1/models/journey", "/v2", "/v2/health/live", "/v2/health/ready",
            "/v2/models/stats", "/v2/models/journey", "/v2/models/journey/ready",
            "/v2/models/journey/stats", "/metrics", "/openapi.json", "/ui.css")
    refused = {
        "unknown route": (get_bytes("/nothing"), 404),
        "wrong method": (post_bytes(b"", path="/v1/models"), 405),
        "page of another site": (get_bytes("/v1/models", "Origin: https://evil.example"), 403),
        "unknown key": (post_bytes(b'{"model":"journey","querys":[]}'), 400),
        "not JSON": (post_bytes(b"{"), 400),
        "numbers out of range": (post_bytes(native([[1e38, 1e38, 1e38]] * 2)), 422),
        "OIP, wrong shape": (post_bytes(b'{"inputs":[]}', path=INFER), 400),
        "other media type": (post_as("text/plain", body), 415),
        "too large": (post_bytes(b" " * 2000000), 413),
        "ambiguous": (post_bytes(body, "Content-Length: 5"), 400),
    }
    return ({name: (data, 200) for name, data in posts.items()} |
            {path: (get_bytes(path), 200) for path in gets} | refused)


def make_repeatable():
    """Returns a dict of name to bytes: the requests whose replies are always the same. Statistics
    and metrics are not."""
    return {name: data for name, (data, _) in make_requests().items()
            if not name.endswith(("/stats", "/metrics"))}
