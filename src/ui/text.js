/* SPDX-License-Identifier: Apache-2.0 */
/* text.js: the text of a capture. Its tokens have the colours of what they receive from all
 * queries that are shown, or of the weights of one query. */

const reader = {
  model: null, spans: [], /* of the tokens, made once for a layer */
  over: null,             /* the token under the pointer */
  query: null,            /* the same as a query, where it is to be shown */
  chosen: null,           /* the one that was clicked */
  values: null,           /* of the tokens, as they are coloured */
};

/* Returns what numbers [heads][keys] say of the shown head, or of their mean. */
function readHead({ heads }, numbers, head) {
  const numKeys = numbers.length / heads.length;
  const cut = (h) => numbers.subarray(h * numKeys, (h + 1) * numKeys);
  return head === "mean" ? Float32Array.from({ length: numKeys }, (_, k) =>
    heads.reduce((sum, _unused, h) => sum + numbers[h * numKeys + k], 0) / heads.length) : cut(heads.indexOf(head));
}

/* Returns the place of the query that token k is, or -1. */
function queryOf({ request: { fields }, shape }, k) {
  if (fields.positions)
    return numbersOf(fields.positions).indexOf(k);
  return shape.queryLens[0] === shape.keyLens[0] ? k : -1;
}

/* Returns a request for one query, and its row in it: the query alone where nothing is said of
 * other rows, since a page takes long to send all. */
function cutQuery(request, query) {
  const { queries, positions, bias, valid_lens: lens } = request.fields;
  if (bias || Array.isArray(lens))
    return { request, row: query };
  const [count, size] = queries.shape, width = queries.bytes.length / count;
  const row = { ...queries, shape: [1, size], bytes: queries.bytes.subarray(query * width, (query + 1) * width) };
  const place = positions ? numbersOf(positions)[query] : query;
  return { request: { ...request, fields: { ...request.fields, queries: row, positions: [place] } }, row: 0 };
}

/* Returns the weights of one query, [heads][keys]. Where the picture has none of single tokens,
 * the server is asked for the row once. */
async function readRow(run, query, signal) {
  const { rows, keys, numKeys, weights } = run.sequences[0], at = rows.indexOf(query);
  if (run.block === 1 && !keys && at >= 0)
    return Float32Array.from(weights.flatMap((head) => [...head.subarray(at * numKeys, (at + 1) * numKeys)]));
  if (!run.asked.has(query)) {
    const { request, row } = await isFileKept(run.request.kept?.file) /* with all of its queries */
      ? { request: run.request, row: query } : cutQuery(run.request, query);
    const reply = await postAttention(request, { ...run.changes, need: ["weights"], block: null, weights_queries: [row] }, signal);
    run.asked.set(query, numbersOf(reply.tensors.attention_weights));
  }
  return run.asked.get(query);
}

/* Makes the tokens, where the file has one for each key. */
function makeTokens({ model, shape: { keyLens: [numKeys] } }) {
  const { tokens } = model.capture, hasTokens = tokens?.length === numKeys;
  Object.assign(reader, { model, over: null, query: null, chosen: null, values: null,
    spans: hasTokens ? spellTokens(tokens).map((token, k) =>
      make("span", { "data-key": k }, token.replaceAll("\n", "↵\n"))) : [] });
  byId("tokens").replaceChildren(...reader.spans);
  byId("tokens-note").textContent = hasTokens ? "" : `The file has no tokens for the ${formatCount(numKeys)} keys of this layer.`;
}

/* Reads the token under the pointer out. */
function showToken() {
  const { over: k, model, values } = reader;
  byId("tokens-readout").textContent = k === null || !values ? ""
    : `${nameToken(model.capture.tokens[k])} (${k}): ${formatDecimals(values[k])}`;
}

function paintTokens(values) {
  const scale = makeScale(state.scale, largestOf(values)), { css, isLight } = page.colours;
  reader.spans.forEach(({ style }, k) => {
    const index = scale.index(values[k]);
    style.backgroundColor = css[index];
    style.color = isLight[index] ? "#000000" : "#ffffff";
  });
  reader.values = values;
  showToken();
}

/* Shows in colours what the user has chosen to see of the text. */
async function showText() {
  const { run } = page, signal = beginTask("text"), note = byId("tokens-note");
  if (!run?.received)
    return;
  if (reader.model !== run.model)
    makeTokens(run);
  if (reader.spans.length === 0)
    return;

  const head = shownHead(), name = head === "mean" ? "the mean of the heads" : `head ${head}`;
  const count = (run.changes.weights_queries ?? { length: run.shape.queryLens[0] }).length;
  const row = reader.query ?? reader.chosen ?? (run.block === 1 ? run.sequences[0].rows[fitCell(state).row] : null);
  if (state.reading === "received" || row === null) {
    paintTokens(readHead(run, run.received, head));
    note.textContent = state.reading === "received" ? `What each token receives from ${formatCount(count)} queries in ${name}, `
      + `up to ${formatNumber(largestOf(reader.values), 3)}.` : "Point at a token to see its weights; a click keeps them.";
    return;
  }
  try {
    const weights = await readRow(run, row, signal);
    if (signal.aborted)
      return;
    paintTokens(readHead(run, weights, head));
    note.textContent = `The weights of query ${row} in ${name}, up to ${formatNumber(largestOf(reader.values), 3)}.`;
  } catch (error) {
    if (error.name !== "AbortError")
      note.textContent = `The weights of this token cannot be shown: ${error.message}`;
  }
}

const showTextSoon = debounce(30, showText);

function listenToText() {
  const box = byId("tokens");
  const onToken = (kind, run) => box.addEventListener(kind, ({ target: { dataset: { key } } }) => {
    if (key !== undefined && page.run.model === reader.model)
      run(Number(key), queryOf(page.run, Number(key)));
  });
  onToken("pointerover", (k, query) => {
    reader.over = k;
    showToken();
    if (state.reading === "received" || query < 0)
      return;
    reader.query = query;
    showTextSoon();
  });
  box.addEventListener("pointerleave", () => {
    reader.over = reader.query = null;
    showToken();
    if (state.reading === "row")
      showTextSoon();
  });
  onToken("click", (_, query) => {
    if (query < 0)
      return;
    const row = page.run.block === 1 ? page.run.sequences[0].rows.indexOf(query) : -1;
    reader.chosen = query;
    if (row >= 0)
      chooseCell({ row, key: state.key });
    showTextSoon();
  });
}
