"use strict";
// The page as a whole: overview, recipe, keys, and reloading while a run goes on.

async function main() {
  const { runs, renew, made } = await unpack("runs");
  drawOverview(runs, made);
  drawRecipe(runs);
  prepareCurves(runs);
  const samples = await Promise.all(runs.map((run, i) => new Samples(i, run)).filter((s) => s.run.samples).map((s) => s.open()));
  if (samples.length) {
    startBrowser(samples, showCompletion);
    drawPairs(samples);
  } else {
    document.querySelector(".browser").replaceWith(el("p", { class: "quiet" }, "No completions were logged."));
    document.getElementById("pairs").remove();
  }
  listenToKeys();
  if (renew) renewEvery(renew);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve))); // until the page shows it
  await drawCurves();
  document.documentElement.dataset.curves = String(Math.round(performance.now()));
}

// First and last value of each main curve, one column per run.
function drawOverview(runs, made) {
  const wanted = ["Held-out rewards", "Reward", "Reward by function", "Completion length, tokens", "Entropy, nats per token"];
  const heads = [];
  for (const title of wanted) {
    for (const run of runs) {
      for (const series of run.panels.find((panel) => panel.title === title)?.series ?? []) {
        const text = title === "Held-out rewards" ? `held-out ${series.label}` : title.startsWith("Reward") ? series.label
          : title.split(",")[0].toLowerCase() + (series.label === "longest" ? ", longest" : "");
        if (!heads.some((head) => head.text === text)) heads.push({ title, label: series.label, text });
      }
    }
  }
  const row = (head) => el("tr", {}, el("th", { scope: "row" }, head.text), runs.map((run) => {
    const series = run.panels.find((panel) => panel.title === head.title)?.series.find((s) => s.label === head.label);
    return el("td", {}, ...(series ? fromTo(series, /reward/i.test(head.title)) : ["–"]));
  }));
  const steps = (run) => `${Math.max(0, ...run.panels.flatMap((panel) => panel.series.map((s) => s.steps.at(-1) ?? 0)))} steps`;
  const table = el("table", {},
    el("thead", {}, el("tr", {}, el("th"), runs.map((run) => el("th", { scope: "col" }, `${run.name} (${steps(run)})`)))),
    el("tbody", {}, heads.map(row)));
  const note = `Values at the first and the last step; for curves with more than 25 values, means over the first and the last tenth. Written on ${new Date(made * 1000).toLocaleString()}.`;
  document.getElementById("summary").append(el("div", { class: "wide" }, table), el("p", { class: "quiet" }, note));
  const place = document.getElementById("alarms");
  for (const fault of runs.flatMap((run) => run.faults)) place.before(el("p", { class: "alarm" }, el("b", {}, "Not read: "), fault));
  for (const run of runs) for (const alarm of run.alarms) {
    const name = runs.length > 1 ? `${run.name}, ` : "";
    place.append(el("p", { class: "alarm" }, el("b", {}, `${name}step ${alarm.step}: ${alarm.alarm}. `), alarm.message ?? ""));
  }
  if (!place.childElementCount) place.append(el("p", { class: "quiet" }, "No alarms."));
}

function fromTo(series, coloured) {
  const values = series.values.filter((value) => value !== null);
  if (!values.length) return ["–"];
  if (values.length === 1) return [el("b", {}, figure(values[0]))];
  const count = values.length > 25 ? Math.ceil(values.length / 10) : 1;
  const mean = (some) => some.reduce((a, b) => a + b, 0) / some.length;
  const [first, last] = [mean(values.slice(0, count)), mean(values.slice(-count))];
  const error = series.errors?.at(-1);
  const change = last - first;
  const tone = coloured && change ? (change > 0 ? "up" : "down") : null;
  return [`${figure(first)} → `, el("b", {}, figure(last)), error ? ` ± ${figure(error, 1)}` : "",
    " ", el("span", { class: tone }, `(${change > 0 ? "+" : ""}${figure(change, 2)})`)];
}

// Recipe, versions and starts of each run; rows in which runs differ are marked.
function drawRecipe(runs) {
  const flat = runs.map((run) => ({ ...run.recipe, ...prefixed("version of ", Object(run.about.versions)), ...started(run) }));
  const keys = [...new Set(flat.flatMap((values) => Object.keys(values)))];
  const text = (value) => (value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));
  const rows = keys.map((key) => {
    const values = flat.map((some) => text(some[key]));
    const differs = new Set(values).size > 1;
    return el("tr", { class: differs ? "differs" : null }, el("td", {}, el("code", {}, key)),
      values.map((value) => el("td", { class: "value" }, value)));
  });
  const head = el("thead", {}, el("tr", {}, el("th", {}, "key"), runs.map((run) => el("th", { scope: "col" }, run.name))));
  const body = keys.length ? el("table", {}, head, el("tbody", {}, rows)) : el("p", { class: "quiet" }, "There is no recipe.");
  document.getElementById("recipe-body").append(el("div", { class: "wide" }, body));
}

function prefixed(prefix, values) {
  return Object.fromEntries(Object.entries(values).map(([key, value]) => [prefix + key, value]));
}

function started(run) {
  const starts = Array.isArray(run.about.starts) ? run.about.starts.filter(Boolean) : [];
  const one = (start) => `step ${start.step}, ${new Date(start.time * 1000).toLocaleString()}, ${start.processes} × ${start.device}`;
  return starts.length ? { started: starts.map(one).join("; "), folder: run.folder } : { folder: run.folder };
}

function listenToKeys() {
  const help = document.getElementById("help");
  document.getElementById("help-button").addEventListener("click", () => help.showModal());
  const page = () => Math.max(1, Math.floor(document.getElementById("list").clientHeight / ROW) - 1);
  const keys = {
    j: () => select(browser.selected + 1), k: () => select(browser.selected - 1), n: () => jumpInPrompt(1), p: () => jumpInPrompt(-1),
    "/": () => browser.fields.search?.focus(), "?": () => help.showModal(),
  };
  const inList = { ArrowDown: keys.j, ArrowUp: keys.k, PageDown: () => select(browser.selected + page()),
    PageUp: () => select(browser.selected - page()), Home: () => select(0), End: () => select(browser.shown.length - 1) };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target.matches("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const action = keys[event.key] ?? (event.target.id === "list" ? inList[event.key] : undefined);
    if (!action || (!browser.list && event.key !== "?")) return;
    event.preventDefault();
    action();
  });
}

// Reload the page, but not while somebody uses it.
function renewEvery(seconds) {
  let touched = 0;
  for (const event of ["keydown", "pointerdown", "wheel", "touchstart"]) {
    document.addEventListener(event, () => (touched = Date.now()), { passive: true });
  }
  setInterval(() => {
    if (Date.now() - touched > 60_000 && !document.hidden) location.reload();
  }, seconds * 1000);
}

main().catch((error) => {
  document.querySelector("main").prepend(el("p", { class: "notice" }, `This report could not be shown: ${error.message}`));
  throw error;
});
