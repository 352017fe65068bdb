# SPDX-License-Identifier: Apache-2.0
"""Files of captured queries and keys, as Captured.save() of the package writes them: dropped, and drawn."""

import contextlib
import json
import re

import numpy as np
import pytest
import requests
from playwright.sync_api import expect

from captures import capture, compute_weights, recorded_layers
from safetensors_file import make_safetensors
from server import Server
from test_use import HOSTILE, drop, open_first_head, wait_for_about
from view import View, choose, expect_problem, forget_picture, move_by_keys, read_cell, read_number, save

WORDS = "<s> ▁The ▁quick Ġbrown ĠfÃ¼x jumps ▁Über Ċ ▁the ▁dog".split()


def make_request(rng, num_queries=10, num_keys=10, key_heads=2, **options):
    """Returns what a capture keeps of a call: heads of which two share keys."""
    return {"queries": rng.normal(size=(num_queries, 2 * key_heads, 8)).astype(np.float32),
            "keys": rng.normal(size=(num_keys, key_heads, 8)).astype(np.float32), **options}


def make_file(path, layers, tokens=None):
    """Returns the bytes of a capture."""
    capture.Captured({name: [request] for name, request in layers.items()}, tokens).save(path / "text.safetensors", overwrite=True)
    return (path / "text.safetensors").read_bytes()


def find_weights(request):
    """Returns [H, Tq, Tk] of a request, masked ones NaN."""
    weights = compute_weights(**request)
    return np.where(weights == 0, np.nan, weights)


def read_weights(page):
    """Returns the weights on screen as the page saves them, masked ones NaN, and all that it saves."""
    saved = json.loads(save(page, "json")[1])
    return np.array(saved["attention_weights"], float), saved


def move_by_blocks(page, *keys):
    """Returns (weight, queries, keys) of the block that is read out."""
    page.locator("#heatmap").focus()
    for key in keys:
        page.keyboard.press(key)
    weight, queries, keys = re.match(r"(\S+) queries (\S+) → keys (\S+)$", page.locator("#readout").inner_text()).groups()
    return weight, queries, keys


@contextlib.contextmanager
def opened_bare_page(browser, *options):
    """Yields the page of a server without any model."""
    with Server(*options) as server:
        view = View(browser, server)
        view.page.goto(server.url)
        view.page.view = view
        expect_problem(view.page, "No model is loaded.")
        yield view.page
        view.close()


@pytest.fixture
def bare_page(browser):
    with opened_bare_page(browser) as page:
        yield page


def test_capture_is_drawn_without_a_model(bare_page, tmp_path):
    page, rng = bare_page, np.random.default_rng(1)
    layers = {"3": make_request(rng, scale=0.3, causal=True, window=4),
              "14": make_request(rng, scale=0.5, causal=False, softcap=3.0,
                                 sinks=np.array([0, 1, -1, 2], np.float32))}
    drop(page, "text.safetensors", make_file(tmp_path, layers, WORDS))
    open_first_head(page)
    wait_for_about(page, "Layer 3 of text.safetensors")
    assert page.locator("#problem").is_hidden() and page.locator("#steps-title").is_hidden()
    assert page.locator("#layer option").all_inner_texts() == ["3", "14"]
    assert "text.safetensors.3: 4 heads of 8, causal, 2 key heads, window 4" \
        in page.locator("#facts").inner_text()

    weights, saved = read_weights(page)
    np.testing.assert_allclose(weights, find_weights(layers["3"]), atol=1e-6)
    assert saved["keys"] == saved["queries"] == "<s> The quick brown füx jumps Über ↵ the dog".split()
    assert page.locator("#grid .card").count() == 5 and page.locator("#grid input").first.is_hidden()
    weight, row, key = move_by_keys(page, "Home", "PageDown", *["ArrowDown"] * 10, "End")
    assert (row, key) == (9, 9) and abs(weight - weights[1, 9, 9]) < 5.1e-5
    assert "query dog (row 9) → key dog (9)" in page.locator("#readout").inner_text()
    assert move_by_keys(page, "Home") == (None, 9, 0)

    choose(page, "layer", "text.safetensors.14")
    np.testing.assert_allclose(read_weights(page)[0], find_weights(layers["14"]), atol=1e-6)
    choose(page, "causal", "true")
    np.testing.assert_allclose(read_weights(page)[0], find_weights(layers["14"] | {"causal": True}), atol=1e-6)


