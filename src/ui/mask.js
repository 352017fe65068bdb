/* SPDX-License-Identifier: Apache-2.0 */
/* mask.js: which keys a row attends to, from what the request and the model say. */

/* Returns how many keys row i of sequence b may attend to by valid_lens, for all forms of
 * that field. */
function readValid({ valid_lens: lens = null }, shape) {
  if (isTensor(lens)) {
    const numbers = numbersOf(lens), wide = lens.shape.length === 2 ? lens.shape[1] : 0;
    const isFlat = lens.shape.length === 1 && shape.batched && lens.shape[0] !== shape.queryLens.length;
    const begins = shape.queryLens.map((_, b) => shape.queryLens.slice(0, b).reduce((x, y) => x + y, 0));
    if (lens.shape.length === 0)
      return () => numbers[0];
    if (wide > 0 || isFlat)
      return (b, i) => numbers[isFlat ? begins[b] + i : b * wide + i];
    return (b, i) => numbers[shape.batched ? b : i];
  }
  if (!Array.isArray(lens))
    return (b) => lens ?? shape.keyLens[b];
  if (!shape.batched)
    return (_, i) => lens[i];
  return (b, i) => (Array.isArray(lens[b]) ? lens[b][i] : lens[b]);
}

/* Whether positions have three axes, which have a number for each row. They only rotate. */
function hasAxes(value, lens) {
  const list = value ?? [], numbers = Array.isArray(list) ? list.flat(2) : numbersOf(list);
  return numbers.length === 3 * lens.reduce((x, y) => x + y, 0);
}

/* Returns the position of row i of sequence b, for all forms of that field. */
function readPositions(value, lens) {
  if (value === undefined || value === null || hasAxes(value, lens))
    return (_, i) => i; /* the row's own */
  if (Array.isArray(value))
    return (b, i) => (Array.isArray(value[b]) ? value[b][i] : value[i]);

  const numbers = numbersOf(value), begins = lens.map((_, b) => lens.slice(0, b).reduce((x, y) => x + y, 0));
  const isOnce = value.shape.length === 1 && numbers.length === lens[0]; /* for all sequences */
  return (b, i) => numbers[isOnce ? i : begins[b] + i];
}

/* Returns whether some head adds a finite bias to the score of row i and key k, or null where
 * all do. A bias is [..][H][Tq or 1][Tk], of one sequence. */
function readBias(bias, { queryLens: [numRows], keyLens: [numKeys] }) {
  const numbers = numbersOf(bias), isOnce = bias.shape.at(-2) === 1, cells = (isOnce ? 1 : numRows) * numKeys;
  const open = new Uint8Array(cells);
  for (let i = 0; i < numbers.length; i++)
    open[i % cells] |= numbers[i] > -Infinity;
  return open.every(Boolean) ? null : (i, k) => open[(isOnce ? 0 : i * numKeys) + k] === 1;
}

/* Returns the mask of a request. `isPrefix` says that a row attends to the first keys. */
function readMask(model, fields, shape) {
  const isGiven = (value) => value !== undefined && value !== null;
  const { positions } = fields;
  const own = fields.key_positions ?? (fields.keys ? null : positions);
  const window = Number(fields.window ?? model.window ?? 0);
  const isOpen = fields.bias ? readBias(fields.bias, shape) : null;
  const isOfAxes = hasAxes(positions, shape.queryLens) || hasAxes(own, shape.keyLens);
  return {
    valid: readValid(fields, shape), window, chunk: model.chunk ?? 0,
    causal: isGiven(fields.causal) ? String(fields.causal) === "true" : model.causal,
    query: readPositions(positions, shape.queryLens), key: readPositions(own, shape.keyLens),
    isPrefix: window === 0 && !model.chunk && !isGiven(positions) && !isGiven(own) && !isOpen, hasSinks: model.sinks, isOpen,
    isOfAxes,
  };
}

/* Returns {attends, counts, isEmpty} of some rows of sequence b. One that the mask leaves no
 * key is empty: it attends to all keys alike, unless sinks take its weight. */
function maskRows(mask, b, places, numKeys) {
  const { valid, window, chunk, causal, query, key, isPrefix, hasSinks, isOpen } = mask;
  const findChunk = (position) => chunk > 0 ? Math.floor(position / chunk) : 0;
  const allows = (row, k) => {
    const distance = query(b, row) - key(b, k);
    return k < valid(b, row) && (!causal || distance >= 0)
      && (window === 0 || (causal ? distance < window : Math.abs(distance) <= window))
      && findChunk(query(b, row)) === findChunk(key(b, k)) && (!isOpen || isOpen(row, k));
  };
  const countKeys = (row) => {
    if (isPrefix)
      return causal ? Math.min(valid(b, row), row + 1) : valid(b, row);
    let count = 0;
    for (let k = 0; k < numKeys; k++)
      count += allows(row, k);
    return count;
  };

  const open = Int32Array.from(places, countKeys), isEmpty = (r) => open[r] === 0 && !hasSinks;
  const counts = open.map((count, r) => (isEmpty(r) ? numKeys : count));
  const attends = isPrefix ? (r, k) => k < counts[r]
    : (r, k) => counts[r] === numKeys || allows(places[r], k);
  return { attends, counts, isEmpty };
}
