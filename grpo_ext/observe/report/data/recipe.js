"use strict";
// Recipe, versions and starts of each run.

function drawRecipe(runs) {
  const flat = runs.map((run) => ({ ...run.recipe, ...prefixed("version of ", Object(run.about.versions)), ...started(run) }));
  const keys = [...new Set(flat.flatMap((values) => Object.keys(values)))];
  const text = (value) => (value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));
  const rows = keys.map((key) => {
    const values = flat.map((some) => text(some[key]));
    return { name: new Set(values).size > 1 ? "differs" : null, cells: [[el("code", {}, key), key], ...values.map((value) => [el("span", { class: "value" }, value), value])] };
  });
  const place = byId("recipe-body");
  if (!keys.length) return place.replaceChildren(el("p", { class: "quiet" }, "No recipe was logged."));
  const box = el("input", { type: "checkbox", checked: drawRecipe.few ? "" : null, on: { change: () => { drawRecipe.few = box.checked; drawRecipe(runs); } } });
  const shown = drawRecipe.few ? rows.filter(({ name }) => name) : rows;
  place.replaceChildren(...(runs.length > 1 ? [el("p", { class: "controls" }, el("label", {}, box, "only differences"))] : []),
    tableOf(["key", ...runs.map((run) => run.name)], shown, { order: drawRecipe.order ??= { column: -1, sign: 1 } }));
}

function prefixed(prefix, values) {
  return Object.fromEntries(Object.entries(values).map(([key, value]) => [prefix + key, value]));
}

function started(run) {
  const starts = Array.isArray(run.about.starts) ? run.about.starts.filter(Boolean) : [];
  const one = (start) => `step ${start.step}, ${new Date(start.time * 1000).toLocaleString()}, ${start.processes} × ${start.device}`;
  return starts.length ? { started: starts.map(one).join("; "), folder: run.folder } : { folder: run.folder };
}
