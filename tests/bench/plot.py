# SPDX-License-Identifier: Apache-2.0
"""The plot: bars of the time relative to attnd, on a log scale, a column for each thread count."""

import html
from math import floor, log2

from sections import list_sections, ratio, shape_text, threads_text

COLOURS = {  # by the first words of a name: in light and dark mode
    "attnd": ("#0969da", "#4493f8"), "numpy": ("#8c959f", "#7d8590"),
    "ONNX Runtime": ("#d4752c", "#db8b4b"), "OpenVINO": ("#7d55c7", "#a585e0"),
    "oneDNN": ("#2c8f7b", "#3fae97"), "oneDNN f32>bf16": ("#9a6b12", "#c9a24a"),
    "cblas": ("#b0568a", "#d07fad"), "FastAPI": ("#2c8f7b", "#3fae97"),
    "LitServe": ("#7d55c7", "#a585e0"), "MLServer": ("#9a6b12", "#c9a24a"),
    "Triton": ("#d4752c", "#db8b4b")}
KINDS = {name: f"k{i}" for i, name in enumerate(COLOURS)}
STYLE = """  text {{ font: 12px "DejaVu Sans", Verdana, sans-serif }} .title {{ font-weight: bold }}
  .ground {{ fill: {0} }} text {{ fill: {1} }} .faint {{ fill: {2} }}
  .grid {{ stroke: {3} }} .one, .spread {{ stroke: {1} }}
"""
LABELS, COLUMN, GAP = 215, 330, 24  # widths
BAR, BETWEEN = 14, 10  # heights: of one bar with its margin, and between two shapes
FINE_TICKS = (0.4, 0.5, 0.6, 0.7, 0.8, 1, 1.2, 1.5, 2, 2.5, 3)
FIGURES = 44  # width at both ends of a scale for the figure beside a bar


def style():
    """Text, background and bars follow the colour scheme of the reader."""
    light = STYLE.format("#fff", "#24292f", "#57606a", "#d8dee4")
    dark = STYLE.format("#0d1117", "#e6edf3", "#9198a1", "#30363d")
    for name, (day, night) in COLOURS.items():
        light += f"  .{KINDS[name]} {{ fill: {day} }}\n"
        dark += f"  .{KINDS[name]} {{ fill: {night} }}\n"
    return f"{light}  @media (prefers-color-scheme: dark) {{\n{dark}  }}\n"


def kind_of(name):
    return KINDS[max((word for word in COLOURS if name.startswith(word)), key=len)]


class Canvas:
    def __init__(self):
        self.body, self.y = [], 0

    def write(self, x, text, kind="", anchor="start", dy=0):
        self.body.append(f'<text x="{x:.1f}" y="{self.y + dy:.1f}" class="{kind}" '
                         f'text-anchor="{anchor}">{html.escape(text)}</text>')

    def line(self, x1, y1, x2, y2, kind):
        self.body.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                         f'class="{kind}"/>')

    def bar(self, x1, x2, y, height, kind):
        self.body.append(f'<rect x="{min(x1, x2):.1f}" y="{y:.1f}" width="{abs(x2 - x1):.1f}" '
                         f'height="{height}" class="{kind}"/>')


class Scale:
    """Octaves, the same in all columns of a panel. The range covers the medians only, so that
    one disturbed round does not shrink all bars."""

    def __init__(self, ratios):
        middles = [log2(over.middle) for over in ratios if over is not None]
        self.low, self.high = min(middles + [0]) - 0.15, max(middles + [0.75]) + 0.15
        self.octave = (COLUMN - 2 * FIGURES) / (self.high - self.low)
        ticks = FINE_TICKS if self.high - self.low < 2 else [
            2.0**i for i in range(floor(self.low), floor(self.high) + 1)]
        self.ticks = [tick for tick in ticks if self.low <= log2(tick) <= self.high]

    def at(self, left, value):
        octaves = min(max(log2(value), self.low), self.high)
        return left + FIGURES + (octaves - self.low) * self.octave


def column_left(index):
    return LABELS + index * (COLUMN + GAP)


def draw_bars(canvas, scale, left, names, ratios):
    for i, (name, over) in enumerate(zip(names, ratios)):
        if over is None:
            continue
        top = canvas.y + i * BAR
        one, low, middle, high = (scale.at(left, x) for x in (1, *over))
        canvas.bar(one, middle, top + 1, BAR - 2, kind_of(name))
        canvas.line(low, top + BAR / 2, high, top + BAR / 2, "spread")
        if over.middle >= 1:
            canvas.write(max(high, one) + 4, f"{over.middle:.2f}", dy=i * BAR + 11.5)
        else:
            canvas.write(min(low, one) - 4, f"{over.middle:.2f}", "", "end", dy=i * BAR + 11.5)


def draw_grid(canvas, scale, left, height):
    for tick in scale.ticks:
        x = scale.at(left, tick)
        canvas.line(x, canvas.y, x, canvas.y + height, "one" if tick == 1 else "grid")
        canvas.write(x, f"{tick:g}", "faint", "middle", dy=-4)


def draw_panel(canvas, title, why, names, columns, rows):
    """Draws bars for each of `names`. `rows` has, by label, a list of ratios for each column."""
    scale = Scale([over for row in rows.values() for ratios in row for over in ratios])
    canvas.y += 36
    canvas.write(10, title, "title")
    if why:
        canvas.y += 17
        canvas.write(10, why, "faint")
    canvas.y += 19
    x = 10
    for name in names:
        canvas.bar(x, x + 11, canvas.y - 10, 11, kind_of(name))
        canvas.write(x + 16, name)
        x += 40 + 7.5 * len(name)
    canvas.y += 22
    for i, column in enumerate(columns):
        canvas.write(column_left(i), column, "faint")
    canvas.y += 20
    height = len(names) * BAR + BETWEEN
    for i in range(len(columns)):
        draw_grid(canvas, scale, column_left(i), len(rows) * height)
    for label, row in rows.items():
        canvas.y += BETWEEN / 2
        canvas.write(LABELS - 8, label, "", "end", dy=len(names) * BAR / 2 + 4)
        for i, ratios in enumerate(row):
            draw_bars(canvas, scale, column_left(i), names, ratios)
        canvas.y += height - BETWEEN / 2


def draw_section(canvas, section, threads):
    rows = {shape_text(case): [[] for _ in threads] for case in section.cases}
    for case in section.cases:
        rows[shape_text(case)][threads.index(case["threads"])] = [
            ratio(case, name, section.baseline) for name in section.others]
    draw_panel(canvas, section.title, section.why, section.others,
               [threads_text(count) for count in threads], rows)


def finish(canvas, columns, notes):
    """Returns the SVG, with notes below."""
    canvas.y += 11
    for note in notes:
        canvas.y += 17
        canvas.write(10, note, "faint")
    size = f'width="{max(column_left(columns) - GAP + 10, 640)}" height="{canvas.y + 14:.0f}"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>\n{style()}</style>\n'
            f'<rect class="ground" {size}/>\n' + "\n".join(canvas.body) + "\n</svg>\n")


def draw(report):
    """Returns a report as SVG."""
    cases = report["cases"]
    threads = sorted({case["threads"] for case in cases})
    canvas = Canvas()
    for section in list_sections(cases):
        draw_section(canvas, section, threads)
    return finish(canvas, len(threads), [
        "Right of 1: slower than attnd. Bars: the median ratio of the rounds; thin "
        "lines: minimum to maximum, cut at the edge.", f"{report['machine']}, {report['date']}"])
