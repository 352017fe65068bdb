# SPDX-License-Identifier: Apache-2.0
"""What the page says and where it leads when an input is odd or wrong."""

import json
import re

import numpy as np
import pytest
import requests
from playwright.sync_api import expect

from server import Server
from test_captured_page import WORDS, make_file, make_request
from test_look import PHONE, wait_for_steps
from test_use import drop, paste, wait_for_about
from view import JOURNEY, View, choose, expect_problem, read_number, read_table, save


@pytest.mark.parametrize("fragment, step_of_all", [("#model=journey&valid=0&row=3&key=0", "All scores are alike"),
                                                   ("#model=d2l&valid=0&row=1&key=0", "All scores are alike")])
def test_steps_of_a_row_without_a_valid_key_are_those_of_the_server(open_link, fragment, step_of_all):
    page = open_link(f"{fragment}&step=5")
    wait_for_steps(page, 6)
    table = read_table(page, "#steps table")
    rows, total = table[1:7], table[-1]
    assert [row[3] for row in rows] == ["masked"] * 6
    assert [row[4] for row in rows] == ["1"] * 6 and total[4] == "6"
    assert all(read_number(row[5]) == pytest.approx(1 / 6, abs=5.1e-5) for row in rows)
    said = page.locator("#step-text").inner_text().rsplit("[", 1)[1].split("]")[0]
    assert [read_number(each) for each in said.split(", ")] == pytest.approx(
        [read_number(each) for each in total[-1].split()], rel=6e-3)
    page.locator("#step-back").click()
    expect(page.locator("#step-text")).to_contain_text(step_of_all)
    page.locator("#step-back").click()
    expect(page.locator("#step-text")).to_contain_text("Every key of this row is masked")
    expect(page.locator("#even-note")).to_be_visible()


def test_rows_with_a_valid_key_have_no_such_note(open_link):
    page = open_link("#model=journey&valid=1&row=3&key=0")
    expect(page.locator("#even-note")).to_be_hidden()


def is_in_view(page, selector):
    return page.locator(selector).evaluate("""element => { const { top, bottom } = element.getBoundingClientRect();
        return top >= 0 && bottom <= innerHeight; }""")


def test_compute_leads_to_the_field_that_is_wrong(open_view):
    page = open_view("#model=journey", viewport={"width": 1280, "height": 600})
    page.locator("#text").fill("Your journey ends")
    expect_problem(page, "Unknown word", "text")
    page.locator("#compute").scroll_into_view_if_needed()
    page.evaluate("scrollTo(0, 2000)")
    assert not is_in_view(page, "#text-error")
    page.locator("#compute").click()
    expect(page.locator("#text")).to_be_focused()
    assert is_in_view(page, "#text") and is_in_view(page, "#text-error")


def test_button_beside_the_title_leads_to_the_field(open_link):
    page = open_link("#model=journey")
    page.locator("#rows").fill("17")
    expect_problem(page, "Out of range", "rows")
    page.get_by_role("button", name="Show where").click()
    expect(page.locator("#rows")).to_be_focused()


def test_whole_error_is_above_the_heads_where_its_field_is_folded_away(open_view):
    page = open_view("#model=journey&rows=0-4", **PHONE)
    page.evaluate("location.hash = '#model=journey&rows=17'")
    assert "there are 6 rows" in expect_problem(page, "Out of range")


def test_compute_on_a_phone_shows_the_heads(open_view):
    page = open_view("#model=journey", **PHONE)
    page.get_by_text("Change the input").click()
    page.locator("#compute").click()
    page.view.wait()
    expect(page.locator("#heads-title")).to_be_in_viewport()


def test_capture_has_no_heads_to_switch_off(open_view, tmp_path):
    page = open_view("#model=patterns")
    expect(page.locator("#drop-least")).to_be_visible()
    drop(page, "text.safetensors", make_file(tmp_path, {"3": make_request(np.random.default_rng(1), scale=0.3)}, WORDS))
    wait_for_about(page, "Layer 3 of text.safetensors")
    expect(page.locator("#drop-least")).to_be_hidden()
    assert page.locator("#about").inner_text().endswith("with each request: this server keeps no captures.")


