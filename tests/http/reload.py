# SPDX-License-Identifier: Apache-2.0
"""Replaces models of a server that runs, and looks at what it serves then."""

import json
import os
import signal
import time

import requests

from safetensors_file import make_raw


def replace(path, write):
    """Puts a file in the place of another as an operator should: written beside it, then renamed."""
    new = path.with_suffix(".new")
    write(new)
    new.rename(path)


def reload(server):
    server.process.send_signal(signal.SIGHUP)


def wait_until(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.01)


def wait_for_log(server, text, count=1):
    wait_until(lambda: server.read_log().count(text) >= count, f"{count} times {text!r}")


def context_lengths(server):
    return {model["name"]: model["context_length"]
            for model in server.get("/v1/models").json()["models"]}


def names(server):
    return sorted(context_lengths(server))


def index(server):
    reply = requests.post(server.url + "/v2/repository/index", timeout=60)
    return {entry["name"]: (entry["state"], entry["reason"]) for entry in reply.json()}


def write_huge_layer(path, size=1 << 38):
    """Writes the header of a layer of some `size` bytes, and a hole for its weights."""
    width, header, end = int((size / 16) ** 0.5) // 8 * 8, {"__metadata__": {"num_heads": "8"}}, 0
    for name in ("W_q", "W_k", "W_v", "W_o"):
        size = width * width * 4
        header[f"{name}.weight"] = {"dtype": "F32", "shape": [width, width],
                                    "data_offsets": [end, end + size]}
        end += size
    head = make_raw(json.dumps(header).encode(), b"")
    path.write_bytes(head)
    os.truncate(path, len(head) + end)


def write_wide_layer(path):
    """Writes a layer that takes some 0.3 s to load."""
    write_huge_layer(path, size=1 << 26)
