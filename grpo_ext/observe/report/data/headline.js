"use strict";
// What a run came to: the outcome in large figures, the run in one line, first and last values of its main curves.

const HELD_OUT = "Held-out rewards";
const BY_TASK = "Held-out rewards, by task";
const MOST_ALARMS = 3; // in view

// The curve that says whether a run learnt: its outcome on held-out prompts if that was evaluated twice, else in training.
function outcomeOf(run) {
  const all = run.panel(BY_TASK) ? run.series(HELD_OUT, "pass@1") : null; // no reward alone says it of several tasks
  if (all && all.values.filter(Number.isFinite).length > 1) return { series: all, words: "pass@1 of all tasks on held-out prompts" };
  const held = run.series(HELD_OUT, run.outcome);
  if (held && held.values.filter(Number.isFinite).length > 1) return { series: held, words: `${run.outcome} on held-out prompts` };
  const own = run.series("Reward by function", run.outcome) ?? run.series("Reward", "reward") ?? run.series("Reward", run.outcome);
  return own ? { series: own, words: `${own.label === "reward" && run.rewards.length < 2 ? run.outcome ?? "reward" : own.label} in training` } : null;
}

// First and last value with their errors; of a long curve means over its first and last tenth.
function changeOf(series) {
  const points = series.values.flatMap((value, i) => (value === null ? [] : [[value, series.errors?.[i] ?? null, series.steps[i]]]));
  if (!points.length) return null;
  const count = points.length > 25 ? Math.ceil(points.length / 10) : 1;
  const side = (some) => {
    const value = some.reduce((sum, [one]) => sum + one, 0) / some.length;
    const spread = Math.sqrt(some.reduce((sum, [one]) => sum + (one - value) ** 2, 0) / Math.max(1, some.length - 1));
    return { value, error: some.length > 1 ? spread / Math.sqrt(some.length) : some[0][1], from: some[0][2], to: some.at(-1)[2] };
  };
  const [first, last] = [side(points.slice(0, count)), side(points.slice(-count))];
  const change = last.value - first.value;
  const error = Math.hypot(first.error ?? 0, last.error ?? 0);
  const sure = points.length > 1 && Math.abs(change) > 2 * error && change !== 0;
  return { first, last, change, error, verb: !sure ? "did not clearly change" : change > 0 ? "rose" : "fell", once: points.length < 2 };
}

// What the best constant answer earned in the last evaluation of an outcome on held-out prompts, and whether the model earned
// more by twice the error; `null` where it was not logged.
function constantOf(run, series, last) {
  const fact = run.fact(`eval_${series.label}_constant`) ?? run.fact(`eval_${series.label.replace(/\/mean$/, "")}/constant`);
  const value = fact?.values.at(-1);
  if (!Number.isFinite(value)) return null;
  const error = fact.errors?.at(-1) ?? 0;
  return { value, error, beaten: last.value - value > 2 * Math.hypot(last.error ?? 0, error) };
}

function withError({ value, error }) {
  return error ? `${rounded(value, error)} ±\u00a0${rounded(error, error)}` : figure(value);
}

function stepsOf({ from, to }) {
  return from === to ? (from ? `at step ${from}` : "before the first step") : `over steps ${from} to ${to}`;
}

function drawHeadline(runs) {
  const place = byId("headline");
  document.title = runs.length ? `Report: ${runs.map(({ name }) => name).join(", ")}` : "Report";
  if (!runs.length) {
    return place.replaceChildren(el("p", { class: "sentence" }, "No run yet"),
      el("p", { class: "quiet" }, "The page shows a run as soon as its log has a line."));
  }
  if (runs.length > 1) return place.replaceChildren(...highest(runs), alarmsOf(runs));
  const [run] = runs;
  const outcome = outcomeOf(run);
  const found = outcome && changeOf(outcome.series);
  const children = [];
  if (found) {
    const { first, last, verb, once } = found;
    const constant = constantOf(run, outcome.series, last);
    const asWell = constant && !constant.beaten ? ", but a constant answer would do as well" : "";
    const said = (once ? `${outcome.words}, ${stepsOf(last)}` : `${outcome.words} ${verb}`) + asWell;
    const beside = constant ? `the best constant answer earns ${withError(constant)}` : "";
    const from = [once ? "" : `from ${withError(first)} ${stepsOf(first)}; this is ${stepsOf(last)}`, beside].filter(Boolean).join("; ");
    children.push(el("div", { class: "result" }, number(last),
      sparkline(outcome.series, { width: 260, height: 76, heavy: true }),
      el("p", { class: "sentence" }, said, el("span", { class: "quiet" }, ` ${from}.`))));
  } else children.push(el("p", { class: "sentence" }, run.state === "running" ? "The first step goes on." : "No reward was logged."));
  place.replaceChildren(...children, factsOf(run), alarmsOf(runs));
}

