# SPDX-License-Identifier: Apache-2.0
"""Files that are dropped besides requests and captures: arrays, pictures that the page has saved, and weights."""

import io
import json
import shlex
import subprocess
import sys

import numpy as np
import pytest
from playwright.sync_api import expect

from checkpoints import LAYOUTS, random_tensors
from safetensors_file import make_safetensors
from server import run_attnd
from test_captured_page import find_weights, make_request, read_weights
from test_look import assert_accessible
from test_use import HOSTILE, drop, wait_for_about
from view import JOURNEY_ROWS, ask_journey, choose, expect_problem, forget_picture, read_cell, read_table, save


def make_npy(array, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), **options)
    return file.getvalue()


# --- arrays of NumPy ---

@pytest.mark.parametrize("dtype, version", [("<f4", (1, 0)), ("<f8", (2, 0)), ("<f2", (1, 0))])
def test_array_is_the_queries_of_a_model_that_they_fit(open_link, server, dtype, version):
    page, rows = open_link("#model=patterns"), np.array(JOURNEY_ROWS, dtype)
    forget_picture(page)
    drop(page, "rows.npy", make_npy(rows, version=version))
    wait_for_about(page, "From rows.npy.")
    expect(page.locator("#facts")).to_contain_text("journey: 2 heads")
    expected = ask_journey(server, queries=rows.astype(float).tolist())[1]
    np.testing.assert_allclose(np.nan_to_num(read_weights(page)[0]), expected, atol=1e-6)
    expect(page.locator("#compare tbody tr")).to_have_count(2)


@pytest.mark.parametrize("content, words", [
    (make_npy(np.ones((2, 3), int)), "rows.npy: its numbers are <i8; save x.astype('float32')"),
    (make_npy(np.ones((2, 3), ">f4")), "its numbers are >f4"),
    (make_npy(np.array([{}]), allow_pickle=True), "its numbers are |O"),
    (make_npy(np.ones((2, 3)).T), "save np.ascontiguousarray(x)"),
    (make_npy(np.ones((2, 3)))[:-8], "it has 40 bytes of numbers, which is not shape (2, 3)"),
    (make_npy(np.ones((2, 3)))[:9], "rows.npy: ")])
def test_array_that_is_not_read_is_told_why(open_link, content, words):
    page = open_link("#model=journey")
    drop(page, "rows.npy", content)
    assert words in expect_problem(page, "Malformed file", "queries")


# --- what the page has saved ---

@pytest.mark.parametrize("fragment", ["#model=journey&causal=true&rows=1-4", "#model=d2l&sequence=1&heads=0,3"])
def test_saved_picture_is_shown_again_without_the_server(open_view, fragment):
    page = open_view(fragment)
    weights, saved = read_weights(page)
    cell, sent = read_cell(page), []
    expect(page.locator("#steps tbody tr").first).to_be_visible()  # what is asked last
    expect(page.locator("#compare tbody tr").first).to_be_visible()
    page.on("request", lambda request: sent.append(request.url) if request.url.startswith("http") else None)
    drop(page, "picture.json", json.dumps(saved).encode())
    expect(page.locator("#about")).to_contain_text("Weights that were saved of ")
    expect(page.locator("#facts")).to_contain_text("picture.json.")
    again, all_again = read_weights(page)
    np.testing.assert_array_equal(again, weights)
    for field in ("heads", "queries", "query_places", "keys"):
        assert all_again[field] == saved[field]
    assert read_cell(page)[1] == cell[1]
    assert [page.locator(each).is_hidden() for each in ("#rows", "#copy-curl", "[data-save=request]", "#tokens-title",
                                                        "#steps-title", "#outputs-title", "#compare")] == [True] * 7
    for kind in ("png", "svg", "csv", "html"):
        assert save(page, kind)[1]
    assert not sent
    choose(page, "model", "journey")
    expect(page.locator("#rows")).to_be_visible()


def test_saved_blocks_are_shown_again(open_view):
    page, names = open_view("#model=journey"), [f"{5 * i}-{5 * i + 4}" for i in range(100)]
    weights = np.tril(np.random.default_rng(5).random((1, 100, 100)).round(4))
    saved = {"model": HOSTILE, "sequence": 0, "heads": [3], "queries": names, "query_places": list(range(100)), "keys": names,
             "block": 5, "attention_weights": [[[x or None for x in row] for row in weights[0].tolist()]]}
    drop(page, HOSTILE, json.dumps(saved).encode())
    expect(page.locator("#about")).to_contain_text(f"saved of {HOSTILE}")
    shown, again = read_weights(page)
    np.testing.assert_allclose(np.nan_to_num(shown), weights, rtol=1e-6)
    assert again["block"] == 5 and page.locator("#readout").inner_text().split()[1:3] == ["queries", "300-304"]
    assert page.locator("#zoom-in").is_hidden() and page.locator("#main img").count() == 0


