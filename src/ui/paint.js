/* SPDX-License-Identifier: Apache-2.0 */
/* paint.js: weights of one head as an image, a pixel for each cell. Where there are more
 * cells than pixels, a pixel has the largest weight of its cells, so that a thin diagonal
 * stays visible. Masked cells are transparent: what is below is hatched. */

/* Paints a canvas of at most maxWidth x maxHeight pixels a few rows at a time, and shows them when all are there. */
function* paintWeights(weights, { rows, numKeys, attends }, maxWidth, maxHeight, scale, colours, canvas) {
  const width = Math.min(numKeys, maxWidth), height = Math.min(rows.length, maxHeight);
  const image = new ImageData(width, height), pixels = new Uint32Array(image.data.buffer);

  function paintRow(y, top, bottom) {
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

  for (let y = 0; y < height; y++) {
    paintRow(y, Math.floor(y * rows.length / height), Math.floor((y + 1) * rows.length / height));
    if ((y & 15) === 15)
      yield;
  }
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/* The same at once, on a canvas of its own. */
function paintAtOnce(...painting) {
  const canvas = document.createElement("canvas");
  for (const _step of paintWeights(...painting, canvas)) { /* all rows */ }
  return canvas;
}

/* The colours of the page as #rrggbb: those of the system's colour scheme, or of the named one. */
function readTheme(scheme = null) {
  const probe = make("i"), context = document.createElement("canvas").getContext("2d"), theme = {};
  probe.style.colorScheme = scheme;
  document.body.append(probe);
  for (const name of ["text", "faint", "ground", "card", "masked", "hatch", "accent"]) {
    probe.style.color = `var(--${name})`;
    context.fillStyle = getComputedStyle(probe).color;
    theme[name] = context.fillStyle;
  }
  probe.remove();
  return theme;
}
