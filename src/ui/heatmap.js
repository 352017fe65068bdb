/* SPDX-License-Identifier: Apache-2.0 */
/* heatmap.js: one head, large, with labels and a cursor. The picture is drawn once; while
 * the mouse moves, only the canvas with the cursor is drawn again. */

const CELL_MAX = 66;         /* pixels of CSS, as all lengths here */
const CELL_STRETCHED = 24;   /* to which a strip's cells may be stretched */
const CELL_WITH_NUMBER = 38; /* from this width on a cell shows its weight */
const CELL_FONT = "11px system-ui, sans-serif";
const LABEL_FONT = "12px system-ui, sans-serif";

/* Where everything is: sizes of cells, and of the margins that have the labels. Cells are
 * square; where that leaves a thin strip, they are stretched until the picture is square. */
function layOutHeatmap(context, width, picture) {
  const { rows, numKeys } = picture.sequence;
  const widest = (labels) => Math.max(0, ...labels.map((label) => context.measureText(label).width));
  context.font = LABEL_FONT;
  const queryWidth = Math.min(110, widest([...rows.slice(0, 200), rows.at(-1)].map((row) => picture.queryLabels[row])));
  const keyWidth = Math.min(110, widest([...picture.keyLabels.slice(0, Math.min(200, numKeys)),
    picture.keyLabels[numKeys - 1]]));
  const left = Math.ceil(queryWidth) + 10;
  const heightMax = Math.min(640, Math.max(280, window.innerHeight * 0.72));
  const fit = (right) => (width - left - right) / numKeys;

  let cell = Math.min(fit(2), heightMax / rows.length, CELL_MAX);
  const slanted = keyWidth > cell - 4 && cell >= 5;
  const right = slanted ? Math.min(48, Math.ceil(keyWidth * 0.7))
    : keyWidth > cell ? Math.ceil(keyWidth / 2) : 2;
  cell = Math.min(fit(right), heightMax / rows.length, CELL_MAX);
  const whole = (size) => (size >= 5 ? Math.floor(size) : size);
  return {
    left, slanted, keyWidth,
    top: slanted ? Math.ceil(keyWidth * 0.72) + 12 : 22,
    right,
    cellWidth: whole(Math.max(cell, Math.min(fit(right), CELL_STRETCHED, cell * rows.length / numKeys))),
    cellHeight: whole(Math.max(cell,
      Math.min(heightMax / rows.length, CELL_STRETCHED, cell * numKeys / rows.length))),
  };
}

class Heatmap {
  /* onMove(row, key, chosen): the cursor is at a cell; `chosen` by click or keyboard. */
  constructor(box, onMove) {
    this.box = box;
    this.plot = box.querySelector("#plot");
    this.cursor = box.querySelector("#cursor");
    this.image = document.createElement("canvas");
    this.onMove = onMove;
    this.picture = null;
    this.at = null; /* {row, key} of the cursor */
    this.frame = 0;
    this.painting = new AbortController();
    box.addEventListener("pointermove", (event) => this.point(event, false));
    box.addEventListener("pointerdown", (event) => this.point(event, true));
    box.addEventListener("pointerleave", () => this.onMove(null));
  }

  /* Shows {sequence, weights, queryLabels, keyLabels, scale, colours, theme}. */
  async show(picture) {
    this.painting.abort();
    this.painting = new AbortController();
    const { signal } = this.painting, density = window.devicePixelRatio || 1;
    const layout = layOutHeatmap(this.plot.getContext("2d"), this.box.clientWidth, picture);
    const width = layout.cellWidth * picture.sequence.numKeys;
    const height = layout.cellHeight * picture.sequence.rows.length;
    const image = document.createElement("canvas");

    await runInFrames(paintWeights(picture.weights, picture.sequence, Math.round(width * density),
      Math.round(height * density), picture.scale, picture.colours, image), signal);
    if (signal.aborted)
      return;
    Object.assign(this, { picture, layout, image, width, height, density });
    this.resize();
    drawHeatmap(this.plot.getContext("2d"), this);
    this.drawCursor();
  }

