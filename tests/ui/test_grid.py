# SPDX-License-Identifier: Apache-2.0
"""All heads of all layers at once: what is drawn, how one walks through it, and the pictures that are saved of it."""

import io
import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.image import imread
from playwright.sync_api import expect

from server import ROOT, Server
from test_captured_page import WORDS, find_weights, make_file, make_request, mean_blocks, opened_bare_page
from test_look import PHONE, assert_accessible
from test_use import HOSTILE, drop
from view import View, expect_problem, move_by_keys, read_map, save, wait_until

LAYERS = ["3", "14", "15"]


def make_layers(tokens=10):
    rng = np.random.default_rng(1)
    return {name: make_request(rng, tokens, tokens, scale=0.7, causal=True) for name in LAYERS}


def wait_for_all(page, count=len(LAYERS)):
    expect(page.locator("#status")).to_have_text(f"{count} of {count} layers are drawn")
    expect(page.locator("#all-heads .loading")).to_have_count(0)


def open_all(page, tmp_path, layers=None, tokens=WORDS, name="text.safetensors"):
    layers = layers or make_layers()
    drop(page, name, make_file(tmp_path, layers, tokens))
    wait_for_all(page, len(layers))
    return layers


def focused(page):
    """Returns the label of what has the focus."""
    text = page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent")
    return text.split(":")[0]  # without tags


def thumbnail_of(page, label):
    return page.get_by_role("button", name=re.compile(f"^{label}(: .*)?$"))


def light_of(page, label):
    """Returns how light each cell of a thumbnail is, NaN where it is masked."""
    pixels = read_map(thumbnail_of(page, label).locator(".map").evaluate("map => map.style.backgroundImage"))
    return np.where(pixels[..., 3] > 0, pixels[..., :3] @ [0.2126, 0.7152, 0.0722], np.nan)


@pytest.fixture
def keeping_page(browser):
    with opened_bare_page(browser, "--capture-memory", "64MiB") as page:
        yield page


def expect_dark_where_large(page, layers, block):
    """The pictures of all heads, compared with each other: they share one scale."""
    light, weights = [], []
    for name, request in layers.items():
        exact = find_weights(request)
        means = mean_blocks(exact, block)
        for head in range(4):
            shown = light_of(page, f"Layer {name}, head {head}")
            np.testing.assert_array_equal(np.isnan(shown), np.triu(np.ones(shown.shape), 1) > 0)
            light.append(shown)
            weights.append(means[head])
    seen = ~np.isnan(np.array(light))
    light, weights = np.array(light)[seen], np.array(weights)[seen]
    steps = (weights / weights.max() * 255 + 0.5).astype(int)
    assert (np.diff(light[np.argsort(steps, kind="stable")]) <= 1).all()
    assert light[steps == 255].max() + 150 < light.max()


@pytest.mark.parametrize("tokens, block", [(10, 1), (130, 3)])
@pytest.mark.parametrize("is_kept", [True, False])
def test_capture_opens_as_all_heads_in_one_scale(keeping_page, open_view, tmp_path, tokens, block, is_kept):
    page = keeping_page if is_kept else open_view("#model=journey")
    layers = open_all(page, tmp_path, make_layers(tokens))
    assert page.locator(".layer-name").all_text_contents() == LAYERS
    assert page.locator(".layer").nth(1).locator("button .name").all_text_contents() == ["0", "1", "2", "3"]
    expect_dark_where_large(page, layers, block)
    note = page.locator("#all-note").inner_text()
    assert ("A cell is a weight." if block == 1 else f"in the mean of its queries: {block} of each") in note
    largest = max(np.nanmax(mean_blocks(find_weights(request), block)) for request in layers.values())
    assert note.startswith(f"One scale, up to {float(f'{largest:.3g}'):g}.")
    assert page.locator("#about").inner_text().startswith("The server keeps it." if is_kept else "Its tensors are sent")
    assert page.locator("#facts").inner_text() == "text.safetensors: 3 layers"
    for hidden in ("#grid", "#heatmap", "#tokens", "#rows", "[data-save=csv]"):
        assert page.locator(hidden).is_hidden()


def test_click_opens_a_head_and_all_heads_come_back(keeping_page, tmp_path):
    page, asked = keeping_page, []
    layers = open_all(page, tmp_path)
    thumbnail_of(page, "Layer 14, head 2").click()
    page.view.wait()
    assert page.locator("#large-title").inner_text() == "Head 2" and page.locator("#layer").input_value().endswith(".14")
    np.testing.assert_allclose(np.array(json.loads(save(page, "json")[1])["attention_weights"], float),
                               find_weights(layers["14"]), atol=1e-6)
    assert page.locator("#all-heads").is_hidden()
    page.on("request", lambda request: asked.append(request.post_data_buffer or b""))
    page.get_by_role("button", name="All heads", exact=True).click()
    wait_for_all(page)
    assert focused(page) == "Layer 14, head 2" and page.locator("#heatmap").is_hidden()
    assert not any(b'"blocks"' in body for body in asked)
    picture = page.locator(".map").first
    before = picture.evaluate("map => getComputedStyle(map).backgroundImage")
    page.locator("#causal").select_option("false")  # other options are asked for
    expect(picture).not_to_have_css("background-image", before)
    wait_for_all(page)
    assert not np.isnan(light_of(page, "Layer 3, head 0")).any()
    page.locator("#layer").select_option("text.safetensors.15")
    page.view.wait()
    assert page.locator("#large-title").inner_text() == "Head 0"


