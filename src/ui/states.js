/* SPDX-License-Identifier: Apache-2.0 */
/* states.js: a file of hidden states, `hidden_states` [tokens, states, width] as vLLM and Captured.save() write them, or
 * [states, tokens, width]. Each enters a layer of a served folder, which draws it as it does rows of the user's own. */

const STATES_CHUNK = 2 ** 26; /* bytes that are read at a time */

const stateProblem = (detail, field = "queries") => new Problem({ title: "Hidden states", field, detail });

/* Returns the file as one of rows, or null where it has no hidden states. */
function openStates(file, header) {
  const { metadata, entries: { hidden_states: { shape = [] } = {}, token_ids: { shape: [numIds] } = { shape: [] } } } = header;
  if (shape.length !== 3)
    return null;
  const ids = readMeta(file, metadata, "hidden_ids")?.map(Number), tokens = readMeta(file, metadata, "tokens");
  const isFirst = ids ? ids.length !== shape[1] : shape[0] !== numIds && shape[1] === numIds;
  const [count, numTokens] = isFirst ? shape : [shape[1], shape[0]];
  if (numTokens < numIds)
    throw stateProblem(`${file.name} has ${numTokens} rows for ${numIds} token_ids; start vllm with --no-enable-prefix-caching`);
  return { name: file.name, fields: {}, states: { file, header, isFirst, ids, count, numTokens, width: shape[2],
    labels: tokens?.length === numTokens ? tokens.map((token) => nameToken(String(token))) : undefined } };
}

/* The number of a layer that takes rows of that width, or -1. */
const numberOf = (model, width) => (model.family && model.kind !== "cross" && model.query_size === width
  ? Number(splitName(model).layer?.match(/\d+$/)?.[0] ?? -1) : -1);

/* Returns the name of a model that a state of the file enters: the chosen one, if it can. */
function chooseForStates({ name, states: { ids, count, width } }) {
  const fitting = [chosenModel(), ...form.models].filter((model) => model && numberOf(model, width) >= 0);
  if (fitting.length === 0)
    throw stateProblem(`${name} has ${count} hidden states ${width} wide, and no queries and keys. Serve the folder of their `
      + "model, which computes these, and drop the file again: attnd --model NAME=FOLDER");
  return (fitting.find((model) => ids?.includes(numberOf(model, width))) ?? fitting[0]).name;
}

/* Returns which state of the file enters a layer. Where nothing says so, they are all of a folder: the last one may
 * leave its last layer. */
function placeOf({ name, states: { ids, count, width } }, model) {
  const layers = layersOf(model).map((each) => numberOf(each, width));
  const number = numberOf(model, width), rest = count - Math.max(...layers) - 1, all = Array.from({ length: count }, (_, i) => i);
  const known = readIndexes(state.states, "states") ?? ids ?? (rest === 0 || rest === 1 ? all : []);
  if (known.length !== count && number >= 0)
    throw stateProblem(`write the numbers of the ${count} layers that the states of ${name} enter, such as 8, 16`, "states");
  if (!known.includes(number))
    throw stateProblem(`the states of ${name} are ${width} wide, of layers ${known.join(", ") || "of a folder"}; choose one of them`, "model");
  if (model.pre_norm && !model.pre_norm.applied)
    throw stateProblem(`${model.name} takes rows behind its norm, and states are before it; serve it with pre_norm=true`, "model");
  return known.indexOf(number);
}

/* Reads a state as a tensor [tokens, width]. */
async function readRows({ file, header, isFirst, count, numTokens, width }, at) {
  const { dtype, data_offsets: [from] } = header.entries.hidden_states, row = width * DTYPE_BYTES[dtype];
  const step = isFirst ? row : row * count, begin = header.begin + from + (isFirst ? at * numTokens * row : 0);
  const bytes = new Uint8Array(numTokens * row), skip = isFirst ? 0 : at * row;
  for (let token = 0, end; token < numTokens; token = end) {
    end = Math.min(numTokens, token + Math.ceil(STATES_CHUNK / step));
    const chunk = await readBytes(file, begin + token * step, (end - token) * step, "hidden_states");
    for (let i = 0; i < end - token; i++)
      bytes.set(chunk.subarray(i * step + skip, i * step + skip + row), (token + i) * row);
  }
  return { dtype, shape: [numTokens, width], bytes };
}

/* Returns {about, request, queryLabels} of the state that enters a layer. */
async function makeStates(read, model) {
  const { name, states: { file, header, labels }, states } = read, at = placeOf(read, model), forHeads = {};
  for (const part of ["token_ids", "targets"].filter((each) => each in header.entries))
    forHeads[part] = await readEntry(file, header, part);
  return { about: `State ${at} of ${name}, which enters layer ${numberOf(model, states.width)}.`, queryLabels: labels,
    request: { binary: true, forHeads, fields: { model: model.name, queries: await readRows(states, at) } } };
}
