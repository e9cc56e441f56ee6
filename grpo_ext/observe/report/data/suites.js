"use strict";
// Figures of public tasks (suite.json), of each run that has some: models side by side, and differences from the first.

function drawSuites(runs) {
  const evaluated = runs.filter((run) => run.suite?.rows?.length);
  byId("suites").hidden = !evaluated.length;
  byId("suites-body").replaceChildren(...evaluated.flatMap((run) => [
    runs.length > 1 ? el("h3", {}, run.name) : null, suiteTable(run.suite),
  ].filter(Boolean)));
}

function suiteTable({ models, rows }) {
  const cells = ({ values, differences }) => models.map((_, i) => {
    const [value, error] = values[i];
    const difference = differences[i];
    return [el("span", {}, el("b", {}, withError(value, error)), difference ? differenceOf(difference) : null), value];
  });
  const numbers = models.map((_, i) => i + 2);
  return tableOf(["task", "metric", ...models], rows.map((row) => ({ cells: [row.task, row.metric, ...cells(row)] })), { numbers });
}

// How much more than the first model, document by document.
function differenceOf({ mean, low, high, verdict }) {
  const interval = low === null || high === null ? "" : `, 95 % interval ${signed(low)} to ${signed(high)}`;
  return el("small", { class: verdict === "rose" ? "up" : verdict === "fell" ? "down" : null, title: `${verdict ?? "difference"}${interval}` }, ` ${signed(mean)}`);
}
