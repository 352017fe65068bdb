# SPDX-License-Identifier: Apache-2.0
"""Adds up the results of `meson test` and pytest: `count_results.py TESTLOG_JSON JUNIT_XML`.

Prints the failures and skips of `meson test` (pytest prints its own), then one line `N passed,
N failed, N skipped`. Exits 1 on any failure, and if either of the two ran nothing.
"""

import json
import re
import sys
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path

# Printed by cmocka with CMOCKA_MESSAGE_OUTPUT=TAP. Some versions print a skip as "not ok".
TAP_LINE = re.compile(r"^(not ok|ok) \d+ (?:- (.*)|(# SKIP.*))$", re.MULTILINE)


def count_program(program):
    """Counts the test functions in a line of testlog.json; a program without any counts as one."""
    counts, output = Counter(), program.get("stdout", "")
    for verdict, name, skip in TAP_LINE.findall(output):
        result = "skipped" if skip else "passed" if verdict == "ok" else "failed"
        counts[result] += 1
        if result != "passed":
            print(f"{result}: {program['name']}: {name or skip}")
    if program["result"] in ("OK", "EXPECTEDFAIL"):
        return counts or Counter(passed=1)
    if program["result"] == "SKIP":
        print(f"skipped: {program['name']}: {output.strip()}")
        return counts or Counter(skipped=1)
    if not counts["failed"]:  # crashed, timed out, or a sanitizer reported at its end
        print(f"failed: {program['name']}: {program['result']}")
        counts["failed"] += 1
    return counts


def count_meson(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return sum((count_program(json.loads(line)) for line in lines), Counter())


def count_pytest(path):
    counts = Counter()
    for suite in xml.parse(path).iter("testsuite") if path.exists() else []:
        total, failed, skipped = (sum(int(suite.get(key)) for key in keys) for keys in
                                  (("tests",), ("failures", "errors"), ("skipped",)))
        counts += Counter(passed=total - failed - skipped, failed=failed, skipped=skipped)
    return counts


def main():
    counts = count_meson(Path(sys.argv[1])), count_pytest(Path(sys.argv[2]))
    total = sum(counts, Counter())
    for runner, results in zip(("meson test", "pytest"), counts):
        if not results["passed"] + results["failed"]:
            print(f"failed: {runner} ran no test")
            total["failed"] += 1
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
