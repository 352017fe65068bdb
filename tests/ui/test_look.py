# SPDX-License-Identifier: Apache-2.0
"""What the page shows: on opening, under the cursor, by keyboard, in the dark, on a phone."""

import json
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from safetensors_file import read_safetensors
from server import ROOT
from view import (JOURNEY, JOURNEY_ROWS, ask_journey, choose, expect_problem, forget_picture,
                  hover_row, move_by_keys, read_cell, read_number, read_table, save, wait_until)

PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "has_touch": True}


def journey_projections():
    """Returns the weights [heads, 3] of queries, keys and values in the repository."""
    tensors = read_safetensors(ROOT / "src/weights/demo/journey.safetensors")
    return [next(tensor for name, tensor in tensors.items() if kind in name)
            for kind in ("query", "key", "value")]


def test_page_opens_with_an_example_that_is_computed(open_view):
    page = open_view()
    assert page.locator("h1").inner_text() == "attnd"
    assert page.locator("#facts").inner_text().startswith("patterns: 8 heads")
    assert page.locator("#large-title").inner_text() == "Head 0"
    assert page.locator("#lines-box path.line").count() > 0
    assert page.locator("#problem").is_hidden()


def test_heads_of_the_example_have_the_tags_that_they_were_made_for(open_view):
    page = open_view()
    expect(page.locator("#grid .tags").first).not_to_be_empty()
    tags = page.locator("#grid .tags").all_inner_texts()
    for head, made_for in enumerate(["previous", "next", "first token", "self", "local window",
                                     "even", "long range", "causal prefix"]):
        assert made_for in tags[head], (head, tags[head])
    assert page.locator("#large-tags").inner_text().strip() == "previous 1.00"


def test_every_head_has_a_thumbnail(open_link):
    page = open_link("#model=wide")
    assert page.locator("#grid .card").count() == 13  # and their mean
    wait_until(page, """() => [...document.querySelectorAll('#grid canvas')].every(canvas =>
        canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(x => x > 0))""")


def darkest_of_head(page, head):
    """Returns the least sum of red, green and blue of a thumbnail, once it was painted."""
    wait_until(page, "head => document.querySelectorAll('#grid canvas')[head].width <= 160", head)
    return page.evaluate("""head => {
        const canvas = document.querySelectorAll('#grid canvas')[head];
        const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        let least = 765;
        for (let i = 0; i < pixels.length; i += 4)
            if (pixels[i + 3] > 0)
                least = Math.min(least, pixels[i] + pixels[i + 1] + pixels[i + 2]);
        return least;
    }""", head)


def test_thumbnails_share_the_scale_that_is_named_beside_them(open_view):
    page = open_view()
    expect(page.locator("#grid-note")).to_contain_text("the largest weight of all of them")
    largest = read_number(page.locator("#grid-note").inner_text().split("up to ")[1].split(",")[0])
    wait_until(page, "() => document.querySelector('#grid li:last-child canvas').width <= 160")
    page.wait_for_timeout(200)
    darkest = [darkest_of_head(page, head) for head in range(8)]
    assert 0.9 < largest <= 1
    assert darkest[5] == max(darkest)  # uniform: each weight is small
    assert darkest[5] > min(darkest) + 200
    page.locator("#range").select_option("one")
    expect(page.locator("#grid-note")).to_have_text("These pictures share one scale, up to 1.")


def test_time_is_what_the_server_says_beside_the_round_trip(open_view):
    page = open_view()
    replies = []
    page.on("response", lambda reply: replies.append(reply)
            if reply.url.endswith("v1/attention") else None)
    choose(page, "model", "journey")
    shown, arrived = map(read_number, re.match(
        r"Computed in (\S+) ms: \S+ \S+ arrived after (\S+) ms$",
        page.locator("#status").inner_text()).groups())
    totals = [float(re.search(r"total;dur=([\d.]+)", reply.headers["server-timing"])[1])
              for reply in replies]  # of the steps, too
    assert any(shown == pytest.approx(total, rel=0.05, abs=0.001) for total in totals), totals
    assert shown < arrived


def test_mouse_along_a_row_reads_out_the_weights_of_the_api(open_view, server):
    page = open_view("#model=journey")
    _, weights = ask_journey(server)
    cells = [cell for cell in hover_row(page) if cell[1] == 5]
    assert [key for _, _, key in cells] == list(range(6))
    assert np.allclose([weight for weight, _, _ in cells], weights[0, 5], atol=5.1e-5)


