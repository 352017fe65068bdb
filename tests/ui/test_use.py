# SPDX-License-Identifier: Apache-2.0
"""What a user does with the page: switch heads off, bring a request, take files away."""

import base64
import csv
import io
import json
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from urllib.parse import quote

import numpy as np
import pytest
import requests
from playwright.sync_api import expect

from safetensors_file import make_safetensors
from server import ROOT, Server
from view import (JOURNEY, JOURNEY_ROWS, ask_journey, choose, expect_problem, forget_picture,
                  move_by_keys, read_cell, read_number, read_table, save, View, wait_until)

HOSTILE = "<img/src=x/onerror=alert(1)>\"'&<script>alert(2)</script>"


# --- heads on and off ---

def relative_change(outputs, changed):
    return np.linalg.norm(changed - outputs) / np.linalg.norm(outputs)


def wait_for_change(page, heads):
    expect(page.locator("#change")).to_contain_text(f"Without {heads} ")
    text = page.locator("#change").inner_text()
    return [read_number(number) / 100 for number in re.findall(r"([\d.]+) %", text)]


def test_switching_a_head_off_says_how_far_the_outputs_move(open_link, server):
    page = open_link("#model=journey")
    expect(page.locator("#change")).to_have_text("All heads are on.")
    page.get_by_label("Head 1 on").uncheck()
    outputs, _ = ask_journey(server)
    changed, _ = ask_journey(server, head_mask=[1, 0])
    assert wait_for_change(page, "head 1")[0] == pytest.approx(relative_change(outputs, changed), rel=5e-3)
    page.get_by_role("button", name="All on").click()
    expect(page.locator("#change")).to_have_text("All heads are on.")
    assert page.get_by_label("Head 1 on").is_checked()


def read_outputs(page):
    return [[read_number(cell) for cell in row[1:]] for row in read_table(page, "#outputs tbody")]


def test_outputs_are_those_of_the_book(open_link, server):
    page = open_link("#model=journey&row=2&key=0")
    table = read_table(page, "#outputs table")
    assert table[:3] == [["Query", "0", "1"], ["Your", "0.3190", "0.4858"], ["journey", "0.2943", "0.3897"]]
    assert page.locator("#outputs tr[aria-current]").inner_text().startswith("starts")
    move_by_keys(page, "ArrowDown")
    assert page.locator("#outputs tr[aria-current]").inner_text().startswith("with")
    page.get_by_label("Head 1 on").uncheck()
    expect(page.locator("#outputs-note")).to_contain_text("Heads that are off: 1.")
    outputs, _ = ask_journey(server, head_mask=[1, 0])
    assert np.allclose(read_outputs(page), outputs, atol=5.1e-5)
    page.get_by_role("button", name="All on").click()
    expect(page.locator("#outputs-note")).not_to_contain_text("off")
    assert np.allclose(read_outputs(page), ask_journey(server)[0], atol=5.1e-5)


def test_outputs_of_a_sequence_have_its_rows_and_first_numbers(open_link, server):
    page = open_link("#model=d2l&sequence=1&rows=3,0")
    saved = json.loads(save(page, "request")[1])
    del saved["weights_queries"], saved["need_weights"]
    outputs = np.array(server.attention(saved).json()["outputs"])
    assert np.allclose(read_outputs(page), outputs[1][[3, 0], :6], atol=5.1e-5)
    assert "the first 6 of 100 numbers" in page.locator("#outputs-note").inner_text()


def test_prediction_is_what_is_measured(open_link):
    page = open_link("#model=patterns&off=0,3,4")
    expect(page.locator("#change")).to_contain_text("predicted")
    measured, predicted = wait_for_change(page, "heads 0, 3, 4")
    assert measured == pytest.approx(predicted, rel=2e-3) and measured > 0.05


def test_report_is_that_of_the_server(open_link, server):
    page = open_link("#model=journey")
    report = requests.post(server.url + "/v1/heads", timeout=60,
                           json={"model": "journey", "queries": JOURNEY_ROWS}).json()
    expect(page.locator("#compare tbody tr")).to_have_count(2)
    for h, row in enumerate(read_table(page, "#compare table")[1:]):
        head = report["heads"][h]
        assert row[:2] == [str(h), ", ".join(f"{tag} {share:.2f}" for tag, share in zip(head["tags"], head["shares"])) or "–"]
        shown = [read_number(cell) for cell in row[2:]]
        assert shown == pytest.approx([head[key] for key in (
            "entropy", "importance", "mean_distance", "mass_on_self", "mass_on_previous",
            "mass_on_first")], abs=5.1e-4)


