# SPDX-License-Identifier: Apache-2.0
"""Pictures of attention weights: HTML for notebooks, SVG, and PNG by matplotlib."""

from __future__ import annotations

import base64
import html
import importlib
import json
import os
import pathlib
import struct
import zlib
from typing import Any

import numpy as np

from ._arrays import Array
from ._errors import InvalidError

MOST_CELLS = 256  # queries or keys of a picture; longer texts are drawn in blocks
MOST_LABELS = 64  # along an axis
COLOURS = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]])  # viridis, at 0, 0.25, ...
SIZE = 480  # pixels of the longer side

PAGE = """<!doctype html><meta charset="utf-8"><style>
body{font:13px sans-serif;margin:8px;color:#222;background:#fff}svg{max-width:100%;height:auto}#at{min-height:1.4em}
</style><label>head <select id="head"></select></label> <span id="at">Point at a cell.</span><div id="map"></div>
<script>
const data = DATA;
const choice = document.getElementById("head"), map = document.getElementById("map"), at = document.getElementById("at");
data.svgs.forEach((_, head) => choice.add(new Option(head, head)));
const bytes = Uint8Array.from(atob(data.weights), c => c.charCodeAt(0)), numbers = new Float32Array(bytes.buffer);
const draw = () => { map.innerHTML = data.svgs[choice.value]; };
choice.value = data.head;
choice.onchange = draw;
draw();
map.onmousemove = event => {
  const image = map.querySelector("image").getBoundingClientRect();
  const [rows, columns] = [data.rows.length, data.columns.length];
  const row = Math.floor((event.clientY - image.top) / image.height * rows);
  const column = Math.floor((event.clientX - image.left) / image.width * columns);
  if (row < 0 || column < 0 || row >= rows || column >= columns) return;
  const weight = numbers[(Number(choice.value) * rows + row) * columns + column];
  at.textContent = `query ${data.rows[row]}, key ${data.columns[column]}: ${weight.toPrecision(4)}`;
};
</script>"""


