"use strict";
// What a model wrote, with the marks of the rewards: one text, or the turns of an episode with the answers between them.

const MOST_CHARACTERS = 100_000; // of a text or a message, so that no completion holds the page up

function completionOf(samples, i, [text, , marks, turns, tokens], coloring = "") {
  if (coloring && tokens) return el("div", { class: "completion", dir: "auto" }, ...tokensOf(tokens, coloring));
  if (!turns.length) return el("div", { class: "completion", dir: "auto" }, ...marked(text, marks, 0, text.length));
  const training = samples.mode(i) === "train";
  let number = 0;
  const messages = turns.map((turn) => turnOf(text, marks, turn, (number += turn[2]), training));
  const left = text.length - turns.at(-1)[1];
  if (left > 0) messages.push(el("p", { class: "quiet" }, `… ${left} more characters`));
  return el("div", { class: "conversation" }, ...messages);
}

// A turn of the model, with what it counted and earned, or an answer of its environment.
function turnOf(text, marks, [start, end, wrote, tokens, earned], number, training) {
  const facts = [];
  if (wrote && tokens !== null) facts.push(training && !tokens ? "left out of the loss" : `${counted(tokens, "token")}${training ? " in the loss" : ""}`);
  const sign = Math.sign(earned);
  const gain = el("b", { class: ["down", null, "up"][sign + 1] }, `earned ${signed(earned, 3)}`);
  const counts = wrote && tokens !== 0;
  return el("div", { class: `turn ${wrote ? "model" : "world"}${counts ? " counts" : ""}`, dir: "auto" },
    el("small", {}, [wrote ? `turn ${number}` : "environment", ...facts].join(" · "), ...(earned === null ? [] : [" · ", gain])), ...marked(text, marks, start, end));
}

// A stretch of the text in pieces, those that a reward spoke of as marks with its words as their title.
function marked(text, marks, start, end) {
  const stop = Math.min(end, start + MOST_CHARACTERS);
  const here = marks.filter(([from, to]) => from < stop && to > start);
  const ends = here.flatMap(([from, to]) => [Math.max(from, start), Math.min(to, stop)]);
  const cuts = [...new Set([start, stop, ...ends])].sort((a, b) => a - b);
  const pieces = [];
  for (let k = 0; k + 1 < cuts.length; k++) {
    const over = here.filter(([from, to]) => from <= cuts[k] && to >= cuts[k + 1]);
    const piece = text.slice(cuts[k], cuts[k + 1]);
    const faulty = over.some(([, , kind]) => kind === "fault");
    const words = over.map(([, , , said]) => said).join("\n");
    pieces.push(over.length ? el("mark", { class: faulty ? "fault" : null, title: words }, piece) : piece);
  }
  if (stop < end) pieces.push(el("span", { class: "quiet" }, ` … ${end - stop} more characters`));
  return pieces.length ? pieces : [el("span", { class: "quiet" }, "(empty)")];
}

// The first characters of a completion on one line, the model's words and the environment's told apart.
function preview([text, , , turns]) {
  const line = (some) => some.replaceAll("\n", " ⏎ ");
  if (!turns.length) return [line(text.slice(0, 160))];
  const pieces = turns.slice(0, 12).map(([start, end, wrote]) =>
    el("span", { class: wrote ? "model" : "world" }, line(text.slice(start, Math.min(end, start + 160))) || "(empty)"));
  return turns.length > 12 ? [...pieces, "…"] : pieces;
}
