/* SPDX-License-Identifier: Apache-2.0 */
/* lines.js: the same weights as lines from queries, on the left, to keys, on the right. */

const LINES_TOKENS_MAX = 64; /* with more, the strongest keys are shown */
const LINES_TOKENS_CUT = 30;
const LINE_SHARE_MIN = 0.01; /* of the largest: fainter lines are left out */
const LINE_STEP_MIN = 20;    /* pixels from one label to the next */
const LINE_STEP_MAX = 60;

/* Returns the rows and keys that have a place, in their order. */
function chooseLines({ weights, sequence, row, all }) {
  const { rows, numKeys } = sequence;
  let from = 0, to = rows.length;
  if (to > LINES_TOKENS_MAX) {
    from = Math.max(0, Math.min(row - LINES_TOKENS_CUT / 2, to - LINES_TOKENS_CUT));
    to = from + LINES_TOKENS_CUT;
  }
  const shownRows = Array.from({ length: to - from }, (_, i) => from + i);
  let keys = Array.from({ length: numKeys }, (_, k) => k);
  if (numKeys > LINES_TOKENS_MAX) {
    const used = all ? shownRows : [row];
    const sums = keys.map((k) => used.reduce((sum, r) => sum + weights[r * numKeys + k], 0));
    keys = keys.sort((a, b) => sums[b] - sums[a]).slice(0, LINES_TOKENS_CUT).sort((a, b) => a - b);
  }
  return { shownRows, keys };
}

/* Returns {svg, note, middle}, the last being the height of the chosen row. `picture` is that of the heatmap, with `row`,
 * `all` and `onRow`. The lines are `heightWanted` high, or higher where their labels need that. */
function makeLines(picture, width, heightWanted) {
  const { weights, sequence, row, all, queryLabels, keyLabels, onRow } = picture;
  const { rows, numKeys, attends } = sequence;
  const { shownRows, keys } = chooseLines(picture);
  const most = Math.max(shownRows.length, keys.length);
  const step = Math.max(LINE_STEP_MIN, Math.min(LINE_STEP_MAX, heightWanted / most));
  const height = most * step;
  const xs = [width * 0.26, width * 0.74];
  const y = (index, count) => (index + 0.5) * step + (height - count * step) / 2;

  const svg = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "font-family": SVG_FONT, "font-size": 13, "aria-label": `Lines from ${all ? "all queries" : `query ${queryLabels[rows[row]]}`} to keys` });
  const used = all ? shownRows : [row];
  let largest = 0;
  for (const r of used)
    for (const k of keys)
      largest = Math.max(largest, weights[r * numKeys + k]);

  for (const r of used)
    for (const [at, k] of keys.entries()) {
      const share = weights[r * numKeys + k] / (largest || 1);
      if (!attends(r, k) || share < LINE_SHARE_MIN)
        continue;
      const y0 = y(r - shownRows[0], shownRows.length), y1 = y(at, keys.length), bend = (xs[1] - xs[0]) / 2;
      svg.append(makeSvg("path", {
        d: `M${xs[0]} ${y0}C${xs[0] + bend} ${y0} ${xs[1] - bend} ${y1} ${xs[1]} ${y1}`,
        class: "line", fill: "none", stroke: picture.theme.accent,
        "stroke-width": (0.6 + 3.4 * share).toFixed(2), "stroke-opacity": (0.08 + 0.87 * share).toFixed(3),
      }));
    }
  for (const [at, r] of shownRows.entries()) {
    const text = makeSvg("text", { x: xs[0] - 8, y: y(at, shownRows.length) + 4, "text-anchor": "end",
      fill: picture.theme.text, "font-weight": r === row ? 700 : 400, class: "pick" }, queryLabels[rows[r]]);
    text.addEventListener("click", () => onRow(r));
    svg.append(text);
  }
  for (const [at, k] of keys.entries()) {
    const masked = !used.some((r) => attends(r, k));
    svg.append(makeSvg("text", { x: xs[1] + 8, y: y(at, keys.length) + 4,
      fill: masked ? picture.theme.faint : picture.theme.text, "text-decoration": masked ? "line-through" : null }, keyLabels[k]));
  }
  return { svg, note: noteLines(shownRows, keys, rows, numKeys), middle: y(row - shownRows[0], shownRows.length) };
}

function noteLines(shownRows, keys, rows, numKeys) {
  const parts = [];
  if (keys.length < numKeys)
    parts.push(`the ${keys.length} strongest of ${formatCount(numKeys)} keys`);
  if (shownRows.length < rows.length)
    parts.push(`${shownRows.length} of ${formatCount(rows.length)} queries around this row`);
  return parts.length ? `Shown are ${parts.join(", and ")}.` : "";
}
