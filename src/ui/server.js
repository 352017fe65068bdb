/* SPDX-License-Identifier: Apache-2.0 */
/* server.js: what the server has done, from its statistics, while the panel is open. */

const SERVER_POLL_MS = 2000;
const STAGES = [["queue", "waiting"], ["compute_input", "reading"], ["compute_infer", "computing"],
  ["compute_output", "writing"]];

const formatTime = (ns) => (ns >= 1e9 ? `${formatNumber(ns / 1e9, 3)} s`
  : ns >= 1e6 ? `${formatNumber(ns / 1e6, 3)} ms` : `${formatNumber(ns / 1e3, 3)} µs`);

/* A bar of the mean time of a request, divided into its stages. */
function makeStages(stats, mean) {
  const bar = make("span", { class: "stages", "aria-hidden": "true" });
  STAGES.forEach(([field], i) => {
    const part = make("span", { class: `stage-${i}` });
    part.style.width = `${stats[field].ns / Math.max(1, stats.success.count) / Math.max(1, mean) * 100}%`;
    bar.append(part);
  });
  return bar;
}

function makeServerTable(server, models, rates) {
  const meanOf = ({ count, ns }) => (count > 0 ? ns / count : 0);
  const rows = models.map(({ name, inference_stats: stats, inference_count: count }) => {
    const mean = meanOf(stats.success);
    const time = (ns) => (count > 0 ? formatTime(ns) : "–");
    const cells = [formatCount(count), rates.has(name) ? formatNumber(rates.get(name), 3) : "–",
      formatCount(stats.fail.count), time(mean), ...STAGES.map(([field]) => time(meanOf(stats[field])))];
    return make("tr", {},
      make("th", { scope: "row" }, name),
      ...cells.map((text) => make("td", { class: "number" }, text)),
      make("td", { "aria-hidden": "true" }, count > 0 ? makeStages(stats, mean) : ""));
  });
  return [
    make("p", { class: "hint" }, `${server.name} ${server.version}. Times are means since the start, `
      + "of requests of all clients."),
    make("table", {},
      make("thead", {}, make("tr", {}, ...["Model", "Requests", "per second", "Failed", "Mean time",
        ...STAGES.map(([, text], i) => make("span", { class: `key-${i}` }, text)), "Shares"].map(
        (text) => make("th", { scope: "col" }, text)))),
      make("tbody", {}, ...rows)),
  ];
}

/* Keeps the panel up to date while it is open and the page is visible. A reply is there before the next is asked for. */
function watchServer(panel, body) {
  let before = null;

  async function poll(signal) {
    try {
      const [server, { model_stats: models }] = await Promise.all([
        fetchJson("v2", { signal }), fetchJson("v2/models/stats", { signal })]);
      const now = performance.now(), rates = new Map();
      if (before)
        for (const { name, inference_count: count } of models)
          rates.set(name, Math.max(0, count - before.counts.get(name)) / (now - before.at) * 1000);
      before = { at: now, counts: new Map(models.map((model) => [model.name, model.inference_count])) };
      body.replaceChildren(...makeServerTable(server, models, rates));
    } catch (error) {
      if (signal.aborted)
        return;
      body.replaceChildren(make("p", { class: "error" }, error.message));
    }
    setTimeout(poll, SERVER_POLL_MS, signal);
  }

  function restart() {
    const signal = beginTask("server");
    if (panel.open && !document.hidden)
      poll(signal);
  }
  panel.addEventListener("toggle", restart);
  document.addEventListener("visibilitychange", restart);
}
