# SPDX-License-Identifier: Apache-2.0
"""Tests that drive the page at / in Debian's Chromium, against the real daemon. They use the
helpers of tests/http.

    CHROMIUM        the browser (/usr/bin/chromium-headless-shell, whose pages open in a third of the CPU time, or
                    else /usr/bin/chromium); where it is missing, all tests are skipped
    BROWSER_TESTS   0: all are skipped"""

import os
import shutil
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from background import pause_background_load
from checkpoints import write_layer
from server import Server
from view import View

INSTALLED = [path for path in ("/usr/bin/chromium-headless-shell", "/usr/bin/chromium") if os.path.exists(path)]
CHROMIUM = os.environ.get("CHROMIUM") or (INSTALLED or ["/usr/bin/chromium"])[0]

expect.set_options(timeout=20_000)  # ms, as in wait_until()


def why_not():
    """Why these tests cannot run, or an empty text."""
    if os.environ.get("BROWSER_TESTS") == "0":
        return "BROWSER_TESTS is 0"
    return "" if shutil.which(CHROMIUM) else f"{CHROMIUM} is missing (Debian: chromium or chromium-headless-shell)"


def pytest_collection_modifyitems(items):
    """So pytest itself counts what is left out."""
    for item in items:
        if why_not() and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=why_not()))


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
        # Tabs share the one process of their context: to start one for each takes as long as to load the page.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--process-per-site",
                                                                              "--renderer-process-limit=1"])
        yield chromium
        chromium.close()


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


@pytest.fixture(scope="module")
def kept_view(browser, server):
    """The tab of open_link: the tests of a file share it."""
    view = View(browser, server)
    yield view
    view.close()


@pytest.fixture
def open_link(kept_view):
    """Like open_view, for tests whose page another one may use before and after: a link takes back what a user
    does with fields and buttons, but no file, stand-in or place of the mouse. It takes a third of the time."""
    def start(fragment):
        kept_view.page.view = kept_view
        return kept_view.follow(fragment) if kept_view.is_open() else kept_view.open(fragment)

    yield start
    kept_view.check()
