/* SPDX-License-Identifier: Apache-2.0 */
/* compare.js: what POST v1/heads says of each head, and what it predicts for any set of
 * heads that are left out. */

/* The tags of a head with their shares, as elements; none for `undefined`. */
const makeTags = (head, kind = "") => (head?.tags ?? []).map((tag, i) =>
  make("span", { class: `${kind} ${head.weak[i] ? "weak" : ""}` }, 
    `${i > 0 && !kind ? ", " : ""}${tag} ${head.shares[i].toFixed(2)}`));

/* A bar of a table's cell, `share` of its width. */
function makeBar(share, text) {
  const fill = make("span", { class: "fill" });
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return make("td", { class: "number" },
    make("span", { class: "value" }, text), make("span", { class: "meter", "aria-hidden": "true" }, fill));
}

/* The figures of a head, with the titles of their columns. A column without any number is left out. */
const FIGURES = {
  entropy: "Entropy, nats", importance: "Importance", residual_importance: "By residual", mean_distance: "Mean distance", mass_on_self: "On itself",
  mass_on_previous: "On the one before", mass_on_first: "On the first", mass_on_sink: "On the sink", mass_on_target: "On its target",
};

/* Returns the table of the heads. `off` is the set of those that are switched off. The heads with most of the
 * field `sort` come first; onSort(field) is called when a column is chosen, with "" for the order of the heads. */
function makeTable({ heads }, off, numKeys, sort, onSort) {
  const fields = Object.keys(FIGURES).filter((field) => heads.some((head) => Number.isFinite(head[field])));
  const hasTags = heads.some(({ tags }) => tags), order = [...heads.keys()];
  const most = { entropy: Math.log(Math.max(2, numKeys)), importance: Math.max(...heads.map((head) => head.importance), 1e-30) };
  order.sort((g, h) => (fields.includes(sort) ? (heads[h][sort] ?? -1) - (heads[g][sort] ?? -1) : 0)); /* none is negative */

  const makeHead = (title, field) => {
    const button = make("button", { type: "button" }, title), isChosen = field === sort && field !== "";
    button.addEventListener("click", () => onSort(isChosen ? "" : field));
    return make("th", { scope: "col", "aria-sort": isChosen ? "descending" : null }, button);
  };
  const makeFigure = (value, field) => (field in most ? makeBar(value / most[field], value.toFixed(3))
    : make("td", { class: "number" }, value?.toFixed(3) ?? "–"));
  return make("table", {},
    make("thead", {}, make("tr", {}, makeHead("Head", ""), ...(hasTags ? [make("th", { scope: "col" }, "Attends to")] : []),
      ...fields.map((field) => makeHead(FIGURES[field], field)))),
    make("tbody", {}, ...order.map((h) => make("tr", { class: off.has(h) ? "off" : null },
      make("th", { scope: "row" }, String(h)),
      ...(hasTags ? [make("td", { class: "tags" }, ...(heads[h].tags.length > 0 ? makeTags(heads[h]) : ["–"]))] : []),
      ...fields.map((field) => makeFigure(heads[h][field], field))))));
}

/* The relative change of the outputs without a set of heads: the root of the sum of gram
 * over all pairs in the set, by the norm of the outputs. */
function predictChange({ heads, gram }, off) {
  const known = heads.findIndex((head) => head.importance > 0);
  if (known < 0)
    return 0;
  const norm = Math.sqrt(gram[known][known]) / heads[known].importance;
  let sum = 0;
  for (const g of off)
    for (const h of off)
      sum += gram[g][h];
  return Math.sqrt(Math.max(0, sum)) / norm;
}

/* The head that changes the outputs least when it is left out besides those of `off`. */
function findLeastImportant(report, off) {
  let best = -1, least = Infinity;
  for (let h = 0; h < report.heads.length; h++) {
    const change = off.has(h) ? Infinity : predictChange(report, new Set([...off, h]));
    if (change < least)
      [best, least] = [h, change];
  }
  return best;
}
