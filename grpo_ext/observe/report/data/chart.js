"use strict";
// One chart: curves over steps with bands and error bars, its values in the legend, a range of steps chosen by dragging.

const FEW = 25; // values at most that are drawn as dots, with error bars if they have any
const charts = { all: [], smoothing: 0.8, range: null, at: null };
const MARGIN = { left: 44, right: 10, top: 8, bottom: 20 };

class Chart {
  // `lines()` returns what to draw: [{ run, label, color, dash, series, plain }]; `plain`: without band and raw values.
  constructor(title, note, lines, { height = 170, zero = false } = {}) {
    Object.assign(this, { title, lines, height, zero });
    this.legend = el("p", { class: "legend" });
    this.place = el("div", { class: "plot", style: { height: `${height}px` } });
    this.element = el("figure", {}, el("figcaption", {}, title), note ? el("p", { class: "quiet" }, note) : null, this.legend, this.place);
    charts.all.push(this);
    Chart.watcher.observe(this.element);
    for (const name of ["pointermove", "pointerdown", "pointerup", "pointerleave", "dblclick"]) {
      this.place.addEventListener(name, (event) => this.point(name, event));
    }
  }

  static watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.all.find(({ element }) => element === entry.target);
      if (!chart) continue;
      chart.visible = entry.isIntersecting;
      if (chart.visible && chart.stale !== false) chart.draw();
    }
  }, { rootMargin: "400px" });

  static redraw({ all = false } = {}) {
    for (const chart of charts.all) {
      chart.stale = true;
      if (all || chart.visible) chart.draw();
    }
  }

  draw() {
    this.stale = false;
    const width = Math.max(200, this.place.clientWidth || 330);
    const lines = this.lines().map((line) => ({ ...line, ...this.shape(line) }));
    const inside = lines.map((line) => line.points.filter(([step]) => within(step)));
    this.drawn = lines;
    const [low, high] = extent(lines, inside, this.zero);
    const steps = inside.flat().map(([step]) => step);
    const [left, right] = charts.range ?? steps.reduce(([a, b], step) => [Math.min(a, step), Math.max(b, step)], [Infinity, -Infinity]);
    this.x = (step) => MARGIN.left + ((step - left) / (right - left || 1)) * (width - MARGIN.left - MARGIN.right);
    this.y = (value) => MARGIN.top + ((high - value) / (high - low || 1)) * (this.height - MARGIN.top - MARGIN.bottom);
    this.step = (x) => left + ((x - MARGIN.left) / (width - MARGIN.left - MARGIN.right)) * (right - left);
    this.marker = svg("g", { class: "marker" });
    const frame = svg("svg", { width, height: this.height, viewBox: `0 0 ${width} ${this.height}`, role: "img", "aria-label": `Curves: ${this.title}` },
      this.axes(low, high, left, right, width), lines.map((line, i) => this.curve(line, inside[i])), this.marker);
    this.place.replaceChildren(...(steps.length ? [frame] : [el("p", { class: "quiet" }, "No values in these steps.")]));
    this.mark(charts.at);
  }

  // [step, value, error, spread] of each value, smoothed if there are many.
  shape({ series, plain }) {
    const many = series.values.length > FEW && series.smoothed;
    const values = many ? smooth(series.values, charts.smoothing) : series.values;
    const spread = !plain && series.spread && (many ? smooth(series.spread, charts.smoothing) : series.spread);
    const points = series.steps.map((step, i) => [step, values[i], many ? null : series.errors?.[i], spread?.[i]]);
    return { points, raw: many && !plain ? series.steps.map((step, i) => [step, series.values[i]]) : null };
  }

  axes(low, high, left, right, width) {
    const rows = ticks(low, high, 4).map((value) => [
      svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: this.y(value), y2: this.y(value) }),
      svg("text", { x: MARGIN.left - 6, y: this.y(value) + 3.5, "text-anchor": "end" }, figure(value))]);
    const columns = ticks(left, right, width > 300 ? 5 : 3).filter(Number.isInteger).map((step) =>
      svg("text", { x: this.x(step), y: this.height - 4, "text-anchor": "middle" }, String(step)));
    return [...rows.flat(), ...columns];
  }

  curve({ color, dash, series, raw }, inside) {
    const stroke = { stroke: color };
    const bounds = boundsOf(series);
    const held = (value) => Math.min(Math.max(value, bounds[0]), bounds[1]);
    const spread = inside.filter(([, value, , spread]) => value !== null && Number.isFinite(spread));
    const edge = (sign) => spread.map(([step, value, , some]) => `${this.x(step).toFixed(1)},${this.y(held(value + sign * some)).toFixed(1)}`);
    const dots = series.values.length <= FEW ? inside.filter(([, value]) => value !== null) : [];
    return svg("g", {}, spread.length ? svg("polygon", { class: "band", points: [...edge(1), ...edge(-1).reverse()].join(" "), style: { fill: color } }) : null,
      raw ? svg("path", { class: "raw", d: this.way(raw.filter(([step]) => within(step))), style: stroke }) : null,
      svg("path", { class: "line", d: this.way(inside), style: { ...stroke, strokeDasharray: dash } }),
      dots.map(([step, value, error]) => [
        error ? svg("line", { class: "error", x1: this.x(step), x2: this.x(step), y1: this.y(held(value - error)), y2: this.y(held(value + error)), style: stroke }) : null,
        svg("circle", { cx: this.x(step), cy: this.y(value), r: 2.6, style: { fill: color } })]).flat());
  }

  way(points) {
    let pen = "M";
    return points.map(([step, value]) => {
      if (value === null) return void (pen = "M");
      const piece = `${pen}${this.x(step).toFixed(1)} ${this.y(value).toFixed(1)}`;
      pen = "L";
      return piece;
    }).filter(Boolean).join("");
  }

  // The values at a step, or the last ones, in the legend; at a step also a line and dots.
  mark(step) {
    if (!this.marker) return;
    const found = this.drawn.map((line) => ({ ...line, point: nearest(line.points, step) }));
    this.legend.replaceChildren(...this.names(found),
    step === null ? "" : el("span", { class: "quiet" }, `step ${found.find(({ point }) => point)?.point[0] ?? step}`));
    const points = step === null ? [] : found.filter(({ point }) => point && within(point[0]) && point[1] !== null);
    const x = points.length ? this.x(points[0].point[0]) : 0;
    this.marker.replaceChildren(...(points.length ? [svg("line", { class: "at", x1: x, x2: x, y1: MARGIN.top, y2: this.height - MARGIN.bottom })] : []),
      ...points.map(({ point, color }) => svg("circle", { cx: this.x(point[0]), cy: this.y(point[1]), r: 3.2, style: { fill: color } })));
  }

  // One name and value a curve; with several runs one name a run, with its values in the order of their dashes.
  names(found) {
    const chip = (color) => el("i", { class: "chip", style: { background: color } });
    const value = ({ point }) => el("b", {}, figure(point?.[1]));
    if (!found.some(({ run }) => run)) {
      return found.map((line) => el("span", {}, found.length > 1 ? [chip(line.color), `${line.label} `] : [], value(line)));
    }
    const runs = [...new Set(found.map(({ run }) => run))].map((run) => found.filter((line) => line.run === run));
    const parts = runs.reduce((a, b) => (b.length > a.length ? b : a));
    return [...(parts.length > 1 ? parts.map(({ label, dash }) => el("span", { class: "part" }, svg("svg", { width: 18, height: 8 },
      svg("line", { x1: 0, x2: 18, y1: 4, y2: 4, style: { strokeDasharray: dash } })), label)) : []),
    ...runs.map((lines) => el("span", {}, chip(lines[0].color), `${lines[0].run} `, lines.flatMap((line, k) => (k ? ["·", value(line)] : [value(line)]))))];
  }

  // Hovering marks a step in all charts; dragging chooses steps for all, a double click takes them back.
  point(name, event) {
    if (!this.step) return;
    const step = this.step(event.clientX - this.place.getBoundingClientRect().left);
    if (name === "pointerdown") this.from = step;
    if (name === "pointerup" && this.from !== undefined) {
      const [low, high] = [Math.min(this.from, step), Math.max(this.from, step)];
      this.from = undefined;
      if (Math.abs(this.x(high) - this.x(low)) > 8) chooseRange([low, high]);
    }
    if (name === "dblclick") chooseRange(null);
    if (name === "pointerleave") this.from = undefined;
    charts.at = name === "pointerleave" ? null : step;
    for (const chart of charts.all) if (chart.visible) chart.mark(charts.at);
  }
}

