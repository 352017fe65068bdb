/* SPDX-License-Identifier: Apache-2.0 */
/* saved.js: the JSON that this page has saved (save.js), shown again as a model that no server computes. */

/* Returns the saved picture as a model, or null for other JSON. */
function openSaved(file, fields) {
  const { attention_weights: weights, heads, queries, query_places: rows, keys, key_places: places = keys } = fields;
  const isList = (value, length) => Array.isArray(value) && value.length === length;
  const isSaved = Array.isArray(heads) && Array.isArray(queries) && Array.isArray(keys) && keys.length > 0
    && isList(rows, queries.length) && rows.every((row) => row >= 0 && row < 2 ** 24) && isList(places, keys.length)
    && isList(weights, heads.length) && heads.length > 0
    && weights.every((head) => isList(head, rows.length) && head.every((row) => isList(row, keys.length)));
  const layer = `${fields.model}${fields.sequence ? `, sequence ${fields.sequence}` : ""}`;
  return isSaved ? { name: nameIn(file.name, layer), capture: { file, layer }, saved: fields, family: null, num_heads: heads.length,
    num_kv_heads: heads.length } : null;
}

/* Returns the run of a saved picture. Weights that are null are masked. */
function readSaved(model) {
  const { capture: { file }, saved } = model, { heads, query_places: rows, key_places: keys, block = 1 } = saved;
  const numKeys = saved.keys.length, cells = saved.attention_weights.map((head) => head.flat()), queryLabels = [];
  const attends = (r, k) => cells[0][r * numKeys + k] !== null;
  rows.forEach((row, r) => { queryLabels[row] = String(saved.queries[r]); });
  return { model, request: {}, shape: { queryLens: [queryLabels.length], keyLens: [numKeys] }, heads, block,
    changes: {}, bytes: file.size, ms: null, received: null, outputs: new Float32Array(0), outSize: 0, labelsNote: "",
    queryLabels, keyLabels: saved.keys.map(String),
    sequences: [{ rows, keys, numKeys, attends, largest: new Map(), weights: cells.map((head) => Float32Array.from(head)),
      counts: rows.map((_, r) => saved.keys.filter((_unused, k) => attends(r, k)).length) }] };
}
