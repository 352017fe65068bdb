/* SPDX-License-Identifier: Apache-2.0 */
/* paint.js: weights of one head as an image, a pixel for each cell. Where there are more
 * cells than pixels, a pixel has the largest weight of its cells, so that a thin diagonal
 * stays visible. Masked cells are transparent: what is below is hatched. */

/* Returns a canvas of at most maxWidth x maxHeight pixels, and a generator that paints it
 * a few rows at a time. */
function paintWeights(weights, { rows, numKeys, attends }, maxWidth, maxHeight, scale, colours, canvas) {
  const width = Math.min(numKeys, maxWidth), height = Math.min(rows.length, maxHeight);
  canvas.width = width;
  canvas.height = height;

  function* paint() {
    const context = canvas.getContext("2d");
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    for (let y = 0; y < height; y++) {
      const top = Math.floor(y * rows.length / height);
      const bottom = Math.floor((y + 1) * rows.length / height);
      paintRow(y, top, bottom, pixels);
      if ((y & 15) === 15)
        yield;
    }
    context.putImageData(image, 0, 0);
    yield;
  }

  function paintRow(y, top, bottom, pixels) {
    if (width === numKeys && bottom === top + 1) { /* one cell each */
      const begin = top * numKeys;
      for (let x = 0; x < numKeys; x++)
        if (attends(top, x))
          pixels[y * width + x] = colours.words[scale.index(weights[begin + x])];
      return;
    }
    for (let x = 0; x < width; x++) {
      const left = Math.floor(x * numKeys / width), right = Math.floor((x + 1) * numKeys / width);
      let largest = -1;
      for (let r = top; r < bottom; r++)
        for (let k = left; k < right; k++)
          if (attends(r, k))
            largest = Math.max(largest, weights[r * numKeys + k]);
      if (largest >= 0)
        pixels[y * width + x] = colours.words[scale.index(largest)];
    }
  }

  return paint();
}

/* Fills a rectangle with the hatching of masked cells. */
function paintHatching(context, x, y, width, height, theme, density) {
  const step = 6 * density;
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.fillStyle = theme.masked;
  context.fillRect(x, y, width, height);
  context.strokeStyle = theme.hatch;
  context.lineWidth = density;
  context.beginPath();
  for (let offset = -height; offset < width; offset += step) {
    context.moveTo(x + offset, y + height);
    context.lineTo(x + offset + height, y);
  }
  context.stroke();
  context.restore();
}

/* The colours of an element: CSS chooses those of the page by the colour scheme. */
function readTheme(element = document.documentElement) {
  const style = getComputedStyle(element);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  return { text: colour("text"), faint: colour("faint"), ground: colour("ground"), card: colour("card"),
    masked: colour("masked"), hatch: colour("hatch"), accent: colour("accent") };
}

function readLightTheme() {
  const probe = make("i", { class: "light" });
  document.body.append(probe);
  const theme = readTheme(probe);
  probe.remove();
  return theme;
}
