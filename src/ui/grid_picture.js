/* SPDX-License-Identifier: Apache-2.0 */
/* grid_picture.js: all heads as one picture with title, labels and scale. It is always light, as slides are. */

const SHEET = { size: 72, gap: 8, text: 34, perRow: 8, letter: 6.5 /* pixels, of small texts */ };
const SHEET_TOKENS = 24; /* with more, cells have no labels */

/* What is on the sheet of the layers that are drawn. */
const describeAll = () => ({ title: `${nameText(all.layers[0].model)}, all heads`, scale: scaleOfAll(), note: noteAll(),
  rows: all.rows.map((row) => ({ label: state.sort ? "" : splitName(row[0].layer.model).layer,
    heads: row.filter(({ layer }) => layer.sequence).map((head) => ({ name: head.name.textContent,
      tag: head.tags.textContent, weights: head.layer.sequence.weights[head.h], sequence: head.layer.sequence })) })) });

/* The same of the heads of one layer. */
function describeHeads({ run, b }) {
  const sequence = run.sequences[b], heads = run.heads.map((h) => ({ name: `Head ${h}`, tag: spellTags(page.report?.heads[h] ?? {}), sequence,
    weights: weightsOf(run, b, h) }));
  const rows = Array.from({ length: Math.ceil(heads.length / SHEET.perRow) }, (_, r) => (
    { label: "", heads: heads.slice(r * SHEET.perRow, (r + 1) * SHEET.perRow) }));
  return { title: titleOf({ run, head: "all", b }), scale: scaleOf(b), note: byId("grid-note").textContent, rows,
    queryLabels: sequence.rows.map((row) => run.queryLabels[row]), keyLabels: run.keyLabels.slice(0, sequence.numKeys) };
}

/* Returns the sheet as SVG. Labels of tokens are left out where there are none, or too many. */
function makeSheet({ title, scale, note, rows, queryLabels = [], keyLabels = [] }) {
  const colours = makeColours(false), theme = readTheme("light"), most = Math.max(queryLabels.length, keyLabels.length);
  const hasTokens = most > 0 && most <= SHEET_TOKENS, size = hasTokens ? Math.max(120, most * 16) : SHEET.size;
  const widthOf = (texts) => Math.max(0, ...texts.map((text) => Math.min(16, text.length))) * SHEET.letter;
  const left = 16 + widthOf(hasTokens ? queryLabels : rows.map(({ label }) => label));
  const above = hasTokens ? widthOf(keyLabels) * 0.75 + 8 : 4, pitch = above + size + SHEET.text;
  const svg = makeSvg("svg", { role: "img", "aria-label": title, "font-family": SVG_FONT, "font-size": 11, fill: theme.text });
  const text = (x, y, content, more) => makeSvg("text", { x, y, ...more }, content.length > 24 ? `${content.slice(0, 23)}…` : content);

  const heads = rows.flatMap(({ label, heads: list }, r) => list.flatMap(({ name, tag, weights, sequence }, c) => {
    const x = left + c * (size + SHEET.gap), y = r * pitch + above, canvas = paintAtOnce(weights, sequence, 4 * size, 4 * size, scale, colours);
    const tokens = !hasTokens ? [] : [
      ...(c > 0 ? [] : queryLabels.map((word, i) => text(left - 5, y + (i + 0.5) * size / queryLabels.length + 4, word,
        { "text-anchor": "end" }))),
      ...keyLabels.map((word, i) => [word, x + (i + 0.5) * size / keyLabels.length + 3]).map(([word, at]) =>
        text(at, y - 5, word, { transform: `rotate(-45 ${at} ${y - 5})` }))];
    return [...(c > 0 || hasTokens ? [] : [text(8, y + size / 2, label)]), ...tokens,
      makeSvg("rect", { x, y, width: size, height: size, fill: "url(#masked)" }),
      makeSvg("image", { x, y, width: size, height: size, preserveAspectRatio: "none", "image-rendering": "pixelated",
        href: canvas.toDataURL("image/png") }),
      text(x, y + size + 12, name, { "font-weight": 700 }),
      ...(tag === "" ? [] : [text(x, y + size + 25, tag, { fill: theme.faint, "font-size": tag.length * SHEET.letter > size + SHEET.gap ? 8 : 11 })])];
  }));
  const bottom = rows.length * pitch, frame = makeSvgFrame(title, { colours, theme, scale, sequence: rows[0].heads[0].sequence }, bottom + 10);
  const width = Math.ceil(Math.max(frame.width, note.length * SHEET.letter, left + above
    + Math.max(...rows.map(({ heads: list }) => list.length)) * (size + SHEET.gap)));
  const height = Math.ceil(FRAME.top + bottom + 50);
  setAttributes(svg, { viewBox: `0 ${-FRAME.top} ${width} ${height}`, width, height });
  svg.append(makeSvg("title", {}, title), makeMaskedPattern(theme),
    makeSvg("rect", { y: -FRAME.top, width, height, fill: theme.card }), ...heads, frame.parts,
    makeSvg("text", { x: 10, y: bottom + 40, fill: theme.faint }, note));
  return svg;
}
