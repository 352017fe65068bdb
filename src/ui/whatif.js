/* SPDX-License-Identifier: Apache-2.0 */
/* whatif.js: the weights of the chosen row as they would be, beside those that they are. */

/* What can be changed: the name, what the field beside it is called and has at first, and
 * whether a row has it. */
const WHAT_IFS = {
  "": { name: "nothing changes" },
  root: { name: "scores are not divided by the root", fits: ({ run: { model } }) => isOnlyScaled(model) && isRootScale(model) },
  temperature: { name: "scores are divided by a temperature", field: "Temperature", first: "2" },
  mask: { name: "there is no mask" },
  token: { name: "the chosen cell's key is another", field: "Another token", fits: (row) => !row.run.request.fields.values },
};

/* Returns the weights of row r for these scores. */
function softmaxRow({ run, b, r }, scaled, isMasked) {
  const { attends, isEmpty } = run.sequences[b], seen = (k) => !isMasked || attends(r, k);
  const largest = Math.max(...scaled.filter((_, k) => seen(k)));
  const exps = scaled.map((score, k) => (!seen(k) ? 0 : isMasked && isEmpty(r) ? 1 : Math.exp(score - largest)));
  return exps.map((value) => value / exps.reduce((total, each) => total + each, 0));
}

/* Returns the run with another token at the place of a key: a known word, or a token of the
 * input by its label or place. */
function changeToken({ run, b }, key, token) {
  const known = sentenceModel(run.model), word = known?.words.find((each) => foldWord(each) === foldWord(token));
  const name = run.request.fields.keys ? "keys" : "queries";
  const listRows = (s) => Array.from(rowsOf(run.request, name, s), (row) => Array.from(row)), rows = listRows(b);
  const place = run.keyLabels.includes(token) ? run.keyLabels.indexOf(token) : /^\d+$/.test(token) ? Number(token) : -1;
  if (word === undefined && !rows[place])
    throw new Problem({ detail: `write ${known ? `one of ${known.words.join(", ")}` : `a place from 0 to ${rows.length - 1}`}` });
  rows[key] = word === undefined ? rows[place] : known.embed(word, key);
  const changed = run.shape.batched ? run.sequences.map((_, s) => (s === b ? rows : listRows(s))) : rows;
  return { run: { ...run, request: { ...run.request, fields: { ...run.request.fields, [name]: changed } } },
    label: word ?? run.keyLabels[place] };
}

/* Returns {weights, values, label}: those of the row under the change, and of a changed token. */
async function computeWhatIf(row, { what, by, key }, signal) {
  const { run, b, r, head, measured: { scaled, values } } = row;
  if (what === "token") {
    const changed = changeToken(row, key, by), again = await measureRow(changed.run, b, r, head, signal);
    return { weights: softmaxRow(row, again.scaled, true), values: again.values, label: changed.label };
  }
  const divisor = { root: run.model.scale, temperature: Number(by) }[what] ?? 1;
  if (!(divisor > 0))
    throw new Problem({ detail: "write a number above 0" });
  return { weights: softmaxRow(row, scaled.map((score) => score / divisor), what !== "mask"), values };
}

/* Returns the table of both, and a sentence of what they lead to. */
function makeWhatIf({ run, b, r, weights, measured, head }, key, { weights: changed, values, label }) {
  const { numKeys, attends } = run.sequences[b], row = Array.from(weights.subarray(r * numKeys, (r + 1) * numKeys));
  const output = measured.exact.map((_, o) => changed.reduce((sum, weight, k) => sum + weight * values[k][o], 0));
  const places = largestPlaces(measured.exact.map((value, o) => output[o] - value)); /* that change most */
  const difference = (value) => (Math.abs(value) < OUTPUT_LEAST ? "0" : (value > 0 ? "+" : "") + formatDecimals(value));
  const cells = (tag, texts) => texts.map((text) => make(tag, { class: "number", scope: tag === "th" ? "col" : null }, text));
  const table = make("table", {},
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Key"), ...cells("th", ["weight", "what if", "difference"]))),
    make("tbody", {}, ...row.map((weight, k) => make("tr", { "aria-current": k === key ? "true" : null },
      make("th", { scope: "row" }, label !== undefined && k === key ? `${run.keyLabels[k]} → ${label}` : run.keyLabels[k]),
      ...cells("td", [...[weight, changed[k]].map((each) => (each === 0 && !attends(r, k) ? "masked" : formatDecimals(each))), difference(changed[k] - weight)])))));
  return { table, text: `The largest weight is ${formatDecimals(Math.max(...changed))} instead of ${formatDecimals(Math.max(...row))}. `
    + `Head ${head} adds ${listVector(output, places)} instead of ${nameVector(measured.exact, places, run.model)}.` };
}

/* Shows what state.what asks for, of the row whose steps are shown. */
async function showWhatIf() {
  const row = page.measured, { field, first } = WHAT_IFS[state.what], signal = beginTask("what");
  byId("what-part").hidden = !row;
  byId("what-field").hidden = field === undefined;
  if (!row)
    return;
  const known = Object.entries(WHAT_IFS).filter(([, { fits }]) => !fits || fits(row)), { key } = state;
  setOptions(byId("what"), known.map(([what, { name }]) => [what, name]), state.what);
  byId("by-name").textContent = field;
  const by = state.by || (first ?? row.run.keyLabels.find((each) => each !== row.run.keyLabels[key]) ?? "0");
  if (document.activeElement !== byId("by"))
    byId("by").value = by;
  let shown = { table: "", text: "" };
  try {
    if (byId("what").value !== "")
      shown = makeWhatIf(row, key, await computeWhatIf(row, { what: state.what, by, key }, signal));
  } catch (error) {
    shown.text = `This cannot be computed: ${error.message}.`;
  }
  if (signal.aborted)
    return;
  byId("what-text").textContent = shown.text;
  byId("what-table").replaceChildren(shown.table);
}

const showWhatIfSoon = debounce(150, showWhatIf);

function listenToWhatIf() {
  const take = (what, by) => {
    Object.assign(state, { what, by });
    showWhatIfSoon();
    keepState();
  };
  byId("what").addEventListener("change", () => take(byId("what").value, ""));
  byId("by").addEventListener("input", () => take(state.what, byId("by").value));
}
