/* SPDX-License-Identifier: Apache-2.0 */
/* capture.js: a file of captured queries and keys, as Captured.save() of Python writes it. It is
 * shown as a model whose layers go to POST v1/attention/dot-product, or are asked by name where
 * the server keeps the file (kept.js). Tensors are read when
 * their layer is chosen, so that the file may be larger than memory. */

const DOT_PRODUCT = "v1/attention/dot-product";
const CAPTURE_TENSORS = ["queries", "keys", "bias", "sinks", "positions"]; /* values are not drawn */
const CAPTURE_OPTIONS = ["scale", "softcap", "causal", "window"];
const HEADER_MAX = 2 ** 28; /* bytes */

const nameIn = (layer, name) => (layer === "" || name === "" ? layer || name : `${layer}.${name}`);

/* An error of a capture, with what makes one. */
const captureProblem = (name, what) => new Problem({ title: "Malformed capture", field: "queries",
  detail: `${name}: ${what}; Captured.save() of the Python package writes what this page opens` });

/* Returns what the metadata of a file have under a name, which is JSON, or null. */
function readMeta(file, metadata, name) {
  const text = metadata[name];
  try {
    return text === undefined ? null : JSON.parse(text);
  } catch {
    throw captureProblem(file.name, `${name} is no JSON, but '${text.slice(0, 60)}'`);
  }
}

/* Returns {metadata, entries, begin} of a safetensors file, or null for another: entries are where
 * its tensors are, from `begin` on. */
async function readHeader(file) {
  if (file.size < 16)
    return null;
  const size = Number(new DataView(await file.slice(0, 8).arrayBuffer()).getBigUint64(0, true));
  if (size > Math.min(HEADER_MAX, file.size - 8))
    return null;
  try {
    const { __metadata__: metadata = {}, ...entries } = JSON.parse(await file.slice(8, 8 + size).text());
    return { metadata, entries, begin: 8 + size };
  } catch {
    return null;
  }
}

/* Whether a file has queries and keys by head of one layer without a name, and no rows of a model. */
const isReplay = ({ queries: { shape: queries = [] } = {}, keys: { shape: keys = [] } = {} }) => queries.length === 3
  && keys.length === 3 && queries[2] === keys[2] && queries[1] % keys[1] === 0 && !form.models.some((model) => model.query_size === queries[2]);

/* Returns the layers of a capture file as models, or null for another file. */
function openCapture(file, header) {
  const isOne = isReplay(header.entries);
  if (!isOne && typeof header.metadata.layers !== "string")
    return null;
  const layers = isOne ? [""] : readMeta(file, header.metadata, "layers"), tokens = readMeta(file, header.metadata, "tokens");
  if (layers?.length === 0 && header.entries.hidden_states)
    return null;
  if (!Array.isArray(layers) || layers.length === 0)
    throw captureProblem(file.name, `layers is no list of names, but ${JSON.stringify(layers).slice(0, 60)}`);
  return layers.map((layer) => describeCaptured({ file, header, layer: String(layer),
    tokens: Array.isArray(tokens) ? tokens.map(String) : null }));
}

/* Returns a layer as GET v1/models describes one. */
function describeCaptured(capture) {
  const { file, header: { entries, metadata }, layer } = capture, read = (name) => readMeta(file, metadata, nameIn(layer, name));
  for (const name of ["queries", "keys"])
    if (entries[nameIn(layer, name)]?.shape?.length !== 3)
      throw captureProblem(file.name, `layer ${layer} needs ${layer}.${name} [tokens, heads, size]; the file has `
        + `${Object.entries(entries).slice(0, 6).map(([found, { shape }]) => `${found} [${shape}]`).join(", ") || "no tensors"}`);
  const [, heads, size] = entries[nameIn(layer, "queries")].shape, [, kvHeads] = entries[nameIn(layer, "keys")].shape;
  return { name: nameIn(file.name, layer), capture, family: null, num_heads: heads, num_kv_heads: kvHeads,
    head_size: size, key_head_size: size, query_size: heads * size, causal: read("causal") ?? false,
    window: read("window"), softcap: read("softcap"), sinks: nameIn(layer, "sinks") in entries };
}

