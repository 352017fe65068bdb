/* SPDX-License-Identifier: Apache-2.0 */
/* heatmap.js: one head, large, with labels and a cursor. The picture is drawn once; while
 * the mouse moves, only the cursor is drawn again. */

const CELL_MAX = 66;         /* pixels of CSS, as all lengths here */
const CELL_STRETCHED = 24;   /* to which a strip's cells may be stretched */
const CELL_WITH_NUMBER = 38; /* from this width on a cell shows its weight */
const SVG_FONT = "system-ui, sans-serif";
const LABEL_SIZE = 12;

const labelContext = document.createElement("canvas").getContext("2d");
labelContext.font = `${LABEL_SIZE}px ${SVG_FONT}`;
const widthOfLabel = (label) => labelContext.measureText(label).width;

/* Where everything is: sizes of cells, and of the margins that have the labels. Cells are
 * square; where that leaves a thin strip, they are stretched until the picture is square. */
function layOutHeatmap(width, picture) {
  const { rows, numKeys } = picture.sequence;
  const widest = (labels) => Math.max(0, ...labels.map(widthOfLabel));
  const queryWidth = Math.min(110, widest([...rows.slice(0, 200), rows.at(-1)].map((row) => picture.queryLabels[row])));
  const keyWidth = Math.min(110, widest([...picture.keyLabels.slice(0, Math.min(200, numKeys)), picture.keyLabels[numKeys - 1]]));
  const left = Math.ceil(queryWidth) + 10;
  const heightMax = Math.min(640, Math.max(280, window.innerHeight * 0.72));
  const fit = (right) => (width - left - right) / numKeys;

  let cell = Math.min(fit(2), heightMax / rows.length, CELL_MAX);
  const slanted = keyWidth > cell - 4 && cell >= 5;
  const right = slanted ? Math.min(48, Math.ceil(keyWidth * 0.7)) : keyWidth > cell ? Math.ceil(keyWidth / 2) : 2;
  cell = Math.min(fit(right), heightMax / rows.length, CELL_MAX);
  const whole = (size) => (size >= 5 ? Math.floor(size) : size);
  const cellWidth = whole(Math.max(cell, Math.min(fit(right), CELL_STRETCHED, cell * rows.length / numKeys)));
  const cellHeight = whole(Math.max(cell, Math.min(heightMax / rows.length, CELL_STRETCHED, cell * numKeys / rows.length)));
  return {
    left, slanted, keyWidth,
    top: slanted ? Math.ceil(keyWidth * 0.72) + 12 : 22,
    right,
    cellWidth, width: cellWidth * numKeys,
    cellHeight, height: cellHeight * rows.length,
  };
}

class Heatmap {
  /* onMove(row, key, chosen): the cursor is at a cell; `chosen` by click or keyboard. */
  constructor(box, onMove) {
    this.box = box;
    this.image = byId("plot");
    this.marks = byId("marks");
    this.cursor = byId("cursor");
    this.onMove = onMove;
    this.picture = null;
    this.at = null; /* {row, key} of the cursor */
    this.frame = 0;
    this.painting = new AbortController();
    box.addEventListener("pointermove", (event) => this.point(event, false));
    box.addEventListener("pointerdown", (event) => this.point(event, true));
    box.addEventListener("pointerleave", () => this.onMove(null));
  }

  /* Shows {sequence, weights, queryLabels, keyLabels, scale, colours, theme}. Returns whether no newer one took its place. */
  async show(picture) {
    this.painting.abort();
    this.painting = new AbortController();
    const { signal } = this.painting, density = window.devicePixelRatio || 1;
    const layout = layOutHeatmap(this.box.clientWidth, picture);
    await runInFrames(paintWeights(picture.weights, picture.sequence, Math.round(layout.width * density), Math.round(layout.height * density),
      picture.scale, picture.colours, this.image), signal);
    if (signal.aborted)
      return false;
    Object.assign(this, { picture, layout });
    this.resize();
    this.marks.replaceChildren();
    addMarks(this.marks, picture, layout);
    this.drawCursor();
    return true;
  }

  /* The margins of the labels are the padding of the image. */
  resize() {
    const { left, top, right, width } = this.layout, height = `${top + this.layout.height + 2}px`;
    this.image.style.padding = `${top}px ${right}px 2px ${left}px`;
    for (const part of [this.image, this.marks, this.cursor])
      Object.assign(part.style, { width: `${left + width + right}px`, height });
    this.box.style.height = height;
  }