  resize() {
    const width = this.layout.left + this.width + this.layout.right;
    const height = this.layout.top + this.height + 2;
    for (const canvas of [this.plot, this.cursor]) {
      canvas.width = Math.ceil(width * this.density);
      canvas.height = Math.ceil(height * this.density);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    this.box.style.height = `${height}px`;
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
    const context = this.cursor.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.cursor.width, this.cursor.height);
    if (!this.at || !this.picture)
      return;

    const { left, top, cellWidth, cellHeight } = this.layout;
    const x = left + this.at.key * cellWidth, y = top + this.at.row * cellHeight;
    context.setTransform(this.density, 0, 0, this.density, 0, 0);
    context.strokeStyle = this.picture.theme.accent;
    context.globalAlpha = 0.6;
    context.strokeRect(left + 0.5, y + 0.5, this.width - 1, cellHeight - 1);
    context.strokeRect(x + 0.5, top + 0.5, cellWidth - 1, this.height - 1);
    context.globalAlpha = 1;
    context.lineWidth = 3;
    context.strokeRect(x - 0.5, y - 0.5, cellWidth + 1, cellHeight + 1);
  }
}

/* Draws the image with its labels. */
function drawHeatmap(context, { picture, layout, image, width, height, density }) {
  const { left, top, right } = layout;

  context.setTransform(density, 0, 0, density, 0, 0);
  context.fillStyle = picture.theme.card;
  context.fillRect(0, 0, left + width + right, top + height + 2);
  paintHatching(context, left, top, width, height, picture.theme, 1);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, left, top, width, height);
  drawLabels(context, picture, layout);
  context.font = CELL_FONT;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const { text, colour, x, y } of listCellTexts(picture, layout)) {
    context.fillStyle = colour;
    context.fillText(text, x, y, layout.cellWidth - 2);
  }
}

/* Every so many rows have a label: a round number, at least `least`. */
function findLabelStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((digit) => digit * power).find((step) => step >= least);
}

const findKeyStep = ({ cellWidth, slanted, keyWidth }) =>
  findLabelStep((slanted ? 13 : Math.min(36, keyWidth + 4)) / cellWidth);

function drawLabels(context, picture, layout) {
  const { left, top, cellWidth, cellHeight, slanted } = layout;
  const { rows, numKeys } = picture.sequence;
  const rowStep = findLabelStep(13 / cellHeight);
  const keyStep = findKeyStep(layout);
  context.font = LABEL_FONT;
  context.fillStyle = picture.theme.text;

  context.textBaseline = "middle";
  context.textAlign = "right";
  for (let r = 0; r < rows.length; r += rowStep)
    context.fillText(picture.queryLabels[rows[r]], left - 6, top + (r + 0.5) * cellHeight, left - 8);
  for (let k = 0; k < numKeys; k += keyStep) {
    context.save();
    context.translate(left + (k + 0.5) * cellWidth, top - 6);
    context.rotate(slanted ? -Math.PI / 4 : 0);
    context.textAlign = slanted ? "left" : "center";
    context.textBaseline = slanted ? "middle" : "alphabetic";
    context.fillText(picture.keyLabels[k], 0, 0, slanted ? 110 : Math.max(36, cellWidth));
    context.restore();
  }
}

/* The text of a cell: ".52", and "1" only where the weight is 1. */
const nameCell = (weight) => (weight < 1 ? formatDecimals(weight, 2).slice(1) : "1");

/* The weights that are written into their cells, where there is room: {text, colour, x, y}
 * of each that does not round to 0. */
function listCellTexts({ sequence, weights, colours, scale }, { left, top, cellWidth, cellHeight }) {
  const { rows, numKeys, attends } = sequence, numbers = [];
  if (cellWidth < CELL_WITH_NUMBER)
    return numbers;
  for (let r = 0; r < rows.length; r++)
    for (let k = 0; k < numKeys; k++) {
      const weight = weights[r * numKeys + k];
      if (weight >= 0.005 && attends(r, k))
        numbers.push({ text: nameCell(weight), colour: colours.isLight[scale.index(weight)] ? "#000000" : "#ffffff",
          x: left + (k + 0.5) * cellWidth, y: top + (r + 0.5) * cellHeight });
    }
  return numbers;
}
