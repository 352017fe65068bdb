#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_calls.py ROOT BUILD NM: compares the table of rooms in src/meson.build with what units call.

An #include shows which header a unit reads; the symbols of its object show whose functions and
variables it uses. A unit uses only units of its own room and of those that the table lets it use,
and what the public headers declare where the table has the library's first folder, such as math.
No two units depend on each other in a circle, also when their headers do not.

Objects are found by compile_commands.json, so any build folder will do, of gcc or clang, also with
sanitizers or coverage, but not with LTO, whose objects have no code. Symbols that several objects
define, such as those of coverage, belong to none."""
import json
import pathlib
import re
import subprocess
import sys

from rooms import find_circles, may_use, read_rooms, room_of, unit_of


def find_units(root, build):
    """Returns a dict from objects of src/ to units. A file that the build makes, such as commit.c,
    is a unit of the room whose library it is a part of."""
    units = {}
    for command in json.loads((build / "compile_commands.json").read_text()):
        path = (build / command["file"]).resolve()
        library = re.match(r"src/(?:lib)?(\w+)(?:\.a)?\.p/", command["output"])
        if path.is_relative_to(root / "src"):
            units[command["output"]] = unit_of(str(path.relative_to(root / "src")))
        elif library:
            room = library.group(1)
            units[command["output"]] = "main" if room == "attnd" else f"{room}/{path.name}"
    return units


def read_symbols(build, units, nm):
    """Returns two dicts: from symbols to the units that define them, and from units to the symbols
    that they leave undefined."""
    defined, undefined = {}, {}
    objects = [name for name in units if (build / name).exists()]
    output = subprocess.run([nm, "-A", "-P", "-g", *objects], cwd=build, check=True,
                            capture_output=True, text=True).stdout
    for line in output.splitlines():
        name, symbol, kind = re.match(r"(.+?\.o): (\S+) (\w)", line).groups()
        if kind in "Uw":
            undefined.setdefault(units[name], set()).add(symbol)
        else:
            defined.setdefault(symbol, set()).add(units[name])
    return defined, undefined


def find_uses(defined, undefined):
    """Returns a dict from units to those that they use, each with the symbols that are used."""
    uses = {}
    for unit, symbols in undefined.items():
        uses[unit] = {}
        for symbol in sorted(symbols):
            owners = defined.get(symbol, set())
            if len(owners) == 1 and owners != {unit}:
                uses[unit].setdefault(*owners, []).append(symbol)
    return uses


def may_call(unit, other, symbol, rooms, public):
    room, library = room_of(unit, rooms), other.split("/")[0]
    return may_use(unit, other, rooms) or (
        symbol in public and library in (room.split("/")[0], *rooms[room]["uses"]))


def main():
    root, build, nm = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]), sys.argv[3]
    rooms = read_rooms(root / "src")
    uses = find_uses(*read_symbols(build, find_units(root, build), nm))
    public = {name for path in (root / "include/attnd").glob("*.h") for name in re.findall(r"\w+", path.read_text())}
    problems = []
    for unit, used in uses.items():
        for other, symbols in used.items():
            wrong = [s for s in symbols if not may_call(unit, other, s, rooms, public)]
            if wrong:
                problems.append(f"src/{unit}: room {room_of(unit, rooms)} may not call {' '.join(wrong)} of {other}")
    for circle in find_circles(uses):
        calls = [f"    {a} calls {' '.join(s)} of {b}" for a in circle for b, s in uses[a].items() if b in circle]
        problems.append("\n".join(["src: circle of calls: " + " ".join(circle), *calls]))
    num_uses = sum(map(len, uses.values()))
    print("\n".join(problems) or f"{len(uses)} units and their {num_uses} dependencies are in order")
    return 1 if problems or len(uses) < 100 or num_uses < 500 else 0


sys.exit(main())
