# SPDX-License-Identifier: Apache-2.0
"""No HTTP thread prints more than 64 KiB for one request: it would serve nobody else meanwhile. Longer texts are
printed once per change, or per 100 ms, and shared, or a worker prints them. What is printed needs a block of memory,
and preload.c counts the large ones of HTTP threads."""

import json

import numpy as np
import pytest

from checkpoints import write_layer
from fault import faulty_server, why_not
from http1 import Connection, get_bytes, post_bytes
from server import ROOT
from stored import Layer, head_bytes, make_file

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

LARGE = 64 * 1024
MODELS = [f"{i:03}-" + "m" * 60 for i in range(1000)]  # names are as long as they may be
CAPTURES, LAYERS = 250, 400
COUNTS = ("/v2/models/stats", "/metrics")  # texts that change, but are up to 100 ms old


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    write_layer(path / "first.safetensors", 2, 2, 4)
    for name in MODELS:
        (path / f"{name}.safetensors").hardlink_to(path / "first.safetensors")
    (path / "first.safetensors").unlink()
    return path


def make_captures():
    layers = {f"{'layer' * 12}{i}": Layer({"keys": np.zeros((1, 1, 1))}) for i in range(LAYERS)}
    return {f"{i:03}-" + "c" * 124: make_file(layers, tokens=i) for i in range(CAPTURES)}


def all_requests(captures):
    """Returns a list of (what, request) for every path of openapi.json, as it is and with names that nothing has, by
    each method that an HTTP thread answers itself."""
    requests = []
    for path in json.loads((ROOT / "docs/openapi.json").read_text())["paths"]:
        names = (next(iter(captures)), "nobody") if path.startswith("/v1/captures") else (MODELS[0], "n" * 4000)
        for name in names if "{" in path else names[:1]:
            filled = path.replace("{model}", name).replace("{name}", name).replace("{version}", "1")
            assert "{" not in filled, path
            requests += [(f"GET {path}", get_bytes(filled)),
                         (f"HEAD {path}", get_bytes(filled).replace(b"GET", b"HEAD", 1)),
                         (f"PATCH {path}", get_bytes(filled).replace(b"GET", b"PATCH", 1))]
    for body in (b"{}", b'{"ready":true}', b"[]"):
        requests.append(("index", post_bytes(body, path="/v2/repository/index")))
    for change in ("load", "unload"):
        requests.append((change, post_bytes(b"{}", path=f"/v2/repository/models/{MODELS[0]}/{change}")))
    return [*requests, ("unknown", get_bytes("/" + "x" * 4000))]


def exchange(connection, what, request):
    connection.send(request)
    reply = connection.read_reply(head_only=what.startswith("HEAD"))
    assert reply is not None, what
    return reply


def test_no_route_prints_much_for_one_request(folder):
    captures = make_captures()
    with faulty_server("--model-dir", folder, "--capture-memory", "256MiB", "--idle-timeout", 3600, "--http-threads",
                       1) as (server, control), Connection(server.port, timeout=120) as connection:
        for name, file in captures.items():
            put = head_bytes("PUT", f"/v1/captures/{name}", len(file)) + file
            assert exchange(connection, "PUT", put).status == 201
        requests = all_requests(captures)
        for what, request in requests:
            exchange(connection, what, request)

        printed, large = set(), set()
        for what, request in requests:
            before = control.large
            reply = exchange(connection, what, request)
            if control.large != before and not what.endswith(COUNTS):
                printed.add(what)
            if int(reply.headers.get("content-length", 0)) > LARGE:
                large.add(what.split()[-1])
        print(f"{len(requests)} requests; these have more than 64 KiB: {', '.join(sorted(large))}")
        assert printed == set()
        assert large >= {"/v1/models", "index", "/openapi.json", *COUNTS}


def test_texts_that_count_are_printed_seldom(folder):
    """Of 200 requests for each. Were they made for each, they would need as many blocks at least."""
    with faulty_server("--model-dir", folder, "--http-threads", 1) as (server, control), \
            Connection(server.port, timeout=120) as connection:
        for path in COUNTS:
            before = control.large
            connection.send(get_bytes(path).replace(b"GET", b"HEAD", 1) * 200)
            sizes = [int(connection.read_reply(head_only=True).headers["content-length"]) for _ in range(200)]
            assert min(sizes) > LARGE
            print(f"{path}: {control.large - before} blocks for 200 replies of {max(sizes)} bytes")
            assert control.large - before < 100
