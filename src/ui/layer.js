/* SPDX-License-Identifier: Apache-2.0 */
/* layer.js: a small drawing of the layer, with the part that a step is about, and vectors. */

const VECTOR_NUMBERS = 8; /* a vector of more is a strip of colours */
const BOX_HEIGHT = 28, BOX_GAP = 14, BOX_LETTER = 8, DRAWING_ROW = 76;

/* The parts of the layer from left to right; a number is the step that a part is lit in. Those
 * of the middle are in each head. */
const listParts = (model) => [
  [["W_q", 0], ["W_k", 0], ["W_v", 0]],
  [...(model.scoring === "additive" ? [["tanh", 1], ["score", 2]] : [["q · k", 1], [nameScale(model), 2]]),
    ["mask", 3], ["softmax", 4], ["Σ weight · v", 5]],
  [["concat", 5], ...(model.output_projection ? [["W_o", 5]] : [])],
];

/* Returns the drawing, with the parts in rows where it is narrow. */
function makeDrawing(model, head, step, width) {
  const svg = makeSvg("svg", { role: "img", "aria-label": `The layer: projections, heads, concat. Lit is: ${STEPS[step].name}.` });
  let x = BOX_GAP, y = 30, widest = 0;
  listParts(model).forEach((parts, group) => {
    const sizes = parts.map(([text]) => text.length * BOX_LETTER + 14);
    const room = sizes.reduce((sum, size) => sum + size + BOX_GAP, 0);
    if (x > BOX_GAP && x + room > width)
      [x, y] = [BOX_GAP, y + DRAWING_ROW];
    for (const shift of group === 1 ? [8, 4, 0] : [])
      svg.append(makeSvg("rect", { class: "frame", x: x - 6 + shift, y: y - 22 + shift, width: room - 2, height: BOX_HEIGHT + 30, rx: 6 }));
    svg.append(makeSvg("text", { x, y: y - 8, class: "faint" }, ["projections of the rows",
      head === "mean" ? `each of ${model.num_heads} heads` : `head ${head}, one of ${model.num_heads}`, "all heads"][group]));
    parts.forEach(([text, lit], i) => {
      svg.append(makeSvg("rect", { class: lit === step ? "lit" : "box", x, y, width: sizes[i], height: BOX_HEIGHT, rx: 5 }),
        makeSvg("text", { x: x + sizes[i] / 2, y: y + 19, class: lit === step ? "lit" : null, "text-anchor": "middle" }, text));
      if (i > 0 && group > 0)
        svg.append(makeSvg("path", { d: `M${x - BOX_GAP} ${y + BOX_HEIGHT / 2}h${BOX_GAP}` }));
      x += sizes[i] + BOX_GAP;
    });
    widest = Math.max(widest, x);
    x += BOX_GAP;
  });
  return setAttributes(svg, { width: widest, height: y + 44, viewBox: `0 0 ${widest} ${y + 44}` });
}

const largestMagnitude = (vectors) => Math.max(...vectors.map((vector) => largestOf(vector.map(Math.abs))));

/* Returns a vector as numbers, or as a strip: the darker, the farther from 0, up to `most`. */
function makeVector(numbers, most) {
  if (numbers.length <= VECTOR_NUMBERS)
    return make("span", {}, Array.from(numbers, (value) => formatDecimals(value)).join("  "));
  const strip = make("canvas", { class: "strip", role: "img", "aria-label": `${numbers.length} numbers`,
    width: numbers.length, height: 1, title: Array.from(numbers, (value) => formatNumber(value, 3)).join(", ") });
  const context = strip.getContext("2d");
  numbers.forEach((value, i) => {
    context.fillStyle = `rgb(${value > 0 ? "58 100 230" : "235 120 20"} / ${Math.abs(value) / (most || 1)})`;
    context.fillRect(i, 0, 1, 1);
  });
  return strip;
}
