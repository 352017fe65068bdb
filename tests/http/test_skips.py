# SPDX-License-Identifier: Apache-2.0
"""What tests/run.sh leaves out is in its count of skips, with the reason."""

import json
import re
import subprocess
import sys

import pytest

from server import ROOT, clean_environment

PYTEST = [sys.executable, "-m", "pytest", "-c", ROOT / "tests/http/pytest.ini", "-q", ROOT / "tests/ui"]


def run(*command, **variables):
    return subprocess.run([*map(str, command)], text=True, capture_output=True, timeout=170,
                          env=clean_environment(PYTHONDONTWRITEBYTECODE="1", PYTEST_ADDOPTS="", **variables))


@pytest.mark.parametrize("variables, reason", [
    ({"BROWSER_TESTS": "0"}, "BROWSER_TESTS is 0"),
    ({"CHROMIUM": "/nonexistent"}, "/nonexistent is missing (Debian: chromium)")], ids=["switch", "missing"])
def test_every_test_of_the_browser_is_counted_when_it_cannot_run(tmp_path, variables, reason):
    done = run(*PYTEST, "--junitxml", tmp_path / "pytest.xml", **variables)
    assert done.returncode == 0, done.stdout
    (count,) = re.findall(r"^(\d+) skipped in ", done.stdout, re.M)  # and nothing passed or failed
    skipped = re.findall(r"^SKIPPED \[(\d+)\] \S+: (.+)$", done.stdout, re.M)
    assert sum(int(number) for number, _ in skipped) == int(count) > 100
    assert {said for _, said in skipped} == {reason}

    (tmp_path / "testlog.json").write_text(json.dumps({"name": "one", "result": "OK"}))
    counts = run(sys.executable, ROOT / "tests/count_results.py", tmp_path / "testlog.json", tmp_path / "pytest.xml")
    assert counts.stdout.endswith(f", {count} skipped\n")


def test_script_of_all_tests_gives_them_all_to_pytest():
    script = (ROOT / "tests/run.sh").read_text()
    assert '"$root/tests/http" "$root/tests/faults" "$root/tests/ui"' in script


def test_ci_lists_the_skips_of_a_step_by_their_reasons(tmp_path):
    function = re.search(r"^list_skips\(\) \{\n.*?^\}$", (ROOT / ".ci/run").read_text(), re.M | re.S)[0]
    (tmp_path / "output").write_text("SKIPPED [24] tests/ui/test_look.py: a browser: missing\n"
                                     "SKIPPED [2] tests/ui/test_key.py:9: a browser: missing\n"
                                     "skipped: math_few: # SKIP test_tiles\n"
                                     "SKIP: no swarm on this Docker engine\n"
                                     "1 passed, 0 failed, 28 skipped\n")
    done = run("bash", "-c", f'{function}\nlist_skips "$1" "$2"', "bash", "the step", tmp_path / "output")
    assert done.stdout.splitlines() == ["the step: 26 x a browser: missing", "the step: math_few: # SKIP test_tiles",
                                        "the step: no swarm on this Docker engine"]
