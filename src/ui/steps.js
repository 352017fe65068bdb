/* SPDX-License-Identifier: Apache-2.0 */
/* steps.js: how one row of one head comes about: scores, scaled, masked, softmax, sum.
 *
 * No reply has scores, so they are measured. Two keys share a row's weight as the
 * exponentials of their scores do. Here the second key is always a row of zeros: its score
 * is 0, apart from what a bias of the key projection adds to all scores alike, which
 * softmax cannot see. So ln(w / w of zeros) is the scaled score. In the same way, a query
 * with a single key attends to it with weight 1. Its output through this head alone,
 * without the bias, is what the key's value becomes. */

const STEPS_KEYS_MAX = 512;
const STEPS_NUMBERS = 3; /* numbers of an output that the table has room for */
/* The columns of the table appear step by step. */
const STEPS = [
  { name: "Scores", columns: ["score"] },
  { name: "Scaled", columns: ["scaled"] },
  { name: "Masked", columns: ["masked"] },
  { name: "Softmax", columns: ["exp", "weight"] },
  { name: "Weighted sum", columns: ["value", "part"] },
];

/* Packs rows of numbers into one batch [B, length of a row's list, width]. */
function packRows(batches) {
  const width = batches[0][0].length;
  const packed = new Float32Array(batches.length * batches[0].length * width);
  batches.flat().forEach((row, i) => packed.set(row, i * width));
  return makeTensor("F32", [batches.length, batches[0].length, width], packed);
}

/* Measures row r of a head. Returns {scaled, values, exact}, or throws what the server
 * says: the scaled score of each key, what its value becomes in the output, and the head's
 * output for all keys at one time. */
async function measureRow(run, b, r, head, signal) {
  const { model, request, sequences } = run, sequence = sequences[b];
  const query = rowsOf(request, "queries", b)[sequence.rows[r]];
  const keys = rowsOf(request, "keys", b), values = rowsOf(request, "values", b);
  const limit = sequence.counts[r];
  const mask = Array.from({ length: model.num_heads }, (_, h) => Number(h === head));
  const post = (fields, changes) => postAttention({ fields: { model: model.name, causal: false, window: 0, ...fields },
    binary: true }, changes, signal);

  const each = { queries: packRows(keys.map(() => [query])) };
  const noKey = new Float32Array(keys[0].length), noValue = new Float32Array(values[0].length);
  const [pairs, alone, bias, whole] = await Promise.all([
    post({ ...each, keys: packRows(keys.map((key) => [key, noKey])),
      values: packRows(values.map((value) => [value, noValue])) },
    { need_weights: true, weights_heads: [head] }),
    post({ ...each, keys: packRows(keys.map((key) => [key])),
      values: packRows(values.map((value) => [value])) }, { head_mask: mask }),
    post({ queries: packRows([[query]]), keys: packRows([[keys[0]]]), values: packRows([[values[0]]]) },
      { head_mask: mask.map(() => 0) }),
    post({ queries: packRows([[query]]), keys: packRows([keys.slice(0, limit)]),
      values: packRows([values.slice(0, limit)]) }, { head_mask: mask }),
  ]);

  const shares = numbersOf(pairs.tensors.attention_weights);
  const outputs = numbersOf(alone.tensors.outputs), offset = numbersOf(bias.tensors.outputs);
  const size = offset.length;
  return {
    scaled: keys.map((_, k) => Math.log(shares[2 * k]) - Math.log(shares[2 * k + 1])),
    values: keys.map((_, k) => Array.from(offset, (zero, o) => outputs[k * size + o] - zero)),
    exact: Array.from(numbersOf(whole.tensors.outputs), (value, o) => value - offset[o]),
  };
}

/* The places of the largest numbers of an output, in their order. */
function largestPlaces(numbers) {
  return numbers.map((_, o) => o)
    .sort((a, b) => Math.abs(numbers[b]) - Math.abs(numbers[a]))
    .slice(0, STEPS_NUMBERS).sort((a, b) => a - b);
}

const listNumbers = (numbers, places) => places.map((o) => formatNumber(numbers[o], 3)).join("\n");

/* A score to four decimals: a float32 weight does not tell it more closely. */
const formatScore = (value) =>
  formatNumber(Number.isFinite(value) ? Math.round(value * 1e4) / 1e4 : value, 6);

const isRootScale = ({ scale, head_size: size }) => Math.abs(scale * Math.sqrt(size) - 1) < 1e-6;
const nameScale = (model) =>
  (isRootScale(model) ? `÷ √${model.head_size}` : `× ${formatNumber(model.scale)}`);

