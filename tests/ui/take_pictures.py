#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""take_pictures.py: draws the pictures of the pages in docs with the real page of a real attnd.

    BINARY=build-release/src/attnd build/venv/bin/python tests/ui/take_pictures.py

It needs Debian's Chromium, and the packages of tests/requirements.txt."""

import os
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from server import ROOT, Server
from view import wait_until

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
# name: width, height, colours, the address after #, and the part of the page; None: the window
PICTURES = {
    "page-heads": (1440, 1000, "light", "#head=3&row=4&key=7&lines=all", "main > section:nth-of-type(1), "
                   "main > section:nth-of-type(2)"),
    "page-dark": (1280, 900, "dark", "#head=4", None),
    "page-phone": (390, 844, "light", "#head=7", None),
    "page-compare": (1280, 1000, "light", "#off=5,4", "section[aria-labelledby=compare-title]"),
    "page-steps": (1280, 1000, "light", "#model=journey&head=1&row=3&key=1&step=4",
                   "section[aria-labelledby=steps-title]"),
}


def take(browser, url, name, width, height, colours, fragment, part):
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=colours)
    page = context.new_page()
    page.goto(f"{url}/{fragment}")
    wait_until(page, "() => document.querySelectorAll('#steps tbody tr').length > 0")
    wait_until(page, "() => document.querySelectorAll('#compare tbody tr').length > 0")
    page.wait_for_timeout(500)  # the thumbnails, one after another
    clip = None
    if part:
        boxes = [element.bounding_box() for element in page.locator(part).all()]
        left, top = (min(box[side] for box in boxes) for side in ("x", "y"))
        clip = {"x": left, "y": top, "width": max(box["x"] + box["width"] for box in boxes) - left,
                "height": max(box["y"] + box["height"] for box in boxes) - top}
    page.screenshot(path=ROOT / f"docs/images/{name}.png", clip=clip, full_page=part is not None)
    context.close()


def main():
    (ROOT / "docs/images").mkdir(exist_ok=True)
    with Server("--demo") as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name, picture in PICTURES.items():
            take(browser, server.url, name, *picture)
        browser.close()


main()
