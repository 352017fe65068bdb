/* SPDX-License-Identifier: Apache-2.0 */
/* colour.js: from a weight to a colour.
 *
 * The map goes from the page's background to its opposite in even steps of lightness, so
 * that it can be read without telling hues apart, and in print. It is made in OKLCH
 * (Ottosson 2020). */

const COLOURS = 256;
const LOG_DECADES = 4; /* the logarithmic scale ends at a ten-thousandth of its largest */

function oklchToRgb(lightness, chroma, degrees) {
  const a = chroma * Math.cos(degrees * Math.PI / 180), b = chroma * Math.sin(degrees * Math.PI / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s,
  ].map((linear) => {
    const clipped = Math.min(1, Math.max(0, linear));
    return Math.round(255 * (clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * clipped ** (1 / 2.4) - 0.055));
  });
}

/* Returns {words, css, isLight}: the map as pixels of ImageData, as texts, and whether
 * black can be read on it. */
function makeColours(dark) {
  const words = new Uint32Array(COLOURS), css = [], isLight = [];
  for (let i = 0; i < COLOURS; i++) {
    const t = i / (COLOURS - 1), light = dark ? t : 1 - t;
    const lightness = dark ? 0.24 + 0.71 * t : 0.965 - 0.68 * t;
    const chroma = dark ? 0.075 + 0.075 * Math.sin(Math.PI * t) : 0.015 + 0.13 * Math.sin(Math.PI * t * 0.72);
    const [r, g, b] = oklchToRgb(lightness, chroma, 290 - 185 * light);
    words[i] = (255 << 24 | b << 16 | g << 8 | r) >>> 0;
    css.push(`rgb(${r} ${g} ${b})`);
    isLight.push(lightness > 0.62);
  }
  return { words, css, isLight };
}

/* A scale maps a weight to an index of the map: {max, index(weight), low}. */
function makeScale(kind, max) {
  const top = max > 0 ? max : 1, last = COLOURS - 1;
  if (kind === "log") {
    const low = top / 10 ** LOG_DECADES, perUnit = last / (LOG_DECADES * Math.LN10);
    return { max: top, low, index: (w) => (w <= low ? 0 : Math.min(last, Math.log(w / low) * perUnit | 0)) };
  }
  return { max: top, low: 0, index: (w) => Math.min(last, w / top * last + 0.5 | 0) };
}

/* The texts at both ends of a scale's bar. */
const nameEnds = ({ low, max }) => (low > 0
  ? [`≤ ${formatNumber(low, 2)}`, `${formatNumber(max, 3)}, logarithmic`] : ["0", formatNumber(max, 3)]);

function largestOf(weights) {
  let largest = 0;
  for (let i = 0; i < weights.length; i++)
    if (weights[i] > largest)
      largest = weights[i];
  return largest;
}
