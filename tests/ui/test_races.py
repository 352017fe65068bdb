# SPDX-License-Identifier: Apache-2.0
"""What comes late, or after something newer: each test holds one step of the page up, and looks at what is shown."""

import json
import re

import numpy as np
import pytest
import requests
from playwright.sync_api import expect

from reload import wait_until
from test_captured_page import WORDS, find_weights, make_file, make_request, read_weights
from test_kept_captures import keeping, list_names, make_layers, methods_of, page as keeping_page, wait_for_names  # noqa: F401
from test_use import drop, open_first_head, paste, wait_for_about
from view import JOURNEY_ROWS, choose, expect_problem, forget_picture, move_by_keys, save


class Held(list):
    """Routes of requests that are held, until all are released."""
    is_open = False


def hold(page, url, is_held=lambda request: True):
    held = Held()
    page.route(url, lambda route: held.append(route) if is_held(route.request) and not held.is_open else route.continue_())
    return held


def release(page, held, count=None):
    held.is_open = count is None
    for route in held[:count]:
        route.continue_()
    del held[:count]
    let_page_go_on(page)


def let_page_go_on(page):
    """The page has read by then what has arrived before."""
    for _ in range(3):
        page.evaluate("fetch('v2/health/live').then(reply => reply.text())")


def hold_read(page, number=0):
    """Holds up one reading of a file, until finishRead() of the page."""
    page.evaluate("""number => {
        const read = Blob.prototype.arrayBuffer;
        Blob.prototype.arrayBuffer = function () {
            if (number-- > 0)
                return read.call(this);
            Blob.prototype.arrayBuffer = read;
            return new Promise(done => { window.finishRead = () => done(read.call(this)); });
        };
    }""", number)


def finish_read(page):
    page.evaluate("finishRead()")
    let_page_go_on(page)


def freeze_frames(page):
    """Lets the page paint 16 rows of a picture only; the first of heldFrames goes on with what was begun first."""
    page.evaluate("""() => {
        let time = performance.now();
        performance.now = () => time += 100;
        window.heldFrames = [];
        window.requestAnimationFrame = frame => window.heldFrames.push(frame);
    }""")


def make_rows(count):
    return json.dumps({"model": "journey", "queries": JOURNEY_ROWS[:count]}).encode()


# --- files and texts ---

def test_file_that_is_read_late_does_not_replace_a_newer_one(open_view):
    page = open_view("#model=journey")
    hold_read(page)
    drop(page, "old.json", make_rows(2))
    drop(page, "new.json", make_rows(3))
    wait_for_about(page, "From new.json.")
    finish_read(page)
    expect(page.locator("#about")).to_have_text("From new.json.")
    expect(page.locator("#row option")).to_have_count(3)


def test_file_that_is_read_late_does_not_replace_a_model(open_view):
    page = open_view("#model=journey")
    hold_read(page)
    drop(page, "old.json", make_rows(2))
    choose(page, "model", "d2l")
    finish_read(page)
    expect(page.locator("#facts")).to_contain_text("d2l")
    expect(page.locator("#source")).to_have_value("example")


def test_text_that_was_typed_before_a_file_does_not_replace_it(open_view):
    page = open_view("#model=journey")
    page.evaluate("""() => {  // typed text is read after half a second
        const real = window.setTimeout;
        window.setTimeout = (run, ms, ...more) => ms === 500 ? void (window.readText = () => run(...more)) : real(run, ms, ...more);
    }""")
    paste(page, make_rows(2).decode())
    drop(page, "rows.json", make_rows(3))
    wait_for_about(page, "From rows.json.")
    page.evaluate("readText()")
    let_page_go_on(page)
    expect(page.locator("#about")).to_have_text("From rows.json.")
    assert page.locator("#problem").is_hidden()


def test_error_of_a_text_does_not_come_when_another_source_is_chosen(open_view):
    page = open_view("#model=journey")
    held = hold(page, "**/v1/attention", lambda request: b"],]" in (request.post_data_buffer or b""))
    paste(page, '{"queries": [[1, 2, 3],]}')
    wait_until(lambda: page.locator("#own").is_visible() and held, "a text that the server judges")
    choose(page, "source", "example")
    release(page, held)
    assert page.locator("#problem").is_hidden()


