"use strict";
// The list of completions, and only those rows in the page that can be seen.

const ROW = 72; // height of a row in pixels, as in the style sheet
const browser = { runs: [], samples: null, shown: [], selected: -1, list: null };

// `choose(number)` opens the completions of a run.
function startBrowser(runs, choose) {
  Object.assign(browser, { runs, choose, list: byId("list") });
  browser.list.append(el("div", { role: "presentation" }));
  browser.list.addEventListener("scroll", () => requestAnimationFrame(drawRows));
  browser.list.addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row) select(Number(row.dataset.at), true);
  });
  new ResizeObserver(drawRows).observe(browser.list);
  byId("fold").open = window.matchMedia("(min-width: 761px)").matches;
}

function showSamples(samples) {
  const quiet = browser.samples === samples;
  browser.samples = samples;
  byId("completions-empty").hidden = samples.count > 0;
  byId("explorer").hidden = !samples.count;
  if (!samples.count) return showNoSamples();
  const kinds = JSON.stringify([samples.run.number, browser.runs.length, samples.index.datasets, tasksOf(samples.index), Object.keys(samples.index.rewards)]);
  if (browser.kinds !== kinds) buildFilters();
  browser.kinds = kinds;
  filter({ quiet: quiet && browser.shown.length > 0 });
}

// What stands in place of the completions of a run that has none.
function showNoSamples() {
  const words = "No completions were logged.";
  byId("completions-empty").textContent = words;
  byId("pairs-body").replaceChildren(el("p", { class: "quiet" }, words));
}

function showFound(found, quiet) {
  const chosen = browser.shown[browser.selected];
  browser.shown = found;
  const { samples } = browser;
  const part = samples.count < samples.total ? ` (${samples.dropped ? "the newest, and all from evaluations" : "from a share of the prompts"}; the run has ${samples.total})` : "";
  byId("count").textContent = `${found.length} of ${samples.count} completions${part}`;
  drawHistogram(samples, found);
  browser.list.firstChild.style.height = `${found.length * ROW}px`;
  if (quiet) {
    browser.selected = found.indexOf(chosen);
    return drawRows();
  }
  browser.list.scrollTop = 0;
  browser.selected = -1;
  if (found.length) select(0);
  else {
    drawRows();
    byId("detail").replaceChildren(el("p", { class: "quiet" }, "No completion matches these filters."));
  }
}

function drawRows() {
  const { list, shown, samples } = browser;
  if (!samples) return;
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
  const name = shownReward();
  const head = el("div", { class: "head" }, el("b", {}, figure(samples.scores(name)[i])), el("span", {}, `step ${index.step[i]}`),
    el("span", {}, samples.dataset(i)), index.task[i] ? el("span", {}, index.task[i]) : null, el("span", {}, `${counted(index.length[i], "token")}${index.cut[i] ? ", cut off" : ""}`));
  return el("div", { class: "row", role: "option", id: `row-${at}`, "data-at": at,
    style: { top: `${at * ROW}px`, borderLeftColor: samples.color(i, name) },
    "aria-selected": String(at === browser.selected), "aria-setsize": browser.shown.length, "aria-posinset": at + 1 }, head, prompt, text);
}

// Select the row at a position of the list, bring it into view, and show its completion. `named`: its link is the page's.
function select(at, named = false) {
  if (!browser.shown.length) return;
  browser.selected = Math.min(Math.max(at, 0), browser.shown.length - 1);
  const top = browser.selected * ROW;
  const { list } = browser;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + ROW > list.scrollTop + list.clientHeight) list.scrollTop = top + ROW - list.clientHeight;
  drawRows();
  showCompletion(browser.samples, browser.shown[browser.selected], named);
}