async function readBytes(file, begin, size, name) {
  const bytes = new Uint8Array(await file.slice(begin, begin + size).arrayBuffer());
  if (bytes.length !== size)
    throw captureProblem(file.name, `tensor '${name}' ends after the file`);
  return bytes;
}

async function readEntry(file, header, name) {
  const { dtype, shape, data_offsets: [begin, end] } = header.entries[name];
  return { dtype, shape, bytes: await readBytes(file, header.begin + begin, end - begin, name) };
}

/* Returns {about, request, queryLabels, keyLabels} of a layer. Heads are sent side by side, as rows
 * of a layer's input are. Where the server has the tensors, those that are large need not be read. */
async function makeCaptured({ capture, num_heads, num_kv_heads }, isKept) {
  const { file, header, layer, tokens } = capture, fields = { num_heads, num_kv_heads };
  for (const name of CAPTURE_TENSORS.filter((each) => nameIn(layer, each) in header.entries))
    if (!isKept || name === "positions")
      fields[name] = await readEntry(file, header, nameIn(layer, name));
    else if (name !== "bias")
      fields[name] = { ...header.entries[nameIn(layer, name)], bytes: new Uint8Array() };
  for (const name of CAPTURE_OPTIONS)
    fields[name] = header.metadata[nameIn(layer, name)] ?? null;
  for (const name of ["queries", "keys"]) {
    const { shape: [length, heads, size] } = fields[name];
    fields[name].shape = [length, heads * size];
  }

  const keys = tokens?.length === fields.keys.shape[0] ? tokens.map(nameToken) : null;
  const positions = keys && fields.positions && Array.from(numbersOf(fields.positions));
  const queries = positions ? positions.map((place) => keys[place] ?? String(place))
    : tokens?.length === fields.queries.shape[0] ? tokens.map(nameToken) : null;
  const kept = layer === "" ? null : { file, layer }, { note } = kept ? await keepFile(file) : { note: "" };
  return { about: `${layer === "" ? "Queries and keys" : `Layer ${layer}`} of ${file.name}. ${note}`,
    request: { fields, binary: true, path: DOT_PRODUCT, kept }, queryLabels: queries, keyLabels: keys };
}

/* The bytes for which tokenizers like GPT-2's write a character of their own, Ġ for a space: these
 * are, in their order, the characters from 256 on. Other bytes are the character of that number. */
const OTHER_BYTES = Array.from({ length: 256 }, (_, byte) => byte)
  .filter((byte) => byte <= 32 || (byte >= 127 && byte <= 160) || byte === 173);

/* A token as text. One that has a part of a character stays as it is. */
function spellToken(token) {
  const bytes = [...token].map((char) => OTHER_BYTES[char.codePointAt(0) - 256] ?? char.codePointAt(0));
  try {
    if (bytes.every((byte) => byte < 256))
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes));
  } catch { /* no bytes of UTF-8 */ }
  return token.replaceAll("▁", " ").replace("<0x0A>", "\n");
}

/* Spells a token as a label, without blanks around it; one of blanks alone has a sign. */
const nameToken = (token) => spellToken(token).trim() || (spellToken(token).includes("\n") ? "↵" : "␣");

/* The tokens as a text to read. Where none has a space, each begins a word but those with ##. */
function spellTokens(tokens) {
  const spelled = tokens.map(spellToken), hasSpaces = spelled.some((token) => token.includes(" "));
  return hasSpaces ? spelled : spelled.map((token, i) =>
    (token.startsWith("##") ? token.slice(2) : i > 0 ? ` ${token}` : token));
}
