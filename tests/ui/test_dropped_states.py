# SPDX-License-Identifier: Apache-2.0
"""A file of hidden states, of vLLM or of Captured.save(): drawn with the layers of a folder that is served."""

import json

import numpy as np
import pytest
from playwright.sync_api import expect

from captures import capture
from safetensors_file import make_safetensors, read_safetensors
from server import ROOT, Server
from test_captured_page import find_weights, make_request, read_weights
from test_use import drop, open_first_head, wait_for_about
from view import View, choose, expect_problem, forget_picture

FOLDER = ROOT / "docs/examples/tiny-gpt2"
TEXT = "Attention is a soft dictionary."
TYPES = {"hidden_states": "F32", "token_ids": "I64", "targets": "I64"}


@pytest.fixture(scope="module")
def recorded():
    """What GPT-2 computed for TEXT: hidden states, and weights of eager."""
    found = read_safetensors(FOLDER / "recorded.safetensors")
    states = [found[f"sdpa/{number}/hidden"][0] for number in (0, 1)]
    return np.stack([*states, states[1]], axis=1), [found[f"eager/{number}/weights"][0] for number in (0, 1)]


@pytest.fixture(scope="module")
def folders():
    """The layers of a folder that apply their norm, and those of others."""
    with Server("--model", f"gpt={FOLDER},pre_norm=true", "--model", f"behind={FOLDER},pre_norm=false", "--demo") as server:
        yield server


@pytest.fixture
def page(browser, folders):
    view = View(browser, folders)
    page = view.open("#model=journey")
    page.view = view
    forget_picture(page)
    yield page
    view.close()


def make_states(states, metadata=None, **more):
    tensors = {"hidden_states": states, **more}
    return make_safetensors(tensors, {name: TYPES[name] for name in tensors}, metadata)


def expect_weights(page, weights):
    shown = read_weights(page)[0]
    np.testing.assert_allclose(np.nan_to_num(shown), weights, atol=1e-5)


def test_states_of_all_layers_are_drawn_with_a_folder_that_fits(page, recorded):
    states, weights = recorded
    drop(page, "text.safetensors", make_states(states, {"tokens": json.dumps(list(TEXT))}))
    expect(page.locator("#status")).to_have_text("2 of 2 layers are drawn")
    assert page.locator("#about").inner_text() == "From text.safetensors."
    assert page.locator("main > section:visible h2").all_inner_texts() == ["All heads", "The server"]
    largest = max(np.nan_to_num(each).max() for each in weights)
    assert page.locator("#all-note").inner_text().startswith(f"One scale, up to {float(f'{largest:.3g}'):g}. A cell is a weight.")
    open_first_head(page)
    wait_for_about(page, "State 0 of text.safetensors, which enters layer 0.")
    expect(page.locator("#layer")).to_have_value("gpt.0")
    expect_weights(page, weights[0])
    expect(page.locator("#compare tbody tr")).to_have_count(len(weights[0]))
    expect(page.locator("#row option").nth(2)).to_have_text("2 t")
    expect(page.locator("#outputs tbody th").nth(2)).to_have_text("2 t")
    expect(page.locator("#steps tbody th").nth(2)).to_have_text("2 t")
    choose(page, "layer", "gpt.1")
    expect_weights(page, weights[1])
    assert "enters layer 1" in page.locator("#about").inner_text() and page.locator("#steps-title").is_visible()


def test_states_may_come_before_tokens(page, recorded):
    states, weights = recorded
    drop(page, "text.safetensors", make_states(states.transpose(1, 0, 2)[[1, 0, 2]], {"hidden_ids": "[1, 0, 2]"}))
    open_first_head(page)
    wait_for_about(page, "State 1 of text.safetensors, which enters layer 0.")
    expect_weights(page, weights[0])


@pytest.mark.parametrize("said", [True, False])
def test_states_of_some_layers_go_by_their_numbers(page, recorded, said):
    """vLLM's file does not say which layers they are of, so the page asks; save() writes hidden_ids."""
    states, weights = recorded
    drop(page, "text.safetensors", make_states(states[:, 1:2], {"hidden_ids": "[1]"} if said else None,
                                               token_ids=np.arange(len(states))))
    if not said:
        text = expect_problem(page, "Hidden states", "states")
        assert "write the numbers of the 1 layers that the states of text.safetensors enter" in text
        page.locator("#states").fill("1")
        expect(page.locator("#model-error")).to_contain_text("are 64 wide, of layers 1; choose one of them")
        choose(page, "layer", "gpt.1")
    wait_for_about(page, "State 0 of text.safetensors, which enters layer 1.")
    expect(page.locator("#layer")).to_have_value("gpt.1")
    expect_weights(page, weights[1])


