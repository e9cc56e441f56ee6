"use strict";
// Elements of the page, and numbers in words.

// An element with attributes and children. Strings become text nodes: what a model wrote is never read as HTML.
function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (name === "style") Object.assign(element.style, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

async function unpack(id) {
  const binary = atob(byId(id).textContent);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function figure(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  const size = Math.abs(value);
  return size >= 1e6 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(digits)));
}

function signed(value, digits = 2) {
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${figure(Math.abs(value), digits)}`;
}

// A value to as many decimals as its error needs.
function rounded(value, error) {
  if (!error) return figure(value);
  return value.toFixed(Math.min(6, Math.max(0, 1 - Math.floor(Math.log10(error)))));
}

function counted(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

function large(count) {
  const [size, unit] = count >= 1e9 ? [1e9, " B"] : count >= 1e6 ? [1e6, " M"] : count >= 1e4 ? [1e3, " k"] : [1, ""];
  return `${figure(count / size)}${unit}`;
}

function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${figure(seconds / 60, 2)} min`;
  return seconds < 172_800 ? `${figure(seconds / 3600, 2)} h` : `${figure(seconds / 86_400, 2)} days`;
}

// The color of a reward between the lowest and the highest of its run.
function rewardColor(value, [low, high]) {
  if (value === null || value === undefined) return "var(--line)";
  const share = high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 1;
  const [from, to, part] = share < 0.5 ? ["--low", "--mid", share * 2] : ["--mid", "--high", share * 2 - 1];
  return `color-mix(in oklab, var(${from}), var(${to}) ${(part * 100).toFixed(0)}%)`;
}

// A table whose rows are ordered by a click on a head. A cell is a text, an element, or [content, value to order by].
function tableOf(heads, rows, { numbers = [], order = null } = {}) {
  const body = el("tbody");
  const state = order ?? { column: -1, sign: 1 };
  const value = (cell) => (Array.isArray(cell) ? cell[1] : cell instanceof Node ? cell.textContent : cell);
  const fill = () => {
    const sorted = state.column < 0 ? rows : [...rows].sort((a, b) => {
      const [x, y] = [value(a.cells[state.column]), value(b.cells[state.column])];
      if (x === y) return 0;
      const empty = (v) => v === null || v === undefined || v === "–";
      if (empty(x) || empty(y)) return empty(x) - empty(y);
      return state.sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
    });
    body.replaceChildren(...sorted.map(({ cells, name }) => el("tr", { class: name }, cells.map((cell, i) =>
      el("td", { class: numbers.includes(i) ? "n" : null }, Array.isArray(cell) ? cell[0] : cell)))));
    [...head.children].forEach((th, i) => th.setAttribute("aria-sort",
      i !== state.column ? "none" : state.sign > 0 ? "ascending" : "descending"));
  };
  const head = el("tr", {}, heads.map((name, i) => el("th", { scope: "col", class: numbers.includes(i) ? "n" : null },
    name ? el("button", { type: "button", class: "plain", on: { click: () => {
      state.sign = state.column === i ? -state.sign : numbers.includes(i) ? -1 : 1;
      state.column = i;
      fill();
    } } }, name) : null)));
  fill();
  return el("div", { class: "wide" }, el("table", {}, el("thead", {}, head), body));
}
