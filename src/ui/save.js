/* SPDX-License-Identifier: Apache-2.0 */
/* save.js: what is on screen, as files: a picture, numbers, a page of its own, a command. */

const SVG_CELLS_MAX = 128 * 128; /* more cells are an image inside the SVG */
const CURL_BODY_MAX = 100000;    /* a longer body is saved as a file first */
const PNG_PIXELS_MAX = 2 ** 25;

function saveFile(name, type, content) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

/* A name for files: letters, digits and dashes of the model's name, then the head. */
function fileName({ run, head }, ending) {
  const model = run.model.name.replace(/[^\w-]+/g, "-").slice(0, 60);
  return `${model}-${head === "mean" ? "mean" : `head-${head}`}.${ending}`;
}

const requestName = (shown, body) => fileName(shown, typeof body === "string" ? "request.json" : "request.safetensors");

const titleOf = ({ run, head, b }) => `${run.model.name}, `
  + ({ mean: "mean of the heads", all: "all heads" }[head] ?? `head ${head}`)
  + (run.sequences.length > 1 ? `, sequence ${b}` : "");

/* The float32 with as few digits as read back to it, nearly always. */
const printFloat = (value) => String(Number(value.toPrecision(8)));

/* The weights of the head that is shown, and the outputs of the same rows. A spreadsheet would
 * compute a label such as =1+1, so that gets an apostrophe. */
function makeCsv({ picture, run, b, outputs }) {
  const { rows, numKeys, attends } = picture.sequence, rowOutputs = outputsOf(run, b, outputs.numbers);
  const quote = (text) => `"${/^[=+\-@]/.test(text) ? "'" : ""}${text.replaceAll('"', '""')}"`;
  const titles = Array.from({ length: run.outSize }, (_, o) => `output ${o}`);
  const lines = [["", ...run.keyLabels.slice(0, numKeys), ...titles].map(quote).join(",")];
  rows.forEach((row, r) => {
    const cells = Array.from({ length: numKeys }, (_, k) => (attends(r, k) ? printFloat(picture.weights[r * numKeys + k]) : ""));
    lines.push([quote(run.queryLabels[row]), ...cells, ...Array.from(rowOutputs[r], printFloat)].join(","));
  });
  return lines.join("\r\n") + "\r\n";
}

/* All heads of the sequence that is shown, and the outputs without those that are off.
 * Masked weights are null. */
function makeJson({ run, b, outputs }) {
  const { rows, keys, numKeys, attends, weights } = run.sequences[b];
  const heads = weights.map((head) => rows.map((_, r) => Array.from({ length: numKeys }, (_unused, k) =>
    (attends(r, k) ? Number(printFloat(head[r * numKeys + k])) : null))));
  return JSON.stringify({ model: run.model.name, sequence: b, heads: run.heads,
    queries: rows.map((row) => run.queryLabels[row]), query_places: rows,
    keys: run.keyLabels.slice(0, numKeys), key_places: keys, block: run.block > 1 ? run.block : undefined,
    attention_weights: heads, heads_off: outputs.off,
    outputs: outputsOf(run, b, outputs.numbers).map((row) => Array.from(row, (value) => Number(printFloat(value)))) });
}

/* A saved picture has its title above the heatmap, and the bar of its scale below.
 * A letter is up to `letter` pixels wide. */
const FRAME = { top: 30, bottom: 42, bar: 128, letter: 8 };

