# SPDX-License-Identifier: Apache-2.0
"""Commands and files that are nearly right: the answer says what was probably meant."""

import numpy as np
import pytest

from checkpoints import write_layer
from safetensors_file import write_safetensors
from server import run_attnd
from test_cli import one_line

MISTYPED = {
    "a command": (["inspct", "x"], "unknown command 'inspct'; did you mean inspect?"),
    "another word": (["frobnicate"], "unknown command 'frobnicate'; see attnd --help"),
    "an option": (["--modle", "x"], "unknown option '--modle'; did you mean --model?"),
    "an option with its value": (["--max_memry=1GiB"], "did you mean --max-memory?"),
    "an option unlike others": (["--no-such-thing"], "unknown option '--no-such-thing'; see attnd --help"),
    "short ones": (["--x"], "unknown option '--x'; see attnd --help"),
    "a port": (["--port", "8080"], "--port is not an option; write --listen 127.0.0.1:PORT"),
    "a port alone": (["--demo", "--listen", "8080"], "write an address such as 127.0.0.1:8080"),
    "no name": (["--model", "layer.safetensors"], "the name comes first, as in layer=layer.safetensors"),
    "a key twice": (["--demo", "--listen", "unix:/nowhere/s,mode=0600,mode=0666"],
                    "'mode=0600' is given twice; leave one out"),
}


@pytest.mark.parametrize("name", MISTYPED)
def test_mistyped_word_gets_the_right_one(name):
    arguments, words = MISTYPED[name]
    result = run_attnd(*arguments)
    assert (result.returncode, result.stdout) == (2, ""), result
    assert words in one_line(result.stderr)


def test_file_in_place_of_a_command_gets_the_option(tmp_path):
    path = tmp_path / "layer.safetensors"
    path.write_bytes(b"")
    result = run_attnd(str(path))
    assert result.returncode == 2 and f"write attnd --model NAME={path}" in one_line(result.stderr)


def test_heads_that_do_not_divide_get_those_that_do(tmp_path):
    write_layer(tmp_path / "a.safetensors", 4, 25, 8)
    result = run_attnd("inspect", f"{tmp_path / 'a.safetensors'},num_heads=3")
    assert result.returncode == 1 and "; 1, 2, 4, 5, 10, 20, 25, 50, 100 do" in one_line(result.stderr)


def test_inspect_of_rows_says_where_they_go(tmp_path):
    path = tmp_path / "capture.safetensors"
    rows = {f"8.{name}": np.zeros((2, 2, 4)) for name in ("queries", "keys")}
    write_safetensors(path, rows, {name: "F32" for name in rows}, {"layers": '["8"]'})
    result = run_attnd("inspect", path)
    assert result.returncode == 0 and "a capture of 1 layer; put it, or drop it on the page" in result.stdout


def test_inspect_of_a_text_says_that_it_is_one(tmp_path):
    (tmp_path / "rows.csv").write_text("1.5,2.5,3.5\n")
    result = run_attnd("inspect", tmp_path / "rows.csv")
    assert result.returncode == 1 and "it is a text that begins with '1.5,2.5,', not safetensors" in result.stderr