/* What each column shows: {title, cell(k), total}, the last not always. */
function describeColumns({ run, b, r, weights, measured }) {
  const { numKeys, counts } = run.sequences[b], limit = counts[r];
  const isAdditive = run.model.scoring === "additive";
  const factor = isAdditive ? 1 : 1 / run.model.scale;
  const attended = measured.scaled.slice(0, limit);
  const largest = Math.max(...attended);
  const row = Array.from(weights.subarray(r * numKeys, (r + 1) * numKeys));
  const places = largestPlaces(measured.exact);
  const names = places.length < measured.exact.length ? `\nnumbers ${places.join(", ")}` : "";
  const sum = (list) => list.reduce((total, value) => total + value, 0);
  const masked = (cell) => (k) => (k < limit ? cell(k) : "masked");
  const parts = measured.exact.map((_, o) =>
    sum(row.slice(0, limit).map((w, k) => w * measured.values[k][o])));

  return {
    score: { title: isAdditive ? "score" : "q · k", cell: (k) => formatScore(measured.scaled[k] * factor) },
    scaled: { title: isAdditive ? "not scaled" : nameScale(run.model),
      cell: (k) => formatScore(measured.scaled[k]) },
    masked: { title: "masked", cell: masked((k) => formatScore(measured.scaled[k])) },
    exp: { title: "exp(s − largest)",
      cell: masked((k) => formatNumber(Math.exp(measured.scaled[k] - largest))),
      total: formatNumber(sum(attended.map((s) => Math.exp(s - largest)))) },
    weight: { title: "weight", cell: masked((k) => formatDecimals(row[k])), total: formatNumber(sum(row)) },
    value: { title: `value${names}`, cell: (k) => listNumbers(measured.values[k], places) },
    part: { title: "weight × value", total: listNumbers(parts, places),
      cell: masked((k) => listNumbers(measured.values[k].map((v) => v * row[k]), places)) },
    exact: listNumbers(measured.exact, places).replaceAll("\n", "  "),
  };
}

/* The sentences above the table. */
function explainStep(step, { run, head, query, limit, numKeys, columns }) {
  const { scoring, head_size: size } = run.model, isAdditive = scoring === "additive";
  switch (step) {
    case 0: return isAdditive
      ? `Head ${head} scores each key for the query “${query}”: it sums both projections, and `
        + "weights their tanh. The score of a key of zeros counts as 0."
      : `Head ${head} multiplies its projection of the query “${query}” with that of each key. `
        + "The score of a key of zeros counts as 0.";
    case 1: return isAdditive ? "Additive scores are not scaled."
      : !isRootScale(run.model) ? `A score is multiplied by ${formatNumber(run.model.scale)}, the model's own scale.`
      : `A score is divided by √${size}, the root of the head's size, so that it does not grow with it.`;
    case 2: return limit === numKeys ? "No key of this row is masked."
      : `${numKeys - limit} of ${numKeys} keys are masked: they are past valid_lens, or after the `
        + "query's own place. For this row they are never computed. The scores here show what the "
        + "mask hides.";
    case 3: return "The exponentials, divided by their sum, are the weights. They add up to 1.";
    default: return "Each value, projected by this head and by the output projection, counts with its "
      + `weight. The sum is what head ${head} adds to the output. The server computes it in one go as `
      + `${columns.exact}.`;
  }
}

/* Returns the table of the steps up to `step`. A narrow page has no room for those that are
 * over, so their cells have a class. */
function makeSteps(step, { run, b, r, columns }) {
  const { numKeys, counts } = run.sequences[b];
  const shown = STEPS.slice(0, step + 1).flatMap((each, i) => each.columns.map((name) => ({ ...columns[name],
    class: i < step && name !== "weight" ? "number over" : "number" })));
  const rows = Array.from({ length: numKeys }, (_, k) => make("tr", { class: k >= counts[r] ? "off" : null },
    make("th", { scope: "row" }, run.keyLabels[k]),
    ...shown.map((column) => make("td", { class: column.class }, column.cell(k)))));
  const totals = make("tr", { hidden: !shown.some((column) => column.total) },
    make("th", { scope: "row" }, "sum"),
    ...shown.map((column) => make("td", { class: column.class }, column.total ?? "")));
  return make("table", {},
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Key"),
      ...shown.map((column) => make("th", { scope: "col", class: column.class }, column.title)))),
    make("tbody", {}, ...rows), make("tfoot", {}, totals));
}
