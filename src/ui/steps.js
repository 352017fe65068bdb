/* SPDX-License-Identifier: Apache-2.0 */
/* steps.js: how one row of one head comes about, from its projections to the sum.
 *
 * The server tells the scores, also those that a mask hides: the row is sent again without
 * it. A query with a single key attends to it with weight 1, so what it contributes to the
 * output through this head is what the key's value becomes. */

const STEPS_KEYS_MAX = 512;
const STEPS_KEYS_WHOLE = 16; /* up to so many the table is shown without a scroll bar */
const STEPS_NUMBERS = 3; /* of an output, for which the table has room */
/* The columns of the table appear step by step. */
const STEPS = [
  { name: "Projections", columns: ["k", "v"] },
  { name: "Scores", columns: ["k", "score"] },
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

/* Asks for row r of a head. Returns {scaled, values, exact, q, k, v}, or throws what the server
 * says: the score of each key, what its value becomes in the output, the head's output for
 * all keys that the row attends to, and the projections of the row and of each key. */
async function measureRow(run, b, r, head, signal) {
  const { model, request, mask, sequences } = run, { rows, attends, isEmpty } = sequences[b];
  const query = rowsOf(request, "queries", b)[rows[r]];
  const keys = rowsOf(request, "keys", b), values = rowsOf(request, "values", b);
  const all = Array.from(keys, (_, k) => k), attended = all.filter((k) => attends(r, k));
  const place = (places) => ({ queries: packRows([[query]]), keys: packRows([places.map((k) => keys[k])]),
    values: packRows([places.map((k) => values[k])]), positions: [mask.query(b, rows[r])],
    key_positions: places.map((k) => mask.key(b, k)) });
  const post = async (need, fields) => (await postAttention({ binary: true, fields: { model: model.name,
    pre_norm: request.fields.pre_norm ?? null, causal: false, window: 0, ...fields } },
  { need, weights_heads: need === "projections" ? null : [head] }, signal)).tensors;
  const ask = async (need, fields) => numbersOf((await post(need, fields))[need]);

  const [projected, scores, alone, whole] = await Promise.all([
    post("projections", place(all)),
    ask("scores", place(all)),
    ask("contributions", { queries: packRows(all.map(() => [query])),
      keys: packRows(Array.from(keys, (key) => [key])), values: packRows(Array.from(values, (value) => [value])) }),
    ask("contributions", { ...place(attended), valid_lens: isEmpty(r) ? [0] : null }),
  ]);
  const size = whole.length, keyHead = Math.floor(head * model.num_kv_heads / model.num_heads);
  const vectorsOf = (name, h) => {
    const tensor = projected[`projected_${name}`], [count, heads, width] = tensor.shape.slice(-3), numbers = numbersOf(tensor);
    return Array.from({ length: count }, (_, i) => numbers.subarray((i * heads + h) * width, (i * heads + h + 1) * width));
  };
  return { q: vectorsOf("queries", head)[0], k: vectorsOf("keys", keyHead), v: vectorsOf("values", keyHead), scaled: Array.from(scores), exact: Array.from(whole),
    values: all.map((k) => Array.from(alone.subarray(k * size, (k + 1) * size))) };
}

/* The places of the largest numbers of an output, in their order. */
function largestPlaces(numbers) {
  return numbers.map((_, o) => o)
    .sort((a, b) => Math.abs(numbers[b]) - Math.abs(numbers[a]))
    .slice(0, STEPS_NUMBERS).sort((a, b) => a - b);
}

const listNumbers = (numbers, places) => places.map((o) => formatNumber(numbers[o], 3)).join("\n");

/* Names a vector in a sentence: "[0.125, −2] for its numbers 0, 7", or for "the, dog". */
const listVector = (numbers, places) => `[${places.map((o) => formatNumber(numbers[o], 3)).join(", ")}]`;
const nameVector = (numbers, places, model) => listVector(numbers, places)
  + (places.length < numbers.length ? ` for ${namePlaces(places, model)}` : "");
const namePlaces = (places, model) => (outputNames(model) ? "" : "its numbers ")
  + places.map((o) => outputNames(model)?.[o] ?? o).join(", ");

/* A score to four decimals, for which the table has room. */
const formatScore = (value) =>
  formatNumber(Number.isFinite(value) ? Math.round(value * 1e4) / 1e4 : value, 6);

const isRootScale = ({ scale, key_head_size: size }) => Math.abs(scale * Math.sqrt(size) - 1) < 1e-6;
const nameScale = (model) =>
  (isRootScale(model) ? `÷ √${model.key_head_size}` : `× ${formatNumber(model.scale)}`);

/* Whether nothing but a scale is between a product and its score. */
const isOnlyScaled = ({ scoring, softcap, distance_bias: bias }) => scoring !== "additive" && !softcap && !bias;

/* Describes each column: {title, cell(k), total}, the last not always. Where every key is
 * masked, all have the same score, as with -1e6 in its place. */
function describeColumns({ run, b, r, weights, measured }) {
  const { numKeys, attends, isEmpty } = run.sequences[b], isEven = isEmpty(r);
  const isScaled = isOnlyScaled(run.model), factor = isScaled ? 1 / run.model.scale : 1;
  const attended = measured.scaled.filter((_, k) => attends(r, k));
  const largest = Math.max(...attended), exp = (score) => (isEven ? 1 : Math.exp(score - largest));
  const row = Array.from(weights.subarray(r * numKeys, (r + 1) * numKeys));
  const places = largestPlaces(measured.exact);
  const names = places.length < measured.exact.length ? `\n${namePlaces(places, run.model).replace("its ", "")}` : "";
  const [mostOfQuery, mostOfKeys, mostOfValues] = [[measured.q], measured.k, measured.v].map(largestMagnitude);
  const value = run.model.output_projection ? "v × W_o" : "v";
  const sum = (list) => list.reduce((total, value) => total + value, 0);
  const masked = (cell) => (k) => (attends(r, k) ? cell(k) : "masked");
  const parts = measured.exact.map((_, o) => sum(row.map((w, k) => w * measured.values[k][o])));

  return {
    q: make("caption", {}, `q of ${run.queryLabels[run.sequences[b].rows[r]]}: `, makeVector(measured.q, mostOfQuery)),
    k: { title: "k", cell: (k) => makeVector(measured.k[k], mostOfKeys) },
    v: { title: "v", cell: (k) => makeVector(measured.v[k], mostOfValues) },
    score: { title: isScaled ? "q · k" : "score", cell: (k) => formatScore(measured.scaled[k] * factor) },
    scaled: { title: isScaled ? nameScale(run.model) : "as it is",
      cell: (k) => formatScore(measured.scaled[k]) },
    masked: { title: "masked", cell: isEven ? () => "masked" : masked((k) => formatScore(measured.scaled[k])) },
    exp: { title: "exp(s − largest)", cell: masked((k) => formatNumber(exp(measured.scaled[k]))),
      total: formatNumber(sum(attended.map(exp))) },
    weight: { title: "weight", cell: masked((k) => formatDecimals(row[k])), total: formatNumber(sum(row)) },
    value: { title: `${value}${names}`, cell: (k) => listNumbers(measured.values[k], places) },
    part: { title: `weight × ${value}`, total: listNumbers(parts, places),
      cell: masked((k) => listNumbers(measured.values[k].map((v) => v * row[k]), places)) },
    exact: nameVector(measured.exact, places, run.model),
  };
}

/* The sentences above the table. */
function explainStep(step, { run, head, query, limit, isEmpty, numKeys, columns }) {
  const { scoring, key_head_size: size } = run.model, isAdditive = scoring === "additive";
  switch (step) {
    case 0: return `Head ${head} has three matrices of its own: q = x W_q of the query “${query}”, and k = x W_k and v = x W_v of each key, `
      + `${size === 1 ? "one number" : `${size} numbers`} each${isAdditive ? ", folded into those of the score" : ""}. `
      + (run.model.rope || run.model.norms ? "They are shown before their norms and rotation. " : "")
      + (size > VECTOR_NUMBERS ? "Blue is above 0 and orange below, each as far as it is dark." : "");
    case 1: return isAdditive
      ? `Head ${head} scores each key for the query “${query}”: it sums both projections, and `
        + "weights their tanh."
      : `Head ${head} multiplies its projection of the query “${query}” with that of each key.`
        + (isOnlyScaled(run.model) ? "" : " The scores have their scale, cap and bias by distance already.");
    case 2: return isAdditive ? "Additive scores are not scaled."
      : !isOnlyScaled(run.model) ? "Scale, cap and bias by distance are in the scores already."
      : !isRootScale(run.model) ? `A score is multiplied by ${formatNumber(run.model.scale)}, the model's own scale.`
      : `A score is divided by √${size}, the root of the size of queries and keys. Otherwise scores would grow with that size.`;
    case 3: return isEmpty ? "Every key of this row is masked, each with the same score, such as −1e6. The scores "
        + "here show what the mask hides."
      : limit === numKeys ? "No key of this row is masked."
      : `${numKeys - limit} of ${numKeys} keys are masked: they are past valid_lens, or after the `
        + "query's own place. For this row they are never computed. The scores here show what the "
        + "mask hides.";
    case 4: return isEmpty ? "All scores are alike behind the mask, so the softmax gives each key the same weight."
      : "The exponentials, divided by their sum, are the weights. They add up to 1.";
    default: return `Each v${run.model.output_projection ? ", multiplied by this head's part of W_o," : ""} counts with its weight. `
      + `The sum is what head ${head} adds to the output. The server computes it in one go as `
      + `${columns.exact}.`;
  }
}

/* Returns the table of the steps up to `step`. A narrow page has no room for those that are
 * over, so their cells have a class; nothing but the scores has room beside vectors. */
function makeSteps(step, { run, b, r, columns }) {
  const { numKeys, attends } = run.sequences[b];
  const shown = STEPS.slice(0, step + 1).flatMap((each, i) => each.columns
    .filter((name) => i === step || !["k", "v"].includes(name)).map((name) => ({ ...columns[name],
      class: i < step && name !== "weight" ? "number over" : "number" })));
  const rows = Array.from({ length: numKeys }, (_, k) => make("tr", { class: attends(r, k) ? null : "off" },
    make("th", { scope: "row" }, run.keyMarks[k]),
    ...shown.map((column) => make("td", { class: column.class }, column.cell(k)))));
  const totals = make("tr", { hidden: !shown.some((column) => column.total) },
    make("th", { scope: "row" }, "sum"),
    ...shown.map((column) => make("td", { class: column.class }, column.total ?? "")));
  return make("table", {}, step < 2 ? columns.q : "",
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Key"),
      ...shown.map((column) => make("th", { scope: "col", class: column.class }, column.title)))),
    make("tbody", {}, ...rows), make("tfoot", {}, totals));
}
