"use strict";
// Small curves in a line of text or a table: the values, their error, and a dot at the end.

function sparkline(series, { width = 90, height = 22, color = "var(--c0)", heavy = false } = {}) {
  const points = series.values.flatMap((value, i) => (value === null ? [] : [[series.steps[i], value, series.errors?.[i] ?? 0]]));
  if (points.length < 2) return svg("svg", { width, height, class: "spark", "aria-hidden": "true" });
  const shown = points.length > 25 ? smoothed(points) : points;
  const [left, right] = [shown[0][0], shown.at(-1)[0]];
  const low = Math.min(...shown.map(([, value, error]) => value - error));
  const high = Math.max(...shown.map(([, value, error]) => value + error));
  const pad = heavy ? 6 : 3;
  const x = (step) => pad + ((step - left) / (right - left || 1)) * (width - 2 * pad);
  const y = (value) => (high > low ? pad + ((high - value) / (high - low)) * (height - 2 * pad) : height / 2);
  const way = (list) => list.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const [step, value] = shown.at(-1);
  const error = shown.some(([, , error]) => error > 0)
    ? svg("polygon", { class: "band", style: { fill: color },
      points: `${way(shown.map(([s, v, e]) => [s, v + e]))} ${way(shown.map(([s, v, e]) => [s, v - e]).reverse())}` }) : null;
  return svg("svg", { width, height, class: "spark", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, error,
    svg("polyline", { points: way(shown), style: { stroke: color, strokeWidth: heavy ? 2.2 : 1.4 } }),
    svg("circle", { cx: x(step), cy: y(value), r: heavy ? 4 : 2, style: { fill: color } }));
}

function smoothed(points) {
  const values = smooth(points.map(([, value]) => value), 0.8);
  return points.map(([step, , error], i) => [step, values[i], error]);
}
