"use strict";
// The list of completions: filters, sorting, and only those rows in the page that can be seen.

const ROW = 72; // height of a row in pixels, as in the style sheet
const SORTS = {
  "oldest first": null, "highest reward first": ["reward", -1], "lowest reward first": ["reward", 1],
  "longest first": ["length", -1], "shortest first": ["length", 1], "highest advantage first": ["advantage", -1],
};
const browser = { samples: null, shown: [], selected: -1, fields: {}, search: 0 };

function startBrowser(allSamples, show) {
  browser.all = allSamples;
  browser.samples = allSamples[0];
  browser.show = show;
  browser.list = document.getElementById("list");
  browser.list.append(el("div", { role: "presentation" }));
  browser.list.addEventListener("scroll", () => requestAnimationFrame(drawRows));
  browser.list.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row) select(Number(row.dataset.at));
  });
  new ResizeObserver(drawRows).observe(browser.list);
  buildFilters();
  filter();
}

function buildFilters() {
  const { index } = browser.samples;
  const field = (name, label, input) => {
    browser.fields[name] = input;
    input.addEventListener(input.type === "search" ? "input" : "change", () => {
      if (name === "run") changeRun(Number(input.value));
      else filter();
    });
    return el("label", {}, label, input);
  };
  const choice = (options) => el("select", {}, options.map(([value, text]) => el("option", { value }, text)));
  const number = (placeholder, step) => el("input", { type: "number", placeholder, step });
  const steps = [index.step.reduce((a, b) => Math.min(a, b), Infinity), index.step.reduce((a, b) => Math.max(a, b), 0)];
  const rewards = ["reward", ...Object.keys(index.rewards)];
  const modes = index.datasets.map(([mode, name], i) => [i, mode === name ? mode : `${mode} ${name}`]);
  const form = document.getElementById("filters");
  form.replaceChildren(
    ...(browser.all.length > 1 ? [field("run", "Run ", choice(browser.all.map((s, i) => [i, s.run.name])))] : []),
    field("dataset", "Data ", choice([["", "all"], ...modes])),
    field("from", "Steps ", number(String(steps[0]), 1)),
    field("to", "to ", number(String(steps[1]), 1)),
    field("reward", "", choice(rewards.map((name) => [name, name]))),
    field("low", "from ", number("any", "any")),
    field("high", "to ", number("any", "any")),
    field("cut", "End ", choice([["", "any"], ["0", "finished"], ["1", "cut off"]])),
    field("sort", "Order ", choice(Object.keys(SORTS).map((name) => [name, name]))),
    field("search", "", el("input", { type: "search", placeholder: "Search prompt id or text", "aria-label": "Search" })),
    el("button", { type: "reset" }, "Clear"),
  );
  if (browser.fields.run) browser.fields.run.value = browser.all.indexOf(browser.samples);
  form.onsubmit = (event) => event.preventDefault();
  form.onreset = () => setTimeout(() => {
    if (browser.fields.run) browser.fields.run.value = browser.all.indexOf(browser.samples);
    filter();
  });
}

function changeRun(number) {
  browser.samples = browser.all[number];
  buildFilters();
  filter();
}

// Which completions are shown; a search in texts goes on in the background, chunk by chunk.
async function filter() {
  const { samples, fields } = browser;
  const { index } = samples;
  const value = (name) => fields[name].value.trim();
  const bound = (name, otherwise) => (value(name) === "" ? otherwise : Number(value(name)));
  const [from, to] = [bound("from", -Infinity), bound("to", Infinity)];
  const [low, high] = [bound("low", -Infinity), bound("high", Infinity)];
  const scores = value("reward") === "reward" ? index.reward : index.rewards[value("reward")];
  const anyScore = low === -Infinity && high === Infinity;
  let found = [];
  for (let i = 0; i < samples.count; i++) {
    if (index.step[i] < from || index.step[i] > to) continue;
    if (value("dataset") !== "" && index.dataset[i] !== Number(value("dataset"))) continue;
    if (value("cut") !== "" && index.cut[i] !== Number(value("cut"))) continue;
    if (!anyScore && (scores[i] === null || scores[i] < low || scores[i] > high)) continue;
    found.push(i);
  }
  const order = SORTS[value("sort")];
  if (order) {
    const column = order[0] === "reward" ? scores : index[order[0]];
    found.sort((a, b) => (column[a] === null) - (column[b] === null) || order[1] * (column[a] - column[b]) || a - b);
  }
  const run = ++browser.search;
  const words = value("search").toLowerCase();
  if (words) {
    await new Promise((resolve) => setTimeout(resolve, 150)); // until the typing pauses
    if (run !== browser.search) return;
    found = await matching(found, words, run);
    if (found === null) return;
  }
  showFound(found);
}

