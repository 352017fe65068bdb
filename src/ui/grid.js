/* SPDX-License-Identifier: Apache-2.0 */
/* grid.js: all heads of all layers of a capture at once, as small pictures of block means. Layers are asked in turn,
 * first for pictures, then for figures. Who leaves aborts what is under way, and who comes back goes on from there. */

const ALL_CELLS = 64;  /* along each side of a picture, at most */
const ALL_PIXELS = 84; /* of CSS, from one head to the next where they are sorted */

/* What heads are sorted by: the figure and its name. A dash before it puts the smallest first. */
const ALL_ORDERS = [["share", "Share of the tag"], ["-entropy", "Entropy, smallest first"], ...Object.entries(FIGURES)];

/* A layer is {model, sequence, block, largest, look, report, heads}: what is not loaded is missing, and `look`
 * is the scale that it was painted in. A head is {layer, h, button, map, name, tags}. `rows` are the heads as they
 * are placed, in that `order`; `at` is the head to walk from. */
const all = { options: [], layers: [], rows: [], order: null, at: null };

/* Whether a state of the dropped file is known to enter a layer. Who draws the layer alone says why it is not. */
function hasState(model) {
  try {
    return state.source === "own" && Boolean(form.file?.states) && placeOf(form.file, model) >= 0;
  } catch {
    return false;
  }
}

/* The layers beside a model that have the same text: of a capture, or of a folder and hidden states. */
const layersOfText = (model) => layersOf(model).filter((each) => (each.capture ? !each.saved : hasState(each)));
const hasAll = (model) => Boolean(model) && layersOfText(model).length > 1;
const showsAll = () => state.view === "all" && hasAll(chosenModel());
const nameText = ({ capture }) => (capture ? capture.file : form.file).name;

const figuresOf = ({ layer: { report }, h }) => report?.heads[h] ?? {};
const figureOf = (head, name) => (name === "share" ? figuresOf(head).shares?.[0] : figuresOf(head)[name]);

/* The tags of a head with their shares, where the server tells them. */
const spellTags = ({ tags = [], shares = [] }) =>
  tags.map((tag, i) => `${tag} ${shares[i]?.toFixed(2) ?? ""}`.trim()).join(", ");

function makeThumbnail(layer, h) {
  const map = make("span", { class: "map loading" });
  const name = make("span", { class: "name" }), tags = make("span", { class: "tags" });
  const button = make("button", { type: "button", class: "pick", tabindex: -1 }, map, name, tags);
  const head = { layer, h, map, name, tags, button };
  button.addEventListener("click", () => openHead(head));
  return head;
}

/* Begins anew with other layers, or other options of them. */
function beginAll(models, options) {
  const layers = models.map((model) => ({ model }));
  for (const layer of layers)
    layer.heads = Array.from({ length: layer.model.num_heads }, (_, h) => makeThumbnail(layer, h));
  Object.assign(all, { options, layers, order: null, at: layers[0].heads[0] });
  clearProblems(); /* now: heads that move up later are missed by a click */
}

/* Places the heads by layer, or by the chosen figure. */
function placeAll() {
  const box = byId("all-heads"), hasFocus = box.contains(document.activeElement), heads = all.layers.flatMap((layer) => layer.heads);
  const orders = ALL_ORDERS.filter(([order]) => heads.some((head) => Number.isFinite(figureOf(head, order.replace("-", "")))));
  const [order] = orders.find(([each]) => each === state.sort) ?? [""], figure = order.replace("-", "");
  setOptions(byId("sort"), [["", "layer"], ...orders], order);

  all.rows = all.layers.map((layer) => layer.heads);
  if (order) {
    const sign = order === figure ? 1 : -1, rank = (head) => sign * (figureOf(head, figure) ?? -sign * Infinity);
    heads.sort((a, b) => rank(b) - rank(a));
    const count = Math.max(1, Math.floor(box.clientWidth / ALL_PIXELS));
    all.rows = Array.from({ length: Math.ceil(heads.length / count) }, (_, r) => heads.slice(r * count, (r + 1) * count));
  }
  if (order || all.order !== order) { /* else they are where they were */
    box.style.setProperty("--heads", Math.max(...all.rows.map((row) => row.length)));
    box.replaceChildren(...all.rows.map((row) => make("div", { class: order ? "layer sorted" : "layer" },
      ...(order ? [] : [make("span", { class: "layer-name" }, splitName(row[0].layer.model).layer)]),
      ...row.map(({ button }) => button))));
  }
  all.order = order;
  for (const head of heads) {
    const { layer: { model }, h, button, name, tags } = head, tag = spellTags(figuresOf(head));
    name.textContent = order ? `${splitName(model).layer}.${h}` : String(h);
    tags.textContent = tag;
    tags.classList.toggle("weak", figuresOf(head).weak?.[0] === true);
    setAttributes(button, { "aria-label": `Layer ${splitName(model).layer}, head ${h}${tag && `: ${tag}`}`, title: tag || null });
  }
  all.at.button.tabIndex = 0;
  if (hasFocus)
    all.at.button.focus({ preventScroll: true }); /* it was taken out and put back */
}

