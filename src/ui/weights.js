/* SPDX-License-Identifier: Apache-2.0 */
/* weights.js: a dropped file of weights, which the page cannot serve: it lists the tensors, and says what does. */

/* The names of a layout's weights, as src/weights/layout_table.c has them. Heads whose weights are apart are counted. */
const LAYOUTS = [
  ["d2l", "W_q W_k W_v W_o", ".weight"], ["torch", "in_proj_weight out_proj.weight", ""],
  ["torch", "q_proj_weight k_proj_weight v_proj_weight out_proj.weight", ""],
  ["llms_from_scratch", "W_query W_key W_value out_proj", ".weight"],
  ["llms_from_scratch_wrapper", "heads.0.W_query heads.0.W_key heads.0.W_value", ".weight"],
  ["two_stage", "W_Q W_K W_V heads.0.W_Q heads.0.W_K heads.0.W_V W_O", ".weight"],
  ["timm", "qkv proj", ".weight"], ["nanogpt", "c_attn c_proj", ".weight"],
].map(([layout, names, end]) => ({ layout, isCounted: names.includes("heads."), needs: names.split(" ").map((name) => name + end) }));

/* Returns {layout, isCounted, prefix} of each layer whose layout the names tell. */
const findLayers = (entries) => LAYOUTS.flatMap(({ needs, ...layout }) => Object.keys(entries)
  .filter((name) => `.${name}`.endsWith(`.${needs[0]}`))
  .map((name) => ({ ...layout, prefix: name.slice(0, name.length - needs[0].length) }))
  .filter(({ prefix }) => needs.every((name) => Object.hasOwn(entries, prefix + name))));

/* Returns {note, command} of a file; the command is empty where its names tell no layout. */
function adviseWeights(file, { metadata, entries }) {
  const layers = findLayers(entries), [{ layout, isCounted, prefix } = {}] = layers;
  const name = file.replace(/\.[^.]*$/, "").replace(/[^\w.-]+/g, "-").slice(0, 64) || "layer";
  const more = "A whole model of Hugging Face is served as a folder, with its config.json: attnd --model NAME=FOLDER.";
  if (!layout)
    return { command: "", note: `No layout of a single layer fits these names. ${more} For names of your own see attnd `
      + "inspect. Rows are called queries; captures are written by Captured.save() of the Python package." };
  const heads = isCounted || metadata.num_heads ? "" : ",num_heads=...";
  return { command: `attnd --model ${name}=${quoteShell(file)}${heads}${prefix && `,prefix=${prefix}`}`,
    note: `${layers.length > 1 ? `${layers.length} layers, the first` : "A layer"} of layout ${layout}. This line serves it`
      + `${heads && "; write the number of heads in place of the dots"}. ${prefix && more}` };
}

/* Shows the tensors of a file, and what serves them. */
function showWeights(name, header) {
  const { note, command } = adviseWeights(name, header), copy = make("button", { type: "button" }, "Copy");
  const makeRow = (tag, texts) => make("tr", {}, ...texts.map((text) => make(tag, {}, text)));
  copy.addEventListener("click", () => copyText(command));
  byId("file-box").replaceChildren(make("h2", { id: "file-title", tabindex: -1 }, `${name} has weights`), make("p", {}, note),
    make("p", { class: "bar", hidden: command === "" }, make("code", {}, command), copy),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tensors of the file" }, make("table", {},
      make("thead", {}, makeRow("th", ["Tensor", "Shape", "Type"])), make("tbody", {}, ...Object.entries(header.entries)
        .map(([tensor, { dtype, shape }]) => makeRow("td", [tensor, shape.join(" × "), dtype]))))));
  byId("file-box").hidden = false;
  byId("file-title").focus();
}
