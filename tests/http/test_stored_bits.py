# SPDX-License-Identifier: Apache-2.0
"""A capture that is kept gives the bytes that the same tensors give when they are sent: random questions, in JSON
and safetensors, with every option and every word of `need`.

STORED_CASES is the number of questions. PROPERTY_SEED, which every run prints first, repeats a run."""

import json
import os

import numpy as np
import pytest

from captures import FOLDER, recorded_layers
from dot_product import PATH as SENT_PATH
from dot_product import SAFETENSORS
from reference import no_mask
from safetensors_file import as_stored, parse_safetensors
from server import Server
from stored import (FLOAT_TYPES, MIB, PATH, Asker, Layer, as_sent, ask, assert_nothing_kept, assert_refused, delete,
                    encode, make_file, put, random_bias, random_capture, random_positions)

from attnd import captured as capture

SEED = int(os.environ["PROPERTY_SEED"])  # conftest.py sets it
NUM_CAPTURES = 25
QUESTIONS = -(-int(os.environ.get("STORED_CASES", 500)) // NUM_CAPTURES)  # of each capture
JSON = "application/json"
WORDS = ("heads", "weights", "lse", "scores", "spans", "top", "target", "received", "entropy", "blocks")
SELECTED = set(WORDS) - {"heads", "lse"}  # of which weights_heads and weights_queries select
FIELDS = ("layer", "query_rows", "queries", "num_heads", "scale", "softcap", "causal", "window", "sinks", "slopes", "bias",
          "attn_mask", "prefix_lens", "positions", "key_positions", "need", "spans", "top_k", "top_in", "targets", "block", "row_weights",
          "weights_heads", "weights_queries", "valid_lens", "timeout_ms", "priority")


@pytest.fixture(scope="module")
def server():
    with Server("--capture-memory", 64 * MIB, "--workers", 2) as running:
        yield running


# --- random questions ---

def random_range(rng, end, least=1):
    first = int(rng.integers(0, end - least + 1))
    return [first, int(rng.integers(first + least, end + 1))]


def random_question(rng, layers):
    """Returns the name of a layer and a question of it, as fields of JSON with arrays; `null` is in some."""
    name = str(rng.choice(list(layers)))
    layer, question = layers[name], {}
    if len(layers) > 1 or rng.random() < 0.5:
        question["layer"] = int(name) if name.isdigit() and rng.random() < 0.5 else name
    num_rows = choose_rows(rng, layer, question)
    add_overriding(rng, layer, question, num_rows)
    add_reductions(rng, layer, question, num_rows)
    if rng.random() < 0.1:
        question["timeout_ms"] = 3_600_000
    if rng.random() < 0.1:
        question["priority"] = int(rng.integers(0, 5))
    return name, question


def choose_rows(rng, layer, question):
    """Chooses stored queries, or sends others. Returns their count."""
    num_keys, _, size = layer.tensors["keys"].shape
    stored = layer.tensors.get("queries")
    if stored is not None and rng.random() < 0.7:
        if rng.random() < 0.4:
            return len(stored)
        question["query_rows"] = first, end = random_range(rng, len(stored))
        return end - first
    count = int(rng.integers(1, 6))
    dtype = FLOAT_TYPES[rng.integers(len(FLOAT_TYPES))]
    question["queries"] = as_stored(rng.normal(size=(count, layer.heads, size)), dtype).reshape(count, layer.heads, size)
    if rng.random() < 0.2:
        question |= {"queries": question["queries"].reshape(count, -1), "num_heads": layer.heads}
    stored_bias = layer.tensors.get("bias")
    if stored_bias is not None and stored_bias.shape[-2] > 1:
        question |= random_addition(rng, layer, count)
    return count


def random_addition(rng, layer, num_rows):
    """Returns a bias, or an attn_mask of numbers or booleans, which goes before a stored bias, too."""
    bias = random_bias(rng, layer.heads, num_rows, len(layer.tensors["keys"])).astype(np.float32)
    if rng.random() < 0.5:
        return {"bias": bias}
    if rng.random() < 0.3:
        bias = bias[0, 0] if bias.ndim == 3 else bias[0]
    return {"attn_mask": bias if rng.random() < 0.5 else bias > -0.5}


def add_overriding(rng, layer, question, num_rows):
    """Adds what goes before what is stored."""
    num_keys = len(layer.tensors["keys"])
    for option, value in (("scale", float(rng.normal())), ("softcap", float(rng.uniform(0.5, 30))),
                          ("causal", bool(rng.random() < 0.5)), ("window", int(rng.integers(0, num_keys + 2))),
                          ("sinks", rng.normal(size=layer.heads).astype(np.float32)),
                          ("slopes", rng.normal(size=layer.heads).astype(np.float32)),
                          ("positions", random_positions(rng, num_rows, num_keys)),
                          ("key_positions", rng.integers(0, 2 * num_keys, num_keys))):
        if rng.random() < 0.12:
            question[option] = value
    if rng.random() < 0.2 and not {"bias", "attn_mask"} & set(question):
        question |= random_addition(rng, layer, num_rows)
    causal = question.get("causal", layer.options.get("causal"))
    num_stored = len(layer.tensors.get("queries", ()))
    stored = "queries" not in question and ("positions" in layer.tensors or num_stored == num_keys)
    if causal and num_rows != num_keys and not stored and "positions" not in question:
        question["positions"] = random_positions(rng, num_rows, num_keys)
    if causal and rng.random() < 0.3:
        question["prefix_lens"] = int(rng.integers(0, num_keys + 1))
    if rng.random() < 0.3:
        lens = np.array(no_mask(rng.integers(0, num_keys + 1, num_rows)))
        question["valid_lens"] = lens if rng.random() < 0.5 else int(lens[0])


def add_reductions(rng, layer, question, num_rows):
    """Adds words of `need` with their options, and what they select."""
    num_keys = len(layer.tensors["keys"])
    if rng.random() < 0.1:
        return
    words = [word for word in WORDS if rng.random() < 0.3 and (word != "heads" or "values" in layer.tensors)]
    question["need"] = words or ["weights"]
    if "spans" in words:
        question["spans"] = [random_range(rng, num_keys) for _ in range(rng.integers(1, 4))]
    if "top" in words:
        question["top_k"] = int(rng.integers(1, min(num_keys, 8) + 1))
        if rng.random() < 0.5:
            ranges = [random_range(rng, num_keys, question["top_k"]) for _ in range(rng.integers(1, 4))]
            question["top_in"] = ranges[0] if rng.random() < 0.3 else ranges
    if "target" in words:
        question["targets"] = [None if rng.random() < 0.3 else random_range(rng, num_keys) for _ in range(num_rows)]
    if "blocks" in words:
        question["block"] = int(rng.integers(1, 9))
    if "received" in words and rng.random() < 0.6:
        shape = (num_rows,) if rng.random() < 0.5 else (layer.heads, num_rows)
        question["row_weights"] = rng.normal(size=shape).astype(np.float32)
    if SELECTED & set(question["need"]):
        for field, count in (("weights_heads", layer.heads), ("weights_queries", num_rows)):
            if rng.random() < 0.3:
                chosen = rng.permutation(count)[:rng.integers(1, count + 1)]
                from_end = count if field == "weights_queries" and rng.random() < 0.5 else 0
                question[field] = (chosen - from_end).tolist()


def add_nulls(rng, question):
    """Names fields that are left out, as JSON can."""
    return question | {field: None for field in FIELDS if field not in question and rng.random() < 0.1}


# --- the same question, kept and sent ---

def compare(asker, rng, path, layers, name, question, what):
    """Asks both routes, each in a random format, for a reply in the same one. Returns it as tensors, if it is in
    safetensors."""
    accept, kept_type, sent_type = (str(kind) for kind in rng.choice([JSON, SAFETENSORS], 3))
    fields = add_nulls(rng, question) if kept_type == JSON else question
    layer = layers[name]
    dtypes = {key: dtype for key, dtype in layer.dtypes.items() if key not in question}
    bodies = encode(fields, kept_type), encode(as_sent(layer, question), sent_type, dtypes if rng.random() < 0.7 else {})
    kept = asker.post(path, bodies[0], kept_type, [f"Accept: {accept}"])
    sent = asker.post(SENT_PATH, bodies[1], sent_type, [f"Accept: {accept}"])
    assert (sent.status, sent.headers["content-type"]) == (200, accept), f"{what}: {sent.body}"
    assert (kept.status, kept.headers["content-type"]) == (200, accept), f"{what}: {kept.body}"
    assert kept.body == sent.body, what
    return parse_safetensors(kept.body)[0] if accept == SAFETENSORS else None


def random_questions(number):
    """Returns a random capture, and yields questions of it, each with a generator of its own."""
    layers = random_capture(np.random.default_rng([SEED, number]))
    cases = [np.random.default_rng([SEED, number, case]) for case in range(QUESTIONS)]
    return layers, [(rng, *random_question(rng, layers)) for rng in cases]


@pytest.mark.parametrize("number", range(NUM_CAPTURES))
def test_random_questions_have_the_bytes_of_sent_tensors(server, number):
    layers, questions = random_questions(number)
    reply = put(server, f"random-{number}", make_file(layers))
    assert reply.status == 201, f"PROPERTY_SEED={SEED}, capture {number}: {reply.body}"
    asker = Asker(server)
    for case, (rng, name, question) in enumerate(questions):
        what = f"PROPERTY_SEED={SEED}, capture {number}, case {case}, layer {name!r}: {question}"
        compare(asker, rng, f"{PATH}/random-{number}/attention", layers, name, question, what)
    assert delete(server, f"random-{number}").status == 204


def test_random_questions_have_every_option_and_word():
    """Of the questions above; so none of them is left out by a mistake here."""
    questions = [question for number in range(NUM_CAPTURES) for _, _, question in random_questions(number)[1]]
    layers = [layer for number in range(NUM_CAPTURES) for layer in random_questions(number)[0].values()]
    assert len(questions) >= 500 or "STORED_CASES" in os.environ
    assert {field for question in questions for field in question} == set(FIELDS)
    assert {word for question in questions for word in question.get("need", [])} == set(WORDS)
    assert {key for layer in layers for key in layer.tensors} == {
        "queries", "keys", "values", "bias", "sinks", "slopes", "positions", "key_positions"}
    assert {key for layer in layers for key in layer.options} == {"scale", "softcap", "causal", "window"}
    assert {layer.dtypes["keys"] for layer in layers} == set(FLOAT_TYPES)
    assert any("queries" not in layer.tensors for layer in layers)


# --- the captures of tests/data ---

def recorded_files():
    """Returns for each family its layers and their weights of eager attention, by the layer's name."""
    families = {}
    for name, request, weights, _ in recorded_layers():
        family, layer = name.split()
        families.setdefault(family, {})[layer] = request, weights
    return families


RECORDED = recorded_files()


def to_layer(request):
    tensors = {key: value for key, value in request.items() if key in capture.TENSORS}
    return Layer(tensors, {}, {key: value for key, value in request.items() if key in capture.OPTIONS},
                 request["queries"].shape[1])


def test_every_recorded_family_is_asked():
    assert sorted(RECORDED) == sorted(path.stem for path in FOLDER.glob("*.safetensors"))


@pytest.mark.parametrize("family", RECORDED)
def test_recorded_captures_have_the_bytes_of_sent_tensors(server, tmp_path, family):
    """The file is what Captured.save() writes; `weights` are those of eager attention."""
    requests = {layer: request for layer, (request, _) in RECORDED[family].items()}
    capture.Captured({layer: [request] for layer, request in requests.items()}, ["a"] * 5).save(tmp_path / "file")
    reply = put(server, family, (tmp_path / "file").read_bytes())
    assert reply.status == 201, reply
    layers = {layer: to_layer(request) for layer, request in requests.items()}
    asker = Asker(server)
    for number, (layer, (_, expected)) in enumerate(RECORDED[family].items()):
        body = encode({"layer": layer, "need": ["weights"]}, SAFETENSORS)
        weights = parse_safetensors(asker.post(f"{PATH}/{family}/attention", body, SAFETENSORS).body)[0]
        assert np.abs(weights["attention_weights"] - expected).max() < 1e-5, layer
        for case in range(10):
            rng = np.random.default_rng([SEED, number, case])
            name, question = random_question(rng, {layer: layers[layer]})
            what = f"PROPERTY_SEED={SEED}, {family} {layer}, case {case}: {question}"
            compare(asker, rng, f"{PATH}/{family}/attention", layers, name, question | {"layer": layer}, what)
    assert delete(server, family).status == 204


def shift_data(file, count):
    """Returns a file whose header has `count` more blanks, so that its numbers are not aligned."""
    size = int.from_bytes(file[:8], "little")
    return (size + count).to_bytes(8, "little") + file[8:8 + size] + b" " * count + file[8 + size:]


@pytest.mark.parametrize("count", [1, 3, 4, 7])
def test_numbers_that_pieces_cut_have_the_bytes_of_sent_ones(server, count):
    """A piece has 1 MiB at most, and its end may be within a number."""
    rng = np.random.default_rng([SEED, count])
    layers = {dtype: Layer({"keys": rng.normal(size=(1500, 3, 40)), "values": rng.normal(size=(1500, 3, 5)),
                            "key_positions": rng.integers(0, 3000, 1500)}, {"keys": dtype, "values": dtype}, {}, 6)
              for dtype in FLOAT_TYPES}
    file = shift_data(make_file(layers), count)
    assert len(file) > 3 * MIB
    assert put(server, "cut", file).status == 201
    asker = Asker(server)
    for name in layers:
        question = {"layer": name, "queries": rng.normal(size=(2, 6, 40)).astype(np.float32), "window": 900,
                    "need": ["heads", "weights", "lse"]}
        compare(asker, rng, f"{PATH}/cut/attention", layers, name, question, f"PROPERTY_SEED={SEED}, {count} {name}")
    assert delete(server, "cut").status == 204


def test_all_memory_is_released(server):
    assert_nothing_kept(server)


# --- what is refused, in the same words ---

LAYER = Layer({"queries": np.ones((2, 2, 2)), "keys": np.ones((3, 1, 2))}, heads=2)
BAD = {
    "sinks": {"sinks": [1]},
    "slopes": {"slopes": [1, 2, 3]},
    "softcap": {"softcap": 0},
    "scale": {"scale": 1e39},
    "bias": {"bias": [[1, 2]]},
    "bias text": {"bias": [["a"]]},
    "causal": {"causal": True},
    "values": {"need": ["heads"]},
    "outputs": {"need": ["outputs"]},
    "unknown word": {"need": ["attention"]},
    "two words": {"need": ["lse", "lse"]},
    "two kinds": {"need": ["lse"], "need_weights": True},
    "mask": {"attn_mask": [[1]]},
    "mask of other rows": {"attn_mask": [[True] * 3] * 3},
    "mask beside a bias": {"attn_mask": [True] * 3, "bias": [[0] * 3]},
    "booleans as bias": {"bias": [[True, False, True]]},
    "prefix": {"prefix_lens": 4, "causal": True, "positions": [1, 2]},
    "prefix of no causal mask": {"prefix_lens": 2},
    "mask of another name": {"mask": [[1]]},
    "model": {"model": "a"},
    "spans alone": {"spans": [[0, 1]]},
    "word alone": {"need": ["blocks"]},
    "far span": {"need": ["spans"], "spans": [[0, 4]]},
    "top_k": {"need": ["top"], "top_k": 4},
    "block": {"need": ["blocks"], "block": 0},
    "targets": {"need": ["target"], "targets": [None]},
    "target": {"need": ["target"], "targets": [[2, 1], None]},
    "row twice": {"weights_queries": [1, -1]},
    "row far": {"weights_queries": [-3]},
    "head far": {"weights_heads": [2]},
    "lens": {"valid_lens": 4},
    "positions": {"positions": [0]},
    "key_positions": {"key_positions": [0, 1]},
    "window": {"window": -1},
    "groups": {"queries": [[1, 2]], "num_heads": 3},
    "empty": {"queries": []},
    "text": {"queries": "a"},
    "large": {"queries": [[[1e39, 1], [1, 1]]]},
    "overflow": {"queries": [[[3e38, 3e38], [1, 1]]], "scale": 3e38},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_questions_are_refused_in_the_words_of_sent_ones(server, name):
    asker = Asker(server)
    assert put(server, "bad", make_file({"0": LAYER})).status in (200, 201)
    kept = asker.post(f"{PATH}/bad/attention", json.dumps(BAD[name]).encode(), JSON)
    sent = asker.post(SENT_PATH, encode(as_sent(LAYER, BAD[name]), JSON), JSON)
    assert 400 <= kept.status < 500 and kept.status == sent.status, kept
    problems = kept.json(), sent.json()
    for key in ("status", "title", "field", "expected", "got"):
        assert problems[0].get(key) == problems[1].get(key), problems


def test_queries_of_another_size_do_not_fit(server):
    assert put(server, "bad", make_file({"0": LAYER})).status in (200, 201)
    for queries in ([[[1, 2, 3], [1, 2, 3]]], [[[1], [1]]]):
        assert_refused(ask(server, "bad", {"queries": queries}), 400, "Shape mismatch")
