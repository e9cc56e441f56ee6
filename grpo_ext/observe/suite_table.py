"""Build a table of a run's benchmark results, as saved by `grpo-ext eval --suite --output`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_ext.observe.panels import is_number
from grpo_ext.observe.read_run import Row, mappings, read_mapping

SUITE = "suite.json"
MOST_MODELS = 10
MOST_FIGURES = 500  # maximum number of rows of the table
DIFFERENCE = ("mean", "low", "high", "verdict")


def suite_table(folder: Path, faults: list[str]) -> Row:
    """Return the table of a run's benchmark results; `{}` if it has none.

    The table has a row for each metric that the first model has in the tasks listed under
    `settings.shown`, or in all tasks if none are listed. It is limited to `MOST_MODELS` models and
    `MOST_FIGURES` rows.

    Args:
        folder: the folder of the run, which is untrusted.
        faults: receives a sentence if `suite.json` cannot be read, and one if rows are left out.

    Returns:
        A mapping with `models` (the models' names) and `rows`. Each row has `task`, `metric`,
        `values` (a [mean, standard error] pair for each model) and `differences` (for each model,
        its difference from the first model, with `mean`, `low`, `high` and `verdict`). Anything
        unknown is `None`.
    """
    saved = read_mapping(folder / SUITE, faults)
    figures = as_mapping(saved.get("models"))
    models = list(figures)[:MOST_MODELS]
    if not models:
        return {}
    comparisons = {}
    for comparison in mappings(saved.get("comparisons")):
        comparisons[str(comparison.get("model"))] = comparison
    first = as_mapping(figures[models[0]])
    shown = names_in(as_mapping(saved.get("settings")).get("shown")) or set(first)
    rows: list[Row] = []
    for task in first:
        if task not in shown:
            continue
        for metric in as_mapping(first[task]):
            if metric.endswith("_se"):
                continue
            values = []
            differences = []
            for model in models:
                of_task = as_mapping(as_mapping(figures[model]).get(task))
                values.append([number(of_task.get(metric)), number(of_task.get(f"{metric}_se"))])
                of_task = as_mapping(as_mapping(comparisons.get(model)).get(task))
                differences.append(difference_of(of_task.get(metric)))
            row = {"task": task, "metric": metric, "values": values, "differences": differences}
            rows.append(row)
    if len(rows) > MOST_FIGURES:
        faults.append(f"{folder / SUITE}: figures beyond the first {MOST_FIGURES} are left out.")
    return {"models": models, "rows": rows[:MOST_FIGURES]}


def as_mapping(value: object) -> dict[str, Any]:
    """Return a mapping unchanged, or `{}` for anything else."""
    return value if isinstance(value, dict) else {}


def names_in(value: object) -> set[str]:
    """Return the strings in a list as a set; an empty set if `value` is not a list."""
    return {name for name in value if isinstance(name, str)} if isinstance(value, list) else set()


def number(value: object) -> float | None:
    """Return a number unchanged, or `None` for anything else."""
    return value if is_number(value) else None


def difference_of(value: object) -> Row | None:
    """Read a difference from an untrusted value, keeping only the fields in `DIFFERENCE`.

    Missing and invalid fields become `None`. Return `None` if `value` has no valid mean.
    """
    fields = as_mapping(value)
    if number(fields.get("mean")) is None:
        return None
    verdict = fields.get("verdict")
    difference: Row = {name: number(fields.get(name)) for name in DIFFERENCE}
    return difference | {"verdict": verdict if isinstance(verdict, str) else None}
