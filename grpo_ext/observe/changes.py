"""Compare the first and last values of a run's curves and decide whether they rose or fell."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grpo_ext.common.curves import Change, curve_change
from grpo_ext.common.estimates import clearly_above
from grpo_ext.observe.panels import Column, by_metric, is_number, panels, problems_key
from grpo_ext.observe.read_run import Row, RunData, Series, Values

HELD_OUT = "Held-out rewards"
MAIN = (
    HELD_OUT,
    "Reward",
    "Reward by function",
    "Completion length, tokens",
    "Share cut off at the limit",
    "Entropy, nats per token",
    "KL to the reference",
)


def changes(run: RunData) -> list[dict[str, Any]]:
    """Return how each main curve of a run changed, as the report page shows it.

    Returns:
        One mapping per curve, with the fields of `Change` and these keys:

        - `title` and `label`: the title of the panel and the label of the curve.
        - `constant`: for held-out rewards, the score of the best constant answer, as returned by
          `beside_constant` (`None` if the score is unknown); `None` for other curves.
        - `change`: `last` minus `first`; `None` if the curve has a single value.
        - `first_steps` and `last_steps`: the first and last step of the values averaged into
          `first`, and of those averaged into `last`.
    """
    columns = by_metric(run.metrics)
    curve_changes = []
    for panel in panels(run):
        if panel.title not in MAIN:
            continue
        for series in panel.series:
            change = change_of_series(series)
            if change is None:
                continue
            constant = None
            if panel.title == HELD_OUT:
                constant = beside_constant(columns, series, change)
            curve = {"title": panel.title, "label": series.label, "constant": constant}
            curve_changes.append({**curve, **change})
    return curve_changes


def beside_constant(
    columns: dict[str, Column],
    series: Series,
    change: dict[str, Any],
) -> dict[str, Any] | None:
    """Return the last score of the best constant answer, and whether the model clearly beats it.

    A constant answer is one string, used as the completion of every prompt.

    Args:
        columns: all metrics of the run, by name.
        series: the curve of the held-out reward.
        change: how that curve changed, from `change_of_series`.

    Returns:
        A mapping with the score `value`, its standard `error` (`None` if unknown) and `beaten`;
        `None` if the score was not logged, or if its last value is not finite.
    """
    name = series.label.removesuffix("/mean")
    keys = (f"eval_{series.label}_constant", f"eval_{name}/constant")
    key = next((key for key in keys if key in columns), None)
    if key is None:
        return None
    _, values = columns[key]
    value = values[-1]
    if value is None:
        return None
    error = None
    if f"{key}_se" in columns:
        _, errors = columns[f"{key}_se"]
        error = errors[-1]
    beaten = clearly_above(change["last"], change["last_error"], value, error)
    return {"value": value, "error": error, "beaten": beaten}


def change_of_series(series: Series) -> dict[str, Any] | None:
    """Return how one curve changed; `None` if the curve has no value.

    The result has the fields of `Change` and the keys `change`, `first_steps` and `last_steps`,
    which `changes` describes.
    """
    change = curve_change(series.values, series.errors, series.problems, series.sampling_errors)
    if change is None:
        return None
    steps = []
    for step, value in zip(series.steps, series.values, strict=True):
        if value is not None:
            steps.append(step)
    difference = None
    if len(steps) > 1:
        difference = change.last - change.first
    return {
        **asdict(change),
        "change": difference,
        "first_steps": [steps[0], steps[change.count - 1]],
        "last_steps": [steps[-change.count], steps[-1]],
    }


def change_of_metric(rows: Sequence[Row], key: str) -> Change | None:
    """Return how metric `key` changed over a log; `None` if it has fewer than two values.

    Standard errors in `{key}_se` are used if logged.
    """
    logged = [row for row in rows if is_number(row.get(key))]
    if len(logged) < 2:
        return None
    values = [row[key] for row in logged]
    errors = logged_values(logged, f"{key}_se")
    if not key.startswith("eval_"):
        return curve_change(values, sampling_errors=errors)
    names: set[str] = set().union(*logged)
    problems = logged_values(logged, problems_key(names, key))
    return curve_change(values, errors, problems)


def logged_values(rows: Sequence[Row], key: str | None) -> Values | None:
    """Return the values of metric `key`, or `None` if no row has it or `key` is `None`.

    The value of a row without the metric is `None`.
    """
    if key is None or not any(key in row for row in rows):
        return None
    return [row.get(key) for row in rows]