def stand_in_report(route):
    """Four heads of unequal length whose contributions are orthogonal, but for 2 and 3, which
    nearly cancel: alone each matters, together they do not."""
    parts = np.array([[3.0, 0, 0], [0, 0.5, 0], [0, 0, 2], [0, 0, -1.9]])
    gram = parts @ parts.T
    norm = np.sqrt(gram.sum())
    heads = [{"importance": np.sqrt(gram[h, h]) / norm, "entropy": 0.1 * h, "mean_distance": None,
              "mass_on_self": None, "mass_on_first": 0.25, "mass_on_previous": None,
              "tags": ["even"] if h else ["previous", HOSTILE],
              "shares": [0.98, 0.5], "weak": [False, True]} for h in range(4)]
    route.fulfill(json={"model": "d2l", "heads": heads + heads[:1],
                        "gram": np.pad(gram, (0, 1), "wrap").tolist()})


def test_least_important_heads_are_found_by_gram(open_view):
    """The server is stood in for, so that what is right is known: head 1 first; then 2 and 3,
    whose order a list of importances alone could not tell."""
    page = open_view("#model=d2l")
    page.route("**/v1/heads", stand_in_report)
    choose(page, "causal", "true")
    expect(page.locator("#compare")).to_contain_text(HOSTILE)  # the report before has 5 heads, too
    rows = read_table(page, "#compare table")[1:]
    assert [len(row) for row in rows] == [5] * 5  # columns without a number are left out
    assert HOSTILE in rows[0][1]
    page.get_by_role("button", name="Switch off the least important").click()
    assert wait_for_change(page, "head 1")[1] == pytest.approx(0.5 / np.sqrt(9.26), rel=5e-3)
    page.get_by_role("button", name="Switch off the least important").click()
    wait_for_change(page, "heads 1, 3")
    page.get_by_role("button", name="Switch off the least important").click()
    assert wait_for_change(page, "heads 1, 2, 3")[1] == pytest.approx(np.sqrt(0.26 / 9.26), rel=5e-3)


def test_error_of_the_report_leaves_the_picture(open_view):
    page = open_view("#model=d2l")
    page.route("**/v1/heads", lambda route: route.fulfill(
        status=503, json={"title": "Out of memory", "detail": "retry later"}))
    choose(page, "causal", "true")
    expect(page.locator("#compare-note")).to_contain_text("retry later")
    assert page.locator("#compare").is_hidden()
    assert page.locator("#problem").is_hidden()


def test_page_without_reports_of_heads_says_so(open_view):
    page = open_view("#model=d2l")
    page.route("**/v1/heads", lambda route: route.fulfill(status=404, json={"title": "Unknown route", "detail": "no POST"}))
    choose(page, "causal", "true")
    expect(page.locator("#compare-note")).to_contain_text("The heads cannot be described: no POST")
    assert page.locator("#compare").is_hidden()
    assert page.locator("#drop-least").is_hidden()


# --- a request of one's own ---

def paste(page, text):
    page.locator("#source").select_option("own")
    page.locator("#own").fill(text)


def drop(page, name, content):
    """Drops a file on the page. As one text, since Playwright looks at each number of a list: some microseconds."""
    page.evaluate("""({ name, text }) => {
        const data = new DataTransfer();
        data.items.add(new File([Uint8Array.from(atob(text), byte => byte.charCodeAt(0))], name));
        document.body.dispatchEvent(new DragEvent("drop",
            { dataTransfer: data, bubbles: true, cancelable: true }));
    }""", {"name": name, "text": base64.b64encode(content).decode()})


def open_first_head(page):
    """Leaves the picture of all heads, as which several layers are first shown."""
    page.locator("#all-heads button").first.click()


def wait_for_about(page, text):
    expect(page.locator("#about")).to_contain_text(text)
    page.view.wait()


def test_pasted_request_is_computed(open_link, server):
    page = open_link("#model=d2l")
    paste(page, json.dumps({"model": "journey", "queries": JOURNEY_ROWS[:3], "causal": False,
                            "weights_heads": [1], "weights_queries": [2, 0]}))
    expect(page.locator("#large-title")).to_have_text("Head 1")
    reply = server.attention({"model": "journey", "queries": JOURNEY_ROWS[:3], "causal": False,
                              "need_weights": True}).json()
    weight, row, key = move_by_keys(page, "ArrowDown", "ArrowUp", "ArrowUp", "Home")
    assert (row, key) == (2, 0)  # the rows are in the order that was asked for
    assert abs(weight - reply["attention_weights"][1][2][0]) < 5.1e-5
    assert page.locator("#rows").input_value() == "2, 0"


