# SPDX-License-Identifier: Apache-2.0
"""The scripts of docs/examples run, agree with numpy, and print the numbers of their books.

A script is run once, in a folder of its own, for all tests."""

import functools
import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from server import BINARY, ROOT, SCRATCH, clean_environment, run_attnd

EXAMPLES = ROOT / "docs/examples"
MODULES = {"numpy_attention", "serve", "sharded"}  # sharded needs servers
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem not in MODULES)
# How many differences from numpy or PyTorch each script prints.
NUM_DIFFERENCES = {"own_layer": 2, "torch_layer": 2, "from_scratch": 2, "d2l_torch": 6, "d2l_sizes": 8,
                   "two_projections": 2, "hidden_states": 8}


@functools.cache
def run_example(name):
    """Returns what the script printed, and the folder that it ran in."""
    folder = Path(tempfile.mkdtemp(dir=SCRATCH.name))
    (folder / "bin").mkdir()
    (folder / "bin/attnd").symlink_to(BINARY)
    environment = clean_environment(PATH=f"{folder / 'bin'}:{os.environ['PATH']}",
                                    PYTHONDONTWRITEBYTECODE="1", MPLCONFIGDIR=SCRATCH.name)
    result = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], cwd=folder, env=environment,
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, folder


def read_table(output, title):
    """The rows of an array that is printed below a line. A blank line separates two heads."""
    lines = output.split(title + "\n")[1].splitlines()
    rows = itertools.takewhile(lambda line: line.strip()[:1] in ("", "["), lines)
    return [[float(number) for number in row.strip(" []").split()] for row in rows if row]


def assert_picture(path, shape):
    """A picture of this size, with colours from the darkest to the brightest of the scale."""
    import matplotlib.image  # here: it takes each process of pytest a third of a second

    pixels = matplotlib.image.imread(path)[:, :, :3]
    assert pixels.shape == (*shape, 3)
    for colour in ((68, 1, 84), (253, 231, 37)):  # viridis at 0 and 1
        share = np.mean(np.abs(pixels * 255 - colour).max(axis=-1) < 2)
        assert share > 0.005, (colour, share)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_agrees_with_what_it_compares_with(name):
    output, _ = run_example(name)
    differences = re.findall(r"\d\.\de[-+]\d\d", output)
    assert len(differences) == NUM_DIFFERENCES.get(name, 0), output
    assert all(float(difference) < 1e-5 for difference in differences), output


def test_page_lists_every_script():
    listed = re.findall(r"^\| \[(\w+)\.py\]", (EXAMPLES / "README.md").read_text(), re.M)
    assert sorted(listed) == SCRIPTS
    assert NUM_DIFFERENCES.keys() <= set(SCRIPTS)


def test_heat_maps_of_all_heads_are_one_picture():
    output, folder = run_example("heatmaps")
    rows = [line.split(":")[1].split() for line in output.splitlines() if line.startswith("head ")]
    assert len(rows) == 8
    assert [row.index("1.00") for row in rows[:3]] == [3, 5, 0]  # before, after, first
    assert rows[5] == ["0.09"] * 11
    assert rows[7] == ["0.20"] * 5 + ["0.00"] * 6
    assert_picture(folder / "heatmaps.png", (640, 1200))


@pytest.mark.parametrize("name", SCRIPTS)
def test_files_are_called_like_their_script(name):
    """So that no script overwrites a file of the reader, or of another page."""
    _, folder = run_example(name)
    assert {path.stem for path in folder.iterdir()} <= {"bin", name}


@pytest.mark.parametrize("name, layout", [("own_layer", "d2l"), ("torch_layer", "torch")])
def test_own_layer_is_left_as_a_file_that_attnd_knows(name, layout):
    _, folder = run_example(name)
    inspected = run_attnd("inspect", folder / f"{name}.safetensors")
    assert inspected.returncode == 0, inspected.stderr
    assert re.search(rf"\b{layout}\b", inspected.stdout), inspected.stdout


def test_tables_of_raschkas_book_are_printed():
    output, _ = run_example("from_scratch")
    assert read_table(output, "stacked: (2, 6, 4)") == [
        [-0.4519, 0.2216, 0.4772, 0.1063], [-0.5874, 0.0058, 0.5891, 0.3257],
        [-0.6300, -0.0632, 0.6202, 0.3860], [-0.5675, -0.0843, 0.5478, 0.3589],
        [-0.5526, -0.0981, 0.5321, 0.3428], [-0.5299, -0.1081, 0.5077, 0.3493]]
    assert read_table(output, "journey: (2, 6, 2)") == [
        [0.3190, 0.4858], [0.2943, 0.3897], [0.2856, 0.3593], [0.2693, 0.3873], [0.2639, 0.3928],
        [0.2575, 0.4028]]


