# SPDX-License-Identifier: Apache-2.0
"""The table of what each head does: its order, where noise has none, and that of captures."""

import numpy as np
import pytest
import requests
from playwright.sync_api import expect

from server import Server
from test_captured_page import WORDS, find_weights, make_file, make_request
from test_kept_captures import open_bare
from test_use import drop, wait_for_about
from view import choose, expect_problem, read_number, read_table, wait_until


def read_column(page, title):
    """Returns a column of the table, top to bottom."""
    table = read_table(page, "#compare table")
    return [row[table[0].index(title)] for row in table[1:]]


def test_heads_are_sorted_by_the_column_that_is_chosen(open_link):
    page = open_link("#model=patterns")
    expect(page.locator("#compare tbody tr")).to_have_count(8)
    page.get_by_role("button", name="Entropy, nats").click()
    entropies = [read_number(cell) for cell in read_column(page, "Entropy, nats")]
    assert entropies == sorted(entropies, reverse=True) and read_column(page, "Head") != [str(h) for h in range(8)]
    expect(page.get_by_role("columnheader", name="Entropy, nats")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_role("button", name="Entropy, nats")).to_be_focused()
    wait_until(page, "() => location.hash.includes('sort=entropy')")
    page.keyboard.press("Enter")
    assert read_column(page, "Head") == [str(h) for h in range(8)]


@pytest.mark.parametrize("fragment", ["#model=wide", "#model=d2l&source=random", "#model=wide&sort=entropy"])
def test_noise_has_neither_tags_nor_a_table(open_link, fragment):
    page = open_link(fragment)
    expect(page.locator("#compare-note")).to_contain_text("What heads do with random numbers says nothing of them")
    assert page.locator("#compare").is_hidden() and page.locator("#drop-least").is_hidden()
    assert set(page.locator("#grid .tags").all_inner_texts()) == {""}
    page.get_by_label("Head 1 on").uncheck()
    expect(page.locator("#change")).to_contain_text("Without head 1 the outputs move by")


def sum_up(request):
    """Returns the entropy of each head, and its weight on the first key, as means over rows."""
    weights = np.nan_to_num(find_weights(request))
    logs = np.log(np.where(weights > 0, weights, 1))
    return -(weights * logs).sum(-1).mean(-1), weights[..., 0].mean(-1)


def drop_capture(page, tmp_path, **options):
    request = make_request(np.random.default_rng(3), scale=0.7, causal=True, **options)
    drop(page, "text.safetensors", make_file(tmp_path, {"3": request}, WORDS))
    wait_for_about(page, "Layer 3 of text.safetensors")
    return request


def test_capture_that_no_server_keeps_has_sums(open_link, tmp_path):
    page = open_link("#model=journey&sort=mass_on_first")
    request = drop_capture(page, tmp_path)
    expect(page.locator("#compare-note")).to_contain_text("attnd --capture-memory 1GiB")
    entropy, first = sum_up(request)
    order = [int(head) for head in read_column(page, "Head")]
    assert read_table(page, "#compare table")[0] == ["Head", "Entropy, nats", "On the first"]
    assert order == np.argsort(-first).tolist()
    for title, expected in (("Entropy, nats", entropy), ("On the first", first)):
        assert [read_number(cell) for cell in read_column(page, title)] == pytest.approx(expected[order], abs=5.1e-4)
    choose(page, "causal", "false")
    wait_until(page, "text => document.querySelector('#compare td').textContent.startsWith(text)",
               f"{sum_up(request | {'causal': False})[0][int(read_column(page, 'Head')[0])]:.3f}")


@pytest.fixture
def keeping_page(browser):
    with Server("--capture-memory", "64MiB") as server:
        view = open_bare(browser, server)
        expect_problem(view.page, "No model is loaded.")
        yield view.page
        view.close()


def test_kept_capture_has_what_the_server_says_of_it(keeping_page, tmp_path):
    page = keeping_page
    with page.expect_response("**/v1/captures/*/heads") as waiting:
        request = drop_capture(page, tmp_path)
    heads = waiting.value.json()["heads"]
    expect(page.locator("#compare-note")).to_have_text("Means over all rows.")
    assert read_table(page, "#compare table")[0] == ["Head", "Attends to", "Entropy, nats", "Mean distance", "On itself",
                                                     "On the one before", "On the first"]
    assert [read_number(cell) for cell in read_column(page, "Entropy, nats")] == pytest.approx(sum_up(request)[0], abs=5.1e-4)
    tags = [", ".join(f"{tag} {share:.2f}" for tag, share in zip(head["tags"], head["shares"])) for head in heads]
    assert read_column(page, "Attends to") == [each or "–" for each in tags]
    assert page.locator("#grid .tags").all_inner_texts() == [*tags, ""]
    page.route("**/v1/captures/*/heads", lambda route: route.fulfill(
        json={"heads": [head | {"tags": ["first token"], "shares": [0.5], "weak": [False]} for head in heads]}))
    choose(page, "causal", "false")
    expect(page.locator("#grid .tags").first).to_have_text("first token 0.50")


def test_kept_capture_with_a_bias_has_sums(keeping_page, tmp_path):
    request = drop_capture(keeping_page, tmp_path, bias=np.random.default_rng(4).normal(size=(1, 10, 10)).astype(np.float32))
    expect(keeping_page.locator("#compare-note")).to_contain_text("Tags need a capture without a bias")
    assert [read_number(cell) for cell in read_column(keeping_page, "Entropy, nats")] == pytest.approx(sum_up(request)[0], abs=5.1e-4)


def test_picture_that_loads_is_not_that_of_masked_cells(open_view):
    page, held = open_view("#model=journey"), []
    grounds = """() => [...document.querySelectorAll('#grid canvas')].map(each => [
        getComputedStyle(each).backgroundImage, getComputedStyle(each).animationName])"""
    wait_until(page, f"() => ({grounds})().every(([ground, _]) => ground.includes('gradient'))")
    page.evaluate("document.querySelectorAll('#grid canvas').forEach(each => each.classList.remove('painted'))")
    assert page.evaluate(grounds) == [["none", "load"]] * 3

    def is_picture(request):  # the page asks for steps at the same address
        return b'"causal":true' in (request.post_data_buffer or b"")

    page.route("**/v1/attention", lambda route: held.append(route) if is_picture(route.request) else route.continue_())
    with page.expect_request(is_picture):
        page.locator("#causal").select_option("true")
    expect(page.locator("#main")).to_have_attribute("aria-busy", "true")
    held[0].continue_()
    page.view.wait()
    expect(page.locator("#main")).not_to_have_attribute("aria-busy", "true")
