/* SPDX-License-Identifier: Apache-2.0 */
/* page.js: brings the parts together. A change of the input computes a run; everything
 * else draws the run again. A newer change aborts what an older one has begun. */

const THUMBNAIL_PIXELS = 160;
const FIRST_SHARE_ADVICE = 0.7; /* of the weight on the first key: the log scale helps */

const page = {
  run: null, report: null, /* replies of v1/attention and v1/heads */
  outputs: null,           /* {numbers, off}: the outputs without the heads `off` */
  tasks: {},               /* an AbortController for each kind of work */
  heatmap: null, dark: false, theme: null, colours: null, measured: null,
};

/* Aborts the last work of a kind, and returns the signal of the new one. */
function beginTask(kind) {
  page.tasks[kind]?.abort();
  page.tasks[kind] = new AbortController();
  return page.tasks[kind].signal;
}

/* --- the shown head --- */

const shownHead = () => (state.head === "mean" || page.run.heads.includes(state.head) ? state.head : page.run.heads[0]);

/* A link changes the state before its run is there: what is shown has a sequence and a cell of its own. */
const shownSequence = () => Math.min(state.sequence, page.run.sequences.length - 1);

const fitCell = ({ row, key }, { rows, numKeys } = page.run.sequences[shownSequence()]) => (
  { row: clamp(row, rows.length), key: clamp(key, numKeys) });

/* Everything that drawing and saving need of what is on screen. */
function describeShown() {
  const { run, colours, theme, dark } = page, b = shownSequence(), sequence = run.sequences[b];
  const head = shownHead(), weights = weightsOf(run, b, head);
  return { run, b, head, off: readOff(), outputs: page.outputs, picture: {
    sequence, weights, colours, theme, dark, scale: scaleOf(b, head),
    queryLabels: run.queryMarks ??= markLetters(run.queryLabels), keyLabels: run.keyMarks ??= markLetters(run.keyLabels, sequence.keys),
    row: fitCell(state).row, all: state.lines === "all", onRow: (row) => chooseCell({ row, key: state.key }),
  } };
}

/* The largest weight of a head, which is looked for once. */
function findLargest(b, head) {
  const { largest } = page.run.sequences[b];
  if (!largest.has(head))
    largest.set(head, largestOf(weightsOf(page.run, b, head)));
  return largest.get(head);
}

/* The scale of a head, or the one that thumbnails share: head by head they could not be
 * compared, and a head whose weights are all small would be as dark as any. */
function scaleOf(b, head = null) {
  const max = state.range === "one" ? 1 : state.range === "head" && head !== null ? findLargest(b, head)
    : Math.max(...page.run.heads.map((each) => findLargest(b, each)));
  return makeScale(state.scale, max);
}

const tagsOf = (head, kind) => makeTags(page.report?.heads[head], kind);

function showTags() {
  byId("large-tags").replaceChildren(...tagsOf(shownHead(), "tag"));
  for (const card of byId("grid").children)
    card.querySelector(".tags").replaceChildren(...tagsOf(card.dataset.head));
}

function showReadout(cell) {
  const { run } = page, shown = describeShown(), { sequence, weights } = shown.picture;
  const { row, key } = fitCell(cell ?? state), place = sequence.keys?.[key] ?? key, isMasked = !sequence.attends(row, key);
  const query = `${run.queryLabels[sequence.rows[row]]}`, label = `${run.keyLabels[key]}`;
  const weight = weights[row * sequence.numKeys + key];
  byId("readout").replaceChildren(
    make("b", {}, isMasked ? "masked" : formatDecimals(weight)), " ",
    make("span", {}, run.block > 1 ? `queries ${query} → keys ${label}`
      : `query ${query} (row ${sequence.rows[row]}) → key ${label} (${place})`));
  byId("even-note").hidden = !sequence.isEmpty?.(row);
  return `${isMasked ? "masked" : formatDecimals(weight)}, query ${query}, key ${label}`;
}

