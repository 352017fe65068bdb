# SPDX-License-Identifier: Apache-2.0
"""Notes on rows that come from the wrong side of the norm before a layer."""

import numpy as np
import pytest
import requests

from folders import FOLDERS
from oip import pack, post, tensor, unpack
from safetensors_file import read_safetensors
from server import Server

CASES = {name: read_safetensors(FOLDERS / name / "cases.safetensors") for name in ("gpt2", "llama", "modernbert")}
TWICE, NEVER = "applied again; send hidden states", "was not applied to them"
HEADER = "Attnd-Note"


@pytest.fixture(scope="module")
def server():
    models = [word for name in CASES for word in ("--model", f"{name}={FOLDERS / name}",
                                                  "--model", f"{name}-behind={FOLDERS / name},pre_norm=false")]
    with Server(*models) as running:
        yield running


def rows(name, part, kind):
    return CASES[name][f"{part}/{kind}"]


def note_of(response):
    """The note of a reply, which its JSON has too."""
    assert response.status_code == 200, response.text
    notes = response.json().get("notes")
    assert notes == ([response.headers[HEADER]] if HEADER in response.headers else None)
    return notes[0] if notes else None


@pytest.mark.parametrize("route", ["attention", "heads"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_both_mistakes_are_noted_and_nothing_else(server, name, route):
    def ask(model, kind, count=13):
        queries = rows(name, "0", kind)[0, :count] * (1 if kind == "queries" else 9)
        return note_of(getattr(server, route)({"model": f"{model}.0", "queries": queries.tolist()}))
    assert TWICE in ask(name, "queries") and NEVER in ask(f"{name}-behind", "hidden")
    assert ask(name, "hidden") is ask(f"{name}-behind", "queries") is None
    assert ask(name, "queries", 3) is ask(f"{name}-behind", "hidden", 3) is None
    assert TWICE in ask(name, "queries", 4)


def test_binary_replies_have_a_header(server):
    queries = rows("gpt2", "0", "queries")[0].astype(np.float32)
    reply = requests.post(server.url + "/v1/attention", json={"model": "gpt2.0", "queries": queries.tolist()},
                          headers={"Accept": "application/vnd.safetensors"}, timeout=60)
    assert reply.headers["Content-Type"] == "application/vnd.safetensors" and TWICE in reply.headers[HEADER]
    body, headers = pack([tensor("queries", queries)])
    reply = post(server, "gpt2.0", body, headers)
    assert TWICE in reply.headers[HEADER] and "notes" not in unpack(reply)[0]


def test_large_reply_that_comes_in_pieces_has_it_too(server):
    queries = np.tile(rows("gpt2", "0", "queries")[0], (20, 1))
    reply = server.attention({"model": "gpt2.0", "queries": queries.tolist(), "need": ["weights"]})
    assert len(reply.content) > 256 * 1024 and TWICE in note_of(reply)


def test_refused_request_has_none(server):
    queries = rows("gpt2", "0", "queries")[0].tolist()
    reply = server.attention({"model": "gpt2.0", "queries": queries, "window": -1})
    assert reply.status_code == 400 and HEADER not in reply.headers


def test_layer_without_a_norm_takes_rows_as_they_are(server):
    """The first one of modernbert has none, so what is before it is what its projection gets."""
    models = {model["name"]: model["queries"] for model in server.get("/v1/models").json()["models"]}
    assert models["modernbert.0"] == models["modernbert-behind.0"] == "hidden states as they are"
    assert models["modernbert.1"] == "hidden states before the norm"
    assert models["modernbert-behind.1"] == "hidden states behind the norm"
    for model, factor in ("modernbert.0", 1), ("modernbert-behind.0", 100):
        queries = rows("modernbert", "0", "queries")[0] * factor
        assert note_of(server.attention({"model": model, "queries": queries.tolist()})) is None