def test_steps_of_generate_have_the_tokens_of_their_positions(open_view, tmp_path):
    page, rng = open_view("#model=journey"), np.random.default_rng(2)
    request = make_request(rng, 3, scale=0.3, causal=True, positions=np.array([7, 8, 9]))
    forget_picture(page)
    drop(page, "text.safetensors", make_file(tmp_path, {"0": request}, WORDS))
    wait_for_about(page, "Layer 0")
    weights, saved = read_weights(page)
    np.testing.assert_allclose(weights, find_weights(request), atol=1e-6)
    assert saved["queries"] == ["↵", "the", "dog"] and saved["keys"][:2] == ["<s>", "The"]
    choose(page, "model", "journey")
    assert page.locator("#source").is_visible() and page.locator("#outputs-title").is_visible()
    assert len(read_weights(page)[0]) == 2


@pytest.mark.parametrize("rows", [1, 10])
def test_keys_that_the_bias_hides_are_masked(open_view, tmp_path, rows):
    page, rng = open_view("#model=journey"), np.random.default_rng(3)
    bias = rng.normal(size=(4, rows, 10)).astype(np.float32)
    bias[:, :, 4] = bias[1:, :, 6] = -np.inf
    request = make_request(rng, scale=0.3, causal=False, bias=bias)
    forget_picture(page)
    drop(page, "text.safetensors", make_file(tmp_path, {"decoder.0": request}))
    wait_for_about(page, "Layer decoder.0")
    expected = find_weights(request)
    expected[1:, :, 6] = 0  # not masked in head 0
    np.testing.assert_allclose(read_weights(page)[0], expected, atol=1e-6)
    assert read_weights(page)[1]["queries"] == [str(i) for i in range(10)]


def test_command_of_a_capture_gets_what_is_on_screen(open_view, server, tmp_path):
    page, rng = open_view("#model=journey"), np.random.default_rng(4)
    request = make_request(rng, scale=0.3, causal=True)
    forget_picture(page)
    drop(page, "text.safetensors", make_file(tmp_path, {"0": request}))
    wait_for_about(page, "Layer 0")
    choose(page, "rows", "0-8, 9")
    name, body = save(page, "request")
    assert name == "text-safetensors-0-head-0.request.safetensors"
    reply = requests.post(f"{server.url}/v1/attention/dot-product", data=body, timeout=60,
                        headers={"Content-Type": "application/vnd.safetensors", "Accept": "application/json"})
    np.testing.assert_allclose(np.array(reply.json()["attention_weights"], float)[:, 9],
                               find_weights(request)[:, 9], atol=1e-6)


def test_recorded_families_are_drawn(open_view, tmp_path):
    """A layer of each family, in one file: the weights are eager's."""
    page = open_view("#model=journey")
    layers = {name.replace(" ", "/"): (request, weights) for name, request, weights, _ in recorded_layers()}
    chosen = {name.split("/")[0]: name for name in layers}.values()
    forget_picture(page)
    drop(page, "text.safetensors", make_file(tmp_path, {name: layers[name][0] for name in chosen}))
    open_first_head(page)
    wait_for_about(page, "Layer ")
    for name in chosen:
        if page.locator("#layer").input_value() != f"text.safetensors.{name}":
            choose(page, "layer", f"text.safetensors.{name}")
        request, weights = layers[name]
        shown = read_weights(page)[0]
        np.testing.assert_allclose(np.nan_to_num(shown), weights, atol=1e-5, err_msg=name)
        assert (np.isnan(shown) <= (find_weights(request) != find_weights(request))).all(), name