/* The heatmap as SVG: vectors, or an image when there are many cells. That on screen may be still of the head before. */
function makeHeatmapSvg(shown) {
  const { picture } = shown, layout = layOutHeatmap(byId("heatmap").clientWidth, picture), density = window.devicePixelRatio || 1;
  const { rows, numKeys, attends } = picture.sequence, { left, top, cellWidth, cellHeight, width, height } = layout;
  const bottom = top + height + 2, frame = makeSvgFrame(titleOf(shown), picture, bottom + 14);
  const size = { width: Math.max(frame.width, left + width + layout.right), height: FRAME.top + bottom + FRAME.bottom };
  const svg = makeSvg("svg", { viewBox: `0 ${-FRAME.top} ${size.width} ${size.height}`, ...size, role: "img",
    "aria-label": titleOf(shown) });
  svg.append(makeSvg("title", {}, titleOf(shown)), makeMaskedPattern(picture.theme),
    makeSvg("rect", { y: -FRAME.top, ...size, fill: picture.theme.card }),
    makeSvg("rect", { x: left, y: top, width, height, fill: "url(#masked)" }));

  if (rows.length * numKeys > SVG_CELLS_MAX) {
    svg.append(makeSvg("image", { x: left, y: top, width, height, preserveAspectRatio: "none",
      "image-rendering": "pixelated", href: paintAtOnce(picture.weights, picture.sequence, Math.round(width * density),
        Math.round(height * density), picture.scale, picture.colours).toDataURL("image/png") }));
  } else {
    for (let r = 0; r < rows.length; r++)
      for (let k = 0; k < numKeys; k++) {
        if (!attends(r, k))
          continue;
        const weight = picture.weights[r * numKeys + k];
        svg.append(makeSvg("rect", { x: left + k * cellWidth, y: top + r * cellHeight, width: cellWidth,
          height: cellHeight, "shape-rendering": "crispEdges", fill: picture.colours.css[picture.scale.index(weight)] },
        makeSvg("title", {}, `${cellName(shown, r, k)}: ${formatDecimals(weight)}`)));
      }
  }
  addMarks(svg, picture, layout);
  svg.append(frame.parts);
  return svg;
}

const makeMaskedPattern = (theme) => makeSvg("pattern", { id: "masked", width: 6, height: 6, patternUnits: "userSpaceOnUse",
  patternTransform: "rotate(45)" },
makeSvg("rect", { width: 6, height: 6, fill: theme.masked }), makeSvg("path", { d: "M0 0V6", stroke: theme.hatch }));

/* Returns {parts, width}: the title, and at `y` the bar of the scale. */
function makeSvgFrame(what, { colours, theme, scale, sequence: { counts, numKeys } }, y) {
  const [low, high] = nameEnds(scale);
  const text = (x, baseline, content, more) => makeSvg("text", { x, y: baseline, ...more }, content);
  const title = `${what}: attention weights`, isMasked = counts.some((count) => count < numKeys);
  const bar = 12 + low.length * FRAME.letter, end = bar + FRAME.bar + 6, masked = end + high.length * FRAME.letter + 12;
  const stops = colours.css.filter((_, i) => i % 15 === 0);
  const parts = makeSvg("g", { "font-family": SVG_FONT, "font-size": 12, fill: theme.text },
    makeSvg("linearGradient", { id: "scale" }, ...stops.map((colour, i) =>
      makeSvg("stop", { offset: i / (stops.length - 1), "stop-color": colour }))),
    text(10, -10, title, { "font-weight": 700, "font-size": 14 }),
    text(10, y + 10, low),
    makeSvg("rect", { x: bar, y, width: FRAME.bar, height: 12, fill: "url(#scale)", stroke: theme.faint }),
    text(end, y + 10, high),
    ...(isMasked
      ? [makeSvg("rect", { x: masked, y, width: 16, height: 12, fill: "url(#masked)", stroke: theme.faint }),
        text(masked + 22, y + 10, "masked")] : []));
  return { parts, width: Math.max(isMasked ? masked + 80 : masked, 20 + title.length * (FRAME.letter + 1.5)) };
}

const cellName = ({ run, picture }, r, k) => `${run.queryLabels[picture.sequence.rows[r]]} → ${run.keyLabels[k]}`;

/* What is shown in light colours, as pictures for slides are. */
const lighten = (shown) => ({ ...shown, picture: { ...shown.picture, colours: makeColours(false), theme: readTheme("light") } });

/* An SVG as a PNG, with `density` pixels for one, or fewer where they would be too many. */
async function makePng(svg, density) {
  const picture = new Image(), canvas = document.createElement("canvas");
  const pixels = svg.getAttribute("width") * svg.getAttribute("height");
  density = Math.min(density, Math.sqrt(PNG_PIXELS_MAX / pixels));
  picture.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(svg))}`;
  await picture.decode();
  canvas.width = svg.getAttribute("width") * density;
  canvas.height = svg.getAttribute("height") * density;
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

/* A page that needs no server: the large head, all heads small, and their table. Texts are
 * escaped by outerHTML; the style has only colours of ui.css. */
function makeHtml(shown) {
  const { run, b, picture: { theme, sequence, colours } } = shown;
  const style = `body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;
