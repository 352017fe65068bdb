/* SPDX-License-Identifier: Apache-2.0 */
/* states.js: a file of hidden states, `hidden_states` [tokens, states, width] as vLLM and Captured.save() write them.
 * Each enters a layer of a served folder, which draws it as it does rows of the user's own. */

const STATES_CHUNK = 2 ** 26; /* bytes that are read at a time */

const stateProblem = (detail, field = "queries") => new Problem({ title: "Hidden states", field, detail });

/* Returns the file as one of rows, or null where it has no hidden states. */
function openStates(file, header) {
  const { metadata, entries: { hidden_states: tensor, ...others } } = header, [numTokens, , width] = tensor?.shape ?? [];
  if (width === undefined)
    return null;
  const tokens = readMeta(file, metadata, "tokens"), [numIds = numTokens] = others.token_ids?.shape ?? [];
  if (numTokens < numIds)
    throw stateProblem(`${file.name} has ${numTokens} rows for ${numIds} token_ids; start vllm with --no-enable-prefix-caching`);
  return { name: file.name, fields: {}, states: { file, header, tensor, others, ids: readMeta(file, metadata, "hidden_ids")?.map(Number),
    labels: tokens?.length === numTokens ? tokens.map((token) => nameToken(String(token))) : undefined } };
}

/* The number of a layer that takes rows of that width, or -1. */
const numberOf = (model, width) => (model.family && model.kind !== "cross" && model.query_size === width
  ? Number(splitName(model).layer?.match(/\d+$/)?.[0] ?? -1) : -1);

/* Returns the name of a model that a state of the file enters: the chosen one, if it can. */
function chooseForStates({ name, states: { ids, tensor: { shape: [, count, width] } } }) {
  const fitting = [chosenModel(), ...form.models].filter((model) => model && numberOf(model, width) >= 0);
  if (fitting.length === 0)
    throw stateProblem(`${name} has ${count} hidden states ${width} wide, and no queries and keys. Serve the folder of their `
      + "model, which computes these, and drop the file again: attnd --model NAME=FOLDER");
  return (fitting.find((model) => ids?.includes(numberOf(model, width))) ?? fitting[0]).name;
}

/* Returns {about, request, queryLabels} of the state that enters a layer. */
async function makeStates({ name, states }, model) {
  const { header, file, tensor: { dtype, shape: [numTokens, count, width], data_offsets: [from] }, others, labels } = states;
  const numbers = form.models.filter((each) => optionOf(each) === optionOf(model)).map((each) => numberOf(each, width));
  const rest = count - Math.max(...numbers) - 1, isWhole = rest === 0 || rest === 1; /* the last one leaves the last layer */
  const ids = readIndexes(state.states, "states") ?? states.ids ?? (isWhole ? Array.from({ length: count }, (_, i) => i) : []);
  const number = numberOf(model, width), at = ids.indexOf(number);
  if (number < 0)
    throw stateProblem(`the states of ${name} are ${width} wide, and enter no layer of ${model.name}; choose another model`, "model");
  if (ids.length !== count)
    throw stateProblem(`write the numbers of the ${count} layers that the states of ${name} enter, such as 8, 16`, "states");
  if (at < 0)
    throw stateProblem(`the states of ${name} enter layers ${ids.join(", ")}; choose one of them`, "model");
  if (model.pre_norm && !model.pre_norm.applied)
    throw stateProblem(`${model.name} takes rows behind its norm, and states are before it; serve it with pre_norm=true`, "model");

  const row = width * DTYPE_BYTES[dtype], step = row * count, bytes = new Uint8Array(numTokens * row), forHeads = {};
  for (let token = 0, end; token < numTokens; token = end) {
    end = Math.min(numTokens, token + Math.ceil(STATES_CHUNK / step));
    const chunk = await readBytes(file, header.begin + from + token * step, (end - token) * step, "hidden_states");
    for (let i = token; i < end; i++)
      bytes.set(chunk.subarray((i - token) * step + at * row, (i - token) * step + (at + 1) * row), i * row);
  }
  for (const part of ["token_ids", "targets"].filter((each) => others[each]))
    forHeads[part] = await readEntry(file, header, part);
  return { about: `State ${at} of ${name}, which enters layer ${number}.`, queryLabels: labels, request: { binary: true,
    forHeads, fields: { model: model.name, queries: { dtype, shape: [numTokens, width], bytes } } } };
}
