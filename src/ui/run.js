/* SPDX-License-Identifier: Apache-2.0 */
/* run.js: one computed request: its weights by sequence and head, its masks and labels.
 *
 * A run is {model, request, changes, sequences, heads, received, outputs, outSize, labels..., bytes, ms,
 * serverMs}: changes are the fields that were sent besides those of the request. The reply came `ms` after the request, of which the server says that it took
 * serverMs; null when it says nothing.
 * Marks are the labels beside a picture. `heads` are the heads that were asked for. A sequence is {rows, numKeys, weights,
 * attends, counts}: rows are the places of its queries in the request, weights [heads][rows][keys]
 * views of the reply; `keys` are the places of its keys where not all are shown. In a run whose
 * `block` is not 1, rows and keys are blocks of that many. attends(r, k) says whether row r attends to key k, and counts[r] to
 * how many. */

const CELLS_MAX = 2048 * 2048;      /* weights of one head that are drawn */
const WEIGHTS_MAX = 64 * 1024 * 1024; /* weights of one reply */

/* Reads "0-3, 7, 10-20/5" as [0, 1, 2, 3, 7, 10, 15, 20], and an empty text as null. */
function readIndexes(text, field) {
  if (text.trim() === "")
    return null;
  const indexes = text.split(/[\s,]+/).filter(Boolean).flatMap((item) => {
    const [, first, last = first, step = 1] = item.match(/^(\d+)(?:-(\d+)(?:\/(\d+))?)?$/) ?? [];
    const length = Math.floor((last - first) / step) + 1;
    if (!(length >= 1 && length <= 1e5))
      throw new Problem({ title: "Malformed list", field,
        detail: `'${item}' is not an index or a range; write a list such as 0-3, 7, or 0-99/10 for every tenth` });
    return Array.from({ length }, (_, i) => Number(first) + i * step);
  });
  return [...new Set(indexes)];
}

/* Refuses what cannot be drawn, before it is asked for, and offers what can. */
function checkSize(model, shape, isCausal, rows, heads) {
  const numHeads = heads ? heads.length : model.num_heads;
  let total = 0, largest = 0;
  shape.queryLens.forEach((length, b) => {
    const cells = (rows ? rows.length : length) * shape.keyLens[b];
    total += cells * numHeads;
    largest = Math.max(largest, cells);
  });
  if (largest <= CELLS_MAX && total <= WEIGHTS_MAX)
    return;

  const problem = new Problem({
    title: "Too large to draw", field: "rows",
    detail: `the reply would have ${formatCount(total)} weights, ${formatCount(largest)} of one head; `
      + `this page draws up to ${formatCount(CELLS_MAX)} of a head and ${formatCount(WEIGHTS_MAX)} `
      + "together. Choose rows or heads.",
  });
  problem.offers = offerRows(model, shape, isCausal);
  throw problem;
}

/* Offers rows of a long input that can be drawn: at even distances up to the last, and
 * neighbours. Of a causal layer these are the last ones, since the first attend to few
 * keys. */
function offerRows(model, { queryLens, keyLens }, isCausal) {
  const count = Math.min(...queryLens), keys = keyLens.reduce((sum, length) => sum + length, 0);
  const fit = (most, numHeads) => Math.max(1, Math.min(most, count, Math.floor(CELLS_MAX / Math.max(...keyLens)),
    Math.floor(WEIGHTS_MAX / keys / numHeads)));
  const neighbours = (size, what, heads) => ({ heads, ...(isCausal
    ? { label: `Show the last ${size} rows of ${what}`, rows: `${count - size}-${count - 1}` }
    : { label: `Show rows 0 to ${size - 1} of ${what}`, rows: `0-${size - 1}` }) });

  const most = fit(512, 1), step = Math.ceil(count / most);
  return [
    ...(step > 1 ? [{ label: `Show every ${formatOrdinal(step)} row of head 0`, heads: "0",
      rows: `${(count - 1) % step}-${count - 1}/${step}` }] : []),
    neighbours(most, "head 0", "0"),
    neighbours(fit(64, model.num_heads), "all heads", ""),
  ];
}

/* Cuts the reply's weights by sequence. */
function readSequences(reply, shape, mask, heads, rows) {
  const weights = numbersOf(reply.tensors.attention_weights);
  let at = 0;

  return shape.queryLens.map((length, b) => {
    const numKeys = shape.keyLens[b];
    const places = rows ?? Array.from({ length }, (_, i) => i);
    const cells = places.length * numKeys;
    const views = heads.map((_, h) => weights.subarray(at + h * cells, at + (h + 1) * cells));
    at += cells * heads.length;
    return { rows: places, numKeys, weights: views, largest: new Map(), ...maskRows(mask, b, places, numKeys) };
  });
}

/* Splits "the dog | le chien" into labels of queries and of keys; those that are missing
 * are numbers. `labelsNote` says how many are missing, or too many. */
