# SPDX-License-Identifier: Apache-2.0
"""The sections of table and plot: for each part and precision, times relative to attnd."""

from statistics import median
from typing import NamedTuple

PARTS = {"layer": "The whole layer", "projection": "One projection"}
PRECISIONS = {"f32": "float32", "bf16": "bfloat16"}


class Section(NamedTuple):
    part: str
    precision: str
    baseline: str  # "attnd f32" or "attnd bf16": other times are divided by its time
    others: list  # names
    cases: list
    why: str  # the baseline has another precision, or ""

    @property
    def title(self):
        return (f"{PARTS[self.part]}, {PRECISIONS[self.precision]}: time over that of "
                f"{self.baseline}")


class Ratio(NamedTuple):
    low: float
    middle: float
    high: float


def was_timed(case, name):
    return "median_ms" in case["results"].get(name, {})


def ratio(case, name, baseline):
    """Returns minimum, median and maximum of the ratios in all rounds, or None if not timed."""
    if not was_timed(case, name) or not was_timed(case, baseline):
        return None
    ratios = [x / y for x, y in zip(case["results"][name]["rounds_ms"],
                                    case["results"][baseline]["rounds_ms"])]
    return Ratio(min(ratios), median(ratios), max(ratios))


def why_not(cases, name):
    entry = cases[0]["results"].get(name, {})
    return entry.get("unavailable") or entry.get("failed") or "attnd f32 failed"


def list_sections(cases):
    sections = []
    for part in PARTS:
        mine = [case for case in cases if case["part"] == part]
        for precision in PRECISIONS if mine else ():
            baseline, why = f"attnd {precision}", ""
            if not any(was_timed(case, baseline) for case in mine):
                baseline, why = "attnd f32", f"{baseline} was not timed: {why_not(mine, baseline)}"
            names = dict.fromkeys(name for case in mine for name, entry in case["results"].items()
                                  if entry["precision"] == precision or name == "attnd f32")
            others = [name for name in names if name != baseline
                      and any(was_timed(case, name) for case in mine)]
            if others:
                sections.append(Section(part, precision, baseline, others, mine, why))
    return sections


def shape_text(case):
    sequences, length, width, heads, key_length = case["shape"]
    if case["part"] == "layer":
        keys = f" over {key_length}" if key_length != length else ""
        return f"({sequences},{length}{keys},{width}), {heads} heads"
    rows = sequences * length
    return f"{rows} row{'s' * (rows > 1)} of {width}"


def threads_text(threads):
    return f"{threads} thread{'s' * (threads > 1)}"