def test_masked_cells_are_named_as_such(open_view, server):
    page = open_view("#model=journey")
    cells = [cell for cell in hover_row(page, 3) if cell[1] == 2]
    assert [weight is None for weight, _, _ in cells] == [False] * 3 + [True] * 3


def test_mouse_that_leaves_returns_to_the_chosen_cell(open_view):
    page = open_view("#model=journey&row=1&key=0")
    hover_row(page)
    page.mouse.move(5, 5)
    assert read_cell(page)[1:] == (1, 0)


def test_keyboard_moves_the_cursor_and_is_announced(open_link, server):
    page = open_link("#model=journey&row=3&key=1")
    _, weights = ask_journey(server)
    assert move_by_keys(page, "ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft")[1:] == (3, 1)
    assert move_by_keys(page, "End") == (None, 3, 5)
    assert move_by_keys(page, "Home")[1:] == (3, 0)
    assert move_by_keys(page, *["ArrowUp"] * 9, *["ArrowLeft"] * 9)[1:] == (0, 0)
    weight, row, key = move_by_keys(page, "PageDown", "ArrowDown")
    assert page.locator("#large-title").inner_text() == "Head 1"
    assert (row, key) == (1, 0) and abs(weight - weights[1, 1, 0]) < 5.1e-5
    expect(page.locator("#announcer")).to_have_text(f"{weight:.4f}, query journey, key Your")


def test_click_on_a_thumbnail_shows_that_head(open_link):
    page = open_link("#model=journey")
    page.get_by_role("button", name="Head 1").click()
    assert page.locator("#large-title").inner_text() == "Head 1"
    assert page.get_by_role("button", name="Head 1").get_attribute("aria-pressed") == "true"
    page.get_by_role("button", name="Mean", exact=True).click()
    assert page.locator("#large-title").inner_text() == "Mean of the heads"


def test_mean_is_that_of_the_heads(open_link, server):
    page = open_link("#model=journey&head=mean&row=5&key=2")
    _, weights = ask_journey(server)
    assert abs(read_cell(page)[0] - weights[:, 5, 2].mean()) < 5.1e-5


def test_causal_and_valid_lens_are_sent_and_drawn(open_link, server):
    page = open_link("#model=journey&row=1&key=5")
    assert read_cell(page)[0] is None
    choose(page, "causal", "false")
    _, weights = ask_journey(server, causal=False)
    assert abs(read_cell(page)[0] - weights[0, 1, 5]) < 5.1e-5
    choose(page, "valid-lens", "[6, 2, 3, 4, 5, 6]")
    assert read_cell(page)[0] is None
    choose(page, "valid-lens", "0")  # no valid key: uniform, and nothing is masked
    assert read_cell(page) == (0.1667, 1, 5)


def test_sequence_of_a_batch_is_chosen(open_view):
    page = open_view("#model=d2l&row=0&key=2")
    assert read_cell(page)[0] is not None  # 3 keys are valid
    forget_picture(page)
    page.locator("#sequence").select_option("1")
    page.view.wait()
    masked = [cell[0] is None for cell in hover_row(page) if cell[1] == 3]
    assert masked == [False] * 2 + [True] * 4


@pytest.mark.parametrize("model", ["journey", "stacked"])
def test_sentence_is_typed_from_the_words_of_the_model(open_view, model):
    page = open_view(f"#model={model}&row=0")
    choose(page, "text", "one step journey")
    assert [cell[2] for cell in hover_row(page) if cell[1] == 2] == [0, 1, 2]
    page.locator("#text").fill("one small step")
    assert "'small' is not a word" in expect_problem(page, "Unknown word", "text")


@pytest.mark.parametrize("options", [{}, PHONE])
def test_field_shows_the_whole_sentence(open_view, options):
    page = open_view("#model=patterns", **options)
    page.evaluate("document.getElementById('input-box').open = true")
    field = page.locator("#text")
    assert field.evaluate("field => field.scrollWidth <= field.clientWidth "
                          "&& field.scrollHeight <= field.clientHeight")
    field.fill("the cat")
    field.press("Enter")
    expect(page.locator("#row option")).to_have_count(2)
    assert field.input_value() == "the cat"


