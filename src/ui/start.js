/* SPDX-License-Identifier: Apache-2.0 */
/* start.js: listens to the controls, then computes what the address asks for. */

/* The controls: those that compute again, and those that draw something anew. */
const INPUT_CONTROLS = ["source", "text", "count", "seed", "states", "causal", "window", "valid", "labels", "rows", "heads", "keys"];
const PICTURE_CONTROLS = { scale: redraw, range: redraw, lines: drawLines, reading: showText, sort: placeAll };

const isNarrow = matchMedia("(max-width: 52rem)"); /* as in ui.css */

function chooseModel(name, view = "all") {
  beginTask("own");
  byId("notice").hidden = true;
  Object.assign(state, { view, model: name, text: "", causal: "", window: "", valid: "",
    labels: "", rows: "", heads: "", keys: "", off: "", what: "", by: "", sequence: 0, head: 0, row: -1, key: -1 });
  showControls();
  compute();
}

function listenToControls() {
  byId("input").addEventListener("submit", async (event) => {
    event.preventDefault();
    await compute();
    if (!byId("problem").hidden)
      focusProblem();
    else if (isNarrow.matches)
      byId("main").scrollIntoView();
  });
  byId("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter")
      return;
    event.preventDefault(); /* a sentence is one line, whatever room it takes */
    compute();
  });
  byId("model").addEventListener("change", () => chooseModel(form.models.find((model) => optionOf(model) === byId("model").value).name));
  byId("layer").addEventListener("change", () => chooseModel(byId("layer").value, "head"));
  for (const name of INPUT_CONTROLS)
    byId(CONTROLS[name]).addEventListener("input", (event) => {
      const { value } = event.target;
      state[name] = typeof STATE_DEFAULTS[name] === "number" ? readCount(value) : value;
      if (name === "source") {
        beginTask("own");
        showControls();
      }
      if (name !== "source" || value !== "own" || form.file || state.own)
        computeSoon();
    });
  for (const [name, draw] of Object.entries(PICTURE_CONTROLS))
    byId(name).addEventListener("change", (event) => {
      state[name] = event.target.value;
      draw();
      keepState();
    });
}

function listenToView() {
  page.heatmap = new Heatmap(byId("heatmap"), (cell, chosen) => {
    if (!page.run)
      return;
    if (chosen)
      chooseCell(cell);
    else
      showReadout(cell);
    if (!cell) {
      page.heatmap.at = fitCell(state);
      page.heatmap.drawCursor();
    }
  });
  byId("heatmap").addEventListener("keydown", (event) => page.run
    && runKey(event, moveCell, { Enter: zoomIn, PageUp: () => stepHead(-1), PageDown: () => stepHead(1) }));
  byId("heatmap").addEventListener("dblclick", zoomIn);
  byId("zoom-in").addEventListener("click", zoomIn);
  byId("zoom-out").addEventListener("click", zoomOut);
  byId("sequence").addEventListener("change", (event) => {
    Object.assign(state, { sequence: Number(event.target.value), row: -1, key: -1 });
    redraw();
  });
  byId("row").addEventListener("change", (event) => chooseCell({ row: Number(event.target.value), key: state.key }));
  byId("all-on").addEventListener("click", () => setOff(new Set()));
  byId("drop-least").addEventListener("click", () => {
    const off = readOff();
    if (page.report) /* else the button is of the run before */
      setOff(off.add(findLeastImportant(page.report, off)));
  });
  byId("step-back").addEventListener("click", () => moveStep(-1));
  byId("step-on").addEventListener("click", () => moveStep(1));
}

/* --- the user's own request --- */

function useOwn(read) {
  Object.assign(state, { source: "own", view: "all" });
  if (chosenModel()?.capture)
    state.model = defaultModel();
  adoptOwn(read);
  showControls();
  compute();
}

/* Shows what is wrong with a file or text, which a run that is under way does not clear. */
function refuse(problem) {
  page.isRefused = true;
  showProblem(problem);
}

async function takeText(signal) {
  if (signal.aborted)
    return; /* a file was dropped since, or a model chosen */
  form.file = null;
  const text = state.own = byId("own").value;
  try {
    const read = await readJsonRequest(text);
    if (!signal.aborted)
      useOwn(read);
  } catch (error) {
    if (!signal.aborted)
      refuse(error);
  }
}

function useLayers(layers) {
  dropKeptFiles();
  form.models = [...form.models.filter(({ capture }) => !capture), ...layers];
  chooseModel(layers[0].name);
}

