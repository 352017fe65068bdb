/* SPDX-License-Identifier: Apache-2.0 */
/* form.js: the controls, the request that they describe, and errors beside them. */

/* The controls whose values are texts or numbers of the state. */
const CONTROLS = {
  source: "source", text: "text", count: "count", seed: "seed", own: "own", states: "states",
  causal: "causal", window: "window", valid: "valid-lens", labels: "labels", rows: "rows", heads: "heads", keys: "shown-keys",
  scale: "scale", range: "range", lines: "lines", reading: "reading",
};

/* Where errors of a field appear, and at which control. */
const ERROR_PLACES = {
  model: ["model", "model"], text: ["text", "text"], causal: ["causal", "causal"],
  window: ["window", "window"], valid_lens: ["valid-lens", "valid-lens"],
  count: ["count", "count"], seed: ["count", "seed"], rows: ["rows", "rows"], weights_queries: ["rows", "rows"],
  heads: ["heads", "heads"], weights_heads: ["heads", "heads"],
  shown_keys: ["shown-keys", "shown-keys"], queries: ["queries", "own"], keys: ["queries", "own"], values: ["queries", "own"],
  states: ["states", "states"], positions: ["queries", "own"], key_positions: ["queries", "own"],
};

const form = { models: [], file: null /* a request that was read from a file */ };

const chosenModel = () => form.models.find((model) => model.name === state.model);

/* Splits the name of a layer of a folder: "m.decoder.3.cross" is "decoder.3.cross" of "m".
 * A name may have dots of its own. */
function splitName({ name, family, capture }) {
  if (capture)
    return { folder: capture.file.name, layer: capture.layer };
  const [, folder, layer] = family === null ? []
    : name.match(/^(.*?)\.((?:(?:encoder|decoder|text|vision)\.)?\d+(?:\.cross)?)$/) ?? [];
  return { folder: folder ?? null, layer };
}

/* The value of a model's option: its name or, of a layer, that of its folder. */
function optionOf(model) {
  const { folder } = splitName(model);
  return folder === null ? model.name : `${folder}.`; /* as no model is called */
}

const layersOf = (chosen) => form.models.filter((model) => optionOf(model) === optionOf(chosen));

/* Shows folders and models to choose from, and the layers of the chosen folder. */
function showModels() {
  const chosen = chosenModel(), isLayer = chosen && splitName(chosen).folder !== null;
  const options = new Map(form.models.map((model) => [optionOf(model), splitName(model).folder ?? model.name]));
  setOptions(byId("model"), [...options], chosen ? optionOf(chosen) : "");
  byId("layer-part").hidden = !isLayer;
  setOptions(byId("layer"), (isLayer ? layersOf(chosen) : []).map((model) => [model.name, splitName(model).layer]), state.model);
}

/* Shows the state in the controls, and those controls that the input needs. */
function showControls() {
  showModels();
  for (const [name, id] of Object.entries(CONTROLS))
    byId(id).value = state[name];
  const known = chosenModel() && sentenceModel(chosenModel()), isCaptured = !chosenModel() || Boolean(chosenModel().capture);
  const source = isCaptured ? "own" : state.source; /* where files are chosen; without a model there is nothing else */
  document.body.classList.toggle("captured", isCaptured);
  document.body.classList.toggle("saved", Boolean(chosenModel()?.saved));
  byId("text-part").hidden = !(known && source === "example");
  byId("random-part").hidden = source !== "random";
  byId("own-part").hidden = source !== "own";
  byId("states-part").hidden = source !== "own" || !form.file?.states;
  if (known) {
    byId("text").value = state.text || known.text;
    byId("words").textContent = `Known words: ${known.words.join(", ")}.`;
  }
}

/* Returns the integer of a field. It is checked here, since what is typed is more than the
 * state can hold. */
function readInteger(name) {
  const { min, max, validity, valueAsNumber } = byId(CONTROLS[name]);
  if (!validity.valid || Number.isNaN(valueAsNumber))
    throw new Problem({ title: "Out of range", field: name,
      detail: `write a whole number from ${min}${max ? ` to ${max}` : " on"}` });
  return valueAsNumber;
}

/* Returns valid_lens as the server takes it for the shape of an input. One number, or a
 * list of one, is for all sequences. */
function readValidLens(text, shape) {
  let lens = [];
  try {
    lens = JSON.parse(`[${text}]`);
  } catch { /* refused below */ }
  const numbers = lens.flat(2);
  if (!numbers.length || !numbers.every(Number.isFinite))
    throw new Problem({ title: "Malformed list", field: "valid_lens",
      detail: "write an integer, a list such as [3, 2], or a list of lists" });
  if (numbers.length === 1 && shape)
    return shape.batched ? shape.queryLens.map(() => numbers[0]) : numbers[0];
  return lens.length === 1 ? lens[0] : lens;
}