def test_targets_and_ids_of_the_file_reach_the_report(page, recorded):
    states, _ = recorded
    sent = []

    def stand_in(route):
        sent.append(route.request.post_data_buffer)
        route.fulfill(json={"heads": [{"entropy": 1, "importance": 0.5, "mass_on_target": 0.25, "tags": ["induction"],
                                       "shares": [0.9], "weak": [False]}] * 4,
                            "gram": np.eye(4).tolist()})
    page.route("**/v1/heads", stand_in)
    drop(page, "text.safetensors", make_states(states, token_ids=np.arange(len(states)),
                                               targets=np.tile([0, 1], (len(states), 1))))
    open_first_head(page)
    wait_for_about(page, "enters layer 0.")
    expect(page.locator("#compare")).to_contain_text("On its target")
    header = json.loads(sent[-1][8:8 + int.from_bytes(sent[-1][:8], "little")])
    assert header["token_ids"]["shape"] == [len(states)] and header["targets"]["shape"] == [len(states), 2]


def test_states_without_a_folder_say_what_is_missing(open_view, recorded):
    page = open_view("#model=patterns")
    drop(page, "text.safetensors", make_states(recorded[0]))
    text = expect_problem(page, "Hidden states", "queries")
    assert "text.safetensors has 3 hidden states 64 wide, and no queries and keys" in text
    assert "attnd --model NAME=FOLDER" in text


def test_layer_behind_its_norm_is_not_given_what_is_before_it(page, recorded):
    drop(page, "text.safetensors", make_states(recorded[0]))
    open_first_head(page)
    wait_for_about(page, "enters layer 0.")
    page.locator("#model").select_option(label="behind")
    assert "behind.0 takes rows behind its norm" in expect_problem(page, "Hidden states", "model")
    page.locator("#model").select_option("patterns")
    expect(page.locator("#model-error")).to_contain_text("are 64 wide, of layers of a folder; choose one of them")


@pytest.mark.parametrize("change, words", [
    (lambda file: file[:-1], "tensor 'hidden_states' ends after the file"),
    (lambda file: make_states(np.ones((2, 5, 4)), token_ids=np.arange(3)), "2 rows for 3 token_ids; start vllm with --no-"),
    (lambda file: make_states(np.ones((2, 3, 4)), {"hidden_ids": "8, 16"}), "hidden_ids is no JSON, but '8, 16'")])
def test_damaged_file_is_told_what_is_wrong(page, recorded, change, words):
    drop(page, "text.safetensors", change(make_states(recorded[0])))
    assert words in expect_problem(page, "", "queries")


@pytest.mark.parametrize("layers", [{}, {"3": [make_request(np.random.default_rng(1), 31, 31, scale=0.4, causal=True)]}])
def test_file_of_save_holds_all_of_a_text(browser, recorded, tmp_path, layers):
    """With queries and keys it is a capture, which the server takes whole; with states alone a folder draws it."""
    captured = capture.Captured(layers, list(TEXT))
    captured.hidden_states, captured.hidden_ids = recorded[0][:, :2], [0, 1]
    captured.token_ids, captured.targets = np.frombuffer(TEXT.encode(), np.uint8), np.tile([0, 1], (len(TEXT), 1))
    captured.save(tmp_path / "text.safetensors")
    with Server("--model", f"gpt={FOLDER},pre_norm=true", "--capture-memory", "64MiB") as server:
        view = View(browser, server)
        page = view.open()
        page.view = view
        forget_picture(page)
        drop(page, "text.safetensors", (tmp_path / "text.safetensors").read_bytes())
        if not layers:
            open_first_head(page)
        wait_for_about(page, "Layer 3 of text.safetensors. The server keeps it." if layers else "enters layer 0.")
        expect_weights(page, np.nan_to_num(find_weights(layers["3"][0])) if layers else recorded[1][0])
        if layers:  # targets came with the file
            expect(page.locator("#compare")).to_contain_text("On its target")
        assert read_weights(page)[1]["keys"][:2] == ["A", "t"]
        view.close()