async function takeFile(file) {
  const signal = beginTask("own");
  byId("file-box").hidden = true;
  try {
    const header = await readHeader(file), layers = header && openCapture(file, header);
    const states = header && !layers && openStates(file, header), isWeights = header && !layers && !states && !header.entries.queries;
    const read = layers || isWeights ? null : states || await readRequestFile(file, header);
    if (signal.aborted)
      return;
    if (isWeights)
      return showWeights(file.name, header);
    const saved = read && openSaved(file, read.fields);
    if (layers || saved)
      return useLayers(layers || [saved]);
    Object.assign(state, { own: "", states: "" }, states && { model: chooseForStates(states) });
    form.file = { ...read, name: file.name };
    useOwn(read);
  } catch (error) {
    if (signal.aborted)
      return;
    if (!chosenModel()?.capture)
      state.source = "own";
    showControls();
    const { message, detail = message, title = "Malformed file", field = "queries" } = error;
    refuse(new Problem({ title, field, detail: detail.includes(file.name) ? detail : `${file.name}: ${detail}` }));
  }
}

function listenToFiles() {
  const takeTextSoon = debounce(500, takeText);
  byId("own").addEventListener("input", () => takeTextSoon(beginTask("own")));
  byId("file").addEventListener("change", (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file)
      takeFile(file);
  });
  const show = (visible) => { byId("drop").hidden = !visible; };
  addEventListener("dragover", (event) => {
    event.preventDefault();
    show(true);
  });
  addEventListener("dragleave", (event) => show(event.relatedTarget !== null));
  addEventListener("drop", (event) => {
    event.preventDefault();
    show(false);
    const [file] = event.dataTransfer.files;
    if (file)
      takeFile(file);
  });
}

/* --- taking it with you --- */

function listenToSaving() {
  for (const button of document.querySelectorAll("[data-save]"))
    button.addEventListener("click", () => {
      if (page.run)
        save(button.dataset.save, describeShown());
    });
  for (const button of document.querySelectorAll("[data-save-all]"))
    button.addEventListener("click", () => saveAll(button.dataset.saveAll));
  const copy = (id, text, note) => byId(id).addEventListener("click", async () => {
    if (!page.run)
      return;
    await copyText(text());
    byId("status").textContent = note();
  });
  copy("copy-curl", () => makeCurl(describeShown()), () => "The command is copied.");
  copy("copy-link", () => new URL(printState(), location.href).href, () => (chosenModel()?.capture
    || state.source === "own" && (form.file || state.own.length > OWN_IN_LINK_MAX)
    ? "The link is copied, without your request, which is too long for one."
    : "The link is copied."));
}

/* --- the window --- */

function chooseColours() {
  page.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  page.theme = readTheme();
  page.colours = makeColours(page.dark);
}

function listenToWindow() {
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); /* what is after # is the state */
    byId("main").focus();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    chooseColours();
    redraw();
  });
  const foldInput = () => { byId("input-box").open = !isNarrow.matches; };
  isNarrow.addEventListener("change", foldInput);
  foldInput();
  let width = window.innerWidth;
  addEventListener("resize", debounce(120, () => {
    if (page.run && !showsAll() && width !== window.innerWidth)
      drawLarge();
    width = window.innerWidth;
  }));
  addEventListener("hashchange", (event) => {
    openLink(new URL(event.newURL).hash); /* keepState() may have changed the address since */
    compute();
  });
  watchServer(byId("server"), byId("server-body"));
}

function defaultModel() {
  const named = ["patterns", "journey"].find((name) => form.models.some((model) => model.name === name));
  return named ?? form.models.find(({ capture }) => !capture)?.name ?? "";
}

/* Takes over what an address says. A model that is not there is told, and another shown. */
function openLink(hash) {
  beginTask("own");
  readState(hash);
  const wanted = state.model;
  if (!chosenModel())
    state.model = defaultModel();
  page.toSteps = /[#&](step|what)=/.test(hash); /* what the link is about is brought into view */
  byId("notice").hidden = wanted === "" || wanted === state.model;
  byId("notice").textContent = `This server has no model ${wanted}. `
    + (state.model === "" ? "" : `What you see is ${state.model}. `)
    + "For a capture, drop its file on the page again.";
  showControls();
}

async function start() {
  chooseColours();
  try {
    form.models = (await fetchJson("v1/models")).models;
  } catch (error) {
    showProblem(error);
    return;
  }
  openLink(location.hash);
  listenToControls();
  listenToView();
  listenToAll();
  listenToFiles();
  listenToSaving();
  listenToWindow();
  listenToText();
  listenToWhatIf();
  drawSteps();
  compute();
}

start();
