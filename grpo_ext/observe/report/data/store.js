"use strict";
// The data of the page, unpacked on first use and kept.

// An element with attributes and children. Strings become text nodes: what a model wrote is never read as HTML.
function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
    else if (name === "style") Object.assign(element.style, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

async function unpack(id) {
  const binary = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// One run's completions: `index` holds short columns for all of them, texts come in chunks.
class Samples {
  constructor(number, run) {
    this.number = number;
    this.run = run;
    this.chunks = new Map();
  }

  async open() {
    this.index = await unpack(`index-${this.number}`);
    this.byPrompt = new Map();
    this.index.prompt.forEach((prompt, i) => {
      if (!this.byPrompt.has(prompt)) this.byPrompt.set(prompt, []);
      this.byPrompt.get(prompt).push(i);
    });
    return this;
  }

  get count() {
    return this.index.step.length;
  }

  mode(i) {
    return this.index.datasets[this.index.dataset[i]][0];
  }

  dataset(i) {
    const [mode, name] = this.index.datasets[this.index.dataset[i]];
    return mode === name ? mode : `${mode} ${name}`;
  }

  // The entry of the i-th completion if it is unpacked, else undefined.
  entryNow(i) {
    const chunk = this.chunks.get(Math.floor(i / this.run.chunk));
    return Array.isArray(chunk) ? chunk[i % this.run.chunk] : undefined;
  }

  // [text, what each reward said, marks, turns] of the i-th completion.
  async entry(i) {
    const number = Math.floor(i / this.run.chunk);
    if (!this.chunks.has(number)) {
      const coming = unpack(`texts-${this.number}-${number}`).then((chunk) => {
        this.chunks.set(number, chunk);
        return chunk;
      });
      this.chunks.set(number, coming);
    }
    return (await this.chunks.get(number))[i % this.run.chunk];
  }

  async prompt(i) {
    this.prompts ??= unpack(`prompts-${this.number}`);
    return (await this.prompts)[this.index.prompt[i]];
  }
}

function figure(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return String(value);
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(digits)));
}