def test_error_of_a_file_stays_when_an_earlier_run_arrives(open_view):
    page = open_view("#model=journey")
    held = hold(page, "**/v1/attention", lambda request: b'"need_weights":true' in (request.post_data_buffer or b""))
    page.locator("#causal").select_option("false")
    wait_until(lambda: page.locator("#causal").is_visible() and held, "a run under way")
    drop(page, "notes.txt", b"hello")
    expect_problem(page, "Another format", "queries")
    forget_picture(page)
    release(page, held)
    page.view.wait()
    expect_problem(page, "Another format", "queries")


# --- the run before, while another one is under way ---

@pytest.mark.parametrize("link", ["#model=journey&heads=0", "#model=d2l&sequence=1&row=3&key=5"])
def test_picture_of_before_can_be_pointed_at(open_view, link):
    """Its cells and sequences are not those of the state."""
    page = open_view("#model=journey&labels=a")
    held = hold(page, "**/v1/attention")
    page.evaluate("link => { location.hash = link; }", link)
    wait_until(lambda: page.locator("#heatmap").is_visible() and held, "a run under way")
    box = page.locator("#cursor").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + box["height"] - 20)
    expect(page.locator("#readout")).to_contain_text("query 5 (row 5)")
    page.mouse.move(box["x"] + box["width"] + 5, box["y"] - 30)
    page.locator("#grid .card button").last.click()
    page.locator("#scale").select_option("log")
    release(page, held)
    page.view.wait()


def test_button_of_the_report_before_is_no_error(open_view):
    page = open_view("#model=patterns")
    expect(page.locator("#drop-least")).to_be_visible()
    held = hold(page, "**/v1/heads")
    choose(page, "causal", "false")
    page.locator("#drop-least").click()
    release(page, held)
    expect(page.locator("#change")).to_have_text("All heads are on.")


def test_table_of_heads_is_none_of_the_model_before(open_view):
    page = open_view("#model=patterns")
    expect(page.locator("#compare tbody tr")).to_have_count(8)
    held = hold(page, "**/v1/heads")
    choose(page, "model", "journey")
    expect(page.locator("#compare")).to_be_hidden()
    expect(page.locator("#drop-least")).to_be_hidden()
    assert "<table" not in save(page, "html")[1].decode()
    release(page, held)
    expect(page.locator("#compare tbody tr")).to_have_count(2)


def test_steps_of_before_do_not_take_a_link_for_theirs(open_view):
    page = open_view("#model=journey&row=3&key=0", viewport={"width": 1280, "height": 600})
    expect(page.locator("#step-text")).to_contain_text("“with”")
    held = hold(page, "**/v1/attention")
    move_by_keys(page, "ArrowUp")
    wait_until(lambda: page.locator("#heatmap").is_visible() and len(held) == 4, "steps under way")
    page.evaluate("location.hash = '#model=journey&row=5&key=0&step=4'")
    wait_until(lambda: page.locator("#heatmap").is_visible() and len(held) == 5, "a run under way")
    release(page, held, 4)
    page.evaluate("scrollTo(0, 0)")
    release(page, held)
    expect(page.locator("#step-text")).to_contain_text("exponentials")
    expect(page.locator("#steps-title")).to_be_in_viewport()


# --- the picture, while it is painted ---

def read_images(page, kind):
    return re.findall(r'data:image/png;base64,[^"]+', save(page, kind)[1].decode())


@pytest.mark.parametrize("kind, count", [("svg", 1), ("html", 7)])
def test_saved_pictures_do_not_wait_for_those_on_screen(open_view, kind, count):
    page = open_view("#model=d2l&source=random&count=160&head=1")
    expect(page.locator("#grid canvas.painted")).to_have_count(6)
    right = read_images(page, kind)
    assert len(right) == count
    forget_picture(page)
    page.locator("#grid .card button").nth(0).click()
    page.view.wait()
    freeze_frames(page)
    page.locator("#scale").select_option("log")  # no thumbnail is painted again
    page.locator("#scale").select_option("linear")
    page.locator("#grid .card button").nth(1).click()
    assert read_images(page, kind) == right


def test_lines_are_drawn_with_their_own_picture(open_view):
    page = open_view("#model=d2l&source=random&count=160")
    expect(page.locator("#grid canvas.painted")).to_have_count(6)
    freeze_frames(page)
    page.locator("#grid .card button").nth(1).click()
    page.locator("#grid .card button").nth(2).click()
    forget_picture(page)
    page.evaluate("heldFrames.shift()()")
    let_page_go_on(page)
    assert page.locator("#lines-box svg").count() == 0
    page.evaluate("() => { while (heldFrames.length > 0) heldFrames.shift()(); }")
    expect(page.locator("#lines-box svg")).to_have_count(1)


