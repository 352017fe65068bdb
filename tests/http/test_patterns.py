# SPDX-License-Identifier: Apache-2.0
"""The built-in model `patterns`: each head attends where its name says."""

import json
import os
import random
import re

import numpy as np
import pytest

from compare import assert_problem
from patterns import HEADS, METADATA, MODEL, REQUEST, SENTENCE, WORDS, embed, make_request, make_tensors
from safetensors_file import parse_safetensors
from server import ROOT

SHARP = 0.99
LENGTHS = (1, 2, 3, 4, 5, 8, 11, 13, 15, 16)


def random_sentences():
    rng = random.Random(int(os.environ["PROPERTY_SEED"]))
    return [" ".join(rng.choices(WORDS, k=length)) for length in LENGTHS]


@pytest.fixture(scope="module")
def results(demo_server):
    """The reply to each sentence, and to the example request, whose numbers are rounded."""
    bodies = [(sentence, {"queries": embed(sentence).tolist()})
              for sentence in [SENTENCE, *random_sentences()]]
    bodies.append((SENTENCE, json.loads(REQUEST.read_text())))
    replies = []
    for sentence, body in bodies:
        response = demo_server.attention(body | {"model": "patterns", "need_weights": True})
        assert response.status_code == 200, response.text
        replies.append((sentence.split(), response.json()))
    return replies


def weights_of(results, name):
    """Yields the words of each sentence with the weights [T, T] of the head called `name`."""
    for words, reply in results:
        yield words, np.array(reply["attention_weights"][HEADS.index(name)])


def distances(words):
    """Returns [T, T]: the place of the query, less that of the key."""
    places = np.arange(len(words))
    return places[:, None] - places


def assert_mass(words, weights, wanted, least):
    """Each row has at least `least` of its weight where `wanted` [T, T] is true."""
    masses = (weights * wanted).sum(axis=-1)
    assert (masses >= least).all(), (words, masses)


def assert_alike(words, weights, wanted, tolerance=0.01):
    """Each row has its weight where `wanted` [T, T] is true, in equal parts."""
    expected = wanted / wanted.sum(axis=-1, keepdims=True)
    assert np.abs(weights - expected).max() <= tolerance, (words, weights.round(3))


@pytest.mark.parametrize("name, step", [("previous token", 1), ("next token", -1)])
def test_neighbour_gets_the_weight_and_its_lack_is_no_preference(results, name, step):
    for words, weights in weights_of(results, name):
        wanted = distances(words) == step
        has_neighbour = wanted.any(axis=-1)
        assert_mass(words, weights[has_neighbour], wanted[has_neighbour], SHARP)
        # In the longest sentence the token at the other end gets nothing.
        assert weights[~has_neighbour].max() <= 1 / max(len(words) - 1, 1) + 1e-4, words


def test_first_token_gets_the_weight(results):
    for words, weights in weights_of(results, "first token"):
        assert_mass(words, weights, np.arange(len(words)) == 0, SHARP)


def test_same_words_share_the_weight(results):
    assert len(set(SENTENCE.split())) < len(SENTENCE.split())
    for words, weights in weights_of(results, "same token"):
        same = np.array(words)[:, None] == np.array(words)
        assert_mass(words, weights, same, SHARP)
        assert_alike(words, weights, same)


def test_local_window_is_a_bell_around_the_token(results):
    for words, weights in weights_of(results, "local window"):
        distance = np.abs(distances(words))
        assert_mass(words, weights, distance <= 2, 0.9)
        assert (weights.argmax(axis=-1) == np.arange(len(words))).all(), words
        for row, away in zip(weights, distance):
            assert (np.diff(row[np.argsort(away, kind="stable")]) <= 1e-3).all(), (words, row)
        if len(words) >= 3:
            assert weights.max() < 0.6, words  # it is not only the token itself


def test_uniform_head_has_no_preference(results):
    for words, weights in weights_of(results, "uniform"):
        assert_alike(words, weights, np.ones_like(weights), 1e-6)


def test_long_range_prefers_far_tokens(results):
    for words, weights in weights_of(results, "long range"):
        distance = np.abs(distances(words))
        farthest = distance.max(axis=-1, keepdims=True)
        assert (weights.max(axis=-1) - (weights * (distance == farthest)).max(axis=-1)
                <= 1e-6).all(), words
        if len(words) >= 8:
            assert_mass(words, weights, distance >= farthest / 2, 0.9)
            assert (weights * distance).sum(axis=-1).mean() > 1.8 * distance.mean(), words


def test_causal_prefix_is_uniform_up_to_the_token(results):
    for words, weights in weights_of(results, "causal prefix"):
        prefix = distances(words) >= 0
        assert_mass(words, weights, prefix, SHARP)
        assert_alike(words, weights, prefix)


def test_outputs_are_the_share_of_each_word(results):
    for words, reply in results:
        identity = np.array([[float(word == known) for known in WORDS] for word in words])
        expected = np.mean(reply["attention_weights"], axis=0) @ identity
        assert np.abs(np.array(reply["outputs"]) - expected).max() <= 1e-5, words


def test_sentence_of_seventeen_tokens_is_refused(demo_server):
    rows = embed(" ".join(["the"] * 17)).tolist()
    assert_problem(demo_server.attention({"model": "patterns", "queries": rows}), 400,
                   "Too many tokens", "queries")


def test_files_are_those_that_their_maker_writes():
    tensors, metadata = parse_safetensors(MODEL.read_bytes())
    made = make_tensors()
    assert metadata == METADATA and tensors.keys() == made.keys()
    for name, tensor in made.items():
        assert np.abs(tensors[name] - tensor).max() <= 1e-5, name
    assert json.loads(REQUEST.read_text()) == json.loads(make_request())


def test_page_makes_the_same_input():
    page = (ROOT / "docs/heads.md").read_text()
    (snippet,) = [lines for lines in re.findall(r"```python\n(.*?)```", page, re.S) if "def embed" in lines]
    names = {}
    exec(snippet, names)
    for sentence in [SENTENCE, *random_sentences()]:
        assert np.abs(np.array(names["embed"](sentence)) - embed(sentence)).max() <= 1e-12
    assert f"> {SENTENCE}\n" in page and f"\n{' '.join(WORDS)}\n" in page
    assert re.findall(r"^\| \d \| ([a-z ]+) \|", page, re.M) == list(HEADS)
