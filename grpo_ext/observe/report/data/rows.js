"use strict";
// Parts of the lines of a log as the page shows them. A log is untrusted: a part that does not fit is left out.

const MOST_TOKENS = 20_000; // of a completion

const shownText = (value) => (typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value));

// A prompt as roles and texts; plain text has no role.
function messagesOf(prompt) {
  if (!Array.isArray(prompt)) return [["", shownText(prompt)]];
  const isMessage = (part) => part !== null && typeof part === "object" && !Array.isArray(part);
  return prompt.map((part) => (isMessage(part) ? [shownText(part.role), shownText(part.content)] : ["", shownText(part)]));
}

// A line of the texts as [text, what each reward said, marks, turns, tokens, columns].
function entryOf([text, said, marks, turns, tokens, columns]) {
  return [text, said, inUnits(text, marks), inUnits(text, turns), tokenColumns(tokens), columns];
}

// Marks or turns whose start and end count as strings do: a character from U+10000 on has two places here, one in Python.
function inUnits(text, spans) {
  if (!spans.length || !/[\u{10000}-\u{10ffff}]/u.test(text)) return spans;
  const places = [0];
  for (const character of text) places.push(places.at(-1) + character.length);
  return spans.map(([start, end, ...more]) => [places[start], places[end], ...more]);
}

// The texts of tokens, and those of their figures that are numbers, one for each token; null if there are none.
function tokenColumns(tokens) {
  const texts = tokens?.text;
  if (!Array.isArray(texts) || !texts.every((text) => typeof text === "string")) return null;
  const isFigure = (value) => value === null || typeof value === "number";
  const fits = ([name, column]) => Array.isArray(column) && column.length === texts.length && (name === "text" || column.every(isFigure));
  return Object.fromEntries(Object.entries(tokens).filter(fits).map(([name, column]) => [name, column.slice(0, MOST_TOKENS)]));
}