/* Chooses a cell by click or keyboard: the lines and the steps follow its row. */
function chooseCell(cell) {
  const { row, key } = fitCell(cell), newRow = row !== state.row;
  Object.assign(state, { row, key });
  page.heatmap.at = { row, key };
  page.heatmap.drawCursor();
  announce(showReadout(null));
  byId("row").value = String(row);
  if (newRow) {
    reader.chosen = null;
    showText();
    drawLinesSoon();
    drawOutputs();
    measureSoon();
  } else if (state.what === "token") {
    showWhatIfSoon();
  }
  keepState();
}

/* Rows and columns that a key moves by. */
const MOVES = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -Infinity], End: [0, Infinity] };

const clamp = (value, count) => Math.max(0, Math.min(count - 1, value));

/* Runs what a key stands for: move(down, right), or one of `others`. With modifiers it is the browser's. */
function runKey(event, move, others = {}) {
  const run = MOVES[event.key] ? () => move(...MOVES[event.key]) : others[event.key];
  if (!run || event.altKey || event.ctrlKey || event.metaKey)
    return;
  event.preventDefault();
  run();
}

function moveCell(down, right) {
  chooseCell({ row: state.row + down, key: state.key + right });
}

function stepHead(by) {
  const { heads } = page.run;
  chooseHead(heads[clamp(heads.indexOf(shownHead()) + by, heads.length)]);
  moveCell(0, 0);
}

function chooseHead(head) {
  state.head = head;
  for (const card of byId("grid").children)
    card.querySelector("button").setAttribute("aria-pressed", String(card.dataset.head === String(head)));
  drawLarge();
  keepState();
}

/* --- drawing --- */

function drawLegend(scale) {
  const ramp = byId("legend-ramp"), context = ramp.getContext("2d");
  for (let x = 0; x < ramp.width; x++) {
    context.fillStyle = page.colours.css[Math.floor(x / ramp.width * COLOURS)];
    context.fillRect(x, 0, 1, 1);
  }
  [byId("legend-low").textContent, byId("legend-high").textContent] = nameEnds(scale);
}

/* Keeps the chosen cell in the picture. If there is none yet, chooses the strongest key of
 * a row past the middle, to which a causal mask leaves many keys. */
function chooseFirstCell({ sequence: { rows, numKeys }, weights }) {
  if (state.row < 0)
    state.row = Math.floor(rows.length * 0.6);
  state.row = Math.min(state.row, rows.length - 1);
  if (state.key < 0) {
    const row = weights.subarray(state.row * numKeys, (state.row + 1) * numKeys);
    state.key = row.indexOf(largestOf(row));
  }
  state.key = Math.min(state.key, numKeys - 1);
}

function drawLarge() {
  const shown = describeShown(), { head, picture } = shown, sequence = picture.sequence;
  chooseFirstCell(picture);
  byId("zoom-in").hidden = !canZoom(page.run);
  byId("zoom-out").hidden = !page.run.model.capture || (state.rows === "" && state.keys === "");
  byId("large-title").textContent = head === "mean" ? "Mean of the heads" : `Head ${head}`;
  showTags();
  const label = (row) => page.run.queryLabels[row];
  setOptions(byId("row"), sequence.rows.map((row, r) =>
    [r, page.run.block > 1 || label(row) === String(row) ? label(row) : `${row} ${label(row)}`]), state.row);
  page.heatmap.at = { row: state.row, key: state.key };
  const painted = page.heatmap.show(picture).then((isShown) => isShown && drawLines());
  drawLegend(picture.scale);
  drawOutputs();
  showReadout(null);
  showText();
  measureSoon();
  return painted;
}

function drawLines() {
  if (!page.run)
    return;
  const box = byId("lines-box");
  const { svg, note, middle } = makeLines(describeShown().picture, Math.max(240, box.clientWidth), byId("heatmap").clientHeight - 40);
  box.replaceChildren(svg);
  box.scrollTop = middle - box.clientHeight / 2;
  byId("lines-note").textContent = note;
}

