"use strict";
// The page as a whole: its sections, its keys, and the completion that its address names.

const page = { runs: [], opened: -1, most: Infinity };

async function main() {
  const { runs, renew, most, made } = await unpack("runs");
  page.runs = runs.map((run, i) => new Run(i, run));
  preparePanels(page.runs);
  startBrowser(page.runs, open);
  listenToKeys();
  drawRunsAndCurves();
  const first = page.runs.findIndex((run) => run.samples);
  if (renew) {
    page.most = most;
    startLive(renew);
  } else {
    byId("made").textContent = `Written on ${new Date(made * 1000).toLocaleString()}.`;
    if (first >= 0) await open(first);
    else showNoSamples();
  }
  await openAddress();
  window.addEventListener("hashchange", openAddress);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve))); // until the page shows it
  document.documentElement.dataset.curves = String(Math.round(performance.now()));
}

// Everything that depends on the curves of the runs.
function drawRunsAndCurves() {
  const { runs } = page;
  byId("name").textContent = runs.length === 1 ? runs[0].name : runs.length ? `${runs.length} runs` : "grpo_ext";
  drawHeadline(runs);
  drawChanges(runs);
  drawRuns(runs, drawRunsAndCurves);
  drawSuites(runs);
  byId("curves").hidden = !runs.length;
  drawPanels(runs);
  drawPhases(runs);
  drawRecipe(runs);
}

// Open the completions of a run.
async function open(number) {
  page.opened = number;
  const run = page.runs[number];
  run.opened ??= (page.load ? page.load(run) : new Samples(run).open()).catch((error) => {
    run.opened = undefined;
    throw error;
  });
  drawSamples(await run.opened);
}

function drawSamples(samples) {
  if (samples.run.number !== page.opened) return;
  showSamples(samples);
  drawDistribution(samples);
  drawPairs(samples);
  if (page.load) drawRunsAndCurves(); // completions give the curves of rewards their band
}

// Show the completion that the address names: #at/RUN/STEP/DATA/GROUP/NUMBER.
async function openAddress() {
  const [kind, ...address] = location.hash.slice(1).split("/").map(decoded);
  const run = kind === "at" ? page.runs.find(({ name }) => name === address[0]) : null;
  if (!run) return;
  if (page.opened !== run.number) await open(run.number);
  const samples = await run.opened;
  const at = samples.at(address);
  if (at < 0) return;
  byId("completions").scrollIntoView();
  if (samples !== detail.samples || at !== detail.at) jump(at);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function listenToKeys() {
  const help = byId("help");
  byId("help-button").addEventListener("click", () => help.showModal());
  const rows = () => Math.max(1, Math.floor(byId("list").clientHeight / ROW) - 1);
  const to = (at) => () => select(at(), true);
  const keys = {
    j: to(() => browser.selected + 1), k: to(() => browser.selected - 1), n: () => jumpInPrompt(1), p: () => jumpInPrompt(-1),
    g: () => showGroup(!detail.grouped), "/": () => byId("search").focus(), "?": () => help.showModal(),
  };
  const inList = { ArrowDown: keys.j, ArrowUp: keys.k, PageDown: to(() => browser.selected + rows()),
    PageUp: to(() => browser.selected - rows()), Home: to(() => 0), End: to(() => browser.shown.length - 1) };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target.matches("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const action = keys[event.key] ?? (event.target.id === "list" ? inList[event.key] : undefined);
    if (!action || (!browser.samples && event.key !== "?")) return;
    event.preventDefault();
    action();
  });
}

main().catch((error) => {
  document.querySelector("main").prepend(el("p", { class: "notice" }, `This report could not be shown: ${error.message}`));
  throw error;
});
