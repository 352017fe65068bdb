# SPDX-License-Identifier: Apache-2.0
"""Long inputs: frames stay short, and what cannot be drawn is named."""

import json

from playwright.sync_api import expect

from view import choose, expect_problem, move_by_keys, read_cell, wait_until

# Notes how long each frame takes while something runs.
WATCH_FRAMES = """() => {
    window.frames_ms = [];
    let last = performance.now();
    const note = now => {
        window.frames_ms.push(now - last);
        last = now;
        window.watching = requestAnimationFrame(note);
    };
    window.watching = requestAnimationFrame(now => { last = now; note(now); });
}"""


def watch_frames(browser, page, run):
    """Returns (the longest frame, the most CPU time of a task of the page's main thread) while
    `run` runs, in ms. Other programs delay a frame, and add nothing to the CPU time of a task."""
    browser.start_tracing(page=page, categories=["toplevel"])
    page.evaluate(WATCH_FRAMES)
    run()
    page.wait_for_timeout(100)
    frame = page.evaluate("""() => { cancelAnimationFrame(window.watching);
        return Math.max(...window.frames_ms); }""")
    events = json.loads(browser.stop_tracing())["traceEvents"]
    mains = {(event["pid"], event["tid"]) for event in events
             if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"}
    return frame, max(event.get("tdur", 0) / 1000 for event in events  # none if cut off
                      if event["name"].endswith("RunTask") and (event["pid"], event["tid"]) in mains)


def test_512_tokens_of_12_heads_are_smooth(open_view, browser):
    page = open_view("#model=wide&source=random&count=512")
    assert page.locator("#grid .card").count() == 13
    wait_until(page, """() => [...document.querySelectorAll('#grid canvas')].every(
        canvas => canvas.width > 100)""")
    page.wait_for_timeout(1500)
    page.locator("#cursor").scroll_into_view_if_needed()
    box = page.locator("#cursor").bounding_box()
    seen = set()

    def move_mouse():
        for step in range(75):
            page.mouse.move(box["x"] + box["width"] * (0.1 + 0.85 * step / 75),
                            box["y"] + box["height"] * (0.2 + 0.7 * (step * 37 % 75) / 75))
            if step % 5 == 0:
                seen.add(read_cell(page))

    frame, task = watch_frames(browser, page, move_mouse)
    print(f"\n512 tokens, 12 heads: the longest frame took {frame:.0f} ms while the mouse moved, "
          f"the longest task {task:.0f} ms of CPU time")
    assert len(seen) > 10
    assert task < 200

    frame, task = watch_frames(browser, page,
                               lambda: move_by_keys(page, "PageDown", "PageDown", "ArrowDown"))
    print(f"while heads and rows were changed: {frame:.0f} ms, the longest task {task:.0f} ms")


def test_too_many_tokens_are_named_and_rows_are_offered(open_link):
    page = open_link("#model=wide")
    page.locator("#source").select_option("random")
    page.locator("#count").fill("3000")
    text = expect_problem(page, "Too large to draw", "rows")
    assert "108,000,000 weights, 9,000,000 of one head" in text
    page.get_by_role("button", name="Show rows 0 to 63 of all heads").click()
    expect(page.locator("#problem")).to_be_hidden(timeout=60_000)
    page.view.wait()
    assert page.locator("#rows").input_value() == "0-63"
    assert page.locator("#row option").count() == 64
    assert move_by_keys(page, "End")[2] == 2999


def test_spread_and_last_rows_are_offered_of_a_causal_layer(open_link):
    page = open_link("#model=wide&causal=true")
    page.locator("#source").select_option("random")
    page.locator("#count").fill("3000")
    expect_problem(page, "Too large to draw", "rows")
    assert page.locator("#problem button").all_inner_texts() == [
        "Show every 6th row of head 0", "Show the last 512 rows of head 0", "Show the last 64 rows of all heads"]
    page.get_by_role("button", name="Show every 6th row").click()
    expect(page.locator("#problem")).to_be_hidden(timeout=60_000)
    page.view.wait()
    assert page.locator("#rows").input_value() == "5-2999/6"
    assert page.locator("#row option").count() == 500
    assert page.locator("#row option").last.inner_text() == "2999"


def test_more_random_tokens_than_can_be_made_are_refused(open_link):
    page = open_link("#model=wide")
    page.locator("#source").select_option("random")
    page.locator("#count").fill("999999999")
    assert "up to 29,127 tokens" in expect_problem(page, "Too many tokens", "count")


def test_reply_beyond_the_limit_of_the_server_is_named(open_view):
    """The server is stood in for: the page shows what it says."""
    page = open_view("#model=wide")
    page.route("**/v1/attention", lambda route: route.fulfill(
        status=413, content_type="application/problem+json",
        json={"status": 413, "title": "Reply too large",
              "detail": "the reply could have 9 bytes, more than --max-reply 8"}))
    page.locator("#causal").select_option("true")
    assert "--max-reply 8" in expect_problem(page, "Reply too large")


def test_long_rows_are_drawn_as_lines_of_their_strongest_keys(open_link):
    page = open_link("#model=wide&source=random&count=200&row=100")
    assert page.locator("#lines-box path.line").count() <= 30
    assert "the 30 strongest of 200 keys" in page.locator("#lines-note").inner_text()
    choose(page, "heads", "3, 5")
    assert page.locator("#grid .card").count() == 3
    assert page.locator("#large-title").inner_text() == "Head 3"
