#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""take_pictures.py: draws the pictures of the pages in docs with the real page of a real attnd.

    BINARY=build-release/src/attnd build/venv/bin/python tests/ui/take_pictures.py [NAME ...]

It takes all, or those that are named. It needs Debian's Chromium, and the packages of tests/requirements.txt.
test_lesson.py compares PICTURES with what docs show."""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from server import ROOT, Server
from view import wait_until

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
WIDE, PHONE = (1280, 1000), (390, 844)
CAPTURE = ROOT / "docs/examples/tiny-gpt2/capture.safetensors"
STEPS = "section[aria-labelledby=steps-title]"
HEADS = "section[aria-labelledby=heads-title]"

# name: size, colours, the address after #, the part of the page or None for the window, and a file that is dropped
PICTURES = {
    "page-heads": ((1440, 1000), "light", "#head=3&row=4&key=7&lines=all",
                   f"{HEADS}, section[aria-labelledby=large-title]", None),
    "page-dark": ((1280, 900), "dark", "#head=4", None, None),
    "page-phone": (PHONE, "light", "#head=7", None, None),
    "page-compare": (WIDE, "light", "#off=5,4", "section[aria-labelledby=compare-title]", None),
    "page-steps": (WIDE, "light", "#model=journey&head=1&row=3&key=1&step=5", STEPS, None),
    "heads-patterns": (WIDE, "light", "#model=patterns", HEADS, None),
    "inspect-capture": (WIDE, "light", "", "section[aria-labelledby=large-title], section[aria-labelledby=tokens-title]", CAPTURE),
    "page-all": (WIDE, "light", "", "section[aria-labelledby=all-title]", CAPTURE),
    "teach-projections": (WIDE, "light", "#model=journey&head=1&row=3&key=0", STEPS, None),
    "teach-what-if": (WIDE, "light", "#model=d2l&head=1&row=1&key=2&step=2&what=root", STEPS, None),
    "teach-d2l": (WIDE, "light", "#model=d2l", HEADS, None),
}


def find_clip(page, part):
    boxes = [element.bounding_box() for element in page.locator(part).all()]
    left, top = (min(box[side] for box in boxes) for side in ("x", "y"))
    return {"x": left, "y": top, "width": max(box["x"] + box["width"] for box in boxes) - left,
            "height": max(box["y"] + box["height"] for box in boxes) - top}


def take(browser, url, name, size, colours, fragment, part, file):
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=colours)
    page = context.new_page()
    page.goto(f"{url}/{fragment}")
    wait_until(page, "() => document.querySelectorAll('#steps tbody tr').length > 0")
    if file:
        page.locator("#file").set_input_files(file)
        wait_until(page, "() => document.querySelectorAll('#all-heads .map:not(.loading)').length > 0")
        if "all-" not in part:  # the picture of all heads comes first
            page.locator("#all-heads button").first.click()
            wait_until(page, "() => document.querySelectorAll('#tokens span').length > 0")
    else:
        wait_until(page, "() => document.querySelectorAll('#compare tbody tr').length > 0")
    page.wait_for_timeout(800)  # the thumbnails, one after another
    page.evaluate("() => scrollTo(0, 0)")  # a link to a step scrolls there, and boxes are of the window
    clip = find_clip(page, part) if part else None
    shot = Image.open(io.BytesIO(page.screenshot(clip=clip, full_page=part is not None)))
    shot.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(ROOT / f"docs/images/{name}.png", optimize=True)
    context.close()


def main():
    with Server("--demo") as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in sys.argv[1:] or PICTURES:
            take(browser, server.url, name, *PICTURES[name])
        browser.close()


if __name__ == "__main__":
    main()
