"use strict";
// How rewards are distributed: of the completions that the list shows, and over the steps of a run.

const MOST_BINS = 24;
const COLUMNS_OF_STEPS = 60;

// The edges of bins: one for each value if there are few.
function binsOf(values) {
  const distinct = [...new Set(values)].sort((a, b) => a - b);
  if (distinct.length <= MOST_BINS) return { count: distinct.length, of: (value) => distinct.indexOf(value), from: (bin) => distinct[bin], to: (bin) => distinct[bin] };
  const [low, width] = [distinct[0], (distinct.at(-1) - distinct[0]) / MOST_BINS];
  return { count: MOST_BINS, of: (value) => Math.min(MOST_BINS - 1, Math.floor((value - low) / width)), from: (bin) => low + bin * width, to: (bin) => low + (bin + 1) * width };
}

// A bar for each bin; a click lists its completions.
function drawHistogram(samples, found) {
  const name = shownReward();
  const scores = samples.scores(name);
  const values = found.map((i) => scores[i]).filter((value) => value !== null && value !== undefined);
  const place = byId("histogram");
  if (!values.length) return place.replaceChildren();
  const bins = binsOf(values);
  const counts = new Array(bins.count).fill(0);
  for (const value of values) counts[bins.of(value)]++;
  const most = Math.max(...counts);
  const bars = counts.map((count, bin) => {
    const [from, to] = [bins.from(bin), bins.to(bin)];
    const words = `${name} ${from === to ? figure(from) : `${figure(from)} to ${figure(to)}`}: ${count} (${(100 * count / values.length).toFixed(1)} %)`;
    return el("button", { type: "button", class: "plain", title: words, "aria-label": words, on: { click: () => {
      [filters.fields.low.value, filters.fields.high.value] = [from, to];
      filter();
    } } }, el("span", { style: { height: `${count ? Math.max(2, 44 * count / most) : 0}px`, background: rewardColour((from + to) / 2, samples.range(name)) } }));
  });
  place.replaceChildren(el("div", { class: "bars" }, bars), el("p", { class: "ends" }, el("span", {}, figure(bins.from(0))),
    el("span", {}, name), el("span", {}, figure(bins.to(bins.count - 1)))));
}

// For each reward of a run: the share of its values at the steps of training, the lowest at the bottom.
function drawDistribution(samples) {
  const { run, index } = samples;
  const names = ["reward", ...Object.keys(index.rewards)].slice(0, 6);
  const train = index.step.map((_, i) => i).filter((i) => samples.mode(i) === "train");
  const figures = names.map((name) => distributionOf(name, train.filter((i) => Number.isFinite(samples.scores(name)[i])), samples)).filter(Boolean);
  byId("distribution").hidden = !figures.length;
  byId("distribution-body").replaceChildren(...figures);
  byId("distribution-run").textContent = page.runs.length > 1 ? run.name : "";
}

function distributionOf(name, own, samples) {
  if (own.length < 2) return null;
  const scores = samples.scores(name);
  const bins = binsOf(own.map((i) => scores[i]));
  if (bins.count < 2) return null;
  const [first, last] = [samples.index.step[own[0]], samples.index.step[own.at(-1)]];
  const columns = Math.min(COLUMNS_OF_STEPS, last - first + 1);
  const counts = Array.from({ length: columns }, () => new Array(bins.count).fill(0));
  for (const i of own) counts[Math.min(columns - 1, Math.floor((samples.index.step[i] - first) / (last - first + 1) * columns))][bins.of(scores[i])]++;
  const cells = counts.flatMap((column, x) => {
    const all = column.reduce((a, b) => a + b, 0);
    let below = 0;
    return column.flatMap((count, bin) => {
      if (!count) return [];
      const height = 100 * count / all;
      below += height;
      return [svg("rect", { x: x * 10, y: 100 - below, width: 11, height: height + 0.3, style: { fill: rewardColour((bins.from(bin) + bins.to(bin)) / 2, samples.range(name)) } })];
    });
  });
  const scale = Array.from({ length: bins.count }, (_, bin) => bin).filter((bin) => bins.count <= 6 || bin === 0 || bin === bins.count - 1);
  const key = el("p", { class: "legend" }, scale.map((bin) => el("span", {}, el("i", { class: "chip", style: { background: rewardColour((bins.from(bin) + bins.to(bin)) / 2, samples.range(name)) } }),
    figure(bin ? bins.to(bin) : bins.from(bin)))));
  return el("figure", {}, el("figcaption", {}, name), key, el("div", { class: "heat" },
    el("div", { class: "scale" }, el("span", {}, "100 %"), el("span", {}, "0")),
    svg("svg", { viewBox: `0 0 ${columns * 10} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `Distribution of ${name} by step` }, cells)),
  el("p", { class: "ends" }, el("span", {}, `step ${first}`), el("span", {}, String(last))));
}
