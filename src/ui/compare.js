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

/* Returns the table of the heads. `off` is the set of those that are switched off. */
function makeTable(report, off, numKeys) {
  const columns = ["Head", "Attends to", "Entropy, nats", "Importance", "Mean distance",
    "On itself", "On the one before", "On the first"];
  const most = Math.max(...report.heads.map((head) => head.importance), 1e-30);
  const entropyMax = Math.log(Math.max(2, numKeys));

  const rows = report.heads.map((head, h) => make("tr", { class: off.has(h) ? "off" : null },
    make("th", { scope: "row" }, String(h)),
    make("td", { class: "tags" }, ...(head.tags.length > 0 ? makeTags(head) : ["–"])),
    makeBar(head.entropy / entropyMax, head.entropy.toFixed(3)),
    makeBar(head.importance / most, head.importance.toFixed(3)),
    ...[head.mean_distance, head.mass_on_self, head.mass_on_previous, head.mass_on_first].map(
      (value) => make("td", { class: "number" }, value === null ? "–" : value.toFixed(3)))));
  return make("table", {},
    make("thead", {}, make("tr", {}, ...columns.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...rows));
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