// Of several runs the one whose outcome is highest, and those that cannot be told from it.
function highest(runs) {
  const found = runs.flatMap((run) => {
    const outcome = outcomeOf(run);
    const change = outcome && changeOf(outcome.series);
    return change ? [{ run, outcome, last: change.last }] : [];
  }).sort((a, b) => b.last.value - a.last.value);
  const best = found[0];
  const alike = found.filter(({ outcome }) => outcome.words === best.outcome.words);
  if (alike.length < 2) return [el("p", { class: "sentence" }, `${runs.length} runs`)];
  const near = alike.slice(1).filter(({ last }) => best.last.value - last.value <= 2 * Math.hypot(best.last.error ?? 0, last.error ?? 0));
  const words = near.length ? ` ${near.map(({ run }) => run.name).join(", ")} ${near.length > 1 ? "are" : "is"} within twice the error.` : " The others are more than twice the error below.";
  return [el("div", { class: "result" }, number(best.last), sparkline(best.outcome.series, { width: 260, height: 76, heavy: true, colour: inkOf(best.run.number) }),
    el("p", { class: "sentence" }, `${best.outcome.words} is highest in ${best.run.name}, of ${runs.length} runs.`, el("span", { class: "quiet" }, words)))];
}

function number({ value, error }) {
  return el("p", { class: "number" }, error ? rounded(value, error) : figure(value), error ? el("small", {}, ` ± ${rounded(error, error)}`) : null);
}

// The run in one line.
function factsOf(run) {
  const last = (Array.isArray(run.about.starts) ? run.about.starts : []).filter(Boolean).at(-1);
  const tokens = run.fact("num_tokens")?.values.at(-1);
  const weighted = run.rewards.filter(({ weight }) => weight !== 0).map(({ name, weight }) => (weight === 1 || typeof weight !== "number" || run.rewards.length < 2 ? name : `${figure(weight)} ${name}`));
  const { recipe } = run;
  const facts = {
    model: shortName(recipe.model_name_or_path), task: recipe.task, rewards: weighted.join(" + "),
    steps: recipe.max_steps > run.steps ? `${run.steps} of ${recipe.max_steps}` : run.steps || null,
    time: run.seconds ? duration(run.seconds) : null, tokens: tokens ? large(tokens) : null,
    device: last ? `${last.processes > 1 ? `${last.processes} × ` : ""}${last.device}` : null,
    date: last ? new Date(last.time * 1000).toLocaleDateString(undefined, { dateStyle: "medium" }) : null,
  };
  return el("p", { class: "facts" }, stateOf(run), Object.entries(facts).filter(([, value]) => value).map(([name, value]) =>
    el("span", {}, el("small", {}, name), ` ${typeof value === "object" ? JSON.stringify(value) : value}`)));
}

function shortName(model) {
  return typeof model === "string" ? model.replace(/\/+$/, "").split("/").slice(/^[./]/.test(model) ? -1 : -2).join("/") : null;
}

function stateOf(run) {
  return el("span", { class: `state ${run.state}` }, run.state);
}

function alarmsOf(runs) {
  const several = runs.length > 1;
  const faults = runs.flatMap((run) => run.faults.map((fault) => el("p", { class: "alarm" }, el("b", {}, "Not read: "), fault)));
  const alarms = runs.flatMap((run) => run.alarms.map((alarm) => el("p", { class: "alarm" },
    el("b", {}, `${several ? `${run.name}, ` : ""}step ${alarm.step}: ${alarm.alarm}. `), String(alarm.message ?? ""))));
  const quiet = runs.length && !alarms.length && !faults.length ? [el("p", { class: "quiet" }, "No alarms.")] : [];
  const rest = alarms.slice(MOST_ALARMS);
  const more = rest.length ? el("details", {}, el("summary", {}, `${counted(rest.length, "more alarm")}`), rest) : null;
  return el("div", { id: "alarms" }, faults, alarms.slice(0, MOST_ALARMS), more, quiet);
}

// The class of a reward's change: whether it is a gain by the reward's weight. `null` names the weighted sum.
function toneOf(run, name, change) {
  const gain = change * (run.rewards.find((reward) => reward.name === name)?.weight ?? 1);
  return gain > 0 ? "up" : gain < 0 ? "down" : null;
}

// First and last value of each main curve of one run.
function drawChanges(runs) {
  const place = byId("changes");
  if (runs.length !== 1) return place.replaceChildren();
  const [run] = runs;
  const wanted = [HELD_OUT, "Reward", "Reward by function", "Completion length, tokens", "Share cut off at the limit", "Entropy, nats per token", "KL to the reference"];
  const rows = wanted.flatMap((title) => distinct(run.panel(title)?.series ?? []).flatMap((series) => {
    const found = changeOf(series);
    if (!found || (series.label === "longest")) return [];
    const name = title === HELD_OUT ? `held-out ${series.label}` : title.startsWith("Reward") ? series.label : title.split(",")[0].toLowerCase();
    const tone = /reward/i.test(title) && found.verb !== "did not clearly change" ? toneOf(run, title === "Reward" ? null : series.label, found.change) : null;
    return [{ cells: [[el("b", {}, name), name], [sparkline(series), found.change], [withError(found.first), found.first.value],
      [el("b", {}, withError(found.last)), found.last.value],
      [el("span", { class: tone }, found.once ? "" : signed(found.change)), found.change]] }];
  }));
  if (!rows.length) return place.replaceChildren();
  place.replaceChildren(tableOf(["", "curve", "first", "last", "change"], rows, { numbers: [2, 3, 4], order: drawChanges.order ??= { column: -1, sign: 1 } }),
    el("p", { class: "quiet" }, "At the first and the last step; of more than 25 values, means over the first and the last tenth. "
      + "± is one standard error. A change is coloured if it is more than twice its error."));
}
