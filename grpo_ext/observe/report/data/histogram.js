"use strict";
// How the rewards of the completions that the list shows are distributed.

const MOST_BINS = 24;

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
    } } }, el("span", { style: { height: `${count ? Math.max(2, 44 * count / most) : 0}px`, background: rewardColor((from + to) / 2, samples.range(name)) } }));
  });
  place.replaceChildren(el("div", { class: "bars" }, bars), el("p", { class: "ends" }, el("span", {}, figure(bins.from(0))),
    el("span", {}, name), el("span", {}, figure(bins.to(bins.count - 1)))));
}
