#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_rooms.py SOURCE_ROOT: the rooms of docs/architecture.md, held against the code.

A room includes only rooms below it; an external header has one home; files and functions stay
short; every file carries its licence line."""
import pathlib
import re
import sys

BELOW = {
    "base": set(),
    "tensors": {"base"},
    "math": {"base"},
    "weights": {"math", "tensors", "base"},
    "wire": {"math", "tensors", "base"},
    "sched": {"base"},
    "obs": {"base"},
    "config": {"base"},
    "http": {"wire", "sched", "math", "obs", "base"},
    "cli": {"config", "sched", "weights", "wire", "math", "base"},
    "main.c": {"cli", "config", "http", "sched", "obs", "base"},
}
HOMES = {
    "cblas.h": {"math/blas.c"},
    "microhttpd.h": {"http"},
    # main seeds its hash once; the bench has it as a baseline
    "jansson.h": {"wire", "tensors", "weights", "config", "main.c", "cli/bench_wire.c"},
}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60


def room_of(path, source):
    return path.relative_to(source).parts[0]


def check_includes(path, source):
    room = room_of(path, source)
    for line in path.read_text().splitlines():
        own = re.match(r'#include "(\w+)/', line)
        if own and own.group(1) != room and own.group(1) not in BELOW[room]:
            yield f"{path}: room {room} may not include {own.group(1)}"
        external = re.match(r"#include <(\w+\.h)>", line)
        if external and external.group(1) in HOMES:
            homes = HOMES[external.group(1)]
            if room not in homes and str(path.relative_to(source)) not in homes:
                yield f"{path}: {external.group(1)} has its home in {sorted(homes)}"


def check_sizes(path):
    lines = path.read_text().splitlines()
    if len(lines) > MAX_FILE_LINES:
        yield f"{path}: {len(lines)} lines, over {MAX_FILE_LINES}"
    start = None
    for number, line in enumerate(lines, 1):
        if line.endswith(") {") and (start is None or line[0] != " "):
            start = number
        if line == "}" and start is not None:
            if number - start > MAX_FUNCTION_LINES:
                yield f"{path}:{start}: a function of {number - start} lines"
            start = None


def check_licence(path):
    if "SPDX-License-Identifier: Apache-2.0" not in path.read_text()[:200]:
        yield f"{path}: no SPDX line"


def main():
    root = pathlib.Path(sys.argv[1])
    source = root / "src"
    problems = []
    for path in sorted(source.rglob("*.[ch]")):
        problems += check_includes(path, source)
    code = [p for folder in ("src", "include", "tests", "docs") for p in (root / folder).rglob("*.[ch]")]
    for path in sorted(code):
        problems += check_sizes(path)
        problems += check_licence(path)
    scripts = [p for folder in ("tests", "deploy") for ending in ("py", "sh", "lua")
               for p in (root / folder).rglob("*." + ending)]
    for path in sorted(scripts):
        problems += check_licence(path)
    print("\n".join(map(str, problems)) or f"{len(code)} C files and {len(scripts)} scripts are in order")
    return 1 if problems or len(code) < 10 else 0


sys.exit(main())