def mean_blocks(weights, size):
    """Returns what `blocks` has: sums over the keys of a block, means over its rows."""
    edges = np.arange(0, weights.shape[1], size)
    sums = np.add.reduceat(np.add.reduceat(np.nan_to_num(weights), edges, axis=2), edges, axis=1)
    return sums / np.diff(np.append(edges, weights.shape[1]))[:, None]


def test_long_capture_is_drawn_as_blocks_and_zoomed(bare_page, tmp_path):
    page, rng = bare_page, np.random.default_rng(5)
    request = make_request(rng, 2100, 2100, key_heads=1, scale=0.5, causal=True, window=500)
    tokens = [f"▁w{i}" for i in range(2100)]
    drop(page, "text.safetensors", make_file(tmp_path, {"7": request}, tokens))
    wait_for_about(page, "Layer 7")
    weights, saved = read_weights(page)
    exact = find_weights(request)
    assert saved["block"] == 5 and saved["queries"][:2] == saved["keys"][:2] == ["0-4", "5-9"]
    np.testing.assert_allclose(np.nan_to_num(weights), mean_blocks(exact, 5), atol=1e-6)
    rows, keys = np.mgrid[:420, :420]  # the last block that a row sees has 500 keys before its last row
    np.testing.assert_array_equal(np.isnan(weights[0]), (keys > rows) | (keys < rows - 100))
    assert page.locator("#advice").is_hidden()
    assert "A cell is a block of 5 queries and 5 keys" in page.locator("#grid-note").inner_text()
    page.locator("#row").select_option("600-604")
    _, row, key = move_by_blocks(page, "Home", *["ArrowRight"] * 20, "ArrowUp", "ArrowDown")
    assert (row, key) == ("600-604", "100-104")

    forget_picture(page)
    page.locator("#zoom-in").click()
    expect(page.locator("#rows")).to_have_value("570-633")
    expect(page.locator("#shown-keys")).to_have_value("70-133")
    page.view.wait()
    weights, saved = read_weights(page)
    assert saved["queries"][0] == "w570" and saved["keys"][0] == "w70" and saved["key_places"][-1] == 133
    np.testing.assert_allclose(weights, exact[:, 570:634, 70:134], atol=1e-6)
    weight, row, key = read_cell(page)
    assert row == 602 and abs(weight - np.nanmax(exact[0, 602, 70:134])) < 5.1e-5
    assert exact[0, 602, key] == np.nanmax(exact[0, 602, 70:134])
    assert f"query w602 (row 602) → key w{key} ({key})" in page.locator("#readout").inner_text()
    assert page.locator("#zoom-in").is_hidden()

    choose(page, "shown-keys", "")
    np.testing.assert_allclose(read_weights(page)[0], exact[:, 570:634], atol=1e-6)
    page.evaluate("document.getElementById('status').textContent = ''")
    forget_picture(page)
    page.locator("#zoom-out").click()
    page.view.wait()
    assert read_weights(page)[1]["block"] == 5

    page.locator("#shown-keys").fill("0-63")
    expect_problem(page, "Rows are missing", "shown-keys")
    page.locator("#rows").fill("3-9")
    expect(page.locator("#problem")).to_be_hidden()
    page.locator("#shown-keys").fill("2100")
    assert "keys are 0 to 2099" in expect_problem(page, "Out of range", "shown-keys")


def test_short_capture_is_zoomed_by_keyboard(open_view, tmp_path):
    page, rng = open_view("#model=journey"), np.random.default_rng(6)
    request = make_request(rng, 90, 100, scale=0.5, causal=False)
    drop(page, "text.safetensors", make_file(tmp_path, {"7": request}))
    wait_for_about(page, "Layer 7")
    page.wait_for_timeout(200)
    move_by_keys(page, "End")
    page.keyboard.press("Enter")
    expect(page.locator("#shown-keys")).to_have_value("36-99")
    expect(page.locator("#rows")).to_have_value("22-85")
    expect(page.locator("#row option")).to_have_count(64)
    np.testing.assert_allclose(read_weights(page)[0], find_weights(request)[:, 22:86, 36:], atol=1e-6)
    assert read_cell(page)[1] == 54  # the row that was chosen