function drawOutputs() {
  const { table, note } = makeOutputs(page.run, shownSequence(), fitCell(state).row, page.outputs);
  byId("outputs").replaceChildren(table);
  byId("outputs-note").textContent = note;
}

function setOutputs(numbers, off) {
  page.outputs = { numbers, off: [...off] };
  drawOutputs();
}

const drawLinesSoon = debounce(30, drawLines);

const headsOf = (run) => (run.heads.length > 1 ? [...run.heads, "mean"] : run.heads);
const nameHead = (head) => (head === "mean" ? "Mean" : `Head ${head}`);

/* Makes the cards of the heads, then paints their thumbnails one after another. */
async function drawGrid() {
  const { run } = page, signal = beginTask("grid"), b = shownSequence(), off = readOff();
  const heads = headsOf(run), cards = heads.map((head) => makeCard(head, off));
  byId("grid").replaceChildren(...cards);
  await runInFrames(function* () {
    for (const head of run.heads)
      yield findLargest(b, head);
  }(), signal);
  if (signal.aborted)
    return;
  const scale = scaleOf(b);
  byId("grid-note").textContent = `These pictures share one scale, up to ${formatNumber(scale.max, 3)}`
    + (state.range === "one" ? "." : ", the largest weight of all of them.")
    + (run.block > 1 ? ` A cell is a block of ${run.block} queries and ${run.block} keys: the sum of the weights on `
      + "these keys, in the mean of these queries." : "");
  for (const [i, head] of heads.entries()) {
    const canvas = cards[i].querySelector("canvas");
    await runInFrames(paintWeights(weightsOf(run, b, head), run.sequences[b], THUMBNAIL_PIXELS, THUMBNAIL_PIXELS, scale, page.colours, canvas), signal);
    if (signal.aborted)
      return;
    canvas.classList.add("painted");
  }
}

function makeCard(head, off) {
  const name = nameHead(head), pressed = String(head === shownHead());
  const button = make("button", { type: "button", class: "pick", "aria-pressed": pressed },
    make("canvas", { "aria-hidden": "true" }), make("span", { class: "name" }, name),
    make("span", { class: "tags" }, ...tagsOf(head)));
  button.addEventListener("click", () => chooseHead(head));
  const card = make("li", { class: off.has(head) ? "card off" : "card", "data-head": head }, button);
  if (head !== "mean") {
    const box = make("input", { type: "checkbox", class: "switch", checked: !off.has(head),
      "aria-label": `${name} on`, title: "on or off" });
    box.addEventListener("change", () => switchHead(head, box.checked));
    card.append(box);
  }
  return card;
}

/* Draws what the server says of the heads; `note` says why it says nothing. */
function drawReport(note) {
  const { report, run } = page, off = readOff();
  byId("compare").hidden = !report;
  byId("drop-least").hidden = !report?.gram || off.size + 1 >= run.model.num_heads;
  byId("compare-note").textContent = !report ? note : `Means over all rows.${report.gram ? " Importance is how far the outputs "
    + "move when the head alone is left out: the norm of the change by that of the outputs." : report.heads[0].tags ? ""
    : " Tags need a capture without a bias that the server keeps: attnd --capture-memory 1GiB."}`;
  if (report)
    byId("compare").replaceChildren(makeTable(report, off, Math.max(...run.shape.keyLens), state.sort, sortReport));
  showTags();
}

function sortReport(field) {
  state.sort = field;
  drawReport();
  byId("compare").querySelector(field ? "[aria-sort] button" : "button").focus();
  keepState();
}

/* Loads the report of a run. `note` says why there is none to be had. */
async function loadReport({ request, model }, note, signal) {
  page.report = null;
  try {
    const report = note ? null : await postHeads(request, signal);
    if (signal.aborted)
      return;
    page.report = report;
  } catch (error) {
    if (error.name === "AbortError")
      return;
    note = `The heads cannot be described: ${error.message}`;
  }
  drawReport(note);
  if (!model.capture)
    measureChange();
}

