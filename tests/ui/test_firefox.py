# SPDX-License-Identifier: Apache-2.0
"""The page in Firefox, once each: what is drawn, all heads, and what is saved. It speaks Marionette, the protocol inside
Firefox that geckodriver uses: "LENGTH:[0, ID, COMMAND, ARGUMENTS]" over TCP.

    FIREFOX   the browser (firefox-esr); where it is missing, these tests are skipped"""

import base64
import io
import itertools
import json
import os
import shutil
import socket
import subprocess
import time
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.image import imread

from server import Server
from test_captured_page import WORDS, find_weights, make_file, make_request
from view import read_map

FIREFOX = shutil.which(os.environ.get("FIREFOX", "firefox-esr"))
PREFERENCES = {"marionette.port": 0, "browser.download.folderList": 2, "browser.shell.checkDefaultBrowser": False,
               "browser.download.always_ask_before_handling_new_types": False, "datareporting.policy.dataSubmissionEnabled": False,
               "app.update.enabled": False, "browser.startup.page": 0, "ui.systemUsesDarkTheme": 1}
PATIENCE = 120  # seconds, in which a busy machine starts it

pytestmark = pytest.mark.skipif(not FIREFOX, reason="firefox-esr is missing (Debian: firefox-esr)")


class Firefox:
    """A running Firefox without a window. Its folder has the profile, and what is saved."""

    def __init__(self, folder):
        (folder / "saved").mkdir()
        self.saved, self.numbers = folder / "saved", itertools.count(1)
        preferences = PREFERENCES | {"browser.download.dir": str(self.saved)}
        (folder / "user.js").write_text("".join(f"user_pref({json.dumps(name)}, {json.dumps(value)});\n"
                                                for name, value in preferences.items()))
        self.process = subprocess.Popen([FIREFOX, "--headless", "--marionette", "--no-remote", "--profile", folder],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        env=os.environ | {"HOME": str(folder), "MOZ_DISABLE_CONTENT_SANDBOX": "1"})
        port = folder / "MarionetteActivePort"
        self.wait(lambda: port.exists() and port.read_text().strip())
        self.socket = socket.create_connection(("127.0.0.1", int(port.read_text())), timeout=PATIENCE)
        self.file = self.socket.makefile("rb")
        self.receive()
        self.ask("WebDriver:NewSession")
        self.ask("WebDriver:SetWindowRect", width=1280, height=900)

    def wait(self, is_done):
        end = time.monotonic() + PATIENCE
        while not (found := is_done()):
            assert time.monotonic() < end and self.process.poll() is None
            time.sleep(0.05)
        return found

    def receive(self):
        length = b""
        while not length.endswith(b":"):
            length += self.file.read(1)
        return json.loads(self.file.read(int(length[:-1])))

    def ask(self, command, **arguments):
        """Returns the result of a command."""
        text = json.dumps([0, next(self.numbers), command, arguments]).encode()
        self.socket.sendall(b"%d:%s" % (len(text), text))
        _, _, error, result = self.receive()
        assert error is None, error
        return result

    def run(self, script, *arguments):
        """Returns what a script inside the page returns."""
        return self.ask("WebDriver:ExecuteScript", script=script, args=list(arguments))["value"]

    def wait_for(self, script):
        return self.wait(lambda: self.run(f"return {script}"))

    def click(self, selector):
        found = self.ask("WebDriver:FindElement", using="css selector", value=selector)["value"]
        self.ask("WebDriver:ElementClick", id=next(iter(found.values())))

    def press(self, key):
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self.ask("WebDriver:PerformActions", actions=[{"type": "key", "id": "keys", "actions": keys}])

    def save(self, selector, name):
        """Clicks on what saves a file of that name, and returns its bytes."""
        path = self.saved / name
        self.click(selector)
        self.wait(lambda: path.exists() and path.stat().st_size > 0 and not list(self.saved.glob("*.part")))
        return path.read_bytes()

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def server():
    with Server("--demo", "--capture-memory", "64MiB") as running:
        yield running


@pytest.fixture(scope="module")
def firefox(tmp_path_factory):
    running = Firefox(tmp_path_factory.mktemp("firefox"))
    yield running
    running.close()


