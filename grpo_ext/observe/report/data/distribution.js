"use strict";
// How rewards and the figures of episodes are distributed over the steps of a run.

const COLUMNS_OF_STEPS = 60;
const FEW_VALUES = 10; // of a figure of episodes, that have a bin each
const SHARES = 6; // bins of a figure that has more
// Words for each `end` of an episode, in the order in which they are drawn, from the bottom.
const ENDS = { failures: "environment failed", room: "length limit", turns: "turn limit", environment: "environment ended it" };

// For each reward of a run: the share of its values at the steps of training, the lowest at the bottom.
function drawDistribution(samples) {
  const { index } = samples;
  const train = index.step.map((_, i) => i).filter((i) => samples.mode(i) === "train");
  const draw = (name, values, partsOf) => distributionOf(name, train.filter((i) => Number.isFinite(values[i])), values, partsOf, index.step);
  const names = ["reward", ...Object.keys(index.rewards)].slice(0, 6);
  showDistributions("distribution", samples, names.map((name) => draw(name, samples.scores(name), (values) => rewardBins(values, samples.range(name)))));
  const ends = Object.keys(ENDS);
  const lengths = index.length.map((length, i) => (Number.isFinite(index.turns[i]) ? length : null));
  showDistributions("episodes", samples, [
    draw("turns", index.turns, evenBins),
    draw("tokens from the model", lengths, evenBins),
    draw("seconds in the environment", index.environment_time, evenBins),
    draw("why it ended", index.end.map((end) => (ends.includes(end) ? ends.indexOf(end) : null)), endBins),
  ]);
}

function showDistributions(id, { run }, figures) {
  const drawn = figures.filter(Boolean);
  byId(id).hidden = !drawn.length;
  byId(`${id}-body`).replaceChildren(...drawn);
  byId(`${id}-run`).textContent = page.runs.length > 1 ? run.name : "";
}

// One bin for each reward if there are few, with the colors of rewards.
function rewardBins(values, range) {
  const bins = binsOf(values);
  const all = Array.from({ length: bins.count }, (_, bin) => bin);
  const shown = all.filter((bin) => bins.count <= 6 || bin === 0 || bin === bins.count - 1);
  const color = (bin) => rewardColor((bins.from(bin) + bins.to(bin)) / 2, range);
  return { ...bins, color, key: shown.map((bin) => [bin, figure(bin ? bins.to(bin) : bins.from(bin))]) };
}

// Bins with about as many values each, so that a few large ones do not hide the others.
function evenBins(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const distinct = [...new Set(sorted)];
  const cuts = Array.from({ length: SHARES }, (_, k) => sorted[Math.floor(k * sorted.length / SHARES)]);
  const lows = distinct.length <= FEW_VALUES ? distinct : [...new Set(cuts)];
  const high = (bin) => distinct[distinct.indexOf(lows[bin + 1]) - 1] ?? distinct.at(-1);
  const name = (low, bin) => (low === high(bin) ? figure(low) : `${figure(low)} to ${figure(high(bin))}`);
  const color = (bin) => `color-mix(in oklab, var(--rule), var(--accent) ${Math.round(100 * (bin + 1) / lows.length)}%)`;
  return { count: lows.length, of: (value) => lows.findLastIndex((low) => low <= value), color, key: lows.map((low, bin) => [bin, name(low, bin)]) };
}

// A bin for each way in which episodes have ended.
function endBins(values) {
  const found = [...new Set(values)].sort((a, b) => a - b);
  const words = Object.values(ENDS);
  return { count: found.length, of: (end) => found.indexOf(end), color: (bin) => rewardColor(found[bin], [0, words.length - 1]),
    key: found.map((end, bin) => [bin, words[end]]) };
}

// The figure of the values of the completions `own`, as `binsOf` puts them into bins: { count, of(value), color(bin), key: [[bin, words]] }.
function distributionOf(name, own, values, binsOf, steps) {
  if (own.length < 2) return null;
  const bins = binsOf(own.map((i) => values[i]));
  if (bins.count < 2) return null;
  // the lines of a log that was edited or joined may be in any order
  const [first, last] = own.reduce(([low, high], i) => [Math.min(low, steps[i]), Math.max(high, steps[i])], [Infinity, -Infinity]);
  const columns = Math.min(COLUMNS_OF_STEPS, last - first + 1);
  const counts = Array.from({ length: columns }, () => new Array(bins.count).fill(0));
  for (const i of own) counts[Math.min(columns - 1, Math.floor((steps[i] - first) / (last - first + 1) * columns))][bins.of(values[i])]++;
  const cells = counts.flatMap((column, x) => {
    const all = column.reduce((a, b) => a + b, 0);
    let below = 0;
    return column.flatMap((count, bin) => {
      if (!count) return [];
      const height = 100 * count / all;
      below += height;
      return [svg("rect", { x: x * 10, y: 100 - below, width: 11, height: height + 0.3, style: { fill: bins.color(bin) } })];
    });
  });
  const key = el("p", { class: "legend" }, bins.key.map(([bin, words]) => el("span", {}, el("i", { class: "chip", style: { background: bins.color(bin) } }), words)));
  return el("figure", {}, el("figcaption", {}, name), key, el("div", { class: "heat" },
    el("div", { class: "scale" }, el("span", {}, "100 %"), el("span", {}, "0")),
    svg("svg", { viewBox: `0 0 ${columns * 10} 100`, preserveAspectRatio: "none", role: "img", "aria-label": `Distribution of ${name} by step` }, cells)),
  el("p", { class: "ends" }, el("span", {}, `step ${first}`), el("span", {}, String(last))));
}
