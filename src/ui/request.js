/* SPDX-License-Identifier: Apache-2.0 */
/* request.js: requests to POST v1/attention and v1/heads, and their replies.
 *
 * A request is {fields, binary, path, kept, forHeads}; the path is v1/attention unless there is one, and
 * `kept` is {file, layer} of a capture that the server may keep; `forHeads` are fields that v1/heads alone gets. Fields have the names of the protocol. In a binary one
 * queries, keys, values and what else was read from a file are tensors; in JSON they are
 * nested lists. Replies of v1/attention are always safetensors, so that no number is
 * parsed as text. */

const JSON_NUMBERS_MAX = 20000; /* made-up input with more numbers is sent in binary */
const REFUSED_TEXT_MAX = 2 ** 20; /* characters */
const LARGE_NUMBER = /e\+?\d{3}|\d{300}/i; /* looks like a number that may be infinite */
const ROW_FIELDS = ["queries", "keys", "values"];
const pathOf = ({ path = "v1/attention" }) => path;
const PLACE_IN_BODY = /^line \d+, column \d+: /; /* of a body that this page wrote */

/* An error that the API replied with, or that the page has found in the same terms. */
class Problem extends Error {
  constructor({ title = "Error", detail = "", said = detail, field = null, status = 0 }) {
    super(detail);
    Object.assign(this, { title, detail, said, field, status }); /* `said` has the place in the body, too */
  }
}

