# SPDX-License-Identifier: Apache-2.0
"""What tests read from the page, and what the API says of the same."""

import base64
import functools
import io
import json
import re

import numpy as np
from matplotlib.image import imread
from playwright.sync_api import expect

JOURNEY = "Your journey starts with one step".split()
JOURNEY_ROWS = [[0.43, 0.15, 0.89], [0.55, 0.87, 0.66], [0.57, 0.85, 0.64],
                [0.22, 0.58, 0.33], [0.77, 0.25, 0.10], [0.05, 0.80, 0.55]]


def wait_until(page, expression, arg=None, seconds=20):
    """Waits until the expression is true. The page's policy forbids Playwright's own waiting for
    one, which evaluates a text inside the page. Asking again and again from here costs as much
    as the page itself, so the page asks. For an element Playwright's expect() waits: use
    either for all that the page shows later than its status, which View.wait() waits for."""
    assert page.evaluate("""async ([arg, milliseconds]) => {
        const isTrue = %s, end = performance.now() + milliseconds;
        while (!await isTrue(arg) && performance.now() < end)
            await new Promise(done => setTimeout(done, 20));
        return isTrue(arg);
    }""" % expression, [arg, seconds * 1000]), f"still false: {expression}"


def ask_journey(server, **fields):
    """Returns (outputs, weights [heads, rows, keys]) of the page's example."""
    reply = server.attention({"model": "journey", "need_weights": True, "queries": JOURNEY_ROWS,
                              **fields}).json()
    return np.array(reply["outputs"]), np.array(reply["attention_weights"])


def read_map(style):
    """Returns the pixels [height, width, 4] of a background image, from 0 to 255."""
    png = base64.b64decode(re.search(r"base64,([\w+/=]+)", style)[1])
    return np.round(imread(io.BytesIO(png)) * 255)


def read_number(text):
    return float(text.replace("−", "-").replace(",", ""))


def read_cell(page):
    """Returns (weight or None where masked, row, key) of the cell that is read out."""
    text = page.locator("#readout").inner_text()
    shown, row, key = re.match(r"(\S+) query .* \(row (\d+)\) → key .* \((\d+)\)$", text).groups()
    return (None if shown == "masked" else read_number(shown)), int(row), int(key)


def hover_row(page, row_from_bottom=0):
    """Moves the mouse along a row of the large heatmap, and returns the cells in their order.
    Before and after it, the chosen cell is read out, which should be in another row. Below the
    last row the canvas has 2 more pixels."""
    page.locator("#cursor").scroll_into_view_if_needed()
    box = page.locator("#cursor").bounding_box()
    y = box["y"] + box["height"] - 5
    while row_from_bottom > 0:
        page.mouse.move(box["x"] + box["width"] / 2, y)
        before = read_cell(page)[1]
        while read_cell(page)[1] == before:
            y -= 10
            page.mouse.move(box["x"] + box["width"] / 2, y)
        row_from_bottom -= 1
    cells = []
    for x in range(0, int(box["width"]), 20):  # less than a cell
        page.mouse.move(box["x"] + x, y)
        cell = read_cell(page)
        if not cells or cells[-1] != cell:
            cells.append(cell)
    return cells


def move_by_keys(page, *keys):
    page.locator("#heatmap").focus()
    for key in keys:
        page.keyboard.press(key)
    return read_cell(page)


def forget_picture(page):
    """Removes the lines, which are drawn last, so that View.wait() waits for the next picture."""
    page.evaluate("document.getElementById('lines-box').replaceChildren()")


def choose(page, control, value):
    """Chooses the option of a select, or fills in a field, and waits for the computation."""
    element = page.locator(f"#{control}")
    page.evaluate("document.getElementById('status').textContent = ''")
    forget_picture(page)
    if element.evaluate("element => element.tagName") == "SELECT":
        element.select_option(value)
    else:
        element.fill(value)
    page.view.wait()


def expect_problem(page, title, place=None):
    """Waits for an error, and returns its text. `place` is the field beside which it is; its title
    is above the heads, and the text stands once only."""
    expect(page.locator("#problem")).to_be_visible()
    text = page.locator("#problem").inner_text()
    assert text.startswith(title), text
    if place:
        detail = page.locator(f"#{place}-error").inner_text()
        assert detail and page.locator(f"#{place}-error").is_visible() and detail not in text
        text += " " + detail
    return text


def save(page, kind):
    """Returns the name and the bytes of a saved file."""
    with page.expect_download() as waiting:
        page.locator(f"[data-save={kind}]").click()
    download = waiting.value
    with open(download.path(), "rb") as file:
        return download.suggested_filename, file.read()


def read_table(page, selector):
    """Returns the rows of a table, as lists of texts; the heads of rows are the first."""
    return page.eval_on_selector_all(f"{selector} tr", """rows => rows.map(
        row => [...row.children].map(cell => cell.textContent.trim()))""")


@functools.cache
def context_of(browser, url, options):
    """Returns the one context with these options, as JSON. The page stores nothing that its next tab could find. A
    tab that stays open holds the context's one process of Chromium, since to start one takes longer than a test."""
    context = browser.new_context(**json.loads(options))
    context.new_page().goto(f"{url}/v2/health/live")
    return context


class View:
    """One tab with the page. Errors of its script, violations of its policy, dialogs, and
    requests to elsewhere are failures; they are looked at when the test is over."""

    def __init__(self, browser, server, **options):
        options.setdefault("viewport", {"width": 1280, "height": 1000})
        self.context = context_of(browser, server.url, json.dumps(options, sort_keys=True))
        self.page = self.context.new_page()
        self.server, self.problems = server, []
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error.stack or error}"))
        self.page.on("dialog", lambda dialog: (self.problems.append(f"dialog: {dialog.message}"),
                                               dialog.dismiss()))
        self.page.on("console", self.note_console)
        self.page.on("request", self.note_request)

    def note_console(self, message):
        # A reply of 4xx is reported by the browser, too; the page shows it.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.problems.append(f"console: {message.text}")

    def note_request(self, request):
        if not request.url.startswith((self.server.url, "blob:", "data:")):
            self.problems.append(f"request: {request.url}")

    def open(self, fragment=""):
        """Opens the page, and waits until it has computed and painted."""
        self.page.goto(f"{self.server.url}/{fragment}")
        self.wait()
        return self.page

    def follow(self, fragment):
        """Opens the page by a link from itself, and waits likewise: nothing is loaded again. What the page draws
        is removed before, so that a test does not find what the last one left."""
        self.page.evaluate("""fragment => {
            for (const part of document.querySelectorAll(
                    '.scroll, #grid, #lines-box, #status, #change, #step-text, #what-text, #compare-note, #outputs-note'))
                part.replaceChildren();
            history.replaceState(null, '', '#');  // so that another follows
            location.hash = fragment;
        }""", fragment)
        self.wait()
        return self.page

    def is_open(self):
        return self.page.url.startswith(f"{self.server.url}/#")

    def wait(self):
        """Waits until the page has computed, and has painted the picture and then the lines."""
        wait_until(self.page, """() => document.getElementById('status').textContent.startsWith('Computed')
            && document.getElementById('plot').clientHeight > 150
            && document.getElementById('lines-box').childElementCount > 0""")

    def close(self):
        self.page.unroute_all(behavior="wait")  # a stand-in may have a request in hand
        self.page.close()
        self.check()

    def check(self):
        """Fails once for what was noted."""
        problems, self.problems = self.problems, []
        assert not problems, problems