/* --- heads on and off --- */

function switchHead(head, on) {
  const off = readOff();
  if (on)
    off.delete(head);
  else
    off.add(head);
  setOff(off);
}

function setOff(off) {
  state.off = [...off].sort((a, b) => a - b).join(",");
  showSwitches();
  if (page.report)
    drawReport();
  measureChange();
  keepState();
}

function showSwitches() {
  const off = readOff();
  byId("all-on").hidden = off.size === 0;
  for (const card of byId("grid").querySelectorAll(".card:has(input)")) {
    const isOff = off.has(Number(card.dataset.head));
    card.classList.toggle("off", isOff);
    card.querySelector("input").checked = !isOff;
  }
}

/* Computes again without the heads that are off, and says how far the outputs moved. */
async function measureChange() {
  const { run, report } = page, off = readOff(), signal = beginTask("change"), line = byId("change");
  if (off.size === 0) {
    line.textContent = "All heads are on.";
    setOutputs(run.outputs, off);
    return;
  }
  try {
    const mask = Array.from({ length: run.model.num_heads }, (_, h) => Number(!off.has(h)));
    const reply = await postAttention(run.request, { need_weights: null, head_mask: mask }, signal);
    const outputs = numbersOf(reply.tensors.outputs), change = relativeChange(run.outputs, outputs);
    setOutputs(outputs, off);
    const percent = (share) => `${formatNumber(share * 100, 3)} %`;
    const known = report && Math.max(...off) < report.heads.length;
    line.textContent = `Without ${off.size > 1 ? "heads" : "head"} ${[...off].join(", ")} the outputs move by ${percent(change)}`
      + (known ? ` (predicted: ${percent(predictChange(report, off))}).` : ".");
  } catch (error) {
    if (error.name !== "AbortError")
      showProblem(error, takeOffer);
  }
}

/* --- computing --- */

function takeOffer({ label, ...changes }) {
  Object.assign(state, { row: -1, key: -1 }, changes);
  showControls();
  compute();
}

/* Shows the tokens around the chosen cell of a capture, or all. */
function zoomIn() {
  if (page.run && canZoom(page.run))
    takeOffer({ heads: state.heads, ...findZoom(page.run, state) });
}

const zoomOut = () => takeOffer({ rows: "", keys: "", heads: state.heads });

/* Lists in words what a layer of a folder has besides plain attention. */
function listFeatures(model) {
  const { num_kv_heads: shared, window, chunk, rope, norms, softcap, clip, distance_bias: bias, pre_norm: before } = model;
  const norm = before && before.name.replace(/\.weight$/, "");
  return [
    shared < model.num_heads && `${formatCount(shared)} key heads`,
    window && `window ${formatCount(window)}`,
    chunk && `chunks of ${formatCount(chunk)}`,
    rope && `rotary positions (${rope.type})`,
    norms && `norm of queries and keys (${norms.type})`,
    softcap && `scores capped at ${formatNumber(softcap)}`,
    clip && `projections clipped at ${formatNumber(clip)}`,
    bias && `bias by distance (${bias})`,
    model.sinks && "sinks",
    model.family && `takes ${model.queries}${norm ? ` ${norm}` : ""}`,
  ].filter(Boolean).map((text) => `, ${text}`).join("");
}

function showFacts(model) {
  document.title = `${model.name}: heads in attnd`;
  byId("facts").textContent = `${model.name}: ${formatCount(model.num_heads)} heads`
    + (model.saved ? "" : ` of ${formatCount(model.head_size)}`) + (model.capture ? "" : `, rows ${formatCount(model.query_size)} wide`)
    + (model.family ? `, of ${model.family}${model.kind === "cross" ? ", cross-attention" : ""}` : "")
    + (model.causal ? ", causal" : "") + listFeatures(model)
    + (model.context_length ? `, up to ${formatCount(model.context_length)} tokens` : "");
}