def expect_colours(page, values):
    """Waits until the tokens have the colours of values: the larger, the darker."""
    values = np.nan_to_num(np.asarray(values, float))
    shares = (values / values.max() * 255 + 0.5).astype(int)  # the scale is linear
    for _ in range(100):
        found = page.eval_on_selector_all("#tokens span", """spans => spans.map(
            span => span.style.backgroundColor.match(/\\d+/g)?.map(Number) ?? [255, 255, 255])""")
        light = np.array(found) @ [0.2126, 0.7152, 0.0722]
        if len(light) == len(values) and (np.diff(light[np.argsort(shares, kind="stable")]) <= 1).all() \
                and light.argmin() in np.flatnonzero(shares == 255) and np.ptp(light) > 100:
            return
        page.wait_for_timeout(50)
    raise AssertionError((light.tolist(), shares.tolist()))


def test_text_has_colours_of_what_tokens_receive_and_of_a_row(bare_page, tmp_path):
    page, rng = bare_page, np.random.default_rng(7)
    request = make_request(rng, scale=0.6, causal=True)
    drop(page, "text.safetensors", make_file(tmp_path, {"0": request}, WORDS))
    wait_for_about(page, "Layer 0")
    assert page.locator("#tokens").text_content() == "<s> The quick brown füxjumps Über↵\n the dog"
    weights = np.nan_to_num(find_weights(request))
    expect_colours(page, weights[0].sum(axis=0))
    assert "receives from 10 queries in head 0" in page.locator("#tokens-note").inner_text()
    page.locator("#tokens span").nth(3).hover()
    text, value = page.locator("#tokens-readout").inner_text().split(": ")
    assert text == "brown (3)" and abs(read_number(value) - weights[0, :, 3].sum()) < 5.1e-5
    page.locator("#grid .card button").last.click()
    expect_colours(page, weights.mean(axis=0).sum(axis=0))

    page.locator("#grid .card button").nth(2).click()
    page.locator("#reading").select_option("row")
    page.locator("#tokens span").nth(8).hover()
    expect_colours(page, weights[2, 8])
    assert page.locator("#tokens-readout").inner_text() == f"the (8): {weights[2, 8, 8]:.4f}"
    assert "The weights of query 8 in head 2" in page.locator("#tokens-note").inner_text()
    page.locator("#tokens span").nth(5).click()
    assert read_cell(page)[1] == 5
    page.locator("#tokens-title").hover()
    expect_colours(page, weights[2, 5])
    move_by_keys(page, "ArrowDown")
    expect_colours(page, weights[2, 6])
    choose(page, "rows", "2-9")
    page.locator("#tokens span").nth(1).hover()  # a row that is asked for
    expect_colours(page, weights[2, 1])
    page.locator("#reading").select_option("received")
    expect_colours(page, weights[2, 2:].sum(axis=0))


def test_text_of_a_long_capture_asks_for_rows(open_view, tmp_path):
    page, rng = open_view("#model=journey"), np.random.default_rng(8)
    request = make_request(rng, 2000, 2200, key_heads=1, scale=0.5, causal=True, positions=np.arange(200, 2200))
    forget_picture(page)
    drop(page, "text.safetensors", make_file(tmp_path, {"7": request}, [f"▁w{i}" for i in range(2200)]))
    wait_for_about(page, "Layer 7")
    weights = np.nan_to_num(find_weights(request))
    expect_colours(page, weights[0].sum(axis=0))
    page.locator("#reading").select_option("row")
    assert "Point at a token" in page.locator("#tokens-note").inner_text()
    page.locator("#tokens span").nth(300).hover()
    expect_colours(page, weights[0, 100])
    assert "The weights of query 100 in head 0" in page.locator("#tokens-note").inner_text()