background:${theme.ground};color:${theme.text}}svg,img{max-width:100%;height:auto}
ul{display:flex;flex-wrap:wrap;gap:1rem;list-style:none;padding:0}
li img{width:8rem;height:8rem;image-rendering:pixelated;background:${theme.masked}}
table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left}
pre{white-space:pre-wrap;overflow-wrap:anywhere}`;

  const heads = headsOf(run).map((head) => make("li", {}, make("img", { alt: "", src: paintAtOnce(weightsOf(run, b, head), sequence,
    THUMBNAIL_PIXELS, THUMBNAIL_PIXELS, scaleOf(b), colours).toDataURL() }), make("p", {}, nameHead(head))));
  const table = page.report && document.querySelector("#compare table").cloneNode(true);
  for (const button of table?.querySelectorAll("button") ?? [])
    button.replaceWith(button.textContent);
  const title = titleOf(shown);
  const body = make("body", {}, make("h1", {}, title), makeHeatmapSvg(shown),
    make("h2", {}, "Heads"), make("ul", {}, ...heads), ...(table ? [table] : []),
    ...(shown.run.model.saved ? [] : [make("h2", {}, "The request"), make("pre", {}, makeCurl(shown))]));
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8">${make("title", {}, title).outerHTML}
<style>${style}</style></head>\n${body.outerHTML}</html>\n`;
}

/* Returns the fields of the request on screen besides those of its input. */
function shownChanges({ run, off }) {
  return {
    ...run.changes,
    head_mask: off.size ? Array.from({ length: run.model.num_heads }, (_, h) => Number(!off.has(h))) : null,
  };
}

function makeCurl(shown) {
  const { type, body } = encodeRequest(shown.run.request, shownChanges(shown));
  const url = new URL(pathOf(shown.run.request), document.baseURI).href;
  const isFile = typeof body !== "string" || body.length > CURL_BODY_MAX;
  const data = isFile ? `--data-binary @${requestName(shown, body)}` : `-d ${quoteShell(body)}`;
  const key = access.key === "" ? "" : "-H \"Authorization: Bearer $ATTND_KEY\" ";
  return `curl -s ${quoteShell(url)} ${key}-H 'Content-Type: ${type}' -H 'Accept: application/json' ${data}`;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { /* only a page on loopback or over TLS may write there */
    const area = make("textarea", { class: "quiet", "aria-label": "Text to copy" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

const savePicture = async (name, svg, density = 1) => (name.endsWith(".png")
  ? saveFile(name, "image/png", await makePng(svg, Math.max(2, density)))
  : saveFile(name, "image/svg+xml", new XMLSerializer().serializeToString(svg)));

/* Saves all heads that are on screen: of all layers, or of the one that is shown. */
async function saveAll(ending) {
  const sheet = showsAll() ? loadedLayers().length > 0 && describeAll() : page.run && describeHeads(describeShown());
  if (sheet)
    await savePicture(`${sheet.title.replace(/[^\w-]+/g, "-").slice(0, 60)}.${ending}`, makeSheet(sheet));
}

async function save(kind, shown) {
  switch (kind) {
    case "png": return savePicture(fileName(shown, "png"), makeHeatmapSvg(lighten(shown)), window.devicePixelRatio);
    case "svg": return savePicture(fileName(shown, "svg"), makeHeatmapSvg(lighten(shown)));
    case "csv": return saveFile(fileName(shown, "csv"), "text/csv", makeCsv(shown));
    case "json": return saveFile(fileName(shown, "json"), "application/json", makeJson(shown));
    case "html": return saveFile(fileName(shown, "html"), "text/html", makeHtml(shown));
    default: {
      const { type, body } = encodeRequest(shown.run.request, shownChanges(shown));
      return saveFile(requestName(shown, body), type, body);
    }
  }
}