@pytest.mark.parametrize("text, title, place, words", [
    ('{"queries": [[1, 2', "Malformed JSON", "queries", ""),
    ('{"queries": [[1, 2]]}', "Shape mismatch", "queries", "query_size 3"),
    ('{"queries": [[1, 2, 3]], "valid_lens": 7}', "Out of range", "valid-lens", "valid_lens"),
    ('{"queries": [[1, 2, 3]], "model": "<b>none</b>"}', "Unknown model", "model", "<b>none</b>"),
    ('{"queries": [[1, 2, 3]], "no_such_field": 1}', "Unknown key", None, "no_such_field"),
    ('{"queries": "text"}', "Wrong type", "queries", "queries"),
    ("[]", "", None, ""),
    ("null", "Wrong type", "queries", "JSON object"),
])
def test_bad_request_is_reported_at_its_field(open_link, text, title, place, words):
    page = open_link("#model=journey")
    paste(page, text)
    assert words in expect_problem(page, title, place)
    if place:
        control = {"queries": "own"}.get(place, place)
        assert page.locator(f"#{control}").get_attribute("aria-invalid") == "true"
    page.locator("#source").select_option("example")  # and it recovers
    expect(page.locator("#problem")).to_be_hidden()
    assert page.locator("[aria-invalid]").count() == 0


@pytest.mark.parametrize("control, value, title, place", [
    ("valid-lens", "many", "Malformed list", "valid-lens"),
    ("valid-lens", "9", "Out of range", "valid-lens"),
    ("rows", "1-", "Malformed list", "rows"),
    ("rows", "17", "Out of range", "rows"),
    ("heads", "5", "Out of range", "heads"),
])
def test_bad_option_is_reported_at_its_field(open_link, control, value, title, place):
    page = open_link("#model=journey")
    page.locator(f"#{control}").fill(value)
    expect_problem(page, title, place)


def shown_errors(page):
    """Returns the ids of the errors that are shown beside fields."""
    return page.eval_on_selector_all("form .error:not([hidden])", "all => all.map(error => error.id)")


def test_error_of_a_field_that_was_mended_does_not_stay(open_link):
    page = open_link("#model=journey")
    page.locator("#text").fill("Your journey ends")
    expect_problem(page, "Unknown word", "text")
    page.locator("#valid-lens").fill("abc")
    page.locator("#text").fill("Your journey starts")
    expect(page.locator("#problem")).to_contain_text("Malformed list")
    assert shown_errors(page) == ["valid-lens-error"]
    assert page.locator("[aria-invalid]").count() == 1


@pytest.mark.parametrize("model, typed, same_as", [
    ("d2l", "3", "[3, 3]"), ("d2l", "[3]", "[3, 3]"), ("d2l", "3, 2", "[3, 2]"),
    ("journey", "[2]", "2"), ("journey", "[2,2,2,2,2,2]", "2")])
def test_one_number_of_valid_keys_stands_for_all(open_link, model, typed, same_as):
    saved = []
    for valid in (typed, same_as):
        page = open_link(f"#model={model}")
        choose(page, "valid-lens", valid)
        saved.append(json.loads(save(page, "json")[1])["attention_weights"])
    assert saved[0] == saved[1] and any(None in row for head in saved[0] for row in head)


@pytest.mark.parametrize("control, model, value, words", [
    ("valid-lens", "d2l", "-1", "is -1, but its sequence has 6 keys; send 0 to 6"),
    ("valid-lens", "d2l", "7", "is 7, but its sequence has 6 keys"),
    ("valid-lens", "d2l", "2.5", "is 2.5; send a whole number"),
    ("valid-lens", "wide&source=random&count=300", "2.5", "2.5"),  # a binary request
    ("rows", "journey", "17", "there are 6 rows"),
    ("heads", "journey", "5", "there are 2 heads"),
    ("window", "journey", "-1", "write a whole number from 0 to 2147483647"),
    ("window", "journey", "2.5", "write a whole number"),
    ("count", "d2l&source=random", "0", "write a whole number from 1 on"),
    ("count", "d2l&source=random", "-4", "write a whole number from 1 on"),
    ("count", "d2l&source=random", "2.5", "write a whole number from 1 on"),
    ("seed", "d2l&source=random", "-1", "write a whole number from 0"),
    ("text", "journey", "  ", "write at least one word"),
    ("text", "journey", "Your end", "use Your, journey, starts, with, one, step"),
])
def test_error_is_about_the_value_that_was_typed(open_link, control, model, value, words):
    page = open_link(f"#model={model}")
    page.locator(f"#{control}").fill(value)
    text = expect_problem(page, "", {"seed": "count"}.get(control, control))
    assert words in text and "column" not in text


