/* SPDX-License-Identifier: Apache-2.0 */
/* dom.js: elements, numbers as text, and work that is spread over frames.
 *
 * All files of this folder become one module, in the order of src/meson.build. Names of
 * models, labels and replies reach the page as text nodes and attributes only, never as
 * markup. */

const byId = (id) => document.getElementById(id);

/* Sets attributes; null and false leave one out, and true sets it without a value. */
function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false)
      element.removeAttribute(name);
    else
      element.setAttribute(name, value === true ? "" : value);
  }
  return element;
}

/* Makes an element. Children are elements, or texts. */
function make(tag, attributes = {}, ...children) {
  const element = setAttributes(document.createElement(tag), attributes);
  element.append(...children);
  return element;
}

function makeSvg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(element, attributes).append(...children);
  return element;
}

/* Replaces the options of a select by [value, text] pairs, and keeps its value if it can. */
function setOptions(select, pairs, value) {
  select.replaceChildren(...pairs.map(([key, text]) => make("option", { value: key }, text)));
  select.value = String(value);
  if (select.selectedIndex < 0)
    select.selectedIndex = 0;
}

const splitWords = (text) => text.split(/\s+/).filter(Boolean);

function debounce(ms, run) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(run, ms, ...values);
  };
}

/* Tells a screen reader, once the cursor rests. */
const announce = debounce(150, (text) => {
  byId("announcer").textContent = text;
});

/* A number with about `digits` significant digits. */
function formatNumber(value, digits = 4) {
  if (value === null || value === undefined || Number.isNaN(value))
    return "–";
  if (value === 0 || !Number.isFinite(value))
    return value === 0 ? "0" : value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  const text = size < 1e-4 || size >= 1e7 ? value.toExponential(digits - 2)
    : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}

/* A number with `digits` decimals, or with more where it is below 1 and would read 1. */
function formatDecimals(value, digits = 4) {
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-4 || size >= 1e5))
    return formatNumber(value, 3);
  let text = value.toFixed(digits);
  while (value < 1 && Number(text) === 1)
    text = value.toFixed(++digits);
  return text.replace("-", "−");
}

/* "2nd", "3rd", "64th" */
function formatOrdinal(value) {
  const ending = ["th", "st", "nd", "rd"][value % 10] ?? "th";
  return `${value}${Math.floor(value / 10) % 10 === 1 ? "th" : ending}`;
}

const formatCount = (value) => value.toLocaleString("en");

function formatBytes(bytes) {
  const units = ["bytes", "KiB", "MiB", "GiB"];
  let unit = 0;
  for (; bytes >= 1024 && unit < 3; unit++)
    bytes /= 1024;
  return `${bytes >= 100 || unit === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

const FRAME_BUDGET_MS = 8;

/* Runs a generator, a few milliseconds in each frame, until it ends or `signal` aborts. */
function runInFrames(steps, signal) {
  return new Promise((resolve) => {
    const runFrame = () => {
      const end = performance.now() + FRAME_BUDGET_MS;
      while (!signal.aborted) {
        if (steps.next().done)
          return resolve();
        if (performance.now() > end)
          return requestAnimationFrame(runFrame);
      }
      return resolve();
    };
    runFrame();
  });
}
