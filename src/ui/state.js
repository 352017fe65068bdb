/* SPDX-License-Identifier: Apache-2.0 */
/* state.js: what the user has chosen, and the same as the part of the address after #.
 *
 * Each entry has its default, whose value does not appear in the address. */

const OWN_IN_LINK_MAX = 6000; /* characters of a pasted request that a link can carry */

const STATE_DEFAULTS = {
  model: "", source: "example", text: "", count: 16, seed: 1, own: "", states: "",
  causal: "", window: "", valid: "", labels: "", rows: "", heads: "", keys: "",
  sequence: 0, head: 0, row: -1, key: -1, off: "", /* -1: the page chooses */
  view: "all", sort: "", reading: "received", scale: "linear", range: "head", lines: "row", step: 0, what: "", by: "",
};

/* The values that these may have; the first is the default. */
const STATE_CHOICES = {
  source: ["example", "random", "own"], causal: ["", "true", "false"],
  view: ["all", "head"], reading: ["received", "row"], scale: ["linear", "log"], range: ["head", "all", "one"], lines: ["row", "all"],
  what: Object.keys(WHAT_IFS),
};

const state = { ...STATE_DEFAULTS };

const readCount = (text) => Math.max(0, Math.floor(Number(text)) || 0);

function readState(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  for (const [name, value] of Object.entries(STATE_DEFAULTS)) {
    const text = given.get(name);
    const isNumber = typeof value === "number" && !(name === "head" && text === "mean");
    state[name] = text === null ? value : isNumber ? readCount(text) : text;
  }
  for (const [name, choices] of Object.entries(STATE_CHOICES))
    if (!choices.includes(state[name]))
      [state[name]] = choices;
  state.step = Math.min(state.step, STEPS.length - 1);
}

/* Returns the part of the address. A long request of the user's own, or one from a file,
 * is left out. */
function printState() {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(STATE_DEFAULTS))
    if (state[name] !== value && !(name === "own" && state.own.length > OWN_IN_LINK_MAX))
      given.set(name, state[name]);
  return `#${given}`;
}

const keepState = debounce(150, () => {
  history.replaceState(null, "", printState());
});

/* The heads that are off. The address may have anything, so only numbers are read. */
const readOff = () => new Set((state.off.match(/\d+/g) ?? []).map(Number));