# --- captures that the server keeps ---

def test_file_that_is_closed_is_not_sent(keeping_page, keeping, tmp_path):  # noqa: F811
    page = keeping_page
    one = {"3": make_request(np.random.default_rng(1), scale=0.3)}
    hold_read(page, number=1)  # that of the header is the first
    drop(page, "old.safetensors", make_file(tmp_path, one))
    wait_until(lambda: page.evaluate("typeof finishRead") == "function", "tensors under way")
    drop(page, "new.safetensors", make_file(tmp_path, one))
    wait_for_about(page, "Layer 3 of new.safetensors. The server keeps it.")
    finish_read(page)
    assert len(methods_of(page, "PUT")) == 1 == len(list_names(keeping))


def test_capture_that_two_requests_miss_is_put_again_once(keeping_page, keeping, tmp_path):  # noqa: F811
    page = keeping_page
    drop(page, "text.safetensors", make_file(tmp_path, {"3": make_request(np.random.default_rng(1), scale=0.3)}, WORDS))
    wait_for_about(page, "The server keeps it.")
    reports = hold(page, "**/heads")
    choose(page, "shown-keys", "0-3")
    rows = hold(page, "**/attention")
    page.locator("#reading").select_option("row")
    wait_until(lambda: page.locator("#tokens").is_visible() and rows and reports, "two requests")
    name, = list_names(keeping)
    assert requests.delete(f"{keeping.url}/v1/captures/{name}", timeout=60).status_code == 204
    puts = hold(page, "**/captures/ui-*", lambda request: request.method == "PUT")
    release(page, rows)
    wait_until(lambda: page.locator("#tokens").is_visible() and puts, "it is put again")
    release(page, reports)
    release(page, puts)
    expect(page.locator("#tokens-note")).to_contain_text("The weights of query")
    expect(page.locator("#compare")).to_be_visible()
    assert len(methods_of(page, "PUT")) == 2
    wait_for_names(keeping, 1)


def hold_file(page):
    return hold(page, lambda url: "/captures/" in url, lambda request: request.method == "PUT")


def test_a_head_can_be_opened_while_its_file_is_sent(keeping_page, tmp_path):  # noqa: F811
    page, layers = keeping_page, make_layers(2)
    drop(page, "text1.safetensors", make_file(tmp_path, make_layers(1)))
    open_first_head(page)
    wait_for_about(page, "Layer 3 of text1.safetensors")
    held = hold_file(page)
    forget_picture(page)
    drop(page, "text2.safetensors", make_file(tmp_path, layers))
    open_first_head(page)
    wait_until(lambda: page.locator("#all-heads").is_hidden() and held, "a head and a file under way")
    release(page, held)
    wait_for_about(page, "Layer 3 of text2.safetensors. The server keeps it.")
    np.testing.assert_allclose(read_weights(page)[0], find_weights(layers["3"]), atol=1e-6)


def test_heads_stay_where_they_are_while_they_load(keeping_page, tmp_path):  # noqa: F811
    """A click that begins on a head would end beside it."""
    page, held = keeping_page, hold_file(keeping_page)
    drop(page, "text1.safetensors", make_file(tmp_path, make_layers(1)))
    head = page.locator("#all-heads button").first
    place = head.bounding_box()["x"], head.bounding_box()["y"]
    wait_until(lambda: page.locator("#all-heads .loading").count() == 8 and held, "a file under way")
    release(page, held)
    expect(page.locator("#all-heads .loading")).to_have_count(0)
    expect(page.locator("#status")).to_have_text("2 of 2 layers are drawn")
    assert (head.bounding_box()["x"], head.bounding_box()["y"]) == place and page.locator("#problem").is_hidden()


# --- the panel of the server ---

def test_statistics_that_arrive_late_do_not_replace_newer_ones(open_view):
    page = open_view("#model=journey")
    held = []
    page.route("**/v2/models/stats", lambda route: held.append(route) if not held else route.continue_())
    page.locator("#server summary").click()
    wait_until(lambda: page.locator("#server").is_visible() and held, "statistics under way")
    page.locator("#server summary").click()
    page.locator("#server summary").click()
    page.wait_for_selector("#server-body table")
    late = held[0].fetch().json()
    for model in late["model_stats"]:
        model["inference_count"] = 987654
    held[0].fulfill(json=late)
    let_page_go_on(page)
    assert "987,654" not in page.locator("#server-body").inner_text()