def test_text_asks_for_a_row_of_a_bias(open_view, tmp_path):
    page, rng = open_view("#model=journey"), np.random.default_rng(10)
    request = make_request(rng, scale=0.5, causal=False, bias=rng.normal(size=(1, 10, 10)).astype(np.float32))
    forget_picture(page)
    drop(page, "text.safetensors", make_file(tmp_path, {"0": request}, WORDS))
    wait_for_about(page, "Layer 0")
    choose(page, "shown-keys", "0-3")
    page.locator("#reading").select_option("row")
    page.locator("#tokens span").nth(7).hover()
    expect_colours(page, find_weights(request)[0, 7])


def test_text_of_word_pieces_has_spaces(open_view, tmp_path):
    """BERT's tokens have none; the pieces of a word but the first have ##."""
    page, rng = open_view("#model=journey"), np.random.default_rng(11)
    forget_picture(page)
    drop(page, "text.safetensors", make_file(tmp_path, {"0": make_request(rng, 5, 5, scale=0.5, causal=False)},
                                             "[CLS] the jump ##ing fox".split()))
    wait_for_about(page, "Layer 0")
    assert page.locator("#tokens").text_content() == "[CLS] the jumping fox"


def test_long_capture_with_a_sink_is_offered_the_logarithmic_scale(open_view, tmp_path):
    page, rng = open_view("#model=journey"), np.random.default_rng(12)
    request = make_request(rng, 2100, 2100, key_heads=1, scale=0.1, causal=True)
    request["queries"][:, :, 0] = 50
    request["keys"][0, :, 0] = 8
    drop(page, "text.safetensors", make_file(tmp_path, {"0": request}))
    wait_for_about(page, "Layer 0")
    assert page.locator("#advice").inner_text().startswith("The first 5 keys take 100 % of the weight.")


def test_hostile_capture_is_only_texts_also_on_a_phone(open_view, tmp_path):
    page, rng = open_view("#model=journey", viewport={"width": 390, "height": 800}), np.random.default_rng(13)
    request = make_request(rng, scale=0.5, causal=True)
    drop(page, HOSTILE, make_file(tmp_path, {HOSTILE: request}, [HOSTILE, *WORDS[1:]]))
    wait_for_about(page, HOSTILE)
    assert HOSTILE in page.locator("#tokens").text_content() and page.locator("#main img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_text_without_tokens_says_so(open_view, tmp_path):
    page, rng = open_view("#model=journey"), np.random.default_rng(9)
    assert page.locator("#tokens-title").is_hidden()
    drop(page, "text.safetensors", make_file(tmp_path, {"0": make_request(rng, 10, 6, scale=0.5, causal=False)}, WORDS))
    expect(page.locator("#tokens-note")).to_have_text("The file has no tokens for the 6 keys of this layer.")
    expect(page.locator("#row option").nth(2)).to_have_text("2 quick")


@pytest.mark.parametrize("tensors, metadata, words", [
    ({"0.queries": np.ones((2, 4), np.float32)}, {"layers": '["0"]'}, "layer 0 needs 0.queries [tokens, heads, size]; "
     "the file has 0.queries [2,4]"),
    ({"0.queries": np.ones((2, 1, 4), np.float32)}, {"layers": '["0"]'}, "layer 0 needs 0.keys"),
    ({"0.queries": np.ones((2, 1, 4), np.float32)}, {"layers": "0 1"}, "layers is no JSON, but '0 1'"),
    ({"0.queries": np.ones((2, 1, 4), np.float32)}, {"layers": "{}"}, "layers is no list of names, but {}"),
])
def test_capture_of_another_form_is_told_what_it_has(open_link, tensors, metadata, words):
    page = open_link("#model=journey")
    drop(page, "other.safetensors", make_safetensors(tensors, {name: "F32" for name in tensors}, metadata))
    text = expect_problem(page, "Malformed", "queries")
    assert words in text and "the Python package" in text
    assert page.locator("#model").input_value() == "journey"
