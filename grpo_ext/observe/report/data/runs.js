"use strict";
// Several runs as a table: state, size, outcome, what differs between their recipes, and their notes.

const MOST_DIFFERENT = 4; // keys of a recipe in the table

function drawRuns(runs, change) {
  const section = byId("several");
  section.hidden = runs.length < 2;
  if (section.hidden) return;
  const different = differing(runs).filter((key) => key !== "output_dir");
  const rows = runs.map((run) => {
    const outcome = outcomeOf(run);
    const found = outcome?.change;
    const box = el("input", { type: "checkbox", "aria-label": `Show ${run.name}`, checked: run.shown ? "" : null,
      on: { change: () => { run.shown = box.checked; change(run); } } });
    const name = el("label", {}, box, el("i", { class: "chip", style: { background: inkOf(run.number) } }), el("b", {}, run.name));
    const values = different.slice(0, MOST_DIFFERENT).map((key) => el("span", { class: "differing" }, el("small", {}, key), ` ${short(run.recipe[key])}`));
    return { cells: [[name, run.name], stateOf(run),
      [found ? sparkline(outcome.series, { color: inkOf(run.number) }) : "–", found?.last ?? null],
      [found ? el("span", { title: outcome.words }, el("b", {}, withError(found.last, found.last_error))) : "–", found?.last ?? null],
      [found && found.change !== null ? el("span", { class: found.verdict === "rose" ? "up" : found.verdict === "fell" ? "down" : null, title: found.verdict }, signed(found.change)) : "–", found?.change ?? null],
      [run.steps, run.steps], [run.seconds ? duration(run.seconds) : "–", run.seconds], shortName(run.recipe.model_name_or_path) ?? "–",
      [el("div", { class: "cell" }, values.length ? values : "–"), values.map((value) => value.textContent).join()],
      [el("div", { class: "cell note" }, run.note || ""), run.note || ""]] };
  });
  const heads = ["run", "state", "outcome", "last", "change", "steps", "time", "model", "what differs", "note"];
  byId("runs-body").replaceChildren(tableOf(heads, rows, { numbers: [3, 4, 5, 6], order: drawRuns.order ??= { column: -1, sign: 1 } }),
    el("p", { class: "quiet" }, `The outcome is ${[...new Set(runs.map((run) => outcomeOf(run)?.words).filter(Boolean))].join(", or ") || "not logged yet"}. `
      + "The note of a run is the file notes.md in its folder."));
}

// Keys of the recipes that are not the same in all runs.
function differing(runs) {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.recipe)))];
  return keys.filter((key) => new Set(runs.map((run) => JSON.stringify(run.recipe[key]))).size > 1);
}

function short(value) {
  const words = value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value);
  return /^[.~]?\//.test(words) ? words.split("/").slice(-2).join("/") : words.length > 40 ? `${words.slice(0, 39)}…` : words;
}