@pytest.mark.parametrize("labels, note", [
    ("a b", "2 labels for 6 queries: the others keep their numbers."),
    ("a b c d e f g", "7 labels for 6 queries: the last are left out."),
    ("| x", "1 label for 6 keys: the others keep their numbers."),
    ("a b c d e f", ""), ("", "")])
def test_labels_too_few_or_too_many_are_told(open_link, labels, note):
    page = open_link("#model=journey&labels=x")
    choose(page, "labels", labels)
    expect(page.locator("#labels-note")).to_have_text(note)


def test_window_is_sent_and_drawn(open_link):
    page = open_link("#model=journey")
    choose(page, "window", "2")
    for row, cells in enumerate(json.loads(save(page, "json")[1])["attention_weights"][0]):
        assert [key for key, cell in enumerate(cells) if cell is not None] == list(range(max(0, row - 1), row + 1))
    wait_until(page, "() => location.hash.includes('window=2')")


def test_dropped_json_is_computed(open_link, server):
    page = open_link("#model=d2l")
    forget_picture(page)
    drop(page, "request.json", json.dumps({"model": "journey", "queries": JOURNEY_ROWS}).encode())
    wait_for_about(page, "request.json")
    assert page.locator("#model").input_value() == "journey"
    _, weights = ask_journey(server)
    weight, row, key = move_by_keys(page, "End", *["ArrowDown"] * 6)
    assert (row, key) == (5, 5) and abs(weight - weights[0, 5, 5]) < 5.1e-5