function readLabels({ labels: text, queryNames, keyNames }, shape) {
  const [queries = [], keys = []] = text.split("|").map(splitWords);
  const isSelf = shape.keyLens.every((length, b) => length === shape.queryLens[b]);
  const given = queries.length ? queries : queryNames ?? [];
  const fill = (labels, lens) => Array.from({ length: Math.max(...lens) }, (_, i) => labels[i] ?? String(i));
  const compare = ({ length }, rows, lens) => {
    const count = Math.max(...lens);
    return length === 0 || length === count ? []
      : [`${length} ${length === 1 ? "label" : "labels"} for ${count} ${rows}: ${length < count ? "the others keep their numbers" : "the last are left out"}.`];
  };
  return {
    labelsNote: [...compare(queries, "queries", shape.queryLens), ...compare(keys, "keys", shape.keyLens)].join(" "),
    queryLabels: fill(given, shape.queryLens),
    keyLabels: fill(keys.length ? keys : keyNames ?? (isSelf ? given : []), shape.keyLens),
  };
}

/* Labels as they stand beside a picture: with their places, where most are one letter, as those of proteins. */
function markLetters(labels, places = [...labels.keys()]) {
  const letters = labels.filter((label, i) => [...label].length === 1 && label !== String(places[i]));
  return letters.length > labels.length / 2 ? labels.map((label, i) => `${places[i]} ${label}`) : labels;
}

/* Returns the sequences of a run, and its labels. */
function readPicture(reply, shape, mask, heads, block, choice) {
  const labels = readLabels(choice, shape), { keys } = choice;
  if (block > 1)
    return { sequences: [readBlocks(numbersOf(reply.tensors.block_weights), shape, mask, heads, block)],
      labelsNote: labels.labelsNote, queryLabels: nameBlocks(shape.queryLens[0], block),
      keyLabels: nameBlocks(shape.keyLens[0], block) };
  const sequences = readSequences(reply, shape, mask, heads, choice.rows);
  return keys ? { ...labels, sequences: sequences.map((sequence) => cropKeys(sequence, keys)),
    keyLabels: keys.map((key) => labels.keyLabels[key]) } : { ...labels, sequences };
}

/* Runs a request. `choice` has rows, heads and keys (lists or null), labels, and the names that
 * queries and keys have without them. */
async function runRequest(model, request, choice, signal) {
  const { fields } = request, began = performance.now();
  const shape = shapeOf(fields); /* null: the server refuses the request, and says why */
  const mask = shape && readMask(model, fields, shape);
  const block = shape && request.path ? chooseBlock(model, shape, choice) : 1;
  if (shape && block === 1)
    checkSize(model, shape, mask.causal, choice.rows, choice.heads);

  const changes = { ...(block > 1 ? { need: ["blocks", "received"], block } : request.path ? { need: ["weights", "received"] } : { need_weights: true, head_mask: null }),
    weights_heads: choice.heads, weights_queries: choice.rows };
  const reply = await postAttention(request, changes, signal);
  const ms = performance.now() - began;
  const heads = choice.heads ?? Array.from({ length: model.num_heads }, (_, h) => h);
  return {
    model, request, shape, heads, mask, ms, bytes: reply.bytes, serverMs: reply.serverMs, note: reply.note,
    changes, block, asked: new Map(), received: request.path ? numbersOf(reply.tensors.received) : null,
    outputs: reply.tensors.outputs ? numbersOf(reply.tensors.outputs) : new Float32Array(0),
    outSize: reply.tensors.outputs?.shape.at(-1) ?? 0,
    ...readPicture(reply, shape, mask, heads, block, choice),
  };
}

/* The weights of a head of a sequence, [rows][keys]. The head "mean" has the average over
 * the heads of the run, made when they are first needed. */
function weightsOf(run, b, head) {
  const sequence = run.sequences[b];
  if (head !== "mean")
    return sequence.weights[run.heads.indexOf(head)];
  if (!sequence.mean) {
    sequence.mean = new Float32Array(sequence.rows.length * sequence.numKeys);
    for (const weights of sequence.weights)
      for (let i = 0; i < weights.length; i++)
        sequence.mean[i] += weights[i] / run.heads.length;
  }
  return sequence.mean;
}

/* ||changed - outputs|| / ||outputs|| */
function relativeChange(outputs, changed) {
  let change = 0, norm = 0;
  for (let i = 0; i < outputs.length; i++) {
    change += (changed[i] - outputs[i]) ** 2;
    norm += outputs[i] ** 2;
  }
  return norm > 0 ? Math.sqrt(change / norm) : 0;
}

/* The share of the weight that falls on the first key, in rows that have others. */
function firstShare({ weights, rows, numKeys, counts }) {
  let sum = 0, count = 0;
  for (const head of weights)
    for (let r = 0; r < rows.length; r++)
      if (counts[r] > 2) {
        sum += head[r * numKeys];
        count++;
      }
  return count > 0 ? sum / count : 0;
}