def test_keyboard_alone_walks_opens_and_returns(open_view, tmp_path):
    page = open_view("#model=journey")
    open_all(page, tmp_path)
    page.keyboard.press("Tab")
    for _ in range(60):
        page.keyboard.press("Tab")
        if focused(page) == "Layer 3, head 0":
            break
    for key, label in (("ArrowRight", "3, head 1"), ("ArrowDown", "14, head 1"), ("End", "14, head 3"), ("ArrowRight", "14, head 3"),
                       ("ArrowDown", "15, head 3"), ("ArrowDown", "15, head 3"), ("ArrowLeft", "15, head 2"), ("Home", "15, head 0"),
                       ("ArrowUp", "14, head 0"), ("ArrowRight", "14, head 1")):
        page.keyboard.press(key)
        assert focused(page) == f"Layer {label}"
    page.keyboard.press("Tab")
    assert not focused(page).startswith("Layer")  # one stop for all heads
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.view.wait()
    assert page.locator("#large-title").inner_text() == "Head 1" and focused(page) == "All heads"
    assert move_by_keys(page, "Home")[2] == 0
    page.locator("#to-all").focus()
    page.keyboard.press("Enter")
    wait_for_all(page)
    assert focused(page) == "Layer 14, head 1"


def test_what_is_not_there_looks_loading_and_is_cancelled_by_leaving(keeping_page, tmp_path):
    page, held, failed = keeping_page, [], []
    page.on("requestfailed", lambda request: failed.append(request))

    def is_of_the_second(request):
        body = request.post_data_buffer or b""
        return b'"blocks"' in body and b'"layer":"14"' in body

    page.route("**/attention", lambda route: held.append(route) if is_of_the_second(route.request) else route.continue_())
    with page.expect_request(is_of_the_second):  # there is none to cancel before
        drop(page, "text.safetensors", make_file(tmp_path, make_layers(), WORDS))
    expect(page.locator("#status")).to_have_text("1 of 3 layers are drawn")
    expect(page.locator("#all-heads .loading")).to_have_count(8)
    grounds = page.eval_on_selector_all(".layer .map", "all => all.map(each => getComputedStyle(each).backgroundColor)")
    assert grounds[0] != grounds[4] == "rgba(0, 0, 0, 0)"  # a masked cell of a picture, and what loads
    wait_until(page, "() => true")
    thumbnail_of(page, "Layer 3, head 1").click()
    page.view.wait()
    assert [request.failure for request in failed] == ["net::ERR_ABORTED"]
    page.unroute("**/attention")
    page.locator("#to-all").click()
    wait_for_all(page)


def report_of(layer):
    """A reply that says of head h what no other head of the layers has."""
    place = LAYERS.index(layer)
    return {"heads": [{"entropy": float(h + 10 * (place % 2)), "tags": ["previous token"] if h else [],
                       "shares": [0.2 * h] if h else [], "weak": [h < 2] if h else []} for h in range(4)]}


def test_heads_have_tags_and_are_sorted_by_a_figure(keeping_page, tmp_path):
    page = keeping_page
    page.route("**/heads", lambda route: route.fulfill(json=report_of(
        next(each for each in reversed(LAYERS) if f'"layer":"{each}"'.encode() in route.request.post_data_buffer))))
    open_all(page, tmp_path)
    expect(thumbnail_of(page, "Layer 3, head 1: previous token 0.20").locator(".tags")).to_have_text("previous token 0.20")
    assert page.locator("#all-heads .weak").count() == len(LAYERS)
    assert page.locator("#sort option").all_inner_texts() == ["layer", "Share of the tag", "Entropy, smallest first",
                                                              "Entropy, nats"]
    page.locator("#sort").select_option("share")
    assert page.locator(".layer .name").all_text_contents() == [f"{layer}.{h}" for h in (3, 2, 1, 0) for layer in LAYERS]
    page.locator("#sort").select_option("entropy")
    assert page.locator(".layer .name").all_text_contents()[:4] == ["14.3", "14.2", "14.1", "14.0"]
    page.locator("#sort").select_option("-entropy")
    assert page.locator(".layer .name").all_text_contents()[:4] == ["3.0", "15.0", "3.1", "15.1"]
    thumbnail_of(page, "Layer 15, head 1: previous token 0.20").click()
    page.view.wait()
    assert page.locator("#large-title").inner_text() == "Head 1"
    page.locator("#to-all").click()
    page.locator("#sort").select_option("")
    assert page.locator(".layer-name").all_text_contents() == LAYERS


