# SPDX-License-Identifier: Apache-2.0
"""The snippets of docs/clients.md print the output that the page shows.

They run in the order of the page and in one folder. A fence of `sh` or `python` is a program; the
`json` or `text` that follows is its output, and without one it prints nothing. A fence of one line
that starts `attnd` is a server, which runs until the end of the page. If the first line of `lua` is
the name of a file, the snippet is written to that file and not run."""

import contextlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from server import ROOT, Server, clean_environment

PAGE = ROOT / "docs/clients.md"
PACKAGE = ROOT / "src/python/attnd"
PAGE_ADDRESS = "127.0.0.1:8080"  # replaced by that of our server
PAGE_PYTHON = "venv/bin/python "
TOLERANCE = 2e-6
NUMBER = re.compile(r"-?\d+\.\d*(?:e[-+]\d+)?")
# How snippets begin that are not run: they install packages, or take minutes.
NOT_RUN = ("python3 -m venv ", "venv/bin/python tests/load/clients.py")


def read_page():
    """Returns [language, text, expected output or None] for every snippet."""
    snippets = []
    for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.M | re.S):
        if language in ("json", "text"):
            assert snippets and snippets[-1][2] is None, f"output without a program:\n{text}"
            snippets[-1][2] = text
        else:
            assert language in ("sh", "python", "lua"), f"unknown language {language!r}"
            snippets.append([language, text, None])
    return snippets


def assert_line(got, expected):
    """Compares two lines, but for `...` and the last digits of numbers with a point."""
    pattern = ""
    for piece in re.split(r"( ?\.\.\.)", NUMBER.sub("\0", expected)):
        pattern += ".*" if piece.endswith("...") else re.escape(piece)
    pattern = re.sub(r"(\\ )+", " +", pattern)  # numpy pads by the number of digits
    match = re.fullmatch(pattern.replace(re.escape("\0"), f"({NUMBER.pattern})"), got)
    assert match, f"printed {got!r}, but the page shows {expected!r}"
    for number, wanted in zip(match.groups(), NUMBER.findall(expected)):
        assert abs(float(number) - float(wanted)) <= TOLERANCE, \
            f"printed {got!r}, but the page shows {expected!r}"


def assert_output(got, expected):
    """Compares the lines of two outputs. A line of `...` matches any number of lines."""
    got, expected = got.rstrip("\n").splitlines(), expected.splitlines()
    if "..." in expected:
        at = expected.index("...")
        tail = len(expected) - at - 1
        assert len(got) >= len(expected) - 1, got
        got, expected = got[:at] + got[len(got) - tail:], expected[:at] + expected[at + 1:]
    assert len(got) == len(expected), "\n".join(got)
    for line, wanted in zip(got, expected):
        assert_line(line, wanted)


def run(language, text, folder):
    if text.startswith(PAGE_PYTHON):
        text = text.replace(PAGE_PYTHON, f"{shlex.quote(sys.executable)} ", 1)
    program = ["sh", "-e", "-c", text] if language == "sh" else [sys.executable, "-c", text]
    environment = clean_environment(PYTHONDONTWRITEBYTECODE="1")
    result = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True,
                            timeout=60)
    assert result.returncode == 0, f"{text}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def start_server(command, folder, addresses):
    """Starts a server of the page. `addresses` gets where it is, by the address on the page."""
    match = re.search(r" --listen (\S+)", command)
    listen = match[1] if match else PAGE_ADDRESS
    assert listen not in addresses, f"{command}: another server of the page has that address"
    _, *arguments = shlex.split(command.replace(f" --listen {listen}", ""))
    server = Server(*arguments, cwd=folder)
    addresses[listen] = f"127.0.0.1:{server.port}"
    return server


def replace_addresses(text, addresses):
    for address, replacement in addresses.items():
        text = text.replace(address, replacement)
    return text


def copy_package(folder, addresses):
    """Writes the package to the folder, where snippets find it, with the address of our server as its default."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    client = folder / PACKAGE.name / "client.py"
    client.write_text(replace_addresses(client.read_text(), addresses))


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
def test_snippets_print_what_the_page_shows(tmp_path):
    ran, addresses = 0, {}
    for folder in ("tests", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    with contextlib.ExitStack() as servers:
        for language, text, expected in read_page():
            if text.startswith("attnd "):
                servers.enter_context(start_server(text, tmp_path, addresses))
                copy_package(tmp_path, addresses)
                continue
            if text.startswith(NOT_RUN):
                continue
            text = replace_addresses(text, addresses)
            name = re.match(r"-- (\w+\.lua)\n", text)
            if name:
                assert expected is None
                (tmp_path / name[1]).write_text(text)
                continue
            expected = replace_addresses(expected or "", addresses)
            assert_output(run(language, text, tmp_path), expected)
            ran += 1
    assert ran >= 15


def test_wrong_output_is_detected():
    assert_output("a 1.0000001 b\nx\ny\nz\n", "a 1.0 b\n...\nz\n")
    for got, expected in (("a 1.1 b\n", "a 1.0 b\n"), ("a\nb\n", "a\n"), ("a\n", "a\nb\n"),
                          ("[1.0, 2.0]\n", "[1.0]\n"), ("a c\n", "a b ...\n"), ("1\n", "2\n")):
        with pytest.raises(AssertionError):
            assert_output(got, expected)
