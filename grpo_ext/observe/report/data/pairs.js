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

function drawPairs(samples) {
  const body = byId("pairs-body");
  const { mode, pairs } = findPairs(samples);
  if (!pairs.length) return body.replaceChildren(el("p", { class: "quiet" }, "No prompt has completions at two different steps."));
  const { index, run } = samples;
  const solved = (i) => index.outcome[i] !== null && index.outcome[i] >= run.passThreshold;
  const kinds = {
    "all, most improved first": pairs,
    "wrong, then right": pairs.filter(([a, b]) => !solved(a) && solved(b)),
    "right, then wrong": pairs.filter(([a, b]) => solved(a) && !solved(b)),
    "right both times": pairs.filter(([a, b]) => solved(a) && solved(b)),
    "wrong both times": pairs.filter(([a, b]) => !solved(a) && !solved(b)),
  };
  const choice = el("select", { "aria-label": "Which prompts" },
    Object.entries(kinds).map(([name, some]) => el("option", { value: name }, `${name} (${some.length})`)));
  if (drawPairs.kind) choice.value = drawPairs.kind;
  const place = el("div", { style: { minHeight: "2rem" } });
  const fill = () => {
    const list = el("div"); // pairs of an earlier choice that still come go nowhere
    place.replaceChildren(list);
    morePairs(samples, kinds[choice.value], 0, list);
  };
  choice.addEventListener("change", () => {
    drawPairs.kind = choice.value;
    fill();
  });
  const what = mode === "eval" ? "held-out prompts at the first and last evaluation" : "training prompts at their first and last step";
  body.replaceChildren(el("p", { class: "controls" }, choice, el("span", { class: "quiet" }, `${page.runs.length > 1 ? `${run.name}: ` : ""}${what}`)), place);
  // a print shows only what has been drawn: draw once the page is idle; what a server sends, when the reader is near
  if (!page.load) return void (window.requestIdleCallback ?? setTimeout)(fill);
  new IntersectionObserver((entries, watcher) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    watcher.disconnect();
    fill();
  }, { rootMargin: "200px" }).observe(place);
}

async function morePairs(samples, pairs, from, place) {
  for (const pair of pairs.slice(from, from + PAIRS_AT_ONCE)) {
    if (!place.isConnected) return;
    const [[, messages], ...entries] = await Promise.all([samples.prompt(pair[0]), ...pair.map((i) => samples.entry(i))]);
    const found = entries.some(([, , , turns]) => turns.length) ? null : differencesOf(entries[0][0], entries[1][0]);
    const sides = pair.map((i, side) => sideOf(samples, i, entries[side], found?.[side], ["del", "ins"][side]));
    place.append(el("div", { class: "pair" }, messageOf(messages[messages.length - 1]), el("p", { class: "changes" }, changedIn(samples, pair)), ...sides));
  }
  const left = pairs.length - from - PAIRS_AT_ONCE;
  if (left <= 0) return;
  const button = el("button", { type: "button", on: { click: () => {
    button.remove();
    morePairs(samples, pairs, from + PAIRS_AT_ONCE, place);
  } } }, `Show ${Math.min(left, PAIRS_AT_ONCE)} more of ${left}`);
  place.append(button);
}

// What changed, in figures: rewards that differ, and the length.
function changedIn({ index, run }, [a, b]) {
  const rewards = run.rewards.map(({ name }) => [name, index.rewards[name]?.[a], index.rewards[name]?.[b]]);
  const all = [...rewards, ["tokens", index.length[a], index.length[b]]].filter(([, before, after]) => before !== after);
  return all.length ? all.map(([name, before, after]) => el("span", {}, `${name} ${figure(before)} → `,
    el("b", { class: name === "tokens" || before === null || after === null ? null : toneOf(run, name, after - before) }, figure(after)))) : [el("span", { class: "quiet" }, "the same rewards and length")];
}

function sideOf(samples, i, entry, stretches, tag) {
  const text = stretches && entry[0].length <= MOST_CHARACTERS ? withDifferences(entry[0], stretches, tag) : completionOf(samples, i, entry);
  text.style.borderLeftColor = samples.color(i);
  return el("div", { class: "side" }, el("p", { class: "quiet" }, `step ${samples.index.step[i]}`), text);
}
