"use strict";
// A run and its curves, as its log grows: what is new comes as a stretch of steps that replaces all from its first step on.

const MOST_VALUES = 4000; // of a curve; in a longer one neighbors are averaged

class Run {
  constructor(number, about) {
    this.number = number;
    this.shown = true;
    this.curves = { panels: new Map(), more: new Map(), facts: new Map(), sampled: new Map() };
    this.titles = []; // of the main panels, in their order
    this.alarms = [];
    this.changes = []; // first and last values of the main curves with errors and verdicts
    this.know(about);
  }

  know(about) {
    for (const key of Object.keys(about)) if (key !== "logged") this[key] = about[key];
    if (about.logged) this.absorb({ start: 0, ...about.logged });
  }

  // The reward that says whether a problem is solved: the one that the trainer named, else the first.
  get outcome() {
    const names = this.rewards.map(({ name }) => name);
    return names.includes(this.about.outcome) ? this.about.outcome : names[0];
  }

  // The least outcome of a completion that counts as right, as in training.
  get passThreshold() {
    const found = this.recipe.pass_threshold ?? this.about.pass_threshold;
    return typeof found === "number" ? found : 1;
  }

  // Take in curves and alarms of a stretch of the log.
  absorb({ start, panels, more, facts, alarms }) {
    const found = { panels, more, facts: facts.map((series) => ({ title: series.label, series: [series] })) };
    const from = start ? firstStep(Object.values(found).flat()) : -Infinity;
    for (const [kind, some] of Object.entries(found)) merge(this.curves[kind], some, from, kind === "facts" ? Infinity : MOST_VALUES);
    order(this.titles, panels);
    this.alarms = [...this.alarms.filter((alarm) => alarm.step < from), ...alarms];
  }

  // Curves by completions, which have a band, take the place of those by the log.
  absorbSampled({ start, panels }) {
    merge(this.curves.sampled, panels, start ? firstStep(panels) : -Infinity, MOST_VALUES);
    order(this.titles, panels);
  }

  panel(title, kind = "panels") {
    return (kind === "panels" && this.curves.sampled.get(title)) || this.curves[kind].get(title);
  }

  series(title, label) {
    return this.panel(title)?.series.find((series) => series.label === label);
  }

  // The change of a curve as the data has it: `title`, `label`, `first`, `last`, their errors and steps, `verdict`.
  change(title, label) {
    return this.changes.find((one) => one.title === title && one.label === label) ?? null;
  }

  fact(name) {
    return this.curves.facts.get(name)?.series[0];
  }

  // `done` if the log ends with the summary of a complete run.
  get state() {
    return this.fact("train_runtime")?.steps.at(-1) === this.steps ? "done" : this.running ? "running" : "stopped";
  }

  get steps() {
    const known = [this.curves.facts, this.curves.panels].flatMap((panels) => [...panels.values()]);
    return Math.max(0, ...known.flatMap(({ series }) => series.map(({ steps }) => steps.at(-1) ?? 0)));
  }

  // Seconds of work: the time between lines of the log, without the pauses before a resume.
  get seconds() {
    const times = this.fact("time")?.values.filter(Number.isFinite) ?? [];
    const starts = (Array.isArray(this.about.starts) ? this.about.starts : []).map((one) => one?.time).filter(Number.isFinite);
    return times.reduce((sum, time, i) => {
      const before = Math.max(times[i - 1] ?? -Infinity, ...starts.filter((start) => start <= time));
      return sum + (Number.isFinite(before) ? time - before : 0);
    }, 0);
  }
}

function firstStep(panels) {
  return Math.min(...panels.flatMap(({ series }) => series.map(({ steps }) => steps[0] ?? Infinity)));
}

// Replace all values from a step on; curves of more than `most` values are thinned.
function merge(known, panels, from, most) {
  if (from === -Infinity) known.clear();
  for (const { series } of known.values()) for (const one of series) cut(one, from);
  for (const panel of panels) {
    const old = known.get(panel.title);
    if (!old) known.set(panel.title, panel);
    else for (const series of panel.series) {
      const same = old.series.find(({ label }) => label === series.label);
      if (same) extend(same, series);
      else old.series.push(series);
    }
  }
  for (const { series } of known.values()) series.forEach((one) => thin(one, most));
}

const COLUMNS = ["steps", "values", "errors", "spread"];

function cut(series, from) {
  let count = series.steps.length;
  while (count && series.steps[count - 1] >= from) count--;
  for (const name of COLUMNS) series[name]?.splice(count);
}

function extend(old, more) {
  for (const name of ["errors", "spread"]) {
    if (!old[name] && more[name]) old[name] = old.steps.map(() => null);
    old[name]?.push(...(more[name] ?? more.steps.map(() => null)));
  }
  old.steps.push(...more.steps);
  old.values.push(...more.values);
  if (more.bounds) old.bounds = old.bounds ? [Math.min(old.bounds[0], more.bounds[0]), Math.max(old.bounds[1], more.bounds[1])] : more.bounds;
}

function thin(series, most) {
  const pairs = (values, of) => values.flatMap((value, i) => (i % 2 ? [of(values[i - 1], value)] : i + 1 === values.length ? [value] : []));
  while (series.steps.length > most) {
    series.steps = pairs(series.steps, (_, b) => b);
    for (const name of COLUMNS.slice(1)) series[name] &&= pairs(series[name], (a, b) => (a === null ? b : b === null ? a : (a + b) / 2));
  }
}

// Put new titles behind the one before which they come.
function order(titles, panels) {
  panels.forEach(({ title }, i) => {
    if (titles.includes(title)) return;
    titles.splice(i ? titles.indexOf(panels[i - 1].title) + 1 : 0, 0, title);
  });
}

// The curves of a panel, those with the same values as one.
function distinct(series) {
  const found = [];
  for (const one of series) {
    const same = found.find(({ values, steps }) => values.length === one.values.length && values.every((value, i) => value === one.values[i] && steps[i] === one.steps[i]));
    if (same) same.label += `, ${one.label}`;
    else found.push({ ...one, first: one.label });
  }
  return found;
}

// Exponential moving average, corrected for its start; gaps stay gaps.
function smooth(values, weight) {
  let total = 0;
  let norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    total = weight * total + value;
    norm = weight * norm + 1;
    return total / norm;
  });
}
