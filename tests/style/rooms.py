# SPDX-License-Identifier: Apache-2.0
"""rooms.py: what the checks of rooms share: the table in src/meson.build, and how to find circles."""
import ast
import re


def read_rooms(source):
    """Returns the dict in src/meson.build, which is valid Python, too."""
    text = (source / "meson.build").read_text()
    table = re.search(r"^rooms = (\{.*?^\})", text, re.S | re.M)
    return ast.literal_eval(table.group(1))


def room_of(name, rooms):
    """Returns the innermost room of a file of src/; main.c is the room main."""
    folder = name.rpartition("/")[0] or name.partition(".")[0]
    while folder and folder not in rooms:
        folder = folder.rpartition("/")[0]
    return folder


def unit_of(name):
    """Returns the unit that a file belongs to: x.c and x.h are the unit x."""
    return re.sub(r"\.(c|h|inc)$", "", name)


def may_use(name, other, rooms):
    """Returns whether the table lets one file of src/ use another one."""
    room, other_room = room_of(name, rooms), room_of(other, rooms)
    uses = rooms[room]["uses"]
    return other_room == room or other_room in uses or unit_of(other) in uses


def find_circles(graph):
    """Returns the groups of units that reach each other. `graph` maps units to those that they use."""
    def reach(start):
        seen, todo = set(), [start]
        while todo:
            for other in graph.get(todo.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return seen

    reached = {name: reach(name) for name in graph}
    circles = {frozenset(o for o in reached[n] if n in reached.get(o, ())) for n in graph}
    return sorted(sorted(circle) for circle in circles if len(circle) > 1)
