/* SPDX-License-Identifier: Apache-2.0 */
/* blocks.js: captures that are too long to draw whole. The first picture has means of blocks;
 * a zoom asks for the rows around a cell, and shows the keys around it. */

const BLOCKS_MAX = 512; /* along each side */
const ZOOM_TOKENS = 64;

/* Returns how many queries and keys a block has; 1 where all weights can be drawn. */
function chooseBlock(model, { queryLens: [numQueries], keyLens: [numKeys] }, { rows, heads, keys }) {
  const cells = numQueries * numKeys, isSmall = cells <= CELLS_MAX
    && cells * (heads ?? { length: model.num_heads }).length <= WEIGHTS_MAX;
  if (rows || isSmall)
    return 1;
  if (keys)
    throw new Problem({ title: "Rows are missing", field: "shown_keys",
      detail: "all rows together are drawn as blocks; choose rows to show, too" });
  return Math.ceil(Math.max(numQueries, numKeys) / BLOCKS_MAX);
}

/* Returns the first and last values that place(0, i) has in each block of i below count. */
const findRanges = (place, count, block) => Array.from({ length: Math.ceil(count / block) }, (_, b) => {
  let low = Infinity, high = -Infinity;
  for (let i = b * block; i < Math.min(count, (b + 1) * block); i++) {
    low = Math.min(low, place(0, i));
    high = Math.max(high, place(0, i));
  }
  return { low, high };
});

/* Returns the sequence whose rows and keys are blocks, [heads][rows][keys] of them. A block is
 * masked where no distance in it can be attended to; what a bias masks has weight 0. */
function readBlocks(numbers, shape, mask, heads, block) {
  const { valid, window, chunk, causal, query, key } = mask, [numQueries] = shape.queryLens, [numKeys] = shape.keyLens;
  const queries = findRanges(query, numQueries, block), keys = findRanges(key, numKeys, block);
  const ends = findRanges(valid, numQueries, block), cells = queries.length * keys.length;
  const nearest = causal ? 0 : window === 0 ? -Infinity : -window;
  const farthest = window === 0 ? Infinity : causal ? window - 1 : window;
  const findChunk = (position) => chunk > 0 ? Math.floor(position / chunk) : 0;
  const share = (a, b) => findChunk(a.low) <= findChunk(b.high) && findChunk(b.low) <= findChunk(a.high);
  const allows = (r, k) => share(queries[r], keys[k]) && k * block < ends[r].high && queries[r].high - keys[k].low >= nearest
    && queries[r].low - keys[k].high <= farthest;
  const counts = queries.map((_, r) => keys.filter((_unused, k) => allows(r, k)).length || keys.length);
  return { rows: queries.map((_, r) => r), numKeys: keys.length, largest: new Map(), counts,
    weights: heads.map((_, h) => numbers.subarray(h * cells, (h + 1) * cells)),
    attends: (r, k) => counts[r] === keys.length || allows(r, k) };
}

/* Returns the labels of blocks: "8-11". */
const nameBlocks = (count, block) => Array.from({ length: Math.ceil(count / block) }, (_, b) =>
  `${b * block}-${Math.min(count, (b + 1) * block) - 1}`);

/* Returns a sequence with these keys only, whose places in the request are its `keys`. */
function cropKeys({ rows, numKeys, weights, attends }, keys) {
  if (keys.some((key) => key >= numKeys))
    throw new Problem({ title: "Out of range", field: "shown_keys", detail: `keys are 0 to ${numKeys - 1}` });
  const crop = (head) => Float32Array.from({ length: rows.length * keys.length }, (_, i) =>
    head[Math.floor(i / keys.length) * numKeys + keys[i % keys.length]]);
  return { rows, keys, numKeys: keys.length, weights: weights.map(crop), largest: new Map(),
    attends: (r, k) => attends(r, keys[k]),
    counts: rows.map((_, r) => keys.filter((key) => attends(r, key)).length) };
}

/* Returns {from, text} of `count` places of `total` around the middle one. */
function placesAround(middle, count, total) {
  const from = Math.max(0, Math.min(Math.floor(middle - count / 2), total - count));
  const to = Math.min(total, from + count) - 1;
  return { from, text: `${from}-${to}` };
}

/* Returns the rows and keys to show around a cell, and the row in them. */
function findZoom({ block, shape, heads, sequences: [sequence] }, { row, key }) {
  const [numQueries] = shape.queryLens, [numKeys] = shape.keyLens;
  const most = Math.max(1, Math.floor(Math.min(WEIGHTS_MAX / heads.length, CELLS_MAX) / numKeys));
  const middle = (place) => (block > 1 ? (place + 0.5) * block : place);
  const count = Math.max(ZOOM_TOKENS, block), centre = Math.min(middle(sequence.rows[row]), numQueries - 1);
  const rows = placesAround(centre, Math.min(count, most), numQueries);
  const keys = placesAround(middle(sequence.keys?.[key] ?? key), count, numKeys);
  return { rows: rows.text, keys: keys.text, row: Math.floor(centre) - rows.from, key: -1 };
}

/* Whether a picture has more cells than a zoom. */
const canZoom = ({ model, block, sequences: [{ rows, numKeys }] }) => Boolean(model.capture) && !model.saved
  && (block > 1 || Math.max(rows.length, numKeys) > ZOOM_TOKENS);
