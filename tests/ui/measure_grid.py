#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""measure_grid.py: times the picture of all heads of a large capture in Chromium, and its memory.

    BINARY=build-release/src/attnd build/venv/bin/python tests/ui/measure_grid.py --layers 30 --heads 32 --tokens 2000

Queries and keys are random bfloat16. The click is that on "All heads", from a head of a capture that the server
keeps. Memory is what the processes of pages have for themselves, over that of the page without a model."""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "http"))

from server import Server
from view import wait_until

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium-headless-shell")
LOADING = "() => [...document.querySelectorAll('.layer')].filter(row => !row.querySelector('.loading')).length"


def write_capture(path, layers, heads, tokens, size):
    """Writes a causal capture of random numbers, layer by layer."""
    rng, shape = np.random.default_rng(1), [tokens, heads, size]
    length = int(np.prod(shape)) * 2
    header = {"__metadata__": {"layers": json.dumps([str(layer) for layer in range(layers)])}}
    for layer in range(layers):
        header["__metadata__"][f"{layer}.causal"] = "true"
        for i, name in enumerate(("queries", "keys")):
            begin = (2 * layer + i) * length
            header[f"{layer}.{name}"] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, begin + length]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(2 * layers):
            numbers = rng.normal(size=shape).astype(np.float32)
            file.write((numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes())


def private_memory(browser_id):
    """Returns the MiB that the renderers below a process have for themselves."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # it has ended

    def is_below(process):
        return process == browser_id or process in parents and is_below(parents[process])

    total = 0
    for process in filter(is_below, parents):
        if b"--type=renderer" in Path(f"/proc/{process}/cmdline").read_bytes():
            total += sum(int(line.split()[1]) for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
                         if line.startswith("Private_"))
    return total / 1024


def browser_process():
    """Returns the Chromium that this program has started: the one whose children are renderers."""
    found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline")
             if b"--measure-grid" in path.read_bytes() and b"--type=" not in path.read_bytes()]
    return min(found)


def main_thread_time(session):
    """Returns the CPU seconds that the page's main thread has used."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")


def measure_frames(page):
    """Scrolls the picture to its end and back. Returns the times between frames in ms, sorted, and the CPU ms of the
    main thread for a frame, which other work of the machine does not change."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = main_thread_time(session)
    times = page.evaluate("""async () => {
        const box = document.getElementById('all-heads'), times = [];
        const height = box.scrollHeight - box.clientHeight, width = box.scrollWidth - box.clientWidth;
        let last = await new Promise(requestAnimationFrame);
        for (let i = 0; i < 240; i++) {
            box.scrollTop = height * (1 - Math.abs(1 - i / 120));
            box.scrollLeft = width * (1 - Math.abs(1 - i / 120));
            const now = await new Promise(requestAnimationFrame);
            times.push(now - last);
            last = now;
        }
        return times.sort((a, b) => a - b);
    }""")
    return times, (main_thread_time(session) - before) / len(times) * 1000


def measure(page, options, path):
    report = {"empty": private_memory(options.browser)}
    began = time.monotonic()
    page.locator("#file").set_input_files(path)
    wait_until(page, f"() => ({LOADING})() >= 1", seconds=120)
    report["first after the file was chosen, s"] = time.monotonic() - began
    wait_until(page, f"() => ({LOADING})() >= {options.layers}", seconds=300)
    report["all after the file was chosen, s"] = time.monotonic() - began
    report["memory then, MiB"] = private_memory(options.browser) - report["empty"]
    page.locator("#layer").select_option(index=1)
    wait_until(page, "() => document.getElementById('lines-box').childElementCount > 0", seconds=60)
    page.locator("#causal").select_option("true")  # the pictures are made anew
    page.wait_for_timeout(3000)

    report["memory of a head, MiB"] = private_memory(options.browser) - report["empty"]
    began, peak = time.monotonic(), 0
    page.locator("#to-all").click()
    for name, count in (("first", 1), ("all", options.layers)):
        while page.evaluate(LOADING) < count:
            peak = max(peak, private_memory(options.browser))
            page.wait_for_timeout(50)
        report[f"{name} after the click, s"] = time.monotonic() - began
    wait_until(page, "() => !document.querySelector('.layer .tags:empty') || true")
    report |= {"memory over the empty page at most, MiB": peak - report["empty"],
               "memory at the end, MiB": private_memory(options.browser) - report["empty"]}
    frames, report["main thread while scrolling, CPU ms a frame"] = measure_frames(page)
    report["frames while scrolling, ms"] = f"median {frames[120]:.1f}, 95 % {frames[228]:.1f}, largest {frames[-1]:.1f}"
    page.screenshot(path=options.picture) if options.picture else None
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 30), ("heads", 32), ("tokens", 2000), ("size", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--picture", help="where a screenshot goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Server("--capture-memory", "2GiB") as server, \
            sync_playwright() as playwright:
        path = f"{folder}/large.safetensors"
        write_capture(path, options.layers, options.heads, options.tokens, options.size)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--measure-grid"])
        options.browser = browser_process()
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(server.url)
        wait_until(page, "() => !document.getElementById('problem').hidden")
        for name, value in measure(page, options, path).items():
            print(f"{name}: {value if isinstance(value, str) else format(value, '.2f')}")
        browser.close()


main()
