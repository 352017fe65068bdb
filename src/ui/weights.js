/* SPDX-License-Identifier: Apache-2.0 */
/* weights.js: a dropped file of weights. The page cannot load it, but lists its tensors, and says what serves them. */

const named = (...modules) => modules.map((module) => `${module}.weight`);

/* The tensors that a layout needs, as src/weights/layout_table.c has them; `counted` where they tell the heads. */
const LAYOUTS = [
  { layout: "d2l", needs: named("W_q", "W_k", "W_v", "W_o") },
  { layout: "torch", needs: ["in_proj_weight", "out_proj.weight"] },
  { layout: "torch", needs: ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"] },
  { layout: "llms_from_scratch", needs: named("W_query", "W_key", "W_value", "out_proj") },
  { layout: "llms_from_scratch_wrapper", counted: true, needs: named("heads.0.W_query", "heads.0.W_key", "heads.0.W_value") },
  { layout: "two_stage", counted: true, needs: named("W_Q", "W_K", "W_V", "heads.0.W_Q", "heads.0.W_K", "heads.0.W_V", "W_O") },
  { layout: "timm", needs: named("qkv", "proj") },
  { layout: "nanogpt", needs: named("c_attn", "c_proj") },
];

/* Returns {layout, counted, prefix} of each layer whose layout the names tell. */
const findLayers = (entries) => LAYOUTS.flatMap(({ needs, ...layout }) => Object.keys(entries)
  .filter((name) => name === needs[0] || name.endsWith(`.${needs[0]}`))
  .map((name) => name.slice(0, name.length - needs[0].length))
  .filter((prefix) => needs.every((name) => Object.hasOwn(entries, prefix + name)))
  .map((prefix) => ({ ...layout, prefix })));

/* Returns {note, command} of a file; no command where its names tell no layout. */
function adviseWeights(file, { metadata, entries }) {
  const layers = findLayers(entries), [first] = layers, numbered = Object.keys(entries).some((name) => /\.\d+\.(?!W_)/.test(name));
  const name = file.replace(/\.[^.]*$/, "").replace(/[^\w.-]+/g, "-").slice(0, 64) || "layer";
  const whole = numbered ? " A whole model of Hugging Face is served as a folder, with its config.json: attnd --model NAME=FOLDER." : "";
  if (!first)
    return { note: `No layout of a single layer fits these names.${whole} For names of your own see attnd inspect. `
      + "Rows are called queries; captures are written by Captured.save() of the Python package." };
  const options = [first.counted || metadata.num_heads ? "" : ",num_heads=...", first.prefix && `,prefix=${first.prefix}`];
  return { command: `attnd --model ${name}=${quoteShell(file)}${options.join("")}`,
    note: `${layers.length > 1 ? `${layers.length} layers, the first` : "A layer"} of layout ${first.layout}. This line serves it`
      + `${options[0] && "; write the number of heads in place of the dots"}.${whole}` };
}

/* Shows the tensors of a file, and what serves them. */
function showWeights(name, header) {
  const { note, command } = adviseWeights(name, header), box = byId("file-box");
  const copy = make("button", { type: "button" }, "Copy");
  copy.addEventListener("click", () => copyText(command));
  const cells = (tag, texts) => make("tr", {}, ...texts.map((text) => make(tag, tag === "th" ? { scope: "col" } : {}, text)));
  box.replaceChildren(make("h2", { id: "file-title", tabindex: -1 }, `${name} has weights`), make("p", {}, note),
    ...(command ? [make("p", { class: "bar" }, make("code", {}, command), copy)] : []),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tensors of the file" }, make("table", {},
      make("thead", {}, cells("th", ["Tensor", "Shape", "Type"])),
      make("tbody", {}, ...Object.entries(header.entries).map(([tensor, { dtype, shape }]) =>
        cells("td", [tensor, shape.join(" × "), dtype]))))));
  box.hidden = false;
  byId("file-title").focus();
}