class Picture:
    """Attention weights of some heads, which a notebook draws.

    Parameters
    ----------
    weights : array [H, Tq, Tk]
    rows, columns : list of str
        Labels of the queries and of the keys.
    title : str
    head : int
        The one that is shown first; -1 is the last.
    """

    def __init__(self, weights: Array, rows: list[str], columns: list[str], title: str, head: int = 0) -> None:
        self.weights, self.rows, self.columns, self.title = np.asarray(weights, np.float32), rows, columns, title
        if not -len(weights) <= head < len(weights):
            raise InvalidError(f"there is no head {head}; {title} has {len(weights)}, which begin at 0")
        self.head = head % len(weights)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.html())}" width="100%" height="{SIZE + 180}" style="border:0"></iframe>'

    def html(self) -> str:
        """Return a page with a choice of head and numbers under the pointer, which loads nothing."""
        text = json.dumps({"svgs": [self.svg(head) for head in range(len(self.weights))], "rows": self.rows,
                           "columns": self.columns, "head": self.head,
                           "weights": base64.b64encode(self.weights.astype("<f4").tobytes()).decode()})
        return PAGE.replace("DATA", text.replace("<", "\\u003c"), 1)

    def svg(self, head: int | None = None) -> str:
        """Return a picture of one head, with labels, a scale and a title."""
        head = self.head if head is None else head
        weights = self.weights[head]
        height, width = (max(round(count * SIZE / max(weights.shape)), 40) for count in weights.shape)
        left, top = 12 + 7 * max(map(len, shorten(self.rows)), default=1), 48
        largest = float(np.nanmax(weights)) if weights.size else 0.0
        bottom = top + height + 12 + 7 * max(map(len, shorten(self.columns)), default=1)
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 90} {bottom + 24}" '
                 f'width="{left + width + 90}" font-family="sans-serif" font-size="11">',
                 say(left, 20, f"{self.title}, head {head}", size=14),
                 f'<image x="{left}" y="{top}" width="{width}" height="{height}" preserveAspectRatio="none" '
                 f'style="image-rendering:pixelated" href="{to_png(weights, largest)}"/>']
        for labels, length, is_row in ((self.rows, height, True), (self.columns, width, False)):
            for place in range(0, len(labels), -(-len(labels) // MOST_LABELS)):
                middle, text = (place + 0.5) * length / len(labels), shorten(labels[place:place + 1])[0]
                parts.append(say(left - 4, top + middle + 4, text, "end") if is_row else
                             say(left + middle + 4, top + height + 6, text, "end", turned=True))
        bar = left + width + 16
        ramp = to_png(np.linspace(1, 0, 64, dtype=np.float32)[:, np.newaxis], 1.0)
        parts += [f'<image x="{bar}" y="{top}" width="12" height="{height}" preserveAspectRatio="none" href="{ramp}"/>',
                  say(bar + 16, top + 9, f"{largest:.3g}"), say(bar + 16, top + height, "0"),
                  say(left, top - 8, "queries down, keys across"), "</svg>"]
        return "".join(parts)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the head that is shown as SVG or PNG, or all heads as HTML.

        Raises
        ------
        ValueError
            If the name ends in none of .svg, .png and .html.
        ImportError
            If matplotlib, which draws PNG, is not installed: ``pip install 'attnd[viz]'``.
        """
        file = pathlib.Path(path)
        kind = file.suffix.lower()
        if kind == ".png":
            self.save_png(file)
        elif kind in (".svg", ".html"):
            file.write_text(self.svg() if kind == ".svg" else self.html(), encoding="utf-8")
        else:
            raise InvalidError(f"{file.name} ends in {kind or 'nothing'}; name a file .svg, .png or .html")

    def save_png(self, path: pathlib.Path) -> None:
        try:
            figures = importlib.import_module("matplotlib.figure")
        except ImportError as error:
            raise ImportError("PNG is drawn by matplotlib: pip install 'attnd[viz]', or save .svg") from error
        figure: Any = figures.Figure(figsize=(7, 6), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(self.weights[self.head], vmin=0, cmap="viridis", interpolation="nearest")
        axes.set(title=f"{self.title}, head {self.head}", xlabel="keys", ylabel="queries")
        for labels, set_ticks, options in ((self.columns, axes.set_xticks, {"rotation": 90}), (self.rows, axes.set_yticks, {})):
            places = range(0, len(labels), -(-len(labels) // MOST_LABELS))
            set_ticks(places, [labels[place] for place in places], fontsize=7, parse_math=False, **options)
        figure.colorbar(image, ax=axes, label="attention weight")
        figure.savefig(path, dpi=150)


def shorten(labels: list[str]) -> list[str]:
    """Return labels of at most 16 signs."""
    return [label if len(label) <= 16 else label[:15] + "…" for label in labels]


def say(x: float, y: float, text: str, anchor: str = "start", size: int = 11, turned: bool = False) -> str:
    """Return a text of SVG, without what XML cannot have; spaces at its ends are part of a token, so they are kept."""
    signs = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" xml:space="preserve"{turn}>'
            f"{html.escape(signs)}</text>")


def to_png(weights: Array, largest: float) -> str:
    """Return an image of weights [rows, columns] as the address of its own data, from 0 to the largest."""
    shares = np.clip(np.nan_to_num(weights / (largest or 1)), 0, 1) * 255
    knots = np.linspace(0, 255, len(COLOURS))
    ramp = np.stack([np.interp(np.arange(256), knots, channel) for channel in COLOURS.T], -1).round().astype(np.uint8)
    rows, columns = weights.shape
    lines = np.concatenate([np.zeros((rows, 1), np.uint8), shares.round().astype(np.uint8)], 1).tobytes()

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    data = b"".join([b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
                     chunk(b"PLTE", ramp.tobytes()), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b"")])
    return "data:image/png;base64," + base64.b64encode(data).decode()
