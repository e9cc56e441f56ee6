"use strict";
// Which completions the list shows, and in what order.

const SORTS = {
  "oldest first": null, "newest first": ["step", -1], "highest reward first": ["score", -1], "lowest reward first": ["score", 1],
  "longest first": ["length", -1], "shortest first": ["length", 1], "highest advantage first": ["advantage", -1],
};
const filters = { fields: {}, search: 0 };

function buildFilters() {
  const { index } = browser.samples;
  const kept = Object.fromEntries(Object.entries(filters.fields).map(([name, input]) => [name, input.value]));
  const field = (name, label, input) => {
    filters.fields[name] = input;
    input.addEventListener(input.type === "search" ? "input" : "change", () => {
      if (name === "run") browser.choose(Number(input.value));
      else filter();
    });
    return el("label", {}, label ? el("span", {}, label) : null, input);
  };
  const choice = (options) => el("select", {}, options.map(([value, text]) => el("option", { value }, text)));
  const number = (placeholder, step) => el("input", { type: "number", placeholder, step });
  const rewards = ["reward", ...Object.keys(index.rewards)];
  const modes = index.datasets.map(([mode, name], i) => [i, mode === name ? mode : `${mode} ${name}`]);
  const tasks = tasksOf(index);
  if (tasks.length < 2) delete filters.fields.task;
  const form = byId("filters");
  form.replaceChildren(
    ...(browser.runs.length > 1 ? [field("run", "run", choice(browser.runs.map((run) => [run.number, run.name])))] : []),
    field("dataset", "dataset", choice([["", "all"], ...modes])),
    ...(tasks.length > 1 ? [field("task", "task", choice([["", "all"], ...tasks.map((name) => [name, name])]))] : []),
    field("from", "steps", number("first", 1)),
    field("to", "to", number("last", 1)),
    field("reward", "reward", choice(rewards.map((name) => [name, name === "reward" ? "weighted sum" : name]))),
    field("low", "from", number("any", "any")),
    field("high", "to", number("any", "any")),
    field("cut", "ending", choice([["", "any"], ["0", "finished"], ["1", "cut off"]])),
    field("sort", "sort by", choice(Object.keys(SORTS).map((name) => [name, name]))),
    el("button", { type: "reset" }, "Clear"),
  );
  filters.fields.search = byId("search");
  byId("search").oninput = () => filter();
  for (const [name, value] of Object.entries(kept)) {
    const input = filters.fields[name];
    if (input && (input.tagName !== "SELECT" || [...input.options].some((option) => option.value === value))) input.value = value;
  }
  if (filters.fields.run) filters.fields.run.value = browser.samples.run.number;
  form.onsubmit = (event) => event.preventDefault();
  form.onreset = () => setTimeout(() => {
    byId("search").value = "";
    if (filters.fields.run) filters.fields.run.value = browser.samples.run.number;
    filter();
  });
}

function tasksOf(index) {
  return [...new Set(index.task)].filter(Boolean).sort().slice(0, 100);
}

function shownReward() {
  return filters.fields.reward?.value ?? "reward";
}

// Find what the fields ask for; a search in texts goes on in the background. `quiet`: what is selected and seen stays.
async function filter({ quiet = false } = {}) {
  const { samples } = browser;
  const { index } = samples;
  const value = (name) => filters.fields[name].value.trim();
  const bound = (name, otherwise) => (value(name) === "" ? otherwise : Number(value(name)));
  const [from, to] = [bound("from", -Infinity), bound("to", Infinity)];
  const [low, high] = [bound("low", -Infinity), bound("high", Infinity)];
  const scores = samples.scores(shownReward());
  const anyScore = low === -Infinity && high === Infinity;
  let found = [];
  for (let i = 0; i < samples.count; i++) {
    if (index.step[i] < from || index.step[i] > to) continue;
    if (value("dataset") !== "" && index.dataset[i] !== Number(value("dataset"))) continue;
    if (filters.fields.task && value("task") !== "" && index.task[i] !== value("task")) continue;
    if (value("cut") !== "" && index.cut[i] !== Number(value("cut"))) continue;
    if (!anyScore && (scores[i] === null || scores[i] < low || scores[i] > high)) continue;
    found.push(i);
  }
  const order = SORTS[value("sort")];
  if (order) {
    const column = order[0] === "score" ? scores : index[order[0]];
    found.sort((a, b) => (column[a] === null) - (column[b] === null) || order[1] * (column[a] - column[b]) || a - b);
  }
  const run = ++filters.search;
  const words = value("search").toLowerCase();
  if (words) {
    if (!quiet) await new Promise((resolve) => setTimeout(resolve, 150)); // until the typing pauses
    if (run !== filters.search) return;
    found = await matching(found, words, run);
    if (found === null) return;
  }
  const set = ["dataset", ...(filters.fields.task ? ["task"] : []), "from", "to", "low", "high", "cut"].filter((name) => value(name) !== "").length;
  byId("fold-count").textContent = set ? ` (${set} active)` : "";
  showFound(found, quiet);
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
    if (run !== filters.search) return null;
    if (performance.now() - told > 200) {
      byId("count").textContent = `Searching … ${hits.length} found`;
      await new Promise((resolve) => setTimeout(resolve));
      told = performance.now();
    }
  }
  return hits;
}
