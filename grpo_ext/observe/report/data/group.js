"use strict";
// The completions that were made together for one prompt, side by side, the best first, colored by reward.

const MOST_CARDS = 64;

async function groupOf(samples, group, chosen) {
  const { index, run } = samples;
  const order = [...group].sort((a, b) => (index.reward[b] ?? -Infinity) - (index.reward[a] ?? -Infinity) || a - b).slice(0, MOST_CARDS);
  const entries = await Promise.all(order.map((i) => samples.entry(i)));
  const cards = order.map((i, k) => {
    const scores = run.rewards.map(({ name }) => `${name} ${figure(index.rewards[name]?.[i])}`).join(" · ");
    const advantage = index.advantage[i] === null ? null : el("span", { class: "quiet" }, `advantage ${signed(index.advantage[i])}`);
    return el("article", { class: i === chosen ? "card chosen" : "card", style: { borderTopColor: samples.color(i) } },
      el("p", { class: "head" }, el("button", { type: "button", class: "plain", title: "Show only this completion",
        on: { click: () => { detail.grouped = false; jump(i); } } }, el("b", {}, figure(index.reward[i]))), advantage,
      el("span", { class: "quiet" }, `${counted(index.length[i], "token")}${index.cut[i] ? ", cut off" : ""}`)),
      completionOf(samples, i, entries[k]), el("p", { class: "quiet" }, scores));
  });
  const rewards = group.map((i) => index.reward[i]).filter((value) => value !== null);
  const mean = rewards.reduce((a, b) => a + b, 0) / (rewards.length || 1);
  const equal = rewards.every((value) => value === rewards[0]);
  const words = equal ? `All rewards are ${figure(rewards[0])}, so the model learns nothing from this group.` : `Mean reward ${figure(mean)}.`;
  return [el("h3", {}, "Group"), el("p", { class: "quiet" }, group.length > MOST_CARDS ? `${words} The best ${MOST_CARDS} of ${group.length} are shown.` : words),
    el("div", { class: "cards" }, cards)];
}
