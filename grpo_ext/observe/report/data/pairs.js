"use strict";
// The same prompts before and after: at the first and the last evaluation, or at their first and last step in training.

const PAIRS_AT_ONCE = 5;

// [prompt's first completion, its last] for each prompt with completions at several steps, most improved first.
function findPairs(samples) {
  const { index } = samples;
  for (const mode of ["eval", "train"]) {
    const pairs = [];
    for (const all of samples.byPrompt.values()) {
      const own = all.filter((i) => samples.mode(i) === mode);
      if (own.length < 2) continue;
      const [first, last] = [own[0], own[own.length - 1]];
      if (index.step[first] < index.step[last]) pairs.push([first, last]);
    }
    const gain = ([a, b]) => (index.reward[b] ?? 0) - (index.reward[a] ?? 0);
    if (pairs.length) return { mode, pairs: pairs.sort((p, q) => gain(q) - gain(p)) };
  }
  return { mode: null, pairs: [] };
}

function drawPairs(allSamples) {
  const body = document.getElementById("pairs-body");
  for (const samples of allSamples) {
    const { mode, pairs } = findPairs(samples);
    if (allSamples.length > 1) body.append(el("h3", {}, samples.run.name));
    if (!pairs.length) {
      body.append(el("p", { class: "quiet" }, "No prompt has completions at two steps."));
      continue;
    }
    const { index } = samples;
    const outcome = index.rewards[samples.run.outcome];
    const solved = (i) => outcome && outcome[i] >= samples.run.passThreshold;
    const kinds = {
      "all, most improved first": pairs,
      "wrong, then right": pairs.filter(([a, b]) => !solved(a) && solved(b)),
      "right, then wrong": pairs.filter(([a, b]) => solved(a) && !solved(b)),
      "right both times": pairs.filter(([a, b]) => solved(a) && solved(b)),
      "wrong both times": pairs.filter(([a, b]) => !solved(a) && !solved(b)),
    };
    const choice = el("select", { "aria-label": "Which prompts" },
      Object.entries(kinds).map(([name, some]) => el("option", { value: name }, `${name} (${some.length})`)));
    const place = el("div");
    const fill = () => {
      place.replaceChildren();
      morePairs(samples, kinds[choice.value], 0, place);
    };
    choice.addEventListener("change", fill);
    const what = mode === "eval" ? "held-out prompts, at the first and the last evaluation" : "training prompts, at their first and their last step";
    body.append(el("p", { class: "controls" }, choice, el("span", { class: "quiet" }, what)), place);
    // unpack nothing before the reader is near
    new IntersectionObserver((entries, watcher) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      watcher.disconnect();
      fill();
    }, { rootMargin: "200px" }).observe(place);
    place.style.minHeight = "2rem";
  }
}

async function morePairs(samples, pairs, from, place) {
  for (const pair of pairs.slice(from, from + PAIRS_AT_ONCE)) {
    const [, messages] = await samples.prompt(pair[0]);
    const question = messages[messages.length - 1];
    const sides = await Promise.all(pair.map((i) => side(samples, i)));
    place.append(el("div", { class: "pair" }, messageOf(question), ...sides));
  }
  const left = pairs.length - from - PAIRS_AT_ONCE;
  if (left <= 0) return;
  const button = el("button", { type: "button", on: { click: () => {
    button.remove();
    morePairs(samples, pairs, from + PAIRS_AT_ONCE, place);
  } } }, `Show ${Math.min(left, PAIRS_AT_ONCE)} more of ${left}`);
  place.append(button);
}

async function side(samples, i) {
  const { index, run } = samples;
  const entry = await samples.entry(i);
  const scores = run.rewards.map(({ name }) => `${name} ${figure(index.rewards[name]?.[i])}`).join(", ");
  return el("div", {}, el("p", { class: "quiet" }, `step ${index.step[i]}: ${scores}`),
    completionOf(samples, i, entry));
}