async function compute() {
  const signal = beginTask("run"), model = chosenModel();
  page.isRefused = false;
  keepState();
  byId("status").textContent = "Computing …";
  byId("main").ariaBusy = "true";
  document.body.classList.toggle("all", showsAll());
  byId("to-all").hidden = !hasAll(model);
  try {
    if (!model)
      throw new Problem({ title: "No model is loaded.", detail: "Drop queries and keys that attnd.capture of Python has saved, "
        + "which need none. For layers start attnd with --model NAME=FILE, --model-dir DIR or --demo." });
    if (showsAll())
      return await drawAll(signal);
    const { about, request, queryLabels, keyLabels, noReport } = await readInput(model);
    if (signal.aborted)
      return;
    byId("about").textContent = about;
    showFacts(model);
    const run = model.saved ? readSaved(model) : await runRequest(model, request, { rows: readIndexes(state.rows, "rows"),
      heads: readIndexes(state.heads, "heads"), keys: model.capture ? readIndexes(state.keys, "shown_keys") : null,
      labels: state.labels, queryNames: queryLabels, keyNames: keyLabels }, signal);
    if (signal.aborted)
      return;
    if (!page.isRefused)
      clearProblems();
    if (page.run?.model !== model)
      byId("compare").hidden = byId("drop-least").hidden = true; /* they are of the model before */
    for (const kind of ["change", "steps", "what"])
      beginTask(kind); /* what is under way is about the run before */
    Object.assign(page, { run: { ...run, toSteps: page.toSteps }, toSteps: false, report: null, outputs: { numbers: run.outputs, off: [] } });
    const painted = showRun();
    loadReport(run, noReport, signal);
    await painted;
    if (!signal.aborted)
      byId("main").ariaBusy = null;
  } catch (error) {
    if (signal.aborted || error.name === "AbortError")
      return;
    byId("status").textContent = "";
    byId("main").ariaBusy = null;
    showProblem(error, takeOffer);
  }
}

const computeSoon = debounce(350, compute);

function showRun() {
  const { run } = page;
  state.sequence = shownSequence();
  byId("sequence-label").hidden = run.sequences.length < 2;
  setOptions(byId("sequence"), run.sequences.map((_, b) => [b, String(b)]), state.sequence);
  byId("labels-note").textContent = run.labelsNote;
  byId("rows-note").hidden = !run.note;
  byId("rows-note").textContent = run.note ?? "";
  byId("status").textContent = run.ms === null ? "Read from the file" : `Computed${run.serverMs === null ? "" : ` in ${formatNumber(run.serverMs, 2)} ms`}: `
    + `${formatBytes(run.bytes)} arrived after ${formatNumber(run.ms, 2)} ms`;
  showAdvice();
  const painted = drawLarge();
  drawGrid();
  showSwitches();
  return painted;
}

/* Where the first key takes nearly all of the weight, the rest is seen on a log scale. */
function showAdvice() {
  const { block, sequences: { [shownSequence()]: sequence } } = page.run, box = byId("advice");
  const share = sequence.keys ? 0 : firstShare(sequence);
  box.hidden = state.scale === "log" || share < FIRST_SHARE_ADVICE;
  if (box.hidden)
    return;
  const button = make("button", { type: "button" }, "Use the logarithmic scale");
  button.addEventListener("click", () => {
    state.scale = byId("scale").value = "log";
    redraw();
  });
  box.replaceChildren(`The first ${block > 1 ? `${block} keys take` : "key takes"} ${Math.round(share * 100)} % of the weight. `, button);
}

function redraw() {
  if (showsAll())
    return void paintAll();
  if (!page.run)
    return;
  showAdvice();
  drawLarge();
  drawGrid();
  keepState();
}