  /* The cell below the pointer, or null. */
  cellAt(event) {
    if (!this.picture)
      return null;
    const box = this.cursor.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - this.layout.top) / this.layout.cellHeight);
    const key = Math.floor((event.clientX - box.left - this.layout.left) / this.layout.cellWidth);
    const { rows, numKeys } = this.picture.sequence;
    return row >= 0 && row < rows.length && key >= 0 && key < numKeys ? { row, key } : null;
  }

  point(event, chosen) {
    const cell = this.cellAt(event);
    if (cell)
      this.moveTo(cell, chosen);
    else if (!chosen)
      this.onMove(null);
  }

  moveTo(cell, chosen) {
    if (!chosen && this.at && this.at.row === cell.row && this.at.key === cell.key)
      return;
    this.at = cell;
    this.onMove(cell, chosen);
    if (!this.frame)
      this.frame = requestAnimationFrame(() => this.drawCursor());
  }

  /* Draws the cross of lines and the frame of the cell that the cursor is at. */
  drawCursor() {
    this.frame = 0;
    this.cursor.replaceChildren();
    if (!this.at || !this.picture)
      return;

    const { left, top, cellWidth, cellHeight, width, height } = this.layout;
    const x = left + this.at.key * cellWidth, y = top + this.at.row * cellHeight;
    const frame = (kind, x0, y0, across, down) => makeSvg("path", { class: kind, d: `M${x0} ${y0}h${across}v${down}h${-across}z` });
    this.cursor.append(frame("cross", left + 0.5, y + 0.5, width - 1, cellHeight - 1),
      frame("cross", x + 0.5, top + 0.5, cellWidth - 1, height - 1),
      frame("cell", x - 0.5, y - 0.5, cellWidth + 1, cellHeight + 1));
  }
}

/* Every so many rows have a label: a round number, at least `least`. */
function findLabelStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least);
}

const findKeyStep = ({ cellWidth, slanted, keyWidth }) =>
  findLabelStep((slanted ? 13 : Math.min(36, keyWidth + 4)) / cellWidth);

/* Adds the labels and the numbers of cells to an SVG. A label that is too wide is squeezed. */
function addMarks(svg, picture, layout) {
  const { left, top, cellWidth, cellHeight, slanted } = layout, { rows, numKeys } = picture.sequence;
  const add = (label, most, attributes) => svg.append(makeSvg("text", { ...attributes,
    ...(widthOfLabel(label) > most && { textLength: most, lengthAdjust: "spacingAndGlyphs" }) }, label));
  setAttributes(svg, { "font-family": SVG_FONT, "font-size": LABEL_SIZE, fill: picture.theme.text });
  for (let r = 0; r < rows.length; r += findLabelStep(13 / cellHeight))
    add(picture.queryLabels[rows[r]], left - 8, { x: left - 6, y: top + (r + 0.5) * cellHeight + 4, "text-anchor": "end" });
  for (let k = 0; k < numKeys; k += findKeyStep(layout)) {
    const x = left + (k + 0.5) * cellWidth, y = top - 6;
    add(picture.keyLabels[k], slanted ? 110 : Math.max(36, cellWidth), { x, y,
      ...(slanted ? { dy: 4, transform: `rotate(-45 ${x} ${y})` } : { "text-anchor": "middle" }) });
  }
  svg.append(makeSvg("g", { "font-size": 11, "text-anchor": "middle" }, ...makeNumbers(picture, layout)));
}

/* The text of a cell: ".52", and "1" only where the weight is 1. */
const nameCell = (weight) => (weight < 1 ? formatDecimals(weight, 2).slice(1) : "1");

/* The weights that are written into their cells, where there is room: those that do not round to 0. */
function makeNumbers({ sequence, weights, colours, scale }, { left, top, cellWidth, cellHeight }) {
  const { rows, numKeys, attends } = sequence, numbers = [];
  if (cellWidth < CELL_WITH_NUMBER)
    return numbers;
  for (let r = 0; r < rows.length; r++)
    for (let k = 0; k < numKeys; k++) {
      const weight = weights[r * numKeys + k];
      if (weight >= 0.005 && attends(r, k))
        numbers.push(makeSvg("text", { x: left + (k + 0.5) * cellWidth, y: top + (r + 0.5) * cellHeight + 4,
          fill: colours.isLight[scale.index(weight)] ? "#000000" : "#ffffff" }, nameCell(weight)));
    }
  return numbers;
}