def test_sum_of_a_sentence_is_in_the_table_without_scrolling(open_view):
    page = open_view("#model=patterns&step=5&row=3&key=0", viewport={"width": 1280, "height": 800})
    wait_for_steps(page, 11)
    assert page.locator("#steps").evaluate("box => box.scrollHeight <= box.clientHeight + 1")


def test_sum_of_many_keys_stays_at_the_lower_edge(open_link):
    page = open_link("#model=d2l&source=random&count=64&step=5&row=40&key=0")
    wait_for_steps(page, 64)
    assert page.locator("#steps").evaluate("""box => {
        const foot = box.querySelector('tfoot td').getBoundingClientRect(), edge = box.getBoundingClientRect();
        return box.scrollHeight > box.clientHeight && foot.bottom <= edge.bottom + 1; }""")


def test_lines_are_scrolled_to_the_chosen_row(open_link):
    page = open_link("#model=d2l&source=random&count=64&row=60&key=0")
    assert page.locator("#lines-box").evaluate("""box => {
        const label = box.querySelector('text[font-weight="700"]').getBoundingClientRect();
        const edge = box.getBoundingClientRect();
        return label.top >= edge.top && label.bottom <= edge.bottom; }""")


def test_link_to_a_model_that_is_not_there_says_so(open_view):
    page = open_view("#model=nosuch&row=1")
    expect(page.locator("#notice")).to_contain_text("This server has no model nosuch. What you see is patterns.")
    page.locator("#model").select_option("journey")
    page.view.wait()
    expect(page.locator("#notice")).to_be_hidden()
    page.evaluate("location.hash = '#model=other'")
    expect(page.locator("#notice")).to_contain_text("no model other")


def test_link_that_follows_a_move_at_once_is_no_error(open_view):
    """What the move has postponed meets the state of the link and the run of before."""
    page, held = open_view("#model=journey&row=3&key=0"), []
    wait_for_steps(page, 6)  # they are asked for at the same address
    page.route("**/v1/attention", lambda route: held.append(route))
    page.evaluate("""() => {
        document.getElementById('heatmap').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowUp', bubbles: true }));
        location.hash = '#model=d2l&sequence=1'; }""")
    page.wait_for_timeout(500)
    assert len(held) == 1
    held[0].continue_()
    page.unroute("**/v1/attention")
    expect(page.locator("#facts")).to_contain_text("d2l")


@pytest.mark.parametrize("model, typed, words", [
    ("journey", "your Journey, starts.", ["Your", "journey", "starts"]),
    ("patterns", "The cat slept!", ["the", "cat", "slept"]),
    ("patterns", "“the cat”", None)])
def test_words_of_a_sentence_are_known_without_case_and_marks(open_link, model, typed, words):
    page = open_link(f"#model={model}")
    page.locator("#text").fill(typed)
    if words is None:
        assert "'“the' is not a word" in expect_problem(page, "Unknown word", "text")
        return
    expect(page.locator("#row option")).to_have_count(len(words))
    assert page.locator("#row option").all_inner_texts() == [f"{i} {word}" for i, word in enumerate(words)]


def test_sentence_that_is_too_long_is_told_in_words(open_link):
    page = open_link("#model=journey")
    page.locator("#text").fill(" ".join(JOURNEY + ["with"]))
    assert "7 words; this model takes 6" in expect_problem(page, "Too many words", "text")


@pytest.mark.parametrize("text", ["{'queries': [[1, 2, 3]]}", '{"model": "journey", "queries": [[NaN, 2, 3]]}',
                                  '{"model": "journey", "queries": [[1e400, 2, 3]]}',
                                  '{"model": "journey", "queries": [[1, 2, 3],]}'])
