# SPDX-License-Identifier: Apache-2.0
"""How bash and zsh complete the command line of attnd, by what --help prints."""

import re
import shutil
import subprocess

import pytest

from server import BINARY, ROOT, run_attnd

SCRIPTS = ROOT / "src/completion"
# bash -c COMPLETE NAME FILE WORD...: completes the last word. Prints what is offered, and what bash
# is told to do where that is nothing.
COMPLETE = """
compopt() { echo "compopt $*"; }
. "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_attnd
printf '%s\\n' "${COMPREPLY[@]}"
"""
# zsh -c ARGUMENTS NAME FILE WORD...: prints what the function of the file tells zsh, one a line.
ARGUMENTS = """
setopt extendedglob
_arguments() { print -rl -- "$@"; }
words=("${@:2}")
. "$1"
"""
needs_bash = pytest.mark.skipif(not shutil.which("bash"), reason="bash is not installed")


def complete(*words):
    result = subprocess.run(["bash", "-c", COMPLETE, "bash", SCRIPTS / "attnd.bash", BINARY, *words],
                            capture_output=True, text=True, timeout=30)
    assert result.returncode == 0 and not result.stderr, result
    lines = result.stdout.split("\n")
    return [line for line in lines if line and not line.startswith("compopt")], \
           [line for line in lines if line.startswith("compopt")]


def read_help():
    """Returns the options of --help, as a dict from flags to metavars."""
    flags = {}
    for line in run_attnd("--help").stdout.partition("\nOptions")[2].splitlines():
        option = re.match(r"  (--[a-z-]+)(, -\w)?( [A-Za-z\[].*?)?(  |$)", line)
        if option:
            flags[option[1]] = (option[3] or "").strip()
            if option[2]:
                flags[option[2].strip(", ")] = ""
    return flags


def test_help_has_few_enough_options():
    assert sum(flag.startswith("--") for flag in read_help()) <= 42


@needs_bash
@pytest.mark.parametrize("command", ["serve", "inspect", "health"])
def test_bash_offers_the_options_in_help(command):
    offered, _ = complete(command, "-")
    assert len(offered) > 30
    assert sorted(offered) == sorted(read_help())


@needs_bash
def test_bash_offers_the_commands_first():
    assert complete("")[0] == ["serve", "inspect", "health"]
    assert complete("in")[0] == ["inspect"]
    assert set(complete("--log-l")[0]) == {"--log-level"}


@needs_bash
def test_bash_offers_the_values_that_help_shows():
    tried = set()
    for flag, metavar in {f: m for f, m in read_help().items() if m}.items():
        offered, told = complete("serve", flag, "")
        if re.fullmatch(r"[a-z0-9]+(\|[a-z0-9]+)+", metavar):
            tried.add("words")
            assert offered == metavar.split("|"), flag
        elif "FILE" in metavar:
            tried.add("files")
            assert (offered, told) == ([], []), flag
        elif metavar == "DIR":
            tried.add("folders")
            assert (offered, told) == ([], ["compopt -o dirnames +o default"]), flag
        else:
            tried.add("nothing")
            assert (offered, told) == ([], ["compopt +o default"]), flag
    assert tried == {"words", "files", "folders", "nothing"}


@needs_bash
def test_bash_completes_behind_an_equals_sign():
    assert complete("--log-format", "=")[0] == ["text", "json"]
    assert complete("--log-format", "=", "j")[0] == ["json"]
    assert complete("--model", "layer", "=", "lay") == ([], []), "names of files"
    assert complete("inspect", "lay") == ([], []), "names of files"


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
@pytest.mark.parametrize("command", ["serve", "inspect"])
def test_zsh_has_the_same_options_and_values(command):
    result = subprocess.run(["zsh", "-fc", ARGUMENTS, "zsh", SCRIPTS / "_attnd", BINARY, command, ""],
                            capture_output=True, text=True, timeout=30)
    assert result.returncode == 0 and not result.stderr, result
    *lines, commands, files = result.stdout.splitlines()
    assert (commands, files) == ("1:command:(serve inspect health)", "*:file:_files")
    assert {re.match(r"[*]?([a-zA-Z-]+)", line)[1] for line in lines} == set(read_help())
    metavars = read_help()
    for line in lines:
        metavar = metavars[re.match(r"[*]?([a-zA-Z-]+)", line)[1]]
        assert ("=[" in line) == bool(metavar), line
        if re.fullmatch(r"[a-z0-9]+(\|[a-z0-9]+)+", metavar):
            assert line.endswith(f":({metavar.replace('|', ' ')})"), line
        elif "FILE" in metavar:
            assert re.search(r":(_files|\{compset -P \"\*=\"; _files\})$", line), line
        elif metavar == "DIR":
            assert line.endswith(":_files -/"), line
