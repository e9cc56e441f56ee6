"use strict";
// What differs between two texts, word by word.

const MOST_WORDS = 1500; // of each text; the table of a comparison has the square of it
const LEAST_COMMON = 0.25; // share of words; below it a text was rewritten rather than changed

// The stretches of two texts that the other does not have, as [start, end]; null if too little or too much would be marked.
function differencesOf(before, after) {
  const [a, b] = [before, after].map((text) => text.match(/\s+|[\p{L}\p{N}]+|[^\s\p{L}\p{N}]/gu) ?? []);
  if (before === after || a.length > MOST_WORDS || b.length > MOST_WORDS) return null;
  const wide = b.length + 1;
  const table = new Uint16Array((a.length + 1) * wide); // longest common part of what follows
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) {
    const [down, right] = [table[(i + 1) * wide + j], table[i * wide + j + 1]];
    table[i * wide + j] = a[i] === b[j] ? table[(i + 1) * wide + j + 1] + 1 : Math.max(down, right);
  }
  if (table[0] < LEAST_COMMON * Math.max(a.length, b.length)) return null;
  const found = [[], []];
  const at = [0, 0];
  const pass = (side, word, differs) => {
    const stretches = found[side];
    if (differs && stretches.at(-1)?.[1] === at[side]) stretches.at(-1)[1] += word.length;
    else if (differs) stretches.push([at[side], at[side] + word.length]);
    at[side] += word.length;
  };
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      pass(0, a[i++], false);
      pass(1, b[j++], false);
    } else if (j >= b.length || (i < a.length && table[(i + 1) * wide + j] >= table[i * wide + j + 1])) pass(0, a[i++], true);
    else pass(1, b[j++], true);
  }
  return found;
}

// A text with its differing stretches marked as taken out or put in.
function withDifferences(text, stretches, tag) {
  const pieces = [];
  let at = 0;
  for (const [start, end] of stretches) {
    pieces.push(text.slice(at, start), el(tag, {}, text.slice(start, end)));
    at = end;
  }
  return el("div", { class: "completion", dir: "auto" }, ...pieces, text.slice(at) || (text ? "" : el("span", { class: "quiet" }, "(empty)")));
}