def test_lines_follow_the_row_and_show_all_rows(open_link):
    page = open_link("#model=journey&row=1&key=0")
    lines = page.locator("#lines-box path.line")
    expect(lines).to_have_count(2)
    assert page.locator("#lines-box text[text-decoration=line-through]").count() == 4
    page.locator("#lines-box text.pick", has_text="one").click()
    expect(lines).to_have_count(5)
    page.locator("#lines").select_option("all")
    expect(lines).to_have_count(21)


def test_log_scale_is_offered_where_the_first_key_takes_nearly_all(open_link):
    page = open_link("#model=journey")
    assert page.locator("#advice").is_hidden()
    query, key, _ = journey_projections()
    row = np.array(JOURNEY_ROWS[1])  # a first key to which all such rows attend, by both heads
    sink = np.linalg.lstsq(key, 40 * np.sign(query @ row), rcond=None)[0]
    page.locator("#source").select_option("own")
    choose(page, "own", json.dumps({"queries": [sink.tolist(), *[row.tolist()] * 4]}))
    expect(page.locator("#advice")).to_contain_text("% of the weight")
    page.get_by_role("button", name="Use the logarithmic scale").click()
    expect(page.locator("#advice")).to_be_hidden()
    expect(page.locator("#legend-high")).to_contain_text("logarithmic")


# --- steps ---

def wait_for_steps(page, count):
    expect(page.locator("#steps tbody tr")).to_have_count(count)


def step_to(page, step):
    while not page.locator("#step-name").inner_text().startswith(f"{step} of 6"):
        page.locator("#step-on").click()


def test_steps_have_the_true_scores_of_the_model(open_link, server):
    """Here the scores are computed from the weights in the repository."""
    page = open_link("#model=journey&row=3&key=0&head=1")
    wait_for_steps(page, 6)
    query, key, _ = journey_projections()
    rows = np.array(JOURNEY_ROWS)
    scores = (rows @ query.T)[3, 1] * (rows @ key.T)[:, 1]  # the head size is 1
    step_to(page, 6)
    table = read_table(page, "#steps table")
    assert [row[0] for row in table] == ["Key", *JOURNEY, "sum"]
    assert page.locator("#steps").evaluate("box => box.scrollWidth <= box.clientWidth")
    assert np.allclose([read_number(row[1]) for row in table[1:7]], scores, atol=6e-5)

    attended = np.exp(scores[:4] - scores[:4].max())
    assert [row[3] for row in table[5:7]] == ["masked", "masked"]
    assert np.allclose([read_number(row[4]) for row in table[1:5]], attended, rtol=2e-3)
    assert np.allclose([read_number(row[5]) for row in table[1:5]], attended / attended.sum(), atol=6e-5)
    assert read_number(table[7][5]) == 1


@pytest.mark.parametrize("options", [{}, PHONE])
def test_table_of_steps_has_the_steps_so_far_and_is_not_cut(open_view, options):
    page = open_view("#model=d2l&row=2&key=0", **options)
    for step, count in enumerate([3, 3, 3, 4, 6, 8], 1):
        step_to(page, step)
        expect(page.locator("#steps thead th")).to_have_count(count)
        assert page.locator("#steps").evaluate("box => box.scrollWidth <= box.clientWidth")


@pytest.mark.parametrize("fragment", ["#model=d2l&source=random&count=64", "#model=wide&source=random&count=200"])
def test_cells_of_a_square_matrix_are_square(open_link, fragment):
    page = open_link(fragment)
    box = ElementTree.fromstring(save(page, "svg")[1]).findall("{*}rect")[1]  # below the cells
    assert box.get("width") == box.get("height")


def test_ticks_are_large_enough_for_a_finger(open_view):
    page = open_view("#model=wide", **PHONE)
    box = page.locator("input.switch").first.bounding_box()
    assert box["width"] >= 24 and box["height"] >= 24
    tags = page.locator("#grid .tags").first.bounding_box()
    assert box["y"] + box["height"] <= tags["y"] + 1  # no text is below it
    tops = page.eval_on_selector_all(".controls label:not([hidden])", "all => all.map(each => each.offsetTop)")
    assert len(set(tops)) <= 2 + 1  # and that of the lines


def test_weighted_sum_is_what_the_server_adds_for_the_head(open_link):
    page = open_link("#model=journey&row=3&key=0&head=1&step=5")
    wait_for_steps(page, 6)
    total = ", ".join(read_table(page, "#steps table")[-1][-1].split())
    assert total.count(", ") == 1  # two numbers
    assert page.locator("#step-text").inner_text().endswith(f"in one go as [{total}].")


