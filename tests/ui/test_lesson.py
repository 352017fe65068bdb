# SPDX-License-Identifier: Apache-2.0
"""The lesson: projections, the drawing of the layer, and what would be otherwise."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from server import ROOT
from safetensors_file import read_safetensors
from take_pictures import PICTURES
from test_look import PHONE, assert_accessible, journey_projections, unfold_all, wait_for_steps
from view import JOURNEY_ROWS, ask_journey, read_number, read_table, wait_until


def read_what_if(page):
    """Returns [weight, what if, difference] of each key."""
    return np.array([[0 if cell == "masked" else read_number(cell) for cell in row[1:]] for row in read_table(page, "#what-table tbody")])


def softmax(scores):
    exps = np.exp(scores - scores.max())
    return exps / exps.sum()


def test_first_step_has_the_projections_as_numbers(open_link):
    """Against the weights in the repository."""
    page = open_link("#model=journey&row=3&key=0&head=1")
    wait_for_steps(page, 6)
    query, key, value = journey_projections()
    rows = np.array(JOURNEY_ROWS)
    table = read_table(page, "#steps tbody")
    assert np.allclose([read_number(row[1]) for row in table], (rows @ key.T)[:, 1], atol=6e-5)
    assert np.allclose([read_number(row[2]) for row in table], (rows @ value.T)[:, 1], atol=6e-5)
    name, number = page.locator("#steps caption").inner_text().split(": ")
    assert name == "q of with" and read_number(number) == pytest.approx((rows @ query.T)[3, 1], abs=6e-5)


def test_long_projections_are_strips_with_their_numbers(open_link):
    page = open_link("#model=d2l&row=1&head=2")
    wait_for_steps(page, 6)
    strips = page.locator("#steps canvas.strip")
    assert strips.count() == 1 + 2 * 6  # q, and k and v of each key
    numbers = strips.nth(1).get_attribute("title").split(", ")
    assert len(numbers) == 20 and strips.nth(1).get_attribute("aria-label") == "20 numbers"
    painted = strips.nth(1).evaluate("""canvas => [...canvas.getContext('2d').getImageData(0, 0, 20, 1).data]
        .filter((_, i) => i % 4 < 3)""")
    for number, (red, _, blue) in zip(map(read_number, numbers), np.reshape(painted, (20, 3))):
        if abs(number) > 0.05:
            assert (blue > red) == (number > 0)


def test_drawing_lights_the_step(open_link):
    page = open_link("#model=journey&row=3&head=1")
    wait_for_steps(page, 6)
    lit = []
    for _ in range(6):
        lit.append(page.locator("#layer-drawing text.lit").all_text_contents())
        page.locator("#step-on").click(force=True)
    assert lit == [["W_q", "W_k", "W_v"], ["q · k"], ["÷ √1"], ["mask"], ["softmax"], ["Σ weight · v", "concat", "W_o"]]
    assert "Lit is: Weighted sum." in page.locator("#layer-drawing svg").get_attribute("aria-label")


def test_without_the_mask_the_hidden_keys_have_weights(open_link, server):
    page = open_link("#model=journey&row=2&head=0&what=mask")
    expect(page.locator("#what-table tbody tr")).to_have_count(6)
    _, masked = ask_journey(server)
    _, whole = ask_journey(server, causal=False)
    weight, changed, difference = read_what_if(page).T
    assert np.allclose(weight, masked[0, 2], atol=6e-5) and np.allclose(changed, whole[0, 2], atol=6e-5)
    assert np.allclose(difference, changed - weight, atol=2e-4)


def test_scores_without_the_root_and_with_a_temperature(open_view):
    page = open_view("#model=d2l&row=1&head=1&step=3&what=root")
    wait_for_steps(page, 6)
    scaled = np.array([read_number(row[2]) for row in read_table(page, "#steps tbody")])
    expect(page.locator("#what-text")).to_contain_text("The largest weight is")
    assert np.allclose(read_what_if(page)[:3, 1], softmax(scaled[:3] * 20 ** 0.5), atol=6e-4)
    page.locator("#what").select_option("temperature")
    page.locator("#by").fill("0.25")
    wait_until(page, "() => location.hash.includes('by=0.25')")
    page.wait_for_timeout(300)
    assert np.allclose(read_what_if(page)[:3, 1], softmax(scaled[:3] / 0.25), atol=6e-4)
    page.locator("#by").fill("0")
    expect(page.locator("#what-text")).to_have_text("This cannot be computed: write a number above 0.")


def test_another_token_is_what_the_server_says_of_the_other_sentence(open_link, server):
    page = open_link("#model=journey&row=3&key=0&head=1&what=token&by=step")
    expect(page.locator("#what-table")).to_contain_text("Your → step")
    _, weights = ask_journey(server, queries=[JOURNEY_ROWS[5], *JOURNEY_ROWS[1:]])
    assert np.allclose(read_what_if(page)[:, 1], weights[1, 3], atol=6e-5)
    page.locator("#by").fill("xyz")
    expect(page.locator("#what-text")).to_contain_text("write one of Your, journey")


def test_outputs_of_patterns_are_named_by_words(open_view):
    page = open_view("#model=patterns&row=4&head=3&step=5")
    wait_for_steps(page, 11)
    head, *rows = read_table(page, "#outputs table")
    assert head == ["Query", "the", "dog", "cat", "mouse", "chased", "and"]
    assert all(sum(map(read_number, row[1:])) == pytest.approx(1, abs=1e-3) for row in rows)
    assert re.search(r"for the, \w+, \w+\.$", page.locator("#step-text").inner_text())


@pytest.mark.parametrize("options", [{"color_scheme": "dark"}, {"viewport": {"width": 1280, "height": 800}}, PHONE])
def test_lesson_fits_and_is_accessible(open_view, options):
    page = open_view("#model=d2l&row=1&head=1&off=1&step=5&what=temperature", **options)
    wait_for_steps(page, 6)
    expect(page.locator("#what-table tbody tr")).to_have_count(6)
    width = page.evaluate("document.documentElement.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for part in ("#what", "#layer-drawing svg", "#steps"):
        box = page.locator(part).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, part
    unfold_all(page)
    assert_accessible(page)


def test_lesson_works_by_keyboard(open_view):
    page = open_view("#model=journey&row=3&head=1")
    wait_for_steps(page, 6)
    page.locator("#step-on").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#step-name")).to_have_text("2 of 6: Scores")
    page.locator("#what").focus()
    page.keyboard.type("scores are divided")
    expect(page.locator("#what-field")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Control+A")
    page.keyboard.type("4")
    wait_until(page, "() => location.hash.includes('what=temperature&by=4')")


# --- pictures and links of the pages in docs ---

def test_pictures_in_docs_are_those_that_the_script_takes():
    named = {path for page in (ROOT / "docs").glob("*.md") for path in re.findall(r"\(images/([\w-]+)\.png\)", page.read_text())}
    stored = {path.stem: path.stat().st_size for path in (ROOT / "docs/images").glob("*.png")}
    assert named <= PICTURES.keys() == stored.keys()
    assert max(stored.values()) <= 60_000, stored


LINKS = re.findall(r"http://127\.0\.0\.1:8080/(#[^)\s>]+)", (ROOT / "docs/teach.md").read_text())


@pytest.mark.parametrize("link", LINKS)
def test_links_of_the_lesson_show_what_they_say(open_view, link):
    page = open_view(link)
    assert page.locator("#notice").is_hidden() and page.locator("#problem").is_hidden()
    wait_until(page, "() => document.getElementById('steps').childElementCount > 0")
    page.wait_for_timeout(300)
    if "step=" in link:  # it is in view
        part = "#what-table" if "what=" in link else "#steps-title"
        expect(page.locator(part)).to_be_in_viewport(ratio=0.99)
    page.locator("#copy-link").click()
    expect(page.locator("#status")).to_contain_text("copied")
    missing = set(link[1:].split("&")) - {"step=0"} - set(page.evaluate("location.hash").lstrip("#").split("&"))
    assert not missing  # what a link says, the page has taken over
