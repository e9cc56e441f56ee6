"use strict";
// Curves: one plot per panel, smoothed over the raw values, several runs overlaid. Each is drawn when it comes into view.

const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7cf0", "#999999"];
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
const charts = { smoothing: 0.8, hidden: new Set(), plots: [], runs: [] };

// Make the frames of the plots and their controls.
function prepareCurves(runs) {
  charts.runs = runs;
  fillPanels(document.getElementById("panels"), "panels");
  const more = document.getElementById("more");
  more.addEventListener("toggle", () => {
    const place = more.querySelector(".panels");
    if (!more.open || more.dataset.filled) return;
    more.dataset.filled = "yes";
    fillPanels(place, "more");
  });
  more.hidden = runs.every((run) => !run.more.length);

  const slider = document.getElementById("smoothing");
  slider.addEventListener("input", () => {
    charts.smoothing = Number(slider.value);
    document.getElementById("smoothing-value").textContent = charts.smoothing.toFixed(2);
    redraw();
  });
  if (runs.length > 1) document.getElementById("run-toggles").append(...runs.map(toggle));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
  window.addEventListener("beforeprint", () => redraw({ all: true, paper: true }));
  window.addEventListener("afterprint", () => redraw());
}

// Plotly is large, so it is loaded last, when the rest of the page works. The page's policy allows it by its hash.
async function drawCurves() {
  document.head.append(el("script", {}, await unpack("plotly")));
  charts.watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) drawPlot(charts.plots.find((p) => p.div === entry.target));
  }, { rootMargin: "300px" });
  for (const { div } of charts.plots) charts.watcher.observe(div);
}

function toggle(run, i) {
  const box = el("input", { type: "checkbox", checked: "" });
  box.addEventListener("change", () => {
    charts.hidden[box.checked ? "delete" : "add"](i);
    redraw();
  });
  return el("label", {}, box, el("span", { class: "chip", style: { background: COLOURS[i % COLOURS.length] } }), run.name);
}

// Add a figure for each panel that any run has.
function fillPanels(place, kind) {
  const titles = [...new Set(charts.runs.flatMap((run) => run[kind].map((panel) => panel.title)))];
  const words = [];
  for (const title of titles) {
    const parts = charts.runs.map((run) => run[kind].find((panel) => panel.title === title));
    if (parts.every((panel) => !panel || panel.words)) { // a curve would show nothing
      const said = parts.flatMap((panel, i) => (panel ? [charts.runs.length > 1 ? `${charts.runs[i].name} ${panel.words}` : panel.words] : []));
      words.push(`${title}: ${said.join("; ")}`);
      continue;
    }
    const div = el("div", { class: "plot", role: "img", "aria-label": `Curves: ${title}` });
    const note = parts.find(Boolean).note;
    place.append(el("figure", {}, el("figcaption", {}, title), el("p", { class: "quiet" }, note), div));
    charts.plots.push({ div, title, parts, drawn: false });
    charts.watcher?.observe(div);
  }
  if (words.length) place.after(el("p", { class: "quiet words" }, `Not drawn: ${words.join(" · ")}.`));
}

function redraw({ all = false, paper = false } = {}) {
  if (!charts.watcher) return;
  for (const plot of charts.plots) if (plot.drawn || all) drawPlot(plot, { again: true, paper });
}

function drawPlot(plot, { again = false, paper = false } = {}) {
  if (plot.drawn && !again) return;
  plot.drawn = true;
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const ink = paper ? "#000" : colour("--quiet");
  const line = paper ? "#ccc" : colour("--line");
  const traces = plot.parts.flatMap((panel, i) => (panel && !charts.hidden.has(i) ? tracesOf(panel, i) : []));
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const layout = {
    margin: { l: 40, r: 8, t: 6, b: 30 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: ink, size: 11 }, hovermode: "x unified", showlegend: traces.filter((t) => t.showlegend).length > 1,
    hoverlabel: { bgcolor: paper ? "#fff" : colour("--panel"), bordercolor: line, font: { color: colour("--ink") } },
    legend: { orientation: "h", y: -0.16, x: 0, font: { size: 11 } }, xaxis: { ...axis, zeroline: false }, yaxis: axis,
  };
  if (paper) layout.width = 330; // two on a sheet
  Plotly.react(plot.div, traces, layout, { responsive: true, displayModeBar: false });
}

// With one run, colours distinguish curves; with several, colours distinguish runs and dashes curves.
function tracesOf(panel, run) {
  const several = charts.runs.length > 1;
  return panel.series.flatMap((series, j) => {
    const colour = COLOURS[(several ? run : j) % COLOURS.length];
    const dash = DASHES[(several ? j : 0) % DASHES.length];
    const label = several ? `${charts.runs[run].name}${panel.series.length > 1 ? `, ${series.label}` : ""}` : series.label;
    const few = series.values.length <= 25;
    const plain = few || !series.smoothed;
    const values = plain ? series.values : smooth(series.values, charts.smoothing);
    const bars = few && series.errors ? { type: "data", array: series.errors, visible: true, thickness: 1.2, width: 3 } : {};
    const main = {
      x: series.steps, y: values, name: escapeForPlotly(label), mode: few ? "lines+markers" : "lines", error_y: bars, showlegend: true,
      line: { color: colour, width: 2, dash }, marker: { size: 5 }, legendgroup: label,
      hovertemplate: "%{y:.4g}",
    };
    const shared = { showlegend: false, hoverinfo: "skip", legendgroup: label, mode: "lines", x: series.steps };
    const raw = { ...shared, y: series.values, line: { color: colour, width: 1 }, opacity: 0.25 };
    return [...band(series, values, colour, shared), ...(plain ? [] : [raw]), main];
  });
}

// One standard deviation within a group on both sides of the curve, within the lowest and highest value.
function band(series, values, colour, shared) {
  if (!series.spread) return [];
  const spread = series.values.length <= 25 ? series.spread : smooth(series.spread, charts.smoothing);
  const [least, most] = series.bounds ?? [-Infinity, Infinity];
  const within = (value) => Math.min(Math.max(value, least), most);
  const edge = (sign) => values.map((v, i) => (v === null || spread[i] === null ? null : within(v + sign * spread[i])));
  const none = { color: colour, width: 0 };
  return [
    { ...shared, y: edge(-1), line: none },
    { ...shared, y: edge(1), line: none, fill: "tonexty", fillcolor: `${colour}22` },
  ];
}

// Exponential moving average, corrected for its start; gaps stay gaps.
function smooth(values, weight) {
  let total = 0;
  let norm = 0;
  return values.map((value) => {
    if (value === null) return null;
    total = weight * total + value;
    norm = weight * norm + 1;
    return total / norm;
  });
}

// Plotly interprets a few tags in names.
function escapeForPlotly(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll("%{", "% {");
}
