# SPDX-License-Identifier: Apache-2.0
"""Captures that the server keeps for the page: the file is put once, and asked by name."""

import numpy as np
import pytest
import requests
from playwright.sync_api import expect

from reload import wait_until
from server import Server
from test_captured_page import find_weights, make_file, make_request, read_weights
from test_key import KEY, enter, write_keys
from test_use import drop, open_first_head, wait_for_about
from view import View, choose, expect_problem, forget_picture

NAME = "ui-"


def open_bare(browser, server):
    """Opens the page of a server without a model; `view.sent` has the method, path and length of each request."""
    view = View(browser, server)
    view.sent = []
    view.page.on("request", lambda request: view.sent.append(
        (request.method, request.url.removeprefix(server.url), len(request.post_data_buffer or b""))))
    view.page.goto(server.url)
    view.page.view = view
    return view


def list_names(server, **options):
    return [each["name"] for each in server.get("/v1/captures", **options).json()["captures"]]


@pytest.fixture
def keeping():
    with Server("--capture-memory", "64MiB") as server:
        yield server


@pytest.fixture
def page(browser, keeping):
    view = open_bare(browser, keeping)
    expect_problem(view.page, "No model is loaded.")
    yield view.page
    view.close()


def make_layers(seed=1, **options):
    rng = np.random.default_rng(seed)
    return {"3": make_request(rng, scale=0.3, causal=True, window=4),
            "14": make_request(rng, scale=0.5, causal=False, softcap=3.0,
                               sinks=np.array([0, 1, -1, 2], np.float32)) | options}


def methods_of(page, method):
    return [path for sent, path, _ in page.view.sent if sent == method]


def test_file_is_put_once_and_asked_by_name(page, keeping, tmp_path):
    layers = make_layers()
    drop(page, "text.safetensors", make_file(tmp_path, layers))
    open_first_head(page)
    wait_for_about(page, "Layer 3 of text.safetensors. The server keeps it.")
    np.testing.assert_allclose(read_weights(page)[0], find_weights(layers["3"]), atol=1e-6)
    choose(page, "layer", "text.safetensors.14")
    np.testing.assert_allclose(read_weights(page)[0], find_weights(layers["14"]), atol=1e-6)
    choose(page, "causal", "true")
    np.testing.assert_allclose(read_weights(page)[0], find_weights(layers["14"] | {"causal": True}), atol=1e-6)
    choose(page, "rows", "2-4")
    np.testing.assert_allclose(read_weights(page)[0], find_weights(layers["14"] | {"causal": True})[:, 2:5], atol=1e-6)

    name, = list_names(keeping)
    assert name.startswith(NAME) and len(name) == len(NAME) + 32
    assert methods_of(page, "PUT") == [f"/v1/captures/{name}"]
    asked = [(path, length) for method, path, length in page.view.sent if method == "POST" and "attention" in path]
    assert len(asked) >= 4 and {path for path, _ in asked} == {f"/v1/captures/{name}/attention"}
    assert max(length for _, length in asked) < 1000  # the keys alone have 640 bytes


def test_another_file_takes_its_place_and_leaving_deletes_it(page, keeping, tmp_path):
    for seed in (1, 2):
        layers = make_layers(seed)
        if seed == 2:
            forget_picture(page)
        drop(page, f"text{seed}.safetensors", make_file(tmp_path, layers))
        open_first_head(page)
        wait_for_about(page, f"Layer 3 of text{seed}.safetensors")
        np.testing.assert_allclose(read_weights(page)[0], find_weights(layers["3"]), atol=1e-6)
    expect(page.locator("#about")).to_contain_text("The server keeps it.")
    wait_for_names(keeping, 1)
    page.goto("about:blank")
    wait_for_names(keeping, 0)


def wait_for_names(server, count):
    wait_until(lambda: len(list_names(server)) == count, f"{count} captures")


def test_capture_that_the_server_has_lost_is_put_again_once(page, keeping, tmp_path):
    layers = make_layers()
    drop(page, "text.safetensors", make_file(tmp_path, layers))
    open_first_head(page)
    wait_for_about(page, "The server keeps it.")
    name, = list_names(keeping)
    assert requests.delete(f"{keeping.url}/v1/captures/{name}", timeout=60).status_code == 204
    choose(page, "causal", "false")
    np.testing.assert_allclose(read_weights(page)[0], find_weights(layers["3"] | {"causal": False}), atol=1e-6)
    again, = list_names(keeping)
    assert again != name and len(methods_of(page, "PUT")) == 2


@pytest.mark.parametrize("options,reason", [((), "this server keeps no captures"),
                                            (("--capture-memory", "64KiB"), "more than the 32768")])
def test_tensors_are_sent_where_the_server_does_not_keep_them(browser, tmp_path, options, reason):
    with Server(*options) as server:
        view = open_bare(browser, server)
        expect_problem(view.page, "No model is loaded.")
        layers = make_layers()
        drop(view.page, "text.safetensors", make_file(tmp_path, layers))
        open_first_head(view.page)
        wait_for_about(view.page, "Its tensors are sent with each request: ")
        expect(view.page.locator("#about")).to_contain_text(reason)
        np.testing.assert_allclose(read_weights(view.page)[0], find_weights(layers["3"]), atol=1e-6)
        assert "/v1/attention/dot-product" in methods_of(view.page, "POST")
        view.close()


def test_key_is_sent_when_a_file_is_kept_and_deleted(browser, tmp_path):
    write_keys(tmp_path / "keys", KEY)
    headers = {"Authorization": f"Bearer {KEY}"}
    with Server("--capture-memory", "64MiB", "--api-key-file", tmp_path / "keys") as server:
        view = open_bare(browser, server)
        view.page.locator("#key").wait_for()
        enter(view.page, KEY)
        expect_problem(view.page, "No model is loaded.")
        drop(view.page, "text.safetensors", make_file(tmp_path, make_layers()))
        open_first_head(view.page)
        wait_for_about(view.page, "The server keeps it.")
        assert len(list_names(server, headers=headers)) == 1
        view.page.goto("about:blank")
        wait_until(lambda: list_names(server, headers=headers) == [], "the capture is deleted")
        view.page.close()
