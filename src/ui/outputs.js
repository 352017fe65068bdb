/* SPDX-License-Identifier: Apache-2.0 */
/* outputs.js: the outputs of a sequence: of each row, the sum of what the heads add. */

const OUTPUT_ROWS = 64; /* rows that the table has, those around the chosen one */
const OUTPUT_NUMBERS = 6;
const OUTPUT_LEAST = 5e-5; /* below this a number reads as 0 */
/* The words that the numbers of an output stand for, in a model that has such; or null. */
const outputNames = (model) => sentenceModel(model)?.outputs ?? null;

/* Returns the output of each shown row of sequence b: views of `numbers`, which are all
 * outputs of the run. */
function outputsOf({ shape, sequences, outSize }, b, numbers) {
  const begin = shape.queryLens.slice(0, b).reduce((sum, length) => sum + length, 0);
  return sequences[b].rows.map((place) =>
    numbers.subarray((begin + place) * outSize, (begin + place + 1) * outSize));
}

/* Returns {table, note}. `row` is the chosen one; `off` lists the heads that are off. */
function makeOutputs(run, b, row, { numbers, off }) {
  const { rows } = run.sequences[b], outputs = outputsOf(run, b, numbers);
  const from = Math.max(0, Math.min(row - OUTPUT_ROWS / 2, rows.length - OUTPUT_ROWS));
  const all = Array.from({ length: run.outSize }, (_, o) => o), names = outputNames(run.model);
  const places = names ? all.filter((o) => outputs.some((output) => Math.abs(output[o]) >= OUTPUT_LEAST)) : all.slice(0, OUTPUT_NUMBERS);

  const table = make("table", {},
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Query"),
      ...places.map((o) => make("th", { scope: "col", class: "number" }, names?.[o] ?? String(o))))),
    make("tbody", {}, ...rows.slice(from, from + OUTPUT_ROWS).map((place, i) =>
      make("tr", { "aria-current": from + i === row ? "true" : null },
        make("th", { scope: "row" }, run.queryMarks[place]),
        ...places.map((o) => make("td", { class: "number" }, formatDecimals(outputs[from + i][o])))))));
  const parts = [
    names ? "the words whose share of the attention is not 0" : places.length < run.outSize && `the first ${places.length} of ${formatCount(run.outSize)} numbers`,
    rows.length > OUTPUT_ROWS && `${OUTPUT_ROWS} of ${formatCount(rows.length)} queries around the chosen one`,
  ].filter(Boolean);
  return { table, note: (off.length > 0 ? `Heads that are off: ${off.join(", ")}. ` : "")
    + "An output is the sum of what the heads add, and of the output projection's bias where there is one. "
    + (parts.length ? `Shown are ${parts.join(", and ")}; JSON and CSV have all.` : "") };
}