def test_pasted_json_is_judged_in_the_words_of_the_server(open_link, server, text):
    page = open_link("#model=journey")
    reply = requests.post(server.url + "/v1/attention", data=text, timeout=60,
                          headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    paste(page, text)
    assert reply.json()["detail"] in expect_problem(page, reply.json()["title"], "queries")


@pytest.mark.parametrize("text, place", [
    ('{"queries": [[1, 2, 3],]}', "line 1, column 24: "), ('\n {"queries": [[1, 2, 3],]}', "line 2, column 25: "),
    ('{\n"queries": [[1, 2, 3],]}', "line 2, column 23: "), ('x {"queries": [[1, 2, 3]]}', "line 1, column 1: "),
    ("[[1, 2, 3],]", "line 1, column 12: "), ("queries", "line 1, column 7: ")])
def test_place_in_pasted_json_is_that_of_what_was_typed(open_link, text, place):
    page = open_link("#model=journey")
    paste(page, text)
    assert f" {place}" in expect_problem(page, "Malformed JSON", "queries")


def test_dropped_json_is_judged_where_a_capture_is_shown(open_view, tmp_path):
    page = open_view("#model=patterns")
    drop(page, "text.safetensors", make_file(tmp_path, {"3": make_request(np.random.default_rng(1), scale=0.3)}, WORDS))
    wait_for_about(page, "Layer 3 of text.safetensors")
    drop(page, "rows.json", b'{"queries": [[1, 2, 3],]}')
    assert "line 1, column 24: " in expect_problem(page, "Malformed JSON")


def test_error_of_an_earlier_text_does_not_come_back(open_view):
    """The server's word on the first text arrives after the second one has been computed."""
    page = open_view("#model=journey")
    page.locator("#source").select_option("own")
    held = []

    def is_first_text(request):  # the page asks for steps at the same address
        return b"],]" in (request.post_data_buffer or b"")

    page.route("**/v1/attention", lambda route: held.append(route) if is_first_text(route.request) else route.continue_())
    with page.expect_request(is_first_text):
        page.locator("#own").fill('{"queries": [[1, 2, 3],]}')
    try:
        page.locator("#own").fill('{"queries": [[1, 2, 3]]}')
        expect(page.locator("#row option")).to_have_count(1)
    finally:
        with page.expect_response(lambda response: is_first_text(response.request)):
            held[0].continue_()
    page.evaluate("fetch('v2/health/live').then(reply => reply.text())")  # the page has read the other one by then
    expect(page.locator("#problem")).to_be_hidden()


@pytest.mark.parametrize("name, content, words", [
    ("notes.txt", b"hello", "notes.txt is no JSON, safetensors or capture"),
    ("rows.safetensors", b"", "rows.safetensors is empty")])
def test_dropped_file_of_text_is_named(open_link, name, content, words):
    page = open_link("#model=journey")
    drop(page, name, content)
    assert words in expect_problem(page, "Another format", "queries")


def test_single_characters_have_a_label_each(browser, tmp_path):
    """Once beside the rows and once above the columns, with its place. A blank has a sign of its own."""
    words = list("A tiny text of thirty letters.")
    request = make_request(np.random.default_rng(2), len(words), len(words), scale=0.3)
    with Server() as server:
        view = View(browser, server)
        view.page.goto(server.url)
        view.page.view = view
        expect_problem(view.page, "No model is loaded.")  # by then the page listens
        drop(view.page, "text.safetensors", make_file(tmp_path, {"0": request}, words))
        wait_for_about(view.page, "Layer 0")
        texts = re.findall(r">([^<]+)</text>", save(view.page, "svg")[1].decode())
        labels = [f"{place} {'␣' if word == ' ' else word}" for place, word in enumerate(words)]
        assert [text for text in texts if re.match(r"\d+ \S$", text)] == labels * 2
        expect(view.page.locator("#lines-box text").first).to_have_text("0 A")
        expect(view.page.locator("#row option").first).to_have_text("0 A")
        assert json.loads(save(view.page, "json")[1])["queries"][:3] == ["A", "␣", "t"]
        choose(view.page, "rows", "2-13")
        choose(view.page, "shown-keys", "7-20")
        texts = re.findall(r">([^<]+)</text>", save(view.page, "svg")[1].decode())
        assert [text for text in texts if re.match(r"\d+ \S$", text)] == labels[2:14] + labels[7:21]
        view.close()


def test_nine_cards_fit_beside_the_input(open_view):
    page = open_view("#model=patterns", viewport={"width": 1280, "height": 800})
    tops = page.eval_on_selector_all("#grid .card", "all => all.map(card => card.offsetTop)")
    assert len(tops) == 9 and len(set(tops)) == 1


def test_hint_for_a_keyboard_is_not_shown_on_a_phone(open_view):
    page = open_view("#model=journey", **PHONE)
    assert "Arrow keys" not in page.locator("#heatmap-hint").inner_text()
    page = open_view("#model=journey")
    assert "Arrow keys" in page.locator("#heatmap-hint").inner_text()