def test_link_keeps_the_scale_of_all_heads(open_view, tmp_path):
    page = open_view("#model=journey")
    open_all(page, tmp_path)
    page.locator("#all-scale").select_option("log")
    wait_until(page, "() => location.hash.includes('scale=log')")


def save_all(page, ending):
    """Returns the name and the bytes of the saved picture of all heads."""
    with page.expect_download() as waiting:
        page.locator(f"[data-save-all={ending}]").click()
    with open(waiting.value.path(), "rb") as file:
        return waiting.value.suggested_filename, file.read()


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_saved_pictures_of_all_heads_are_light_and_labelled(open_view, tmp_path, colours):
    page = open_view("#model=journey", color_scheme=colours)
    open_all(page, tmp_path)
    name, svg = save_all(page, "svg")
    root = ElementTree.fromstring(svg)
    texts = [element.text for element in root.findall(".//{*}text")]
    assert name == "text-safetensors-all-heads.svg" and len(list(root.findall(".//{*}image"))) == 12
    assert texts.count("text.safetensors, all heads: attention weights") == 1
    assert texts.count("14") == texts.count("15") == 1 and texts.count("3") == 1 + 3  # a layer, and a head of each
    assert any("One scale, up to" in text for text in texts) and "0" in texts and "masked" in texts
    name, png = save_all(page, "png")
    pixels = imread(io.BytesIO(png))
    assert name.endswith(".png") and (pixels[0, 0, :3] == 1).all() and pixels.mean() > 0.8
    assert pixels.shape[1] == 2 * int(root.get("width"))


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_saved_pictures_of_one_layer_are_light_and_have_its_words(open_view, colours):
    page = open_view("#model=journey&head=1", color_scheme=colours)
    expect(page.locator("#compare tbody tr")).to_have_count(2)
    name, svg = save_all(page, "svg")
    texts = [element.text for element in ElementTree.fromstring(svg).findall(".//{*}text")]
    assert name == "journey-all-heads.svg" and texts.count("Head 0") == texts.count("Head 1") == 1
    assert texts.count("journey") == 1 + 2  # the query, and the key of each head
    assert page.locator("#grid .tags").first.inner_text() in texts
    for png in (save_all(page, "png")[1], save(page, "png")[1]):
        assert (imread(io.BytesIO(png))[0, 0, :3] == 1).all()
    root = ElementTree.fromstring(save(page, "svg")[1])
    fills = {element.get("fill") for element in root.findall(".//{*}rect")}
    assert "#ffffff" in fills and "#181c25" not in fills


@pytest.mark.parametrize("options", [{"viewport": {"width": 1280, "height": 800}},
                                     {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
                                     PHONE])
def test_all_heads_are_accessible_and_fit_the_window(open_view, tmp_path, options):
    page = open_view("#model=journey", **options)
    open_all(page, tmp_path, name=HOSTILE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert HOSTILE in page.locator("#facts").inner_text() and page.locator("#main img").count() == 0
    page.wait_for_timeout(300)
    assert_accessible(page)
    box = page.locator("#all-heads .map").first.bounding_box()
    assert box["width"] >= 60 and abs(box["width"] - box["height"]) < 1
    page.locator("#all-heads button").nth(1).click()
    page.view.wait()
    assert_accessible(page)


def test_heads_are_no_layers_of_the_compositor(open_view, tmp_path):
    """It would put hundreds of them together in each frame of scrolling."""
    page, counts = open_view("#model=journey"), []
    session = page.context.new_cdp_session(page)
    session.on("LayerTree.layerTreeDidChange", lambda event: counts.append(len(event.get("layers", []))))
    session.send("LayerTree.enable")
    open_all(page, tmp_path, {str(layer): make_request(np.random.default_rng(layer)) for layer in range(12)})
    page.evaluate("new Promise(requestAnimationFrame)")
    assert page.locator("#all-heads button").count() == 48 and max(counts) < 48, counts


def test_error_of_a_layer_is_shown(keeping_page, tmp_path):
    page = keeping_page
    open_all(page, tmp_path)
    page.locator("#valid-lens").fill("[3, 2")
    expect_problem(page, "Malformed list", "valid-lens")
    page.locator("#valid-lens").fill("5")
    wait_for_all(page)
    assert page.locator("#problem").is_hidden()


def test_noise_and_layers_without_a_text_have_no_such_picture(browser):
    with Server("--model", f"gpt={ROOT / 'docs/examples/tiny-gpt2'}") as server:
        view = View(browser, server)
        view.open()
        view.page.locator("#source").select_option("random")
        wait_until(view.page, "() => location.hash.includes('random')")
        assert view.page.locator("#all-heads").is_hidden() and view.page.locator("#to-all").is_hidden()
        view.close()
