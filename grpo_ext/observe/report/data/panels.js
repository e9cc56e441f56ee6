"use strict";
// The charts of a report: a panel for each that any run has, those that say nothing left out.

const INKS = 8; // colors of the style sheet
const DASHES = [null, "6 3", "2 3", "8 3 2 3"];
const board = { known: new Map(), runs: [] };
const ELSEWHERE = ["Seconds", "Tokens per second", "Share of the device's rate", "Memory, GiB"]; // in the section on time

function preparePanels(runs) {
  board.runs = runs;
  const slider = byId("smoothing");
  slider.addEventListener("input", () => {
    charts.smoothing = Number(slider.value);
    byId("smoothing-value").textContent = charts.smoothing.toFixed(2);
    Chart.redraw();
  });
  byId("range").addEventListener("click", () => chooseRange(null));
  byId("more").addEventListener("toggle", () => drawPanels(board.runs));
  new ResizeObserver(() => Chart.redraw()).observe(byId("panels"));
  window.addEventListener("beforeprint", () => Chart.redraw({ all: true }));
  window.addEventListener("afterprint", () => Chart.redraw());
}

function inkOf(number) {
  return `var(--c${number % INKS})`;
}

// Phases of a step have the same colors as in its bar.
function inkIn(title, number, { label }, several) {
  if (title !== "Seconds" || several) return inkOf(number);
  return label === "whole step" ? "var(--quiet)" : PHASES[label] ? `var(${PHASES[label]})` : inkOf(number);
}

// Bring the charts up to the runs: a chart stays where it is, new ones come at their place.
function drawPanels(runs) {
  board.runs = runs;
  const shown = runs.filter((run) => run.shown);
  const titles = [];
  for (const run of shown) order(titles, run.titles.map((title) => ({ title })));
  const silent = fill(byId("panels"), "panels", titles.filter((title) => !ELSEWHERE.includes(title)), shown);
  byId("silent").textContent = silent.length ? `Left out because they did not change: ${silent.join(" · ")}.` : "";
  const more = [...new Set(shown.flatMap((run) => [...run.curves.more.keys()]))].sort();
  byId("more").hidden = !more.length;
  if (byId("more").open) {
    const rest = fill(byId("more-panels"), "more", more, shown);
    byId("more-silent").textContent = rest.length ? `Left out because they did not change: ${rest.join(" · ")}.` : "";
  }
  Chart.redraw();
}

function fill(place, kind, titles, runs) {
  const silent = [];
  const elements = titles.flatMap((title) => {
    const panels = runs.map((run) => run.panel(title, kind)).filter(Boolean);
    if (!panels.length || repeats(title, runs)) return [];
    const constant = panels.map((panel) => constantOf(panel, title));
    if (constant.every((words) => words !== null)) {
      silent.push(`${title}: ${[...new Set(constant)].join("; ")}`);
      return [];
    }
    const key = `${kind}/${title}`;
    if (!board.known.has(key)) board.known.set(key, new Chart(title, panels[0].note, () => linesOf(title, kind)));
    return [board.known.get(key).element];
  });
  if (elements.length !== place.children.length || elements.some((element, i) => element !== place.children[i])) place.replaceChildren(...elements);
  return silent;
}

// Whether the only reward is also the weighted sum, which has a panel.
function repeats(title, runs) {
  return title === "Reward by function" && runs.every((run) => {
    const [parts, sum] = [run.panel(title), run.series("Reward", "reward")];
    return !parts || (parts.series.length === 1 && sum && parts.series[0].values.every((value, i) => value === sum.values[i]));
  });
}

// Words instead of curves that say nothing: at most one value each or, but for rewards, the same value throughout.
function constantOf({ series }, title) {
  const known = series.map((one) => [one.label, one.values.filter((value) => value !== null)]);
  const same = ([, values]) => values.length < 2 || (!/reward/i.test(title) && values.every((value) => value === values[0]));
  if (!known.every(same)) return null;
  const words = known.filter(([, values]) => values.length).map(([label, [value]]) => (known.length > 1 ? `${label} ${figure(value)}` : figure(value)));
  return words.join(", ") || "no finite value";
}

// With one run, colors distinguish curves; with several, colors distinguish runs and dashes curves.
function linesOf(title, kind) {
  const runs = board.runs.filter((run) => run.shown);
  const several = board.runs.length > 1;
  return runs.flatMap((run) => distinct(run.panel(title, kind)?.series ?? []).flatMap((series, j) => (series.values.length ? [{
    run: several ? run.name : null, label: series.label, color: inkIn(title, several ? run.number : j, series, several),
    dash: several ? DASHES[j % DASHES.length] : null, series, plain: runs.length > 1,
  }] : [])));
}
