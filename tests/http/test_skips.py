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
                          env=clean_environment(PYTEST_ADDOPTS="", **variables))


@pytest.mark.parametrize("variables, reason", [
    ({"BROWSER_TESTS": "0"}, "BROWSER_TESTS is 0"),
    ({"CHROMIUM": "/nonexistent"}, "/nonexistent is missing (Debian: chromium or chromium-headless-shell)")],
    ids=["switch", "missing"])
def test_every_test_of_the_browser_is_counted_when_it_cannot_run(tmp_path, variables, reason):
    done = run(*PYTEST, "--junitxml", tmp_path / "pytest.xml", **variables)
    assert done.returncode == 0, done.stdout
    (count,) = re.findall(r"^(\d+) skipped in ", done.stdout, re.M)  # and nothing passed or failed
    skipped = re.findall(r"^SKIPPED \[(\d+)\] \S+: (.+)$", done.stdout, re.M)
    assert sum(int(number) for number, _ in skipped) == int(count) > 100
    assert {said for _, said in skipped} - {"firefox-esr is missing (Debian: firefox-esr)"} == {reason}

    (tmp_path / "testlog.json").write_text(json.dumps({"name": "one", "result": "OK"}))
    counts = run(sys.executable, ROOT / "tests/count_results.py", tmp_path / "testlog.json", tmp_path / "pytest.xml")
    assert counts.stdout.endswith(f", {count} skipped\n")


def test_script_of_all_tests_gives_them_all_to_pytest():
    script = (ROOT / "tests/run.sh").read_text()
    assert '"$root/tests/http" "$root/tests/python" "$root/tests/faults" "$root/tests/ui"' in script


def run_function_of_ci(name, output, tmp_path):
    function = re.search(rf"^{name}\(\) \{{\n.*?^\}}$", (ROOT / ".ci/run").read_text(), re.M | re.S)[0]
    (tmp_path / "output").write_text(output)
    done = run("bash", "-c", f'{function}\n{name} "$1" "$2"', "bash", "the step", tmp_path / "output")
    return done.stdout.splitlines()


def test_ci_lists_the_skips_of_a_step_by_their_reasons(tmp_path):
    lines = run_function_of_ci("list_skips", "SKIPPED [24] tests/ui/test_look.py: a browser: missing\n"
                               "SKIPPED [2] tests/ui/test_key.py:9: a browser: missing\n"
                               "skipped: math_few: # SKIP test_tiles\n"
                               "skipped: math_few: # SKIP test_tiles\n"
                               "SKIP: no swarm on this Docker engine\n"
                               "1 passed, 0 failed, 29 skipped\n", tmp_path)
    assert sorted(lines) == ["the step: 1 x no swarm on this Docker engine", "the step: 2 x math_few: # SKIP test_tiles",
                             "the step: 26 x a browser: missing"]


def test_ci_lists_the_tests_of_a_step_that_failed(tmp_path):
    lines = run_function_of_ci("list_failures", "FAILED tests/http/test_net.py::test_it[1-a] - AssertionError: no\n"
                               "ERROR tests/ui/test_key.py::test_that\n"
                               "ERROR: a line of a log\n"
                               "failed: attnd:unit+math / math_few: test_rows\n"
                               "failed: pytest ran no test\n", tmp_path)
    assert lines == ["the step: tests/http/test_net.py::test_it[1-a]", "the step: tests/ui/test_key.py::test_that",
                     "the step: attnd:unit+math / math_few: test_rows", "the step: pytest ran no test"]