def test_json_that_only_resembles_a_saved_picture_is_a_request(open_link):
    page = open_link("#model=journey")
    saved = json.loads(save(page, "json")[1])
    drop(page, "picture.json", json.dumps(saved | {"keys": saved["keys"][1:]}).encode())
    assert "is not a key of a request" in expect_problem(page, "Unknown key")


# --- CSV ---

def test_csv_of_the_page_is_told_what_to_drop_instead(open_link):
    page = open_link("#model=journey")
    drop(page, *save(page, "csv"))
    assert "is a CSV of this page, with the weights of one head; save the picture as JSON, and drop that" \
        in expect_problem(page, "Another format", "queries")


def test_csv_of_rows_becomes_an_array_by_the_line_that_is_shown(open_link, tmp_path):
    page = open_link("#model=journey")
    (tmp_path / "q.csv").write_text("\n".join(",".join(map(str, row)) for row in JOURNEY_ROWS))
    drop(page, "q.csv", (tmp_path / "q.csv").read_bytes())
    _, command, script, name = shlex.split(expect_problem(page, "Another format", "queries").split("drop that: ")[1])
    assert command == "-c"
    subprocess.run([sys.executable, "-c", script, name], cwd=tmp_path, check=True, timeout=60)
    forget_picture(page)
    drop(page, "q.csv.npy", (tmp_path / "q.csv.npy").read_bytes())
    wait_for_about(page, "From q.csv.npy.")
    assert page.locator("#problem").is_hidden()


# --- weights ---

@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_are_listed_with_their_layout_and_what_serves_them(open_link, tmp_path, layout):
    page, rng = open_link("#model=journey"), np.random.default_rng(1)
    tensors = {name: np.asarray(value) for name, value in random_tensors(rng, layout, 2, 4).items()}
    path = tmp_path / "my layer.safetensors"
    path.write_bytes(make_safetensors(tensors, "F16"))
    drop(page, path.name, path.read_bytes())
    expect(page.locator("#file-title")).to_be_focused()
    assert page.locator("#file-title").inner_text() == "my layer.safetensors has weights"
    assert page.locator("#problem").is_hidden()
    assert read_table(page, "#file-box table")[1:] == [
        [name, " × ".join(map(str, value.shape)), "F16"] for name, value in tensors.items()]

    command = shlex.split(page.locator("#file-box code").inner_text())
    assert command[:2] == ["attnd", "--model"] and command[2].startswith("my-layer=my layer.safetensors")
    argument = command[2].removeprefix("my-layer=").replace("...", "2")
    found = run_attnd("inspect", argument, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    told = page.locator("#file-box > p").first.inner_text()
    assert f"layout {told.split('layout ')[1].split('.')[0]}" == found.stdout.splitlines()[0].split(": ")[1]
    choose(page, "causal", "true")
    drop(page, "rows.json", json.dumps({"queries": JOURNEY_ROWS}).encode())
    expect(page.locator("#file-box")).to_be_hidden()


def test_weights_of_blocks_name_a_prefix_and_of_a_model_a_folder(open_view):
    page, rng = open_view("#model=journey"), np.random.default_rng(2)
    layer = random_tensors(rng, "nanogpt", 2, 4)
    drop(page, "gpt.safetensors", make_safetensors({f"h.{i}.attn.{name}": value for i in (0, 1) for name, value in layer.items()},
                                                   metadata={"num_heads": "2"}))
    box = page.locator("#file-box")
    expect(box).to_contain_text("2 layers, the first of layout nanogpt. This line serves it. A whole model of Hugging Face")
    assert page.locator("#file-box code").inner_text() == "attnd --model gpt='gpt.safetensors',prefix=h.0.attn."
    assert_accessible(page)
    drop(page, HOSTILE, make_safetensors({f"layers.0.{HOSTILE}": np.ones(2)}))
    expect(box).to_contain_text("No layout of a single layer fits these names. A whole model")
    assert box.locator("code").is_hidden() and box.locator("img").count() == 0


# --- queries and keys without a layer ---

def test_queries_and_keys_by_head_are_a_capture(open_view, server):
    page, request = open_view("#model=journey"), make_request(np.random.default_rng(3), 5, 7, scale=0.4, causal=False)
    forget_picture(page)
    content = make_safetensors({name: request[name] for name in ("queries", "keys")}, metadata={"scale": "0.4"})
    drop(page, "qk.safetensors", content)
    wait_for_about(page, "Queries and keys of qk.safetensors.")
    np.testing.assert_allclose(read_weights(page)[0], find_weights(request), atol=1e-6)


def test_error_in_a_dropped_file_names_it(open_link):
    page = open_link("#model=journey")
    drop(page, "rows.json", b"{'queries': [[1, 2, 3]]}")
    text = expect_problem(page, "Malformed JSON", "queries")
    assert "rows.json: line 1, column 2: " in text and "double quotes" in text
