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
    """Returns the options of --help, as dicts from flags to metavars, by who has them."""
    sections, section = {}, None
    for line in run_attnd("--help").stdout.splitlines():
        heading = re.match(r"Options( of attnd (heads and prune|heads|prune)\b)?", line)
        option = re.match(r"  (--[a-z-]+)(, -\w)?( [A-Za-z\[].*?)?(  |$)", line)
        if heading:
            section = sections.setdefault(heading[2] or "all", {})
        elif option and section is not None:
            section[option[1]] = (option[3] or "").strip()
            if option[2]:
                section[option[2].strip(", ")] = ""
    return sections


def flags_of(command):
    return {flag for names, flags in read_help().items() if names == "all" or command in names for flag in flags}


@needs_bash
@pytest.mark.parametrize("command", ["serve", "inspect", "heads", "prune", "health"])
def test_bash_offers_the_options_of_the_command_in_help(command):
    offered, _ = complete(command, "-")
    assert len(offered) > 30
    assert sorted(offered) == sorted(flags_of(command))


@needs_bash
def test_bash_offers_the_commands_first():
    assert complete("")[0] == ["serve", "inspect", "heads", "prune", "health"]
    assert complete("pr")[0] == ["prune"]
    assert set(complete("--log-l")[0]) == {"--log-level"}


@needs_bash
def test_bash_offers_the_values_that_help_shows():
    tried = set()
    for flag, metavar in {f: m for flags in read_help().values() for f, m in flags.items() if m}.items():
        offered, told = complete("heads", flag, "")
        if re.fullmatch(r"[a-z0-9]+(\|[a-z0-9]+)+", metavar):
            tried.add("words")
            assert offered == metavar.split("|"), flag
        elif "FILE" in metavar or metavar == "REQUESTS":
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
@pytest.mark.parametrize("command", ["serve", "heads", "prune"])
def test_zsh_has_the_same_options_and_values(command):
    result = subprocess.run(["zsh", "-fc", ARGUMENTS, "zsh", SCRIPTS / "_attnd", BINARY, command, ""],
                            capture_output=True, text=True, timeout=30)
    assert result.returncode == 0 and not result.stderr, result
    *lines, commands, files = result.stdout.splitlines()
    assert (commands, files) == ("1:command:(serve inspect heads prune health)", "*:file:_files")
    assert {re.match(r"[*]?([a-zA-Z-]+)", line)[1] for line in lines} == flags_of(command)
    metavars = {flag: metavar for flags in read_help().values() for flag, metavar in flags.items()}
    for line in lines:
        metavar = metavars[re.match(r"[*]?([a-zA-Z-]+)", line)[1]]
        assert ("=[" in line) == bool(metavar), line
        if re.fullmatch(r"[a-z0-9]+(\|[a-z0-9]+)+", metavar):
            assert line.endswith(f":({metavar.replace('|', ' ')})"), line
        elif "FILE" in metavar or metavar == "REQUESTS":
            assert re.search(r":(_files|\{compset -P \"\*=\"; _files\})$", line), line
        elif metavar == "DIR":
            assert line.endswith(":_files -/"), line