/* The user's own request, without the fields that controls of the page have taken over. */
async function readOwn(model) {
  if (form.file?.states)
    return makeStates(form.file, model);
  const read = form.file ?? await readJsonRequest(state.own);
  const { weights_heads, weights_queries, need, need_weights, head_mask, ...fields } = read.fields;
  const isKnown = form.models.some(({ name }) => name === fields.model);
  if (fields.model === undefined || isKnown)
    fields.model = model.name;
  return { about: form.file ? `From ${form.file.name}.` : "", request: { fields, binary: read.binary } };
}

/* Returns {about, request, queryLabels, keyLabels} of what the controls describe. `isKept`: of a capture that
 * the server has. */
async function readInput(model, isKept = false) {
  if (model.saved)
    return { about: `Weights that were saved of ${model.capture.layer}.`, request: {}, noReport: "The file has weights alone." };
  const input = model.capture ? await makeCaptured(model, isKept)
    : state.source === "own" ? await readOwn(model)
    : state.source === "random" ? { about: "Random numbers of the model's sizes.",
      ...makeRandomInput(model, readInteger("count"), readInteger("seed")) }
      : makeExample(model, byId("text").value);
  const { fields } = input.request;
  if (state.causal !== "")
    fields.causal = state.causal === "true";
  if (byId("window").value !== "" || byId("window").validity.badInput)
    fields.window = readInteger("window");
  if (state.valid.trim() !== "")
    fields.valid_lens = readValidLens(state.valid, shapeOf(fields));
  return input;
}

/* Takes over what a request of the user's own says of model, heads and rows. */
function adoptOwn({ fields }) {
  const list = (value) => (isTensor(value) ? [...numbersOf(value)] : Array.isArray(value) ? value : []);
  const { queries } = fields, width = isTensor(queries) ? queries.shape.at(-1) : queries?.[0]?.[0]?.length ?? queries?.[0]?.length;
  const fits = ({ query_size: size }) => size === width;
  if (form.models.some(({ name }) => name === fields.model))
    state.model = fields.model;
  else if (fields.model === undefined && chosenModel() && !fits(chosenModel()))
    state.model = (form.models.find(fits) ?? chosenModel()).name; /* the heading has its name */
  state.heads = list(fields.weights_heads).join(", ");
  state.rows = list(fields.weights_queries).join(", ");
  state.off = list(fields.head_mask).flatMap((factor, h) => (factor === 0 ? [h] : [])).join(",");
  state.causal = state.window = state.valid = "";
  Object.assign(state, { sequence: 0, head: 0, row: -1, key: -1 });
}

function clearProblems() {
  byId("problem").hidden = true;
  for (const [place, control] of Object.values(ERROR_PLACES)) {
    byId(`${place}-error`).hidden = true;
    byId(control).removeAttribute("aria-invalid");
  }
  byId("main").classList.remove("stale");
}

/* Leads to the first field with an error, or else to the error above the heads. */
function focusProblem() {
  const field = byId("input").querySelector("[aria-invalid]"), isShown = field?.checkVisibility();
  (isShown ? field : byId("problem")).scrollIntoView({ block: "center" });
  if (isShown)
    field.focus({ preventScroll: true });
}

/* Shows an error beside the field concerned, and its title above the heads, in place of what
 * was wrong before. Where no such field is shown, the whole is above the heads.
 * onOffer(offer) is called when the user takes an offer. */
function showProblem(problem, onOffer) {
  clearProblems();
  const box = byId("problem"), field = (problem.field ?? "").match(/^\w*/)[0];
  const text = problem.detail || problem.message;
  const place = Object.hasOwn(ERROR_PLACES, field) ? ERROR_PLACES[field] : null;
  const isBeside = place && byId(place[1]).checkVisibility();
  box.replaceChildren(make("strong", {}, problem.title ?? "Error"), " ", make("span", {}, isBeside ? "" : text));
  const addButton = (label, run) => {
    const button = make("button", { type: "button" }, label);
    button.addEventListener("click", run);
    box.append(" ", button);
  };
  for (const offer of problem.offers ?? [])
    addButton(offer.label, () => onOffer(offer));
  if (isBeside && !problem.offers)
    addButton("Show where", focusProblem);
  if (byId("grid").childElementCount > 0)
    box.append(make("p", {}, "What is below, in grey, was computed before."));
  box.hidden = false;
  byId("main").classList.add("stale");

  if (place) {
    byId(`${place[0]}-error`).textContent = text;
    byId(`${place[0]}-error`).hidden = false;
    byId(place[1]).setAttribute("aria-invalid", "true");
  }
}
