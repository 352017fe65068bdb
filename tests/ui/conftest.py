# SPDX-License-Identifier: Apache-2.0
"""Tests that drive the page at / in Debian's Chromium, against the real daemon. They use the
helpers of tests/http."""

import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from background import pause_background_load
from checkpoints import write_layer
from server import Server
from view import wait_until

CHROMIUM = "/usr/bin/chromium"

expect.set_options(timeout=20_000)  # ms, as in wait_until()


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """Holds back the load of background.py: these tests measure frames."""
    with pause_background_load():
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The demo models, and one of 12 heads."""
    folder = tmp_path_factory.mktemp("models")
    write_layer(folder / "wide.safetensors", 12, 16, 96)
    with Server("--demo", "--model-dir", folder) as running:
        yield running


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class View:
    """One tab with the page. Errors of its script, violations of its policy, dialogs, and
    requests to elsewhere are failures; they are looked at when the test is over."""

    def __init__(self, browser, server, **options):
        options.setdefault("viewport", {"width": 1280, "height": 1000})
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.server, self.problems = server, []
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
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

    def wait(self):
        """Waits until the page has computed, and has painted the picture and then the lines."""
        wait_until(self.page, """() => document.getElementById('status').textContent.startsWith('Computed')
            && document.getElementById('plot').clientHeight > 150
            && document.getElementById('lines-box').childElementCount > 0""")

    def close(self):
        self.page.unroute_all(behavior="wait")  # a stand-in may have a request in hand
        self.context.close()
        assert not self.problems


@pytest.fixture
def open_view(browser, server):
    """A function that opens the page in a new tab: open_view("#model=d2l", **options)."""
    views = []

    def start(fragment="", **options):
        views.append(View(browser, server, **options))
        page = views[-1].open(fragment)
        page.view = views[-1]
        return page

    yield start
    for view in views:
        view.close()