function chooseRange(range) {
  charts.range = range;
  byId("range").hidden = !range;
  if (range) byId("range").textContent = `steps ${Math.ceil(range[0])} to ${Math.floor(range[1])} ×`;
  Chart.redraw();
}

function within(step) {
  return !charts.range || (step >= charts.range[0] && step <= charts.range[1]);
}

// Values that a curve can have: shares lie between 0 and 1, rewards between the lowest and highest seen.
function boundsOf(series) {
  const share = series.errors && series.values.every((value) => value === null || (value >= 0 && value <= 1));
  return series.bounds ?? (share ? [0, 1] : [-Infinity, Infinity]);
}

function extent(lines, inside, zero) {
  const values = lines.flatMap(({ series, raw }, i) => {
    const [least, most] = boundsOf(series);
    const own = inside[i].filter(([, value]) => value !== null);
    return [...own.flatMap(([, value, error, spread]) => [error, spread].filter(Number.isFinite).flatMap((some) =>
      [Math.max(value - some, least), Math.min(value + some, most)]).concat(value)), ...(raw ?? []).filter(([step, value]) => value !== null && within(step)).map(([, value]) => value)];
  });
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (zero || (low > 0 && low < 0.4 * high)) low = Math.min(0, low);
  if (low === high) [low, high] = [low - Math.abs(low || 1) / 10, high + Math.abs(high || 1) / 10];
  return [low, high + (high - low) * 0.02];
}

function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const power = 10 ** Math.floor(Math.log10((high - low) / count));
  const step = [1, 2, 5, 10].map((size) => size * power).find((size) => (high - low) / size <= count + 0.5);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12) + 1e-300 && found.length < 20; k++) found.push(Number((k * step).toPrecision(12)));
  return found;
}

// The point at a step, or the one nearest to it; the last that has a value if no step is given.
function nearest(points, step) {
  if (step === null) return points.findLast(([, value]) => value !== null);
  let [low, high] = [0, points.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < step) low = middle + 1;
    else high = middle;
  }
  const before = points[low - 1];
  return before && points[low] && step - before[0] < points[low][0] - step ? before : points[low];
}
