# SPDX-License-Identifier: Apache-2.0
"""Heat maps of all heads of a model, in one picture: heatmaps.png.

What one sees: eight panels, one for each head of the demo model `patterns`. Rows are words that
attend, columns are words that are attended to. Head 0 is bright one cell left of the diagonal, so
each word attends to the word before it. Head 1 looks ahead, head 2 at the first word, and head 3 at
the same word wherever it occurs. The window of head 4 is local, head 5 is even all over, head 6 looks
far away, and head 7 at all words before.

    python3 docs/examples/heatmaps.py"""

import json
import pathlib

import matplotlib.pyplot as plt
import numpy as np

from serve import serve

REQUEST = pathlib.Path(__file__).with_name("patterns.json")
WORDS = "the dog chased the cat and the cat chased the mouse".split()


def draw_heads(weights, rows, columns, path):
    """Draws weights [H, Tq, Tk], with labels for the queries and for the keys. Cells of 0 stay grey."""
    across = next(count for count in (4, 5, 6, 3, 7, 2, 1) if len(weights) % count == 0)
    down = len(weights) // across
    figure, axes = plt.subplots(down, across, figsize=(3 * across, 3.2 * down), squeeze=False,
                                layout="constrained")
    for head, panel in enumerate(axes.flat):
        panel.set_facecolor("lightgrey")
        image = panel.imshow(np.ma.masked_equal(weights[head], 0), vmin=0, vmax=weights.max(), cmap="viridis")
        panel.set_title(f"head {head}")
        panel.set_xticks(range(len(columns)), columns, rotation=90)
        panel.set_yticks(range(len(rows)), rows)
    figure.colorbar(image, ax=axes, label="attention weight", shrink=0.6)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main():
    request = json.loads(REQUEST.read_text())
    with serve(demo=True) as client:
        _, weights = client.attend(request["model"], request["queries"], need_weights=True)

    print("weights:", weights.shape, "heads, queries, keys")
    row = 4
    print(f"what word {row}, '{WORDS[row]}', attends to:")
    print("       ", *(f"{word:>6}" for word in WORDS))
    for head, of_head in enumerate(weights):
        print(f"head {head}:", *(f"{weight:6.2f}" for weight in of_head[row]))
    draw_heads(weights, WORDS, WORDS, "heatmaps.png")
    print("written: heatmaps.png")


if __name__ == "__main__":
    main()
