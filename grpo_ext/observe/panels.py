"""The panels of a run: its curves as the page and the pictures of the report show them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_ext.common.files import data_yaml
from grpo_ext.observe.read_run import RunData, Series, Values

Column = tuple[list[int], Values]  # steps, and a value at each


@dataclass
class Panel:
    """Curves that are drawn together, and a sentence that says how to read them."""

    title: str
    note: str
    series: list[Series] = field(default_factory=list)

    @property
    def silent(self) -> bool:
        """Whether it shows nothing: at most one value in each curve or, but for rewards, one value
        throughout.
        """
        known = [[value for value in s.values if value is not None] for s in self.series]
        return all(
            len(values if "reward" in self.title.lower() else {*values}) <= 1 for values in known
        )


PANELS = data_yaml("grpo_ext.observe", "panels.yaml")
# title, figure and note of the panels with a curve for each task
BY_TASK = (
    ("Reward by task", "reward", "Weighted sum of the rewards of each task, mean over each step."),
    (
        "Right completions by task",
        "groups/pass_rate",
        "Share of the completions that the outcome reward passes.",
    ),
    ("Groups whose rewards differ, by task", "groups/mixed", "Only such groups teach."),
)
SECONDS = ("seconds/", "time/")
NOT_DRAWN = ("step", "time", "epoch", "total_flos", "num_tokens")
CONSTANTS = ("_constant", "/constant")  # endings of what the best constant answer earns
COUNTS = ("_problems", "/problems")  # endings of the number of problems of an evaluation
NOT_DRAWN_ENDINGS = ("_se", *COUNTS, "_runtime", "_per_second", "/std", *CONSTANTS)


def panels(run: RunData) -> list[Panel]:
    """Return the panels of a run that have a curve, the most important first."""
    columns = by_metric(run.metrics)
    found = [*held_out(columns), *rewards(run, columns), *by_task(columns)]
    for panel in PANELS:
        logged = {
            label: [columns[key] for key in keys if key in columns]
            for label, keys in panel["curves"].items()
        }
        curves = [
            series(label, some[0], smoothed=not panel.get("exact"))
            for label, some in logged.items()
            if some
        ]
        found.append(Panel(panel["title"], panel["note"], curves))
    return [panel for panel in (*found, seconds(columns)) if panel.series]


def more_panels(run: RunData) -> list[Panel]:
    """Return a panel for each metric that none of `panels` shows."""
    columns = by_metric(run.metrics)
    shown = {key for panel in PANELS for keys in panel["curves"].values() for key in keys}
    shown |= {"reward", "reward_std", "step_time", *NOT_DRAWN}
    shown |= {key for _, figure, _ in BY_TASK for key in of_tasks(columns, figure).values()}
    elsewhere = (*SECONDS, "eval_", "train_", "rewards/")
    rest = [key for key in columns.keys() - shown if not key.startswith(elsewhere)]
    return [
        Panel(key, "", [series(key, columns[key])])
        for key in sorted(rest)
        if not key.endswith(NOT_DRAWN_ENDINGS)
    ]


def by_metric(rows: list[dict[str, Any]]) -> dict[str, Column]:
    """Return steps and values of every metric that is a number; `None` where it was not finite."""
    columns: dict[str, Column] = {}
    for row in rows:
        for key, value in row.items():
            gap = value is None and key in row.get("not_finite", {})
            if gap or (isinstance(value, int | float) and not isinstance(value, bool)):
                steps, values = columns.setdefault(key, ([], []))
                steps.append(row["step"])
                values.append(value)
    return columns


def series(
    label: str,
    column: Column,
    errors: Column | None = None,
    problems: Column | None = None,
    smoothed: bool = True,
) -> Series:
    steps, values = column
    return Series(
        label,
        steps,
        values,
        at_steps(errors, steps),
        problems=at_steps(problems, steps),
        smoothed=smoothed,
    )


def at_steps(column: Column | None, steps: list[int]) -> Values | None:
    """Return the values of a column at these steps; `None` if there is no column."""
    if column is None:
        return None
    by_step = dict(zip(*column, strict=True))
    return [by_step.get(step) for step in steps]


def problems_key(names: Iterable[str], key: str) -> str | None:
    """Return the metric that counts the problems of the evaluation that logged `key`; `None` if
    there is none.
    """
    counts = (name for name in names if name.endswith(COUNTS))
    same_set = [name for name in counts if key.startswith(name.removesuffix("problems"))]
    return max(same_set, key=len, default=None)


def rewards(run: RunData, columns: dict[str, Column]) -> list[Panel]:
    """Return the panels of the weighted sum and of each reward; without the latter if one reward is
    the sum.
    """
    curves = list(run.curves.values())
    if not curves:
        names = {
            key.split("/")[1]: key
            for key in columns
            if key.startswith("rewards/") and key.endswith("/mean")
        }
        names |= {"reward": "reward"} if "reward" in columns else {}
        curves = [
            replace(
                series(name, columns[key]),
                sampling_errors=at_steps(columns.get(f"{key}_se"), columns[key][0]),
            )
            for name, key in names.items()
        ]
    total = [curve for curve in curves if curve.label == "reward"]
    parts = [curve for curve in curves if curve.label != "reward"]
    if [curve.values for curve in parts] == [curve.values for curve in total]:
        parts = []
    return [
        Panel("Reward", "Weighted sum, mean over each step.", total),
        Panel("Reward by function", "Each reward before its weight.", parts),
    ]


def held_out(columns: dict[str, Column]) -> list[Panel]:
    endings = (
        *NOT_DRAWN_ENDINGS,
        "_length",
        "/length",
        "num_tokens",
        "_loss",
        "entropy",
        "frac_reward_zero_std",
        "reward_std",
    )
    keys = [key for key in columns if key.startswith("eval_") and not key.endswith(endings)]
    drawn = [key for key in keys if "completions/" not in key and "clip_ratio" not in key]
    return [
        Panel(
            title,
            "Mean over all held-out prompts; bars are one standard error.",
            [
                series(
                    key.removeprefix(prefix),
                    columns[key],
                    columns.get(f"{key}_se"),
                    columns.get(problems_key(columns, key) or ""),
                )
                for key in drawn
                if ("tasks/" in key) == by_tasks
            ],
        )
        for title, prefix, by_tasks in (
            ("Held-out rewards", "eval_", False),
            ("Held-out rewards, by task", "eval_tasks/", True),
        )
    ]


def of_tasks(columns: dict[str, Column], figure: str) -> dict[str, str]:
    """Return the metric of this figure of each task, by the task's name."""
    start = "tasks/"
    end = f"/{figure}"
    return {
        key.removeprefix(start).removesuffix(end): key
        for key in columns
        if key.startswith(start) and key.endswith(end)
    }


def by_task(columns: dict[str, Column]) -> list[Panel]:
    """Return the panels with a curve for each task."""
    return [
        Panel(
            title,
            note,
            [series(name, columns[key]) for name, key in of_tasks(columns, figure).items()],
        )
        for title, figure, note in BY_TASK
    ]


def seconds(columns: dict[str, Column]) -> Panel:
    curves = [
        series(key.partition("/")[2], columns[key]) for key in columns if key.startswith(SECONDS)
    ]
    if "step_time" in columns:
        curves.insert(0, series("whole step", columns["step_time"]))
    return Panel("Seconds", "Where the time of a step goes.", curves)
