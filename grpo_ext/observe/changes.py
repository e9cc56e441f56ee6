"""First and last values of a run's curves, and whether they rose or fell."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from grpo_ext.common.curves import Change, curve_change
from grpo_ext.common.estimates import clearly_above
from grpo_ext.observe.panels import Column, by_metric, panels, problems_key
from grpo_ext.observe.read_run import Row, RunData, Series, Values

HELD_OUT = "Held-out rewards"
MAIN = (
    HELD_OUT, "Reward", "Reward by function", "Completion length, tokens", "Share cut off at the limit",
    "Entropy, nats per token", "KL to the reference",
)  # fmt: skip


def changes(run: RunData) -> list[dict[str, Any]]:
    """Return the change of each main curve of a run as the report's page shows it.

    Each has the fields of `Change`, `title` and `label` of the curve, `constant` (see
    `beside_constant`), `change` (`None` for a single value), and `first_steps` and `last_steps`,
    the first and the last step of the values whose means its ends are.
    """
    shown = []
    columns = by_metric(run.metrics)
    for panel in panels(run):
        for series in panel.series if panel.title in MAIN else ():
            change = change_of_series(series)
            if change is not None:
                constant = (
                    beside_constant(columns, series, change) if panel.title == HELD_OUT else None
                )
                curve = {"title": panel.title, "label": series.label, "constant": constant}
                shown.append({**curve, **change})
    return shown


def beside_constant(
    columns: dict[str, Column], series: Series, change: dict[str, Any]
) -> dict[str, Any] | None:
    """Return what the best constant answer earned in the last evaluation, with its error, and
    whether the model earns more.

    `None` where it was not logged.
    """
    name = series.label.removesuffix("/mean")
    keys = (f"eval_{series.label}_constant", f"eval_{name}/constant")
    key = next((key for key in keys if key in columns), None)
    if key is None:
        return None
    value = columns[key][1][-1]
    if value is None:
        return None
    errors = columns.get(f"{key}_se")
    error = errors[1][-1] if errors else None
    beaten = clearly_above(change["last"], change["last_error"], value, error)
    return {"value": value, "error": error, "beaten": beaten}


def change_of_series(series: Series) -> dict[str, Any] | None:
    """Return the change of one curve with its steps; `None` if it has no value."""
    change = curve_change(series.values, series.errors, series.problems, series.sampling_errors)
    if change is None:
        return None
    steps = [
        step for step, value in zip(series.steps, series.values, strict=True) if value is not None
    ]
    return {
        **asdict(change),
        "change": change.last - change.first if len(steps) > 1 else None,
        "first_steps": [steps[0], steps[change.count - 1]],
        "last_steps": [steps[-change.count], steps[-1]],
    }


def change_of_metric(rows: Sequence[Row], key: str) -> Change | None:
    """Return the change of a metric over the rows of a log; `None` if it has fewer than two
    values.
    """
    logged = [row for row in rows if is_number(row.get(key))]
    if len(logged) < 2:
        return None
    error_key = f"{key}_se"
    errors: Values | None = None
    if any(error_key in row for row in logged):
        errors = [row.get(error_key) for row in logged]
    values = [row[key] for row in logged]
    if not key.startswith("eval_"):
        return curve_change(values, sampling_errors=errors)
    count_key = problems_key({name for row in logged for name in row}, key)
    counts = [row.get(count_key) for row in logged] if count_key else None
    return curve_change(values, errors, counts)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
