"use strict";
// The tokens of a completion, each colored by a figure that the log has of it.

const KINDS = {
  logp: ["log-prob", "The paler a token, the more likely it was when it was sampled."],
  advantage: ["advantage", "Training makes teal tokens more likely and rust-colored tokens less likely."],
  age: ["age", "The darker a token, the older the weights that sampled it, in optimizer steps."],
  last_age: ["age at the last update", "The age at the last optimizer step that may train on the token."],
};

function coloringsOf(tokens) {
  return tokens ? Object.keys(tokens).filter((kind) => kind !== "text") : [];
}

function tokensOf(tokens, kind) {
  const values = tokens[kind];
  const known = values.filter(Number.isFinite);
  const most = known.reduce((a, b) => Math.max(a, Math.abs(b)), 0) || 1;
  return tokens.text.map((text, k) => {
    const value = values[k];
    if (!Number.isFinite(value)) return text;
    const [ink, share] = kind === "logp" ? ["--low", Math.min(1, -value / 4)] : kind === "advantage"
      ? [value < 0 ? "--low" : "--high", Math.abs(value) / most] : ["--c0", value / most];
    const title = `${KINDS[kind]?.[0] ?? kind} ${figure(value)}${kind === "logp" ? `, probability ${figure(Math.exp(value), 2)}` : ""}`;
    return el("span", { class: "token", title, style: { background: `color-mix(in oklab, transparent, var(${ink}) ${(75 * Math.max(0, share)).toFixed(0)}%)` } }, text);
  });
}

// Buttons that choose the figure; none if the log has no tokens.
function coloringButtons(tokens, chosen, choose) {
  const kinds = coloringsOf(tokens);
  if (!kinds.length) return null;
  const button = (kind, words) => el("button", { type: "button", "aria-pressed": String(kind === chosen), on: { click: () => choose(kind) } }, words);
  return el("p", { class: "controls" }, el("span", { class: "quiet" }, "color tokens by"), button("", "nothing"),
    kinds.map((kind) => button(kind, KINDS[kind]?.[0] ?? kind)), el("span", { class: "quiet" }, KINDS[chosen]?.[1] ?? ""));
}