def test_dropped_safetensors_are_computed(open_link, server):
    """A ragged batch in float16, with one valid_lens for each query."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(3, 100)).astype(np.float16)
    keys = rng.normal(size=(8, 100)).astype(np.float32)
    tensors = {"queries": rows, "keys": keys, "query_lens": [2, 1], "key_lens": [4, 4],
               "valid_lens": [3, 4, 1]}
    dtypes = {"queries": "F16", "keys": "F32", "query_lens": "I64", "key_lens": "I32",
              "valid_lens": "I64"}
    page = open_link("#model=journey")
    forget_picture(page)
    drop(page, "ragged.safetensors", make_safetensors(tensors, dtypes, {"model": "d2l"}))
    wait_for_about(page, "ragged.safetensors")
    exact = rows.astype(float)
    reply = server.attention({"model": "d2l", "queries": [exact[:2].tolist(), exact[2:].tolist()],
                              "keys": [keys[:4].tolist(), keys[4:].tolist()],
                              "valid_lens": [[3, 4], [1]], "need_weights": True}).json()
    assert page.locator("#sequence option").count() == 2
    weight, row, key = move_by_keys(page, "ArrowDown", "Home", "ArrowRight")
    assert (row, key) == (1, 1) and abs(weight - reply["attention_weights"][0][0][1][1]) < 5.1e-5
    page.locator("#sequence").select_option("1")
    assert move_by_keys(page, "End") == (None, 0, 3)


def test_dropped_file_that_is_neither_is_refused(open_link):
    page = open_link("#model=journey")
    drop(page, "picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    assert "picture.png" in expect_problem(page, "Another format", "queries")


@pytest.mark.parametrize("name, content, words", [
    ("layer.npz", b"PK\3\4" + bytes(26) + b"W_q.npy", "np.load(sys.argv[1]).items()}"),
    ("layer.pt", b"PK\3\4" + bytes(26) + b"layer/data.pkl", "torch.load(sys.argv[1], 'cpu', weights_only=True)"),
    ("rows.pkl", b"\x80\4\x95\0\0", "load it with pickle.load() if you trust its origin"),
])
def test_dropped_file_of_another_kind_is_recognised(open_link, name, content, words):
    page = open_link("#model=journey")
    drop(page, name, content)
    assert words in expect_problem(page, "", "queries")


def test_line_that_converts_a_file_runs_nothing_of_its_name(open_link, tmp_path):
    """A shell runs the line, with a python3 that prints its arguments."""
    name = "q$(touch ran)`touch ran`'\"\\;touch ran;.npz"
    page = open_link("#model=journey")
    drop(page, name, b"PK\3\4" + bytes(26) + b"q.npy")
    line = expect_problem(page, "Another format", "queries").split("python3", 1)[1].splitlines()[0]
    (tmp_path / "python3").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "python3").chmod(0o755)
    ran = subprocess.run("./python3" + line, shell=True, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    option, script, *rest = ran.stdout.splitlines()
    assert (option, rest) == ("-c", [name]), ran
    compile(script, "converts", "exec")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("fragment", ["#model=d2l&scale=log", "#model=journey",
                                      "#model=wide&source=random&count=2001&rows=0-99&heads=0"])
def test_saved_picture_has_room_for_its_texts(open_link, browser, tmp_path, fragment):
    page = open_link(fragment)
    (tmp_path / "saved.svg").write_bytes(save(page, "svg")[1])
    context = browser.new_context()
    alone = context.new_page()
    alone.goto(f"file://{tmp_path / 'saved.svg'}")
    cut = alone.evaluate("""() => { const page = document.documentElement.getBoundingClientRect();
        return [...document.querySelectorAll('text')].filter(text => { const box = text.getBoundingClientRect();
            return box.left < page.left || box.right > page.right; }).map(text => text.textContent); }""")
    context.close()
    assert not cut


def test_file_is_chosen_with_the_keyboard(open_view, tmp_path):
    page = open_view("#model=d2l")
    path = tmp_path / "chosen.json"
    path.write_text(json.dumps({"model": "journey", "queries": JOURNEY_ROWS}))
    page.locator("#source").select_option("own")
    page.locator("#file").set_input_files(path)
    wait_for_about(page, "chosen.json")
    assert page.locator("#model").input_value() == "journey"


# --- files ---

def test_png_is_a_picture(open_link):
    page = open_link("#model=journey")
    name, data = save(page, "png")
    assert name == "journey-head-0.png" and data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(data[at:at + 4], "big") for at in (16, 20))
    box = page.locator("#plot").bounding_box()
    assert width == pytest.approx(2 * box["width"], abs=4)
    assert height > 2 * box["height"] + 100  # the title, and the bar of the scale


def test_svg_has_each_weight_and_label(open_link, server):
    page = open_link("#model=journey&head=1")
    name, data = save(page, "svg")
    assert name == "journey-head-1.svg"
    root = ElementTree.fromstring(data)
    titles = [title.text for title in root.findall(".//{*}rect/{*}title")]
    _, weights = ask_journey(server)
    assert len(titles) == 21  # those that are not masked
    assert f"step → journey: {weights[1, 5, 1]:.4f}" in titles
    assert [text.text for text in root.findall("{*}text")] == JOURNEY * 2
    texts = [text.text for text in root.findall("{*}g/{*}text")]
    assert texts.count("1") == 2 and texts[-4:] == ["journey, head 1: attention weights", "0", "1", "masked"]


def test_only_a_weight_of_1_reads_1(open_link):
    page = open_link("#model=patterns&head=1")
    root = ElementTree.fromstring(save(page, "svg")[1])
    texts = [text.text for text in root.findall("{*}g/{*}text")][:-3]  # the last are of the scale
    exact = [title.text.split()[-1] for title in root.findall(".//{*}rect/{*}title")]
    assert texts.count("1") == exact.count("1.0000")
    assert any(text.startswith(".99") for text in texts)


def test_label_that_a_spreadsheet_would_compute_has_an_apostrophe(open_link):
    page = open_link("#model=journey&labels=" + quote("=1+1 +2 -3 @x plain 5"))
    table = list(csv.reader(io.StringIO(save(page, "csv")[1].decode())))
    assert [row[0] for row in table[1:]] == ["'=1+1", "'+2", "'-3", "'@x", "plain", "5"]


def test_csv_has_the_weights_of_the_head(open_link, server):
    page = open_link("#model=journey")
    choose(page, "labels", 'a,b "quoted" =1+1')
    _, data = save(page, "csv")
    table = list(csv.reader(io.StringIO(data.decode())))
    outputs, weights = ask_journey(server)
    assert table[0] == ["", "a,b", '"quoted"', "'=1+1", "3", "4", "5", "output 0", "output 1"]
    for row, line in enumerate(table[1:]):
        assert line[row + 2:7] == [""] * (5 - row)
        assert np.allclose(np.array(line[1:row + 2], float), weights[0, row, :row + 1], rtol=1e-7)
        assert np.allclose(np.array(line[7:], float), outputs[row], rtol=1e-7)


def test_json_has_the_weights_of_all_heads(open_link, server):
    page = open_link("#model=journey")
    _, data = save(page, "json")
    saved = json.loads(data)
    _, weights = ask_journey(server)
    assert (saved["model"], saved["queries"], saved["keys"]) == ("journey", JOURNEY, JOURNEY)
    got = np.array([[[0 if weight is None else weight for weight in row] for row in head]
                    for head in saved["attention_weights"]])
    assert np.allclose(got, weights, rtol=1e-7)


def test_json_has_the_outputs_that_are_shown(open_link, server):
    page = open_link("#model=journey&rows=4,1&off=1")
    expect(page.locator("#outputs-note")).to_contain_text("Heads that are off: 1.")
    saved = json.loads(save(page, "json")[1])
    outputs, _ = ask_journey(server, head_mask=[1, 0])
    assert saved["query_places"] == [4, 1] and saved["heads_off"] == [1]
    assert np.allclose(saved["outputs"], outputs[[4, 1]], rtol=1e-7)


def test_saved_page_works_without_a_server(open_link, browser, tmp_path):
    page = open_link("#model=journey")
    name, data = save(page, "html")
    (tmp_path / name).write_bytes(data)
    context = browser.new_context(offline=True)
    alone = context.new_page()
    requested = []
    alone.on("request", lambda request: requested.append(request.url))
    alone.goto(f"file://{tmp_path / name}")
    assert alone.locator("h1").inner_text() == "journey, head 0"
    assert alone.locator("svg rect").count() > 21 and alone.locator("li img").count() == 3
    assert "curl" in alone.locator("pre").inner_text()
    assert [url for url in requested if not url.startswith("data:")] == [f"file://{tmp_path / name}"]
    context.close()


@pytest.mark.parametrize("fragment, ending", [("#model=journey&off=1", "json"),
                                              ("#model=wide&source=random&count=300", "safetensors")])
def test_saved_request_gets_the_same_reply(open_link, server, fragment, ending):
    page = open_link(fragment)
    name, data = save(page, "request")
    assert name.endswith(ending)
    kind = "application/json" if ending == "json" else "application/vnd.safetensors"
    reply = requests.post(server.url + "/v1/attention", data, timeout=60,
                          headers={"Content-Type": kind, "Accept": "application/json"}).json()
    weight, row, key = read_cell(page)
    assert abs(reply["attention_weights"][0][row][key] - weight) < 5.1e-5


def test_copied_command_gets_what_is_on_screen(open_view, server):
    page = open_view("#model=journey&row=5&key=2&off=0", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy curl command").click()
    expect(page.locator("#status")).to_have_text("The command is copied.")
    command = page.evaluate("navigator.clipboard.readText()")
    reply = json.loads(subprocess.run(command, shell=True, capture_output=True, check=True).stdout)
    assert abs(reply["attention_weights"][0][5][2] - read_cell(page)[0]) < 5.1e-5
    outputs, _ = ask_journey(server, head_mask=[0, 1])
    assert np.allclose(reply["outputs"], outputs)


def test_link_shows_the_same_view(open_link):
    page = open_link("#model=d2l")
    paste(page, json.dumps({"model": "journey", "queries": JOURNEY_ROWS}))
    wait_until(page, "() => document.getElementById('facts').textContent.startsWith('journey')")
    page.view.wait()
    choose(page, "labels", "a b c d e f | A B C")
    page.get_by_label("Head 0 on").uncheck()
    page.get_by_role("button", name="Head 1").click()
    page.locator("#scale").select_option("log")
    cell = move_by_keys(page, "End", "Home", "ArrowRight")
    for text in ("off=0", "head=1", "scale=log", f"key={cell[2]}"):
        wait_until(page, "text => location.hash.includes(text)", text)
    again = open_link("#" + page.url.split("#")[1])
    assert read_cell(again) == cell
    assert again.locator("#readout").inner_text() == page.locator("#readout").inner_text()
    assert again.locator("#large-title").inner_text() == "Head 1"
    assert not again.get_by_label("Head 0 on").is_checked()
    assert again.locator("#scale").input_value() == "log"
    assert "key B (1)" in again.locator("#readout").inner_text()


# --- texts that are markup ---

def assert_no_markup(page):
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("document.scripts.length") == 1


def test_hostile_labels_are_only_texts(open_view, browser, tmp_path):
    page = open_view("#model=journey&row=5&key=0")
    choose(page, "labels", f"{HOSTILE} | {HOSTILE}")
    expect(page.locator("#lines-box")).to_contain_text(HOSTILE)
    move_by_keys(page, *["ArrowUp"] * 5)
    assert f"query {HOSTILE} " in page.locator("#readout").inner_text()
    assert_no_markup(page)
    for kind in ("html", "svg"):
        name, data = save(page, kind)
        (tmp_path / name).write_bytes(data)
        context = browser.new_context()
        alone, dialogs = context.new_page(), []
        alone.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
        alone.goto(f"file://{tmp_path / name}")
        alone.wait_for_timeout(300)
        assert not dialogs and alone.locator("img[src=x], script").count() == 0
        context.close()


def test_hostile_names_and_replies_are_only_texts(open_view):
    """attnd has no such model; a proxy that lies is stood in for."""
    page = open_view("#model=journey")

    def lie(route):
        models = route.fetch().json()["models"]
        route.fulfill(json={"models": [model | {"name": HOSTILE, "num_heads": 2} for model in models[:1]]})

    page.route("**/v1/models", lie)
    page.goto(page.url.split("#")[0] + "?")
    text = expect_problem(page, "Unknown model", "model")
    assert HOSTILE in text
    assert page.locator("#model option").inner_text() == HOSTILE
    assert page.locator("#facts").inner_text().startswith(HOSTILE)
    assert_no_markup(page)


@pytest.mark.parametrize("fragment", [
    "#model=journey&off=<b>,x,1&row=1e99&key=-5&head=99&sequence=7&step=99&scale=x&range=x&lines=x",
    "#off&row=&head=mean&model=journey&%FF=%FF&constructor=1&__proto__=x",
    "#model=none&source=none&text=%3Cimg%20src=x%3E",
])
def test_address_with_anything_in_it_shows_something(open_view, fragment):
    page = open_view("#model=journey")
    page.goto("about:blank")
    page.goto(page.view.server.url + "/" + fragment)
    if "text=" in fragment:
        assert "'<img' is not a word" in expect_problem(page, "Unknown word", "text")
    else:
        page.view.wait()
        expect(page.locator("#change")).not_to_be_empty()
        assert page.locator("#problem").is_hidden()
    assert_no_markup(page)


# --- where it runs ---

def test_page_works_below_a_prefix(open_view, server):
    page = open_view("#model=journey")
    asked = []

    def forward(route):
        asked.append(route.request.url)
        assert "/behind/a/proxy/" in route.request.url, route.request.url
        route.fulfill(response=route.fetch(url=route.request.url.replace("/behind/a/proxy/", "/")))

    page.goto("about:blank")  # nothing of the first visit is on its way
    page.route("**/*", forward)
    page.goto(f"{server.url}/behind/a/proxy/#model=d2l")
    page.view.wait()
    assert page.locator("#facts").inner_text().startswith("d2l")
    assert len(asked) >= 5


def test_server_that_is_gone_is_reported(open_view):
    page = open_view("#model=journey")
    page.route("**/v1/attention", lambda route: route.abort())
    page.locator("#causal").select_option("false")
    expect_problem(page, "No reply")


def test_server_without_a_model_says_what_it_serves(browser):
    with Server() as server:
        view = View(browser, server)
        view.page.goto(server.url)
        text = expect_problem(view.page, "No model is loaded.")
        assert "attnd.capture of Python" in text and "--demo" in text
        view.close()


# --- layers of folders, and their masks ---

@pytest.fixture(scope="module")
def folder_server():
    """Layers of three kinds, those of a family with windows, sinks and positions, and the demo."""
    folders = ROOT / "tests/data/hf"
    with Server("--model", f"my.whisper={folders / 'whisper'}", "--model", f"oss={folders / 'gpt_oss'}",
                "--model", f"gemma={folders / 'gemma3n_text'}", "--model", f"bit={folders / 'bitnet'}",
                "--model", f"axes={folders / 'qwen2_vl'}", "--model", f"latent={folders / 'youtu'}",
                "--model", f"chunks={folders / 'llama4_text'},layers=0", "--demo") as running:
        yield running


@pytest.fixture(scope="module")
def folder_view(browser, folder_server):
    view = View(browser, folder_server)
    view.open("#model=my.whisper.decoder.0")
    yield view
    view.close()


@pytest.fixture
def folder_page(folder_view):
    yield folder_view.follow("#model=my.whisper.decoder.0")
    folder_view.check()


def test_folder_is_chosen_and_then_its_layer(folder_page):
    page = folder_page
    assert page.locator("#model option").all_inner_texts()[:5] == ["my.whisper", "oss", "gemma", "bit", "axes"]
    assert page.locator("#layer option").all_inner_texts() == [
        "encoder.0", "decoder.0", "decoder.0.cross"]
    expect(page.locator("#layer")).to_have_value("my.whisper.decoder.0")
    expect(page.locator("#facts")).to_contain_text(
        "of whisper, causal, takes hidden states before the norm decoder.layers.0.self_attn_layer_norm")
    page.locator("#layer").select_option("my.whisper.decoder.0.cross")
    expect(page.locator("#facts")).to_contain_text("of whisper, cross-attention")
    expect(page.locator("#status")).to_contain_text("Computed")
    assert not page.locator("#problem").is_visible()
    page.locator("#model").select_option("journey")
    expect(page.locator("#layer")).to_be_hidden()
    page.locator("#model").select_option(label="my.whisper")
    expect(page.locator("#layer")).to_have_value("my.whisper.encoder.0")


def test_layer_of_a_folder_is_drawn_with_its_own_window(folder_page):
    page = folder_page
    page.locator("#model").select_option(label="oss")
    expect(page.locator("#facts")).to_contain_text(
        "of gpt_oss, causal, 2 key heads, window 5, rotary positions (yarn), sinks, takes hidden states before the norm ")
    expect(page.locator("#step-text")).to_have_text("Steps are not shown for layers with sinks.")
    for row, cells in enumerate(json.loads(save(page, "json")[1])["attention_weights"][0]):
        shown = [key for key, cell in enumerate(cells) if cell is not None]
        assert shown == list(range(max(0, row - 4), row + 1))


def test_layer_that_borrows_keys_has_an_example(folder_page):
    page = folder_page
    page.locator("#model").select_option(label="gemma")
    page.locator("#layer").select_option("gemma.2")
    expect(page.locator("#status")).to_contain_text("Computed")
    assert not page.locator("#problem").is_visible()


def test_layer_whose_sums_are_normed_has_no_steps(folder_page):
    page = folder_page
    page.locator("#model").select_option(label="bit")
    expect(page.locator("#step-text")).to_have_text(
        "Steps are not shown for layers that norm the heads' outputs or rotate values.")


def test_scores_are_divided_by_the_root_of_the_size_of_keys(folder_page):
    page = folder_page
    page.locator("#model").select_option(label="latent")
    page.locator("#step-on").click()
    page.locator("#step-on").click()
    expect(page.locator("#steps")).to_contain_text("÷ √20")


def test_keys_of_other_chunks_are_masked(folder_page, folder_server):
    page, model = folder_page, folder_server.get("/v1/models/chunks.0").json()
    paste(page, json.dumps({"model": "chunks.0", "queries": np.eye(7, model["query_size"]).tolist()}))
    expect(page.locator("#compare tbody tr")).to_have_count(model["num_heads"])
    for row, cells in enumerate(json.loads(save(page, "json")[1])["attention_weights"][0]):
        attended = [key for key, cell in enumerate(cells) if cell is not None]
        assert attended == list(range(row // model["chunk"] * model["chunk"], row + 1))


@pytest.mark.parametrize("batched", [False, True])
def test_mask_goes_by_rows_where_positions_have_axes(folder_page, folder_server, batched):
    page, model = folder_page, folder_server.get("/v1/models/axes.text.0").json()
    rows, positions = np.eye(3, model["query_size"]).tolist(), [[7, 7, 7], [0, 0, 1], [0, 1, 0]]
    assert model["causal"]
    request = {"queries": rows, "positions": positions}
    if batched:
        request = {name: [value, value] for name, value in request.items()}
    paste(page, json.dumps({"model": "axes.text.0", **request}))
    expect(page.locator("#step-text")).to_have_text("Steps are not shown for positions of three axes.")
    for row, cells in enumerate(json.loads(save(page, "json")[1])["attention_weights"][0]):
        assert [key for key, cell in enumerate(cells) if cell is not None] == list(range(row + 1))


@pytest.mark.parametrize("changes, attended", [
    ({"window": 2}, [[0], [0, 1], [1, 2], [2, 3]]),
    ({"window": 1, "causal": False}, [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3]]),
    ({"positions": [3, 0, 1, 9], "window": 4}, [[0, 1, 2], [1], [1, 2], [3]]),
    ({"key_positions": [5, 6, 1, 9]}, [[0, 1, 2, 3], [2], [2], [2]])])
def test_keys_that_positions_and_windows_hide_are_masked(open_link, changes, attended):
    page = open_link("#model=journey")
    paste(page, json.dumps({"model": "journey", "queries": JOURNEY_ROWS[:4], "need": ["lse"], **changes}))
    expect(page.locator("#step-text")).to_contain_text("of the query “2”")
    saved = json.loads(save(page, "json")[1])
    for row, cells in enumerate(saved["attention_weights"][0]):
        assert [key for key, cell in enumerate(cells) if cell is not None] == attended[row]
        assert all(cells[key] > 0 for key in attended[row])
