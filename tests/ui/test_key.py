# SPDX-License-Identifier: Apache-2.0
"""The page of a server that needs a key: it asks for one, and keeps it in memory only."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from server import Server
from view import View, wait_until

KEY, OTHER = "page/0123456789+=", "other-0123456789"


def write_keys(path, key):
    path.write_text(f"page:{key}\n")
    path.chmod(0o600)


@pytest.fixture
def keyed(tmp_path):
    write_keys(tmp_path / "keys", KEY)
    with Server("--demo", "--api-key-file", tmp_path / "keys") as running:
        yield running


@pytest.fixture
def view(browser, keyed):
    opened = View(browser, keyed, permissions=["clipboard-read", "clipboard-write"])
    opened.page.goto(keyed.url)
    opened.page.locator("#key").wait_for()
    yield opened
    opened.close()


def enter(page, key):
    page.get_by_label("This server needs a key").fill(key)
    page.get_by_role("button", name="Use it").click()


def test_a_key_opens_the_page(view):
    assert view.page.evaluate("document.activeElement.id") == "key"
    enter(view.page, KEY)
    view.wait()
    assert view.page.locator("#key-form").is_hidden()
    view.page.get_by_label("Head 1 on").uncheck()
    wait_until(view.page, "() => document.getElementById('change').textContent.startsWith('Without')")


def test_a_wrong_key_is_asked_for_again(view):
    error = view.page.get_by_text("The server does not know this key.")
    assert error.is_hidden()
    enter(view.page, OTHER)
    error.wait_for()
    assert view.page.locator("#key").input_value() == ""
    enter(view.page, KEY)
    view.wait()


def test_the_key_is_kept_nowhere(view, keyed):
    enter(view.page, KEY)
    view.wait()
    kept = view.page.evaluate("""() => JSON.stringify([location.href, document.cookie,
        {...localStorage}, {...sessionStorage}, document.documentElement.outerHTML, history.state])""")
    assert KEY not in kept
    assert view.context.storage_state() == {"cookies": [], "origins": []}
    view.page.reload()
    view.page.locator("#key").wait_for()
    enter(view.page, KEY)
    view.wait()


def test_the_copied_command_has_a_name_in_place_of_the_key(view):
    enter(view.page, KEY)
    view.wait()
    view.page.get_by_role("button", name="Copy curl command").click()
    wait_until(view.page, "() => document.getElementById('status').textContent.includes('copied')")
    command = view.page.evaluate("navigator.clipboard.readText()")
    assert '-H "Authorization: Bearer $ATTND_KEY"' in command and KEY not in command


def test_a_key_that_changes_is_asked_for(view, keyed, tmp_path):
    """Without a reload of the page; what was chosen stays."""
    enter(view.page, KEY)
    view.wait()
    write_keys(tmp_path / "keys", OTHER)
    keyed.process.send_signal(1)
    wait_until(view.page, """async () => (await fetch('v1/models',
        {headers: {Authorization: 'Bearer %s'}})).status === 200""" % OTHER)
    view.page.get_by_label("Head 1 on").uncheck()
    view.page.locator("#key").wait_for()
    enter(view.page, OTHER)
    wait_until(view.page, "() => document.getElementById('change').textContent.startsWith('Without')")


def test_the_field_is_accessible_and_fits_a_phone(view):
    for width in (1280, 390):
        view.page.set_viewport_size({"width": width, "height": 900})
        assert view.page.evaluate("document.documentElement.scrollWidth") <= width
        found = Axe().run(view.page, context="#key-form").response["violations"]
        assert not found, [(each["id"], each["help"]) for each in found]


def test_a_server_without_keys_asks_for_none(open_view):
    assert open_view().locator("#key-form").is_hidden()