def test_steps_show_scores_that_a_mask_hides(open_link):
    page = open_link("#model=d2l&sequence=1&row=2&key=0&step=3")
    wait_for_steps(page, 6)
    table = read_table(page, "#steps table")
    assert "4 of 6 keys are masked" in page.locator("#step-text").inner_text()
    assert [row[3] == "masked" for row in table[1:7]] == [False, False, True, True, True, True]
    assert all(read_number(row[2]) * 20 ** 0.5 == pytest.approx(read_number(row[1]), abs=5e-4)
               for row in table[1:7])


def test_steps_of_a_window_mask_what_is_outside(open_link):
    page = open_link("#model=journey&row=3&head=1&step=5")
    page.locator("#source").select_option("own")
    choose(page, "own", json.dumps({"queries": JOURNEY_ROWS, "causal": False, "window": 1}))
    expect(page.locator("#steps tbody tr").first).to_contain_text("masked")
    table = read_table(page, "#steps table")
    assert [row[3] == "masked" for row in table[1:7]] == [True, True, False, False, False, True]
    total = ", ".join(table[-1][-1].split())
    assert page.locator("#step-text").inner_text().endswith(f"in one go as [{total}].")


# --- dark, small, without a mouse ---

def ground_of(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def centre_of_plot(page):
    return page.evaluate("""() => { const plot = document.getElementById('plot');
        return [...plot.getContext('2d').getImageData(plot.width * 0.3, plot.height * 0.9, 1, 1).data]; }""")


def test_dark_mode_is_that_of_the_system(open_view):
    page = open_view("#model=journey", color_scheme="light")
    light = ground_of(page), centre_of_plot(page)
    forget_picture(page)
    page.emulate_media(color_scheme="dark")
    page.view.wait()
    assert ground_of(page) != light[0] and centre_of_plot(page) != light[1]
    assert max(map(int, ground_of(page)[4:-1].split(", "))) < 40


@pytest.mark.parametrize("model", ["journey", "d2l", "wide"])
def test_phone_shows_everything_without_scrolling_sideways(open_view, model):
    page = open_view(f"#model={model}", **PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("#input").is_hidden()
    page.get_by_text("Change the input").click()
    assert page.locator("#model").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_tap_chooses_a_cell(open_view):
    page = open_view("#model=journey&row=0&key=0", **PHONE)
    expect(page.locator("#compare tbody tr")).to_have_count(2)  # the tags above do not move it any more
    page.locator("#cursor").scroll_into_view_if_needed()
    box = page.locator("#cursor").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] * 0.35, box["y"] + box["height"] - 8)
    expect(page.locator("#row")).to_have_value("5")
    assert read_cell(page)[1] == 5


def test_first_tab_skips_to_the_heads(open_view):
    page = open_view("#model=journey")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the heads"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")
    assert page.locator("#model").input_value() == "journey"  # the address is as it was


def unfold_all(page):
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true })")
    page.wait_for_selector("#server-body table")


def assert_accessible(page):
    results = Axe().run(page).response
    found = [(violation["id"], [node["target"] for node in violation["nodes"]],
              violation["nodes"][0].get("failureSummary")) for violation in results["violations"]]
    assert not found


@pytest.mark.parametrize("options", [{"color_scheme": "light"}, {"color_scheme": "dark"}, PHONE])
def test_error_is_accessible(open_view, options):
    """test_lesson.py has the same of a page without one."""
    page = open_view("#model=d2l", **options)
    page.evaluate("location.hash = '#model=d2l&source=own&own={}'")
    expect_problem(page, "Missing key")
    unfold_all(page)
    assert_accessible(page)


def test_panel_of_the_server_counts(open_link, server):
    page = open_link("#model=journey")
    page.get_by_role("heading", name="The server").click()
    page.wait_for_selector("#server-body table")
    rows = {row[0]: row for row in read_table(page, "#server-body table")}
    assert {"journey", "d2l", "wide"} <= rows.keys()
    before = int(rows["journey"][1].replace(",", ""))
    ask_journey(server)
    wait_until(page, """count => [...document.querySelectorAll('#server-body tr')].some(row =>
        row.children[0].textContent === 'journey'
        && Number(row.children[1].textContent.replaceAll(',', '')) > count)""", before)