async function fetchReply(path, options = {}) {
  let reply;
  try {
    reply = await fetchWithKey(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError")
      throw error;
    throw new Problem({ title: "No reply", detail: "the server does not reply; is it running?" });
  }
  if (reply.ok)
    return reply;
  const text = await reply.text();
  try {
    const problem = JSON.parse(text), said = String(problem.detail ?? "");
    throw new Problem({ status: reply.status, title: reply.statusText, ...problem, said, detail: said.replace(PLACE_IN_BODY, "") });
  } catch (error) {
    if (error instanceof Problem)
      throw error;
    throw new Problem({ status: reply.status, title: `HTTP ${reply.status}`, detail: text.slice(0, 300) });
  }
}

const fetchJson = async (path, options) => (await fetchReply(path, options)).json();

/* A list of integers, or lists of them, as a tensor; ragged lists become one. In F64 the
 * server sees what is no integer, and refuses it. */
function makeLens(value) {
  if (!Array.isArray(value))
    return makeTensor("F64", [], [value]);
  const nested = value.some(Array.isArray);
  const even = nested && value.every((row) => row.length === value[0].length);
  const shape = !nested ? [value.length] : even ? [value.length, value[0].length] : [value.flat().length];
  return makeTensor("F64", shape, value.flat());
}

/* Returns {type, body} of a request with some fields changed. A field that is null is left
 * out. */
function encodeRequest({ fields, binary }, changes = {}) {
  const all = Object.entries({ ...fields, ...changes }).filter(([, value]) => value !== null);
  if (!binary)
    return { type: "application/json", body: JSON.stringify(Object.fromEntries(all)) };

  const metadata = {}, tensors = {};
  for (const [name, value] of all) {
    if (isTensor(value))
      tensors[name] = value;
    else if (name === "head_mask")
      tensors[name] = makeTensor("F32", [value.length], value);
    else if (name === "valid_lens" || name.endsWith("positions") || name.startsWith("weights_") || name === "spans")
      tensors[name] = makeLens(value);
    else
      metadata[name] = String(value);
  }
  return { type: "application/vnd.safetensors", body: writeSafetensors(metadata, tensors) };
}

async function postAttention(request, changes, signal) {
  const reply = await postKept(request, (asked) => {
    const { type, body } = encodeRequest(asked, changes);
    return fetchReply(pathOf(asked), { method: "POST", body, signal,
      headers: { "Content-Type": type, "Accept": "application/vnd.safetensors" } });
  });
  const buffer = await reply.arrayBuffer();
  const [, total = null] = reply.headers.get("Server-Timing")?.match(/\btotal;dur=([\d.]+)/) ?? [];
  return { tensors: readSafetensors(buffer), bytes: buffer.byteLength, serverMs: total && Number(total),
    note: reply.headers.get("Attnd-Note") };
}

/* Returns the reply to POST v1/heads. Of a capture that the server keeps it has neither importance nor gram; of
 * another one, or of one with a bias, there are sums of weights alone. */
const postHeads = (request, signal) => postKept(request, (asked) => {
  if (asked.path === DOT_PRODUCT || request.fields.bias)
    return sumHeads(request, signal);
  const { type, body } = encodeRequest(asked, {
    need_weights: null, weights_heads: null, weights_queries: null, head_mask: null, ...request.forHeads });
  return fetchJson(asked.path ?? "v1/heads", {
    method: "POST", body, signal, headers: { "Content-Type": type, "Accept": "application/json" } });
}, "heads");

/* Returns of a report what `need` tells. */
async function sumHeads(request, signal) {
  const { tensors } = await postAttention(request, { need: ["entropy", "spans"], spans: [[0, 1]] }, signal);
  const [numRows, numHeads] = tensors.entropy.shape, entropy = numbersOf(tensors.entropy), first = numbersOf(tensors.span_weights);
  const mean = (find) => Array.from({ length: numRows }, (_, row) => find(row)).reduce((x, y) => x + y, 0) / numRows;
  return { heads: Array.from({ length: numHeads }, (_, h) => ({ entropy: mean((row) => entropy[row * numHeads + h]),
    mass_on_first: mean((row) => first[h * numRows + row]) })) };
}

/* Returns the lengths of a row field: {batched, lens}, or null where it has no such shape;
 * the server then says what is wrong. */
function lensOf(fields, name) {
  const value = fields[name];
  if (isTensor(value)) {
    const given = fields[name === "queries" ? "query_lens" : "key_lens"] ?? fields.query_lens;
    if (value.shape.length === 3)
      return { batched: true, lens: Array(value.shape[0]).fill(value.shape[1]) };
    if (isTensor(given))
      return { batched: true, lens: [...numbersOf(given)] };
    return value.shape.length === 2 ? { batched: false, lens: [value.shape[0]] } : null;
  }
  if (!Array.isArray(value) || !Array.isArray(value[0]))
    return null;
  return Array.isArray(value[0][0]) ? { batched: true, lens: value.map((rows) => rows.length) }
    : { batched: false, lens: [value.length] };
}

/* Returns {batched, queryLens, keyLens} of a request, or null. */
function shapeOf(fields) {
  const queries = lensOf(fields, "queries");
  const keys = fields.keys ? lensOf(fields, "keys") : queries;
  return queries && keys && { batched: queries.batched, queryLens: queries.lens, keyLens: keys.lens };
}

/* Returns the rows of sequence b of a row field, each an array of numbers. */
function rowsOf({ fields }, name, b) {
  const used = { values: ["values", "keys", "queries"], keys: ["keys", "queries"], queries: ["queries"] };
  const from = used[name].find((field) => fields[field]);
  const value = fields[from], { batched, lens } = lensOf(fields, from);
  if (!isTensor(value))
    return batched ? value[b] : value;

  const width = value.shape[value.shape.length - 1], numbers = numbersOf(value);
  const begin = lens.slice(0, b).reduce((sum, length) => sum + length, 0);
  return Array.from({ length: lens[b] }, (_, i) =>
    numbers.subarray((begin + i) * width, (begin + i + 1) * width));
}

/* Returns a request made of nested lists: in binary when they are long. */
function makeRequest(fields) {
  const isLong = ROW_FIELDS.reduce((sum, name) =>
    sum + (fields[name] ? fields[name].flat(2).length : 0), 0) > JSON_NUMBERS_MAX;
  if (!isLong)
    return { fields, binary: false };

  const tensors = {};
  for (const name of ROW_FIELDS.filter((field) => fields[field])) {
    const value = fields[name], shape = [value.length, value[0].length];
    if (Array.isArray(value[0][0]))
      shape.push(value[0][0].length);
    tensors[name] = makeTensor("F32", shape, value.flat(2));
  }
  return { fields: { ...fields, ...tensors }, binary: true };
}

/* Reads a request from a dropped or chosen file, with its header where it is safetensors. */
async function readRequestFile(file, header) {
  if (file.size > 2 ** 30)
    throw new Problem({ title: "File too large", field: "queries",
      detail: `${file.name} has ${formatBytes(file.size)}; this page reads up to 1 GiB` });
  if (header) {
    const { format, ...fields } = header.metadata;
    for (const name of Object.keys(header.entries))
      fields[name] = await readEntry(file, header, name);
    return { fields, binary: true };
  }
  const buffer = await file.arrayBuffer(), text = new TextDecoder().decode(buffer);
  refuseForeign(new Uint8Array(buffer), file.name);
  if (/^.NUMPY/.test(text))
    return { fields: { queries: readNpy(buffer) }, binary: true };
  if (!/^\s*[[{]/.test(text))
    throw new Problem({ title: "Another format", field: "queries", detail: file.size === 0 ? `${file.name} is empty`
      : `${file.name} is no JSON, safetensors or capture; save its rows as JSON, such as {"queries": [[1, 2, 3]]}` });
  return readJsonRequest(text);
}

/* Lets the server say what is wrong with a text that cannot be sent as it was read: it names
 * the place and a remedy. A text that names no model gets one before its first field, and rows
 * alone get what is around them in a request. A long text is not sent for that. */
async function refuseText(text, reason) {
  const model = chosenModel()?.capture ? defaultModel() : state.model, isRows = /^\s*\[/.test(text);
  const before = text.slice(0, isRows ? text.indexOf("[") : text.indexOf("{") + 1);
  const named = /"model"/.test(text) || !(before || isRows) ? "" : `"model": ${JSON.stringify(model)}, `;
  const added = isRows ? `{${named}"queries": ` : named, lines = before.split("\n");
  try {
    if (model !== "" && text.length <= REFUSED_TEXT_MAX)
      await fetchReply("v1/attention", { method: "POST", headers: { "Content-Type": "application/json" },
        body: before + added + text.slice(before.length) + (isRows ? "}" : "") });
  } catch ({ title, said, field }) {
    /* The server has counted what was added, too. */
    const detail = said.replace(/^line (\d+), column (\d+)/, (place, line, column) =>
      (Number(line) === lines.length && column > lines.at(-1).length ? `line ${line}, column ${column - added.length}` : place));
    throw new Problem({ title, detail, field: field ?? "queries" });
  }
  throw new Problem({ title: "Malformed JSON", field: "queries", detail: reason });
}

const hasInfinity = (value) => (typeof value === "number" ? !Number.isFinite(value)
  : value !== null && typeof value === "object" && Object.values(value).some(hasInfinity));

async function readJsonRequest(text) {
  let fields;
  try {
    fields = JSON.parse(text);
  } catch (error) {
    await refuseText(text, error.message);
  }
  if (LARGE_NUMBER.test(text) && hasInfinity(fields)) /* which JSON.stringify() makes null of */
    await refuseText(text, "a number is larger than any that can be sent");
  if (fields === null || typeof fields !== "object")
    throw new Problem({ title: "Wrong type", field: "queries",
      detail: "a request is a JSON object with queries, such as {\"queries\": [[1, 2, 3]]}" });
  return { fields: Array.isArray(fields) ? { queries: fields } : fields, binary: false };
}
