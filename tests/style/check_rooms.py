#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_rooms.py ROOT: compares the table of rooms in src/meson.build with the code.

A room includes only its own headers and those that it uses according to the table. An external
header is included only by rooms that list its library. No two units (x.c with x.h) include each
other in a circle. Every source is in the table. Files and functions are short, and every file has
its licence line."""
import pathlib
import re
import sys

from rooms import find_circles, may_use, read_rooms, room_of, unit_of

# The library of each external header, and headers that only one file may include.
LIBRARY_HEADERS = {"jansson.h": "jansson", "microhttpd.h": "microhttpd", "cblas.h": "openblas",
                   "zlib.h": "zlib", "gnutls/gnutls.h": "gnutls", "gnutls/x509.h": "gnutls",
                   "nettle/base16.h": "nettle", "nettle/sha2.h": "nettle"}
SOLE_USERS = {"cblas.h": "math/blas.c"}
# Public headers that know models; status.h knows none.
MODEL_HEADERS = {"attnd/attention.h", "attnd/library.h", "attnd/model.h", "attnd/program.h"}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
CODE = ("*.c", "*.h", "*.inc", "*.cc", "*.cpp")


def find_files(folder, patterns):
    return sorted(path for pattern in patterns for path in folder.rglob(pattern))


def check_table(rooms, source):
    seen = set()
    for room, entry in rooms.items():
        for used in entry["uses"]:
            is_header = (source / f"{used}.h").exists()
            if used not in seen and not is_header:
                yield f"src/meson.build: {room} uses {used}, which is not a room above it in the table"
        seen.add(room)
    listed = {s if s == f"{room}.c" else f"{room}/{s}" for room, e in rooms.items() for s in e["sources"]}
    for path in find_files(source, ["*.c"]):
        name = str(path.relative_to(source))
        if name not in listed and not (name.startswith("math/kernels/")):
            yield f"{path}: no room lists it"


def check_includes(path, name, rooms):
    room = room_of(name, rooms)
    entry = rooms[room]
    for line in path.read_text().splitlines():
        own = re.match(r'\s*#\s*include "([^"]+)"', line)
        if own:
            if not may_use(name, own.group(1), rooms):
                yield f"{path}: room {room} may not include {own.group(1)}"
        external = re.match(r"\s*#\s*include <([\w/]+\.h)>", line)
        if not external:
            continue
        header = external.group(1)
        if LIBRARY_HEADERS.get(header, "") and LIBRARY_HEADERS[header] not in entry["libraries"]:
            yield f"{path}: room {room} does not list {LIBRARY_HEADERS[header]}"
        if header in SOLE_USERS and name != SOLE_USERS[header]:
            yield f"{path}: only {SOLE_USERS[header]} may include {header}"
        if header in MODEL_HEADERS and "math" not in (room.split("/")[0], *entry["uses"]):
            yield f"{path}: room {room} knows no model, so it may not include {header}"


def graph_includes(texts):
    """Returns a dict from units to those that they include. `texts` maps names to contents."""
    graph = {}
    for name, text in texts.items():
        included = re.findall(r'^\s*#\s*include "([^"]+)"', text, re.M)
        graph.setdefault(unit_of(name), set()).update(
            unit_of(i) for i in included if i in texts and unit_of(i) != unit_of(name))
    return graph


def check_length(path):
    lines = path.read_text().splitlines()
    if len(lines) > MAX_FILE_LINES:
        yield f"{path}: {len(lines)} lines, over {MAX_FILE_LINES}"


def check_sizes(path):
    yield from check_length(path)
    lines = path.read_text().splitlines()
    start = None
    for number, line in enumerate(lines, 1):
        if line.endswith(") {") and (start is None or line[0] != " "):
            start = number
        if line == "}" and start is not None:
            if number - start > MAX_FUNCTION_LINES:
                yield f"{path}:{start}: {number - start} lines, over {MAX_FUNCTION_LINES}"
            start = None


def check_licence(path):
    if "SPDX-License-Identifier: Apache-2.0" not in path.read_text()[:200]:
        yield f"{path}: no SPDX line"


def main():
    root = pathlib.Path(sys.argv[1])
    source = root / "src"
    rooms = read_rooms(source)
    problems = [*check_table(rooms, source)]
    texts = {str(path.relative_to(source)): path.read_text() for path in find_files(source, CODE)}
    for name in texts:
        problems += check_includes(source / name, name, rooms)
    problems += ["src: circle of includes: " + " ".join(c) for c in find_circles(graph_includes(texts))]
    code = [p for folder in ("src", "include", "tests", "docs") for p in find_files(root / folder, CODE)]
    for path in code:
        problems += check_sizes(path)
        problems += check_licence(path)
    scripts = [p for folder in ("src", "tests", "deploy")
               for p in find_files(root / folder, ["*.py", "*.sh", "*.lua", "*.js", "*.css", "*.html"])]
    for path in scripts:
        problems += check_licence(path)
        if path.suffix == ".js":
            problems += check_length(path)
    print("\n".join(problems) or f"{len(rooms)} rooms, {len(code)} C files and {len(scripts)} scripts are in order")
    return 1 if problems or len(rooms) < 10 or len(code) < 10 else 0


sys.exit(main())
