"use strict";
// What a run came to: the outcome in large figures, the run in one line, first and last values of its main curves.
// Errors and verdicts come with the data (`run.changes`); nothing here computes them.

const HELD_OUT = "Held-out rewards";
const BY_TASK = "Held-out rewards, by task";
const MOST_ALARMS = 3; // in view

// The curve that says whether a run learned: its outcome on held-out prompts if that was evaluated twice, else in training.
function outcomeOf(run) {
  const all = run.panel(BY_TASK) ? run.series(HELD_OUT, "pass@1") : null; // no reward alone says it of several tasks
  if (all && all.values.filter(Number.isFinite).length > 1) return outcome(run, HELD_OUT, all, "pass@1 of all tasks on held-out prompts");
  const held = run.series(HELD_OUT, run.outcome);
  if (held && held.values.filter(Number.isFinite).length > 1) return outcome(run, HELD_OUT, held, `${run.outcome} on held-out prompts`);
  for (const [title, label] of [["Reward by function", run.outcome], ["Reward", "reward"], ["Reward", run.outcome]]) {
    const own = run.series(title, label);
    const name = label === "reward" && run.rewards.length < 2 ? run.outcome ?? "reward" : label;
    if (own) return outcome(run, title, own, `${name} in training`);
  }
  return null;
}

function outcome(run, title, series, words) {
  return { series, words, change: run.change(title, series.label) };
}

function withError(value, error) {
  return error ? `${rounded(value, error)} ±\u00a0${rounded(error, error)}` : figure(value);
}

function stepsOf([from, to]) {
  return from === to ? (from ? `at step ${from}` : "before the first step") : `over steps ${from} to ${to}`;
}

function drawHeadline(runs) {
  const place = byId("headline");
  document.title = runs.length ? `Report: ${runs.map(({ name }) => name).join(", ")}` : "Report";
  if (!runs.length) {
    return place.replaceChildren(el("p", { class: "sentence" }, "No run yet"),
      el("p", { class: "quiet" }, "A run appears here as soon as its log has a line."));
  }
  if (runs.length > 1) return place.replaceChildren(...highest(runs), alarmsOf(runs));
  const [run] = runs;
  const found = outcomeOf(run);
  const children = [];
  if (found?.change) children.push(resultOf(found));
  else children.push(el("p", { class: "sentence" }, run.state === "running" ? "The first step is not finished yet." : "No reward was logged."));
  place.replaceChildren(...children, factsOf(run), alarmsOf(runs));
}

// The outcome of one run, and whether it changed.
function resultOf({ series, words, change }) {
  const [now, before] = [stepsOf(change.last_steps), stepsOf(change.first_steps)];
  const once = change.change === null;
  const { constant } = change; // what the best constant answer earned in the last evaluation
  const joint = once ? "" : change.verdict === "did not clearly change" ? "and is " : "but is ";
  const asWell = constant && !constant.beaten ? `, ${joint}not clearly better than a constant answer` : "";
  const said = (once ? `${words}, ${now}` : change.verdict ? `${words} ${change.verdict}` : words) + asWell;
  const facts = [];
  if (!once) facts.push(`It was ${withError(change.first, change.first_error)} ${before}, and is ${withError(change.last, change.last_error)} ${now}.`);
  if (!once && !change.verdict) facts.push("No standard error above 0 is known, so there is no verdict on this change.");
  if (constant) facts.push(`The best constant answer earns ${withError(constant.value, constant.error)}.`);
  return el("div", { class: "result" }, number(change), sparkline(series, { width: 260, height: 76, heavy: true }),
    el("p", { class: "sentence" }, `${said}.`, el("span", { class: "quiet" }, ` ${facts.join(" ")}`)));
}

// Of several runs the one whose outcome is highest, and those that cannot be told from it.
function highest(runs) {
  const found = runs.flatMap((run) => {
    const outcome = outcomeOf(run);
    return outcome?.change ? [{ run, outcome, change: outcome.change }] : [];
  }).sort((a, b) => b.change.last - a.change.last);
  const best = found[0];
  const alike = found.filter(({ outcome }) => outcome.words === best.outcome.words);
  if (alike.length < 2) return [el("p", { class: "sentence" }, `${runs.length} runs`)];
  const apart = (change) => change.last_high !== null && best.change.last_low !== null && change.last_high < best.change.last_low;
  const near = alike.slice(1).filter(({ change }) => !apart(change));
  const words = near.length ? ` ${near.map(({ run }) => run.name).join(", ")} cannot be distinguished from it.` : " The 95 % intervals of the other runs lie entirely below its own.";
  return [el("div", { class: "result" }, number(best.change), sparkline(best.outcome.series, { width: 260, height: 76, heavy: true, color: inkOf(best.run.number) }),
    el("p", { class: "sentence" }, `${best.outcome.words} is highest in ${best.run.name}, of ${runs.length} runs.`, el("span", { class: "quiet" }, words)))];
}

function number({ last, last_error: error }) {
  return el("p", { class: "number" }, error ? rounded(last, error) : figure(last), error ? el("small", {}, ` ± ${rounded(error, error)}`) : null);
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
  const faults = runs.flatMap((run) => run.faults.map((fault) => el("p", { class: "alarm" }, el("b", {}, "Warning: "), fault)));
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

// The class of a change in a table: only one that is sure has a color.
function toneOfChange(run, { title, label, change, verdict }) {
  const sure = verdict === "rose" || verdict === "fell";
  return sure && /reward/i.test(title) ? toneOf(run, title === "Reward" ? null : label, change) : null;
}

// First and last value of each main curve of one run.
function drawChanges(runs) {
  const place = byId("changes");
  if (runs.length !== 1) return place.replaceChildren();
  const [run] = runs;
  const titles = [...new Set(run.changes.map(({ title }) => title))];
  const rows = titles.flatMap((title) => distinct(run.panel(title)?.series ?? []).flatMap((series) => {
    const found = run.change(title, series.first);
    if (!found || (series.label === "longest")) return [];
    const name = title === HELD_OUT ? `held-out ${series.label}` : title.startsWith("Reward") ? series.label : title.split(",")[0].toLowerCase();
    return [{ cells: [[el("b", {}, name), name], [sparkline(series), found.change], [withError(found.first, found.first_error), found.first],
      [el("b", {}, withError(found.last, found.last_error)), found.last],
      [el("span", { class: toneOfChange(run, found) }, found.change === null ? "" : signed(found.change)), found.change],
      found.change === null ? "" : found.verdict ?? "no verdict: no error above 0"] }];
  }));
  if (!rows.length) return place.replaceChildren();
  place.replaceChildren(tableOf(["", "curve", "first", "last", "change", ""], rows, { numbers: [2, 3, 4], order: drawChanges.order ??= { column: -1, sign: 1 } }),
    el("p", { class: "quiet" }, "± is one standard error. For training curves, first and last are means over a tenth of the values, and their error is estimated "
      + "from the noise around the trend. At most about one in twenty curves that do not really change is said to rise or fall."));
}
