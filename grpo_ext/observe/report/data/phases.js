"use strict";
// Where the time goes: the share of each phase of a step, and the rates of the run.

const PHASES = {
  generation: "--c0", environment: "--world", rewards: "--c1", scoring: "--c2", train: "--c4", optimizer: "--c3", sync: "--c5", waiting: "--c6", other: "--c7",
  evaluation: "--mid", checkpoint: "--line",
};
const BESIDE = ["evaluation", "checkpoint"]; // phases that belong to no step

function drawPhases(runs) {
  const shown = runs.filter((run) => run.shown && run.panel("Seconds"));
  byId("time").hidden = !shown.length;
  const bars = shown.flatMap((run) => barOf(run, runs.length > 1));
  const words = bars.length ? "Mean over the run." : wholeSteps(shown);
  byId("phases").replaceChildren(...bars, el("p", { class: "quiet" }, words));
  const titles = ["Seconds", "Tokens per second", "Share of the device's rate", "Memory, GiB"];
  for (const run of shown) if (!run.curves.panels.has("Tokens per second")) addRate(run);
  fill(byId("rates"), "panels", titles, shown);
}

// Mean seconds of each phase, 0 where a line of the log lacks it; what none of them counts is `other`.
function secondsOf(run) {
  const known = ({ values }) => values.filter(Number.isFinite);
  const mean = (values, count) => (count ? values.reduce((a, b) => a + b, 0) / count : 0);
  const series = run.panel("Seconds").series;
  const each = series.filter(({ label }) => label !== "whole step");
  const lines = Math.max(0, ...each.map((one) => known(one).length));
  const phases = each.map((one) => [one.label, mean(known(one), lines)]);
  const sum = phases.reduce((total, [name, seconds]) => total + (BESIDE.includes(name) ? 0 : seconds), 0);
  const whole = known(series.find(({ label }) => label === "whole step") ?? { values: [] });
  const rest = mean(whole, whole.length) - sum;
  return rest > 0.01 * sum ? [...phases, ["other", rest]] : phases;
}

function barOf(run, several) {
  const phases = secondsOf(run).filter(([, seconds]) => seconds > 0);
  const whole = phases.reduce((total, [, seconds]) => total + seconds, 0);
  if (phases.length < 2) return [];
  const order = Object.keys(PHASES);
  phases.sort(([a], [b]) => (order.indexOf(a) + 1 || 99) - (order.indexOf(b) + 1 || 99));
  const parts = phases.map(([name, seconds], i) => ({ name, seconds, share: seconds / whole, color: `var(${PHASES[name] ?? `--c${i % INKS}`})` }));
  return [el("div", { class: "phases" }, several ? el("h3", {}, run.name) : null,
    el("div", { class: "bar", role: "img", "aria-label": parts.map(({ name, share }) => `${name} ${Math.round(100 * share)} %`).join(", ") },
      parts.map(({ share, color }) => el("span", { style: { width: `${100 * share}%`, background: color } }))),
    el("p", { class: "legend" }, parts.map(({ name, seconds, share, color }) => el("span", {}, el("i", { class: "chip", style: { background: color } }),
      `${name} `, el("b", {}, `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`), ` ${figure(seconds, 2)} s`)), el("span", {}, "whole step ", el("b", {}, `${figure(whole - parts.reduce((sum, { name, seconds }) => sum + (BESIDE.includes(name) ? seconds : 0), 0), 2)} s`))))];
}

function wholeSteps(runs) {
  const words = runs.flatMap((run) => secondsOf(run).filter(([, seconds]) => seconds > 0).map(([, seconds]) => `${runs.length > 1 ? `${run.name} ` : ""}${figure(seconds)} s`));
  return words.length ? `A step took ${words.join(", ")} on average; the log does not have the times of its phases.` : "";
}

// Tokens per second between two lines of the log, where it has no such figure.
function addRate(run) {
  const [time, tokens] = [run.fact("time"), run.fact("num_tokens")];
  if (!time || !tokens) return;
  const at = new Map(time.steps.map((step, i) => [step, time.values[i]]));
  const known = tokens.steps.flatMap((step, i) => (Number.isFinite(tokens.values[i]) && at.get(step) ? [[step, tokens.values[i], at.get(step)]] : []));
  const pairs = known.slice(1).map(([step, count, when], i) => [step, (count - known[i][1]) / (when - known[i][2])]).filter(([, rate]) => rate > 0 && Number.isFinite(rate));
  const series = { label: "tokens per second", steps: pairs.map(([step]) => step), values: pairs.map(([, rate]) => rate), smoothed: true };
  run.curves.sampled.set("Tokens per second", { title: "Tokens per second", note: "Prompt and completion tokens, by the timestamps in the log.", series: [series] });
}