const loadedLayers = () => all.layers.filter(({ sequence }) => sequence);

/* The scale that all pictures share. */
const scaleOfAll = () => makeScale(state.scale, state.range === "one" ? 1
  : loadedLayers().reduce((most, { largest }) => Math.max(most, largest), 0));

/* Paints the pictures that have not the scale of all, which a layer may have changed, or other colours. They are
 * images, since a browser would composite hundreds of canvases one by one in each frame of scrolling. */
async function paintAll() {
  const canvas = document.createElement("canvas"), scale = scaleOfAll(), look = `${state.scale} ${scale.max} ${page.dark}`;
  await runInFrames(function* () {
    for (const layer of loadedLayers().filter((each) => each.look !== look)) {
      for (const { h, map } of layer.heads) {
        yield* paintWeights(layer.sequence.weights[h], layer.sequence, ALL_CELLS, ALL_CELLS, scale, page.colours, canvas);
        map.style.backgroundImage = `url(${canvas.toDataURL()})`;
        map.classList.remove("loading");
        yield;
      }
      layer.look = look;
    }
  }(), beginTask("all"));
}

function noteAll() {
  const blocks = [...new Set(loadedLayers().map(({ block }) => formatCount(block)))].join(" or ");
  return `One scale, up to ${formatNumber(scaleOfAll().max, 3)}. ${blocks === "1" ? "A cell is a weight."
    : `A cell is the sum of the weights on a block's keys, in the mean of its queries: ${blocks} of each.`}`;
}

/* Returns the request of a layer. Nobody keeps it: its tensors may be large. */
async function readLayer({ model }) {
  return (await readInput(model, await isFileKept(model.capture?.file))).request;
}

async function loadThumbnails(layer, signal) {
  const { model } = layer, request = await readLayer(layer);
  const shape = shapeOf(request.fields), block = Math.ceil(Math.max(...shape.queryLens, ...shape.keyLens) / ALL_CELLS);
  const { tensors } = await postAttention(request, { need: ["blocks"], block }, signal);
  const sequence = readBlocks(numbersOf(tensors.block_weights), shape, readMask(model, request.fields, shape), layer.heads, block);
  Object.assign(layer, { block, sequence, largest: Math.max(...sequence.weights.map(largestOf)) });
}

/* Returns whether a layer has figures: a server may have none to tell. */
async function loadFigures(layer, signal) {
  try {
    layer.report = await postHeads(await readLayer(layer), signal);
  } catch (error) {
    if (error.name === "AbortError")
      throw error;
  }
  return Boolean(layer.report);
}

/* Draws what is there, and loads the rest, until `signal` aborts. */
async function drawAll(signal) {
  const models = layersOfText(chosenModel()), options = [...models, form.file, state.causal, state.window, state.valid, state.states];
  if (options.length !== all.options.length || options.some((option, i) => option !== all.options[i]))
    beginAll(models, options);
  placeAll(); /* before the file is sent: no head of another file is left to click */
  byId("all-scale").value = state.scale;
  byId("facts").textContent = `${nameText(models[0])}: ${formatCount(models.length)} layers`;
  const about = models[0].capture ? (await keepFile(models[0].capture.file)).note : `From ${nameText(models[0])}.`;
  if (signal.aborted)
    return;
  byId("about").textContent = about;
  for (const layer of all.layers) {
    if (!layer.sequence)
      await loadThumbnails(layer, signal);
    if (!signal.aborted)
      await paintAll();
    if (signal.aborted)
      return;
    byId("all-note").textContent = `${noteAll()} Grey is masked.`;
    byId("status").textContent = `${loadedLayers().length} of ${models.length} layers are drawn`;
  }
  if (!page.isRefused)
    clearProblems();
  byId("main").ariaBusy = null;
  for (const layer of all.layers)
    if (signal.aborted || !layer.report && !await loadFigures(layer, signal))
      break;
  if (!signal.aborted)
    placeAll();
}

function openHead(head) {
  focusHead(head);
  Object.assign(state, { view: "head", model: head.layer.model.name, head: head.h, sequence: 0, row: -1, key: -1,
    rows: "", heads: "", keys: "" });
  showControls();
  compute().then(() => byId("large-title").scrollIntoView());
  byId("to-all").focus();
}

function openAll() {
  state.view = "all";
  compute();
  focusHead(all.at);
}

function focusHead(head) {
  all.at.button.tabIndex = -1;
  all.at = head;
  head.button.tabIndex = 0;
  head.button.focus();
}

function walkAll(down, right) {
  const r = all.rows.findIndex((row) => row.includes(all.at)), row = all.rows[clamp(r + down, all.rows.length)];
  focusHead(row[clamp(all.rows[r].indexOf(all.at) + right, row.length)]);
}

function listenToAll() {
  byId("all-heads").addEventListener("keydown", (event) => runKey(event, walkAll));
  byId("to-all").addEventListener("click", openAll);
  byId("all-scale").addEventListener("change", (event) => {
    state.scale = byId("scale").value = event.target.value;
    paintAll().then(keepState);
  });
}