@pytest.fixture
def page(firefox, server):
    """Firefox with the page of a model of the book, in dark colours. The errors of its script are looked at in the end."""
    firefox.ask("WebDriver:Navigate", url="about:blank")
    firefox.ask("WebDriver:Navigate", url=f"{server.url}/#model=journey&head=1")
    firefox.wait_for("document.getElementById('status').textContent.startsWith('Computed')"
                     " && document.getElementById('lines-box').childElementCount > 0")
    firefox.run("window.failures = []; addEventListener('error', event => failures.push(event.message));"
                "addEventListener('unhandledrejection', event => failures.push(String(event.reason)))")
    yield firefox
    assert firefox.run("return window.wrappedJSObject ? window.wrappedJSObject.failures ?? [] : window.failures ?? []") == []


def drop(page, name, content):
    page.run("""const data = new DataTransfer(), [name, text] = arguments;
        data.items.add(new File([Uint8Array.from(atob(text), letter => letter.charCodeAt(0))], name));
        document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));""",
             name, base64.b64encode(content).decode())


def test_all_heads_are_drawn_walked_and_opened(page, tmp_path):
    rng = np.random.default_rng(1)
    layers = {name: make_request(rng, scale=0.7, causal=True) for name in ("3", "14")}
    drop(page, "text.safetensors", make_file(tmp_path, layers, WORDS))
    page.wait_for("document.getElementById('status').textContent === '2 of 2 layers are drawn'")
    page.wait_for("document.querySelectorAll('#all-heads .loading').length === 0")
    assert page.run("return document.querySelectorAll('#all-heads button').length") == 8
    pixels = read_map(page.run("return document.querySelector('#all-heads .map').style.backgroundImage"))
    np.testing.assert_array_equal(pixels[..., 3] > 0, np.tri(10) > 0)

    page.run("document.querySelector('#all-heads [tabindex=\"0\"]').focus()")
    for key in ("\ue015", "\ue014", "\ue007"):  # down, right, Enter; a file that is saved would take the focus of the window
        page.press(key)
    page.wait_for("document.getElementById('large-title').textContent === 'Head 1'"
                  " && document.getElementById('layer').value === 'text.safetensors.14'"
                  " && document.getElementById('status').textContent.startsWith('Computed')")
    saved = json.loads(page.save("[data-save=json]", "text-safetensors-14-head-1.json"))
    np.testing.assert_allclose(np.array(saved["attention_weights"], float), find_weights(layers["14"]), atol=1e-6)
    page.click("#to-all")
    page.wait_for("document.activeElement.getAttribute('aria-label')?.startsWith('Layer 14, head 1')")
    root = ElementTree.fromstring(page.save("[data-save-all=svg]", "text-safetensors-all-heads.svg"))
    assert len(root.findall(".//{*}image")) == 8


def test_pictures_and_numbers_are_saved(page):
    for selector, name in (("[data-save-all=png]", "journey-all-heads.png"), ("[data-save=png]", "journey-head-1.png")):
        assert (imread(io.BytesIO(page.save(selector, name)))[0, 0, :3] == 1).all()  # light, on a dark page
    words = [element.text for element in ElementTree.fromstring(
        page.save("[data-save-all=svg]", "journey-all-heads.svg")).findall(".//{*}text")]
    assert words.count("journey") == 3 and "Head 1" in words
    assert b"journey" in page.save("[data-save=csv]", "journey-head-1.csv")
    assert page.save("[data-save=html]", "journey-head-1.html").startswith(b"<!doctype html>")
    assert json.loads(page.save("[data-save=request]", "journey-head-1.request.json"))["model"] == "journey"


def test_lesson_goes_from_step_to_step_and_asks_what_if(page):
    page.run("window.isLeft = true; location.hash = '#model=d2l&head=1&row=1&key=2&step=2&what=root'; location.reload()")
    page.wait_for("!window.isLeft && document.getElementById('step-name').textContent.startsWith('3 of 6')"
                  " && document.querySelectorAll('#what-table tbody tr').length === 6")
    differences = page.run("return [...document.querySelectorAll('#what-table tbody tr')].map(row => row.lastChild.textContent)")
    assert differences[2].startswith("+") and differences[3:] == ["0"] * 3
    assert page.run("return document.querySelectorAll('#layer-drawing .lit').length") > 0
    page.click("#step-on")
    page.wait_for("document.getElementById('step-name').textContent.startsWith('4 of 6')")
