# SPDX-License-Identifier: Apache-2.0
"""deploy/quickstart.sh replies with the book's numbers, and leaves nothing behind however it ends.

It runs in a folder of its own, where the build is done: `ninja` and `dpkg-query` are stubs."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from server import BINARY, ROOT, clean_environment


@pytest.fixture
def start_script(tmp_path):
    """Returns a function that starts the script with `arguments`, its output in a pipe. When the
    test is over, no process and no temporary folder of it may be left."""
    (tmp_path / "deploy").mkdir()
    (tmp_path / "build-release/src").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "deploy/quickstart.sh", tmp_path / "deploy")
    (tmp_path / "build-release/build.ninja").touch()
    (tmp_path / "build-release/src/attnd").symlink_to(BINARY)
    for name, action in (("ninja", "exit 0"), ("dpkg-query", "echo installed"), ("apt-get", "exit 1")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{action}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = clean_environment(TMPDIR=str(tmp_path / "tmp"),
                                    PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def start(*arguments):
        return subprocess.Popen(["sh", tmp_path / "deploy/quickstart.sh", *arguments], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                                preexec_fn=heed_signals)

    yield start
    left = find_processes(f"TMPDIR={tmp_path / 'tmp'}")
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert left == []
    assert list((tmp_path / "tmp").iterdir()) == []


def heed_signals():
    """A shell ignores SIGINT in what it runs in the background, and nohup ignores SIGHUP. These
    tests may run in either, and a script cannot trap what was ignored before it began."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(signal.Signals[name], signal.SIG_DFL)


def find_processes(variable):
    """The numbers of all processes that have this variable in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            pass
    return found


def read_to(script, text):
    """Reads the output up to the line with this text."""
    for line in script.stdout:
        if text in line:
            return
    raise AssertionError(f"ended without {text!r}")


def test_all_is_built_so_that_no_link_dangles(start_script, tmp_path):
    """meson makes the links of libattnd.so before that is built."""
    (tmp_path / "bin/ninja").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\n')
    assert start_script("--once").wait(60) == 0
    assert (tmp_path / "asked").read_text().split() == ["-C", "build-release"]


def test_once_prints_the_numbers_of_the_book_and_ends(start_script):
    script = start_script("--once")
    output, _ = script.communicate(timeout=60)
    assert script.returncode == 0, output
    assert '{"model":"journey","queries":[[' in output
    rows = re.findall(r"^    \[(.*)\]$", output, re.M)
    assert rows == ["0.3190, 0.4858", "0.2943, 0.3897", "0.2856, 0.3593",
                    "0.2693, 0.3873", "0.2639, 0.3928", "0.2575, 0.4028"] * 2


@pytest.mark.parametrize("line", ["everything needed", "building into", "attnd --demo is", "request:",
                                  "reply:"])
def test_output_that_nobody_reads_ends_it(start_script, line):
    script = start_script("--once")
    read_to(script, line)
    script.stdout.close()
    script.wait(timeout=60)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("line", ["building into", "attnd --demo is", "request:"])
def test_signal_before_it_serves_ends_it(start_script, line, name):
    script = start_script()
    read_to(script, line)
    script.send_signal(signal.Signals[name])
    output, _ = script.communicate(timeout=60)
    assert script.returncode == {"SIGINT": 130}.get(name, 143), output


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_while_it_serves_is_a_normal_end(start_script, name):
    script = start_script()
    read_to(script, "serving until Ctrl-C")
    script.send_signal(signal.Signals[name])
    output, _ = script.communicate(timeout=60)
    assert (script.returncode, output) == (0, "\n==> stopping\n")