@pytest.mark.parametrize("title", ["a @ a.transpose(2, 3), by numpy:", "the same by attnd:"])
def test_raw_scores_of_raschkas_book_are_printed(title):
    output, _ = run_example("from_scratch")
    assert read_table(output, title) == [
        [1.3208, 1.1631, 1.2879], [1.1631, 2.2150, 1.8424], [1.2879, 1.8424, 2.0402],
        [0.4391, 0.7003, 0.5903], [0.7003, 1.3737, 1.0620], [0.5903, 1.0620, 0.9912]]


def test_gpt2_sizes_are_served():
    output, _ = run_example("from_scratch")
    assert "GPT-2, 12 heads: (1, 16, 768) " in output
    assert "GPT-2, 25 heads: (1, 16, 1600) " in output


def test_d2l_example_with_floats_as_lengths_weighs_valid_keys_alike():
    output, _ = run_example("d2l_java")
    assert "example: (2, 4, 100)\n" in output
    assert re.findall(r"every head and query: \[(.*)\]", output) == [
        "0.3333 0.3333 0.3333 0.     0.     0.    ", "0.5 0.5 0.  0.  0.  0. "]


def test_heat_maps_of_the_first_exercise_hide_keys_past_the_lengths():
    output, folder = run_example("d2l_java")
    assert "the 5 heads of d2l; the hidden keys have 0.0\n" in output
    assert_picture(folder / "d2l_java.png", (320, 1500))


def test_second_exercise_leaves_out_the_heads_that_docs_heads_md_does():
    output, _ = run_example("d2l_java")
    page = (ROOT / "docs/heads.md").read_text()
    steps = re.findall(r"^ +\d +(\d) +(\d\.\d{6})$", page, re.M)
    assert len(steps) == 8
    left_out = re.findall(r"^  \[(.*)\] (\S+)$", output, re.M)
    assert [heads.split(", ")[-1] for heads, _ in left_out] == [head for head, _ in steps]
    assert [change for _, change in left_out] == [f"{float(change):.4f}" for _, change in steps]


def test_d2l_class_has_the_shape_of_the_book_with_and_without_biases():
    output, _ = run_example("d2l_torch")
    for name in ("plain", "biased"):
        assert f"{name}: (2, 4, 100), queries alike: True, " in output


def test_d2l_class_with_sizes_has_the_shape_of_the_book_with_both_scorings():
    output, _ = run_example("d2l_sizes")
    assert "book: (2, 4, 100)\n" in output
    for name in ("sizes", "additive"):
        for shape in ("(2,)", "(2, 4)"):
            assert f"{name}, valid_lens {shape}: (2, 4, 100) " in output


def test_heads_of_the_article_weigh_every_word():
    output, _ = run_example("two_projections")
    rows = re.findall(r"l'Afrique attends to (.*)", output)
    assert len(rows) == 2
    for row in rows:
        words, weights = zip(*(item.split() for item in row.split(", ")))
        assert words == ("Jane", "visite", "l'Afrique", "en", "septembre")
        assert abs(sum(map(float, weights)) - 1) < 0.03
    assert float(re.search(r"not this function, .* difference (.*)", output)[1]) > 0.1


def read_console(command):
    """What docs/checkpoints.md shows below a command."""
    page = (ROOT / "docs/checkpoints.md").read_text()
    return re.search(rf"^\$ {re.escape(command)}\n(.*?)^```", page, re.M | re.S)[1]


def test_checkpoint_is_what_its_script_makes(tmp_path):
    folder = EXAMPLES / "tiny-gpt2"
    subprocess.run([sys.executable, folder / "make.py", tmp_path], check=True, timeout=60)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes(), name


def test_recipe_shows_the_layers_of_its_checkpoint():
    command = "attnd inspect docs/examples/tiny-gpt2"
    result = subprocess.run([BINARY, *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout) == (0, read_console(command))


def test_recipe_shows_what_its_script_prints():
    """But for differences, which depend on the CPU, and the first line, which says whether torch is installed."""
    shown, printed = (re.sub(r"\d\.\de-\d\d", "", text).splitlines()[1:] for text in (
        read_console("python3 docs/examples/hidden_states.py"), run_example("hidden_states")[0]))
    assert printed == shown and len(shown) == 6