// Those of `found` whose text, prompt or prompt id has the words; null if another search began meanwhile.
async function matching(found, words, run) {
  const hits = [];
  let told = performance.now();
  for (const i of found) {
    const [text] = browser.samples.entryNow(i) ?? (await browser.samples.entry(i));
    const [id, messages] = await browser.samples.prompt(i);
    const prompt = () => messages.some(([, content]) => content.toLowerCase().includes(words));
    if (id.startsWith(words) || text.toLowerCase().includes(words) || prompt()) hits.push(i);
    if (run !== browser.search) return null;
    if (performance.now() - told > 200) {
      document.getElementById("count").textContent = `Searching … ${hits.length} found`;
      await new Promise((resolve) => setTimeout(resolve));
      told = performance.now();
    }
  }
  return hits;
}

function showFound(found) {
  browser.shown = found;
  const { samples } = browser;
  const { run } = samples;
  const part = run.samples < run.totalSamples ? ` (of a share of the prompts; the run has ${run.totalSamples})` : "";
  document.getElementById("count").textContent = `${found.length} of ${samples.count} completions${part}`;
  browser.list.firstChild.style.height = `${found.length * ROW}px`;
  browser.list.scrollTop = 0;
  browser.selected = -1;
  if (found.length) select(0);
  else {
    drawRows();
    document.getElementById("detail").replaceChildren(el("p", { class: "quiet" }, "No completion matches these filters."));
  }
}

function drawRows() {
  const { list, shown, samples } = browser;
  if (!list) return;
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 5);
  const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 5);
  const rows = [];
  for (let at = first; at < last; at++) rows.push(rowAt(at, samples, shown[at]));
  list.firstChild.replaceChildren(...rows);
  if (shown.length) list.setAttribute("aria-activedescendant", `row-${browser.selected}`);
}

function rowAt(at, samples, i) {
  const { index } = samples;
  const start = (whole) => whole.slice(0, 160).replaceAll("\n", " ⏎ ");
  const entry = samples.entryNow(i);
  const text = el("div", { class: "text" }, entry ? preview(entry) : "");
  if (!entry) samples.entry(i).then((found) => text.replaceChildren(...preview(found)));
  const prompt = el("div", { class: "text prompt" });
  samples.prompt(i).then(([, messages]) => (prompt.textContent = start(messages.at(-1)?.[1] ?? "")));
  const head = el("div", { class: "head" }, el("span", {}, `step ${index.step[i]}`), el("b", {}, figure(index.reward[i])),
    el("span", {}, samples.dataset(i)), el("span", {}, `${index.length[i]} tokens${index.cut[i] ? ", cut off" : ""}`));
  return el("div", { class: "row", role: "option", id: `row-${at}`, "data-at": at, style: { top: `${at * ROW}px` },
    "aria-selected": String(at === browser.selected), "aria-setsize": browser.shown.length, "aria-posinset": at + 1 }, head, prompt, text);
}

// Select the row at a position of the list, bring it into view, and show its completion.
function select(at) {
  if (!browser.shown.length) return;
  browser.selected = Math.min(Math.max(at, 0), browser.shown.length - 1);
  const top = browser.selected * ROW;
  const { list } = browser;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  drawRows();
  browser.show(browser.samples, browser.shown[browser.selected]);
}
