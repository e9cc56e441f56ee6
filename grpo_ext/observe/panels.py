"""Arrange the curves of a run in panels, for the report page and its images."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from grpo_ext.common.files import data_yaml
from grpo_ext.observe.read_run import RunData, Series, Values

Column = tuple[list[int], Values]  # the steps, and the value at each step


@dataclass
class Panel:
    """Curves that are drawn together, with a sentence on how to read them."""

    title: str
    note: str
    series: list[Series] = field(default_factory=list)

    @property
    def silent(self) -> bool:
        """Whether the panel shows no change: none of its curves has two different values.

        A panel with "reward" in its title is silent only if none of its curves has two values, even
        equal ones, because a constant reward is worth seeing.
        """
        shows_rewards = "reward" in self.title.lower()
        for curve in self.series:
            values = [value for value in curve.values if value is not None]
            points = len(values) if shows_rewards else len(set(values))
            if points > 1:
                return False
        return True


PANELS = data_yaml("grpo_ext.observe", "panels.yaml")
# Title, metric and note of each panel with a curve for each task.
BY_TASK = (
    (
        "Reward by task",
        "reward",
        "Weighted sum of the rewards, averaged over each task's completions at each step.",
    ),
    (
        "Right completions by task",
        "groups/pass_rate",
        "Share of completions that pass by the outcome reward.",
    ),
    (
        "Groups whose rewards differ, by task",
        "groups/mixed",
        "The model learns only from these groups.",
    ),
)
# The same, with a curve for each environment; used only if a run has several.
BY_ENVIRONMENT = (
    (
        "Turns per episode, by environment",
        "episodes/turns",
        "Turns of the model in each environment.",
    ),
    (
        "Tokens per turn, by environment",
        "episodes/tokens_per_turn",
        "Tokens that the model wrote in each environment, without the environment's answers.",
    ),
    (
        "Turns per episode in which the environment failed, by environment",
        "episodes/failures",
        "The environment raised an error, took too long, or returned a result of the wrong form.",
    ),
)
SECONDS = ("seconds/", "time/")
SHORTEST = 0.001  # seconds that a phase must reach to be drawn
NOT_DRAWN = ("step", "time", "epoch", "total_flos", "num_tokens", "progress/hours_left")
CONSTANTS = ("_constant", "/constant")  # endings of the scores of the best constant answer
COUNTS = ("_problems", "/problems")  # endings of the number of problems of an evaluation
NOT_DRAWN_ENDINGS = ("_se", *COUNTS, "_runtime", "_per_second", "/std", *CONSTANTS)
NOT_HELD_OUT_ENDINGS = (  # endings of evaluation metrics that are not rewards
    *NOT_DRAWN_ENDINGS,
    "_length",
    "/length",
    "num_tokens",
    "_loss",
    "entropy",
    "frac_reward_zero_std",
    "reward_std",
)
# an evaluation metric, which may name a dataset and a task, such as `eval_tasks/a/episodes/turns`
EPISODE_FIGURE = re.compile(
    r"eval_(?:[^/]*_)?(?:(?:tasks|environments)/[^/]+/)?(?:episodes|tools)/"
)


def panels(run: RunData, is_whole: bool = True) -> list[Panel]:
    """Return the panels of a run, the most important first; panels without a curve are left out.

    Args:
        run: the run to show.
        is_whole: whether `run.metrics` covers the whole log. If so, a pass@k that stays at 0
            because the outcome reward is graded is left out (see `pass_rates_of_graded`). A part of
            the log cannot show that it stays at 0.
    """
    columns = by_metric(run.metrics)
    outcomes = run.outcomes if is_whole else []
    all_panels = [*held_out(columns, outcomes), *rewards(run, columns)]
    all_panels += by_part(columns, "tasks", BY_TASK)
    all_panels += by_part(columns, "environments", BY_ENVIRONMENT)
    for layout in PANELS:
        panel = Panel(layout["title"], layout["note"])
        for label, keys in layout["curves"].items():
            logged_key = next((key for key in keys if key in columns), None)
            if logged_key is not None:
                smoothed = not layout.get("exact")
                curve = series(label, columns[logged_key], smoothed=smoothed)
                panel.series.append(curve)
        all_panels.append(panel)
    all_panels.append(seconds(columns))
    return [panel for panel in all_panels if panel.series]


def more_panels(run: RunData) -> list[Panel]:
    """Return one panel for each training metric that `panels` does not show, sorted by name.

    Bookkeeping metrics (`NOT_DRAWN`, `NOT_DRAWN_ENDINGS`), metrics that begin with `eval_` or
    `train_`, and metrics that other panels summarize, such as `reward_std`, are left out.
    """
    columns = by_metric(run.metrics)
    drawn = {"reward", "reward_std", "step_time", *NOT_DRAWN}
    for layout in PANELS:
        for keys in layout["curves"].values():
            drawn.update(keys)
    for _, figure, _ in BY_TASK:
        drawn.update(of_parts(columns, "tasks", figure).values())
    for _, figure, _ in BY_ENVIRONMENT:
        drawn.update(of_parts(columns, "environments", figure).values())
    drawn_beginnings = (*SECONDS, "eval_", "train_", "rewards/")
    further_panels = []
    for key in sorted(columns.keys() - drawn):
        if not key.startswith(drawn_beginnings) and not key.endswith(NOT_DRAWN_ENDINGS):
            curve = series(key, columns[key])
            further_panels.append(Panel(key, "", [curve]))
    return further_panels


def by_metric(rows: list[dict[str, Any]]) -> dict[str, Column]:
    """Return the steps and values of every numeric metric, by name.

    Values that are not finite are `None`. Steps without the metric are left out.
    """
    columns: dict[str, Column] = {}
    for row in rows:
        for key, value in row.items():
            is_gap = value is None and key in row.get("not_finite", {})
            if is_gap or is_number(value):
                steps, values = columns.setdefault(key, ([], []))
                steps.append(row["step"])
                values.append(value)
    return columns


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value from a JSON file is a number; booleans do not count."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def series(
    label: str,
    column: Column,
    errors: Column | None = None,
    problems: Column | None = None,
    smoothed: bool = True,
) -> Series:
    """Return the curve of a metric.

    Args:
        label: the name of the curve.
        column: the steps and values of the metric.
        errors: the steps and standard errors of an evaluation metric.
        problems: the steps, and the number of problems (questions) over which the value at each
            step is averaged.
        smoothed: whether to smooth the curve when it is drawn; `False` if its values are exact.
    """
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
    """Return the values of a column at `steps`, with `None` for each step that has no value.

    Returns `None` if `column` is `None`.
    """
    if column is None:
        return None
    column_steps, values = column
    by_step = dict(zip(column_steps, values, strict=True))
    return [by_step.get(step) for step in steps]


def problems_key(names: Iterable[str], key: str) -> str | None:
    """Return the name of the metric that says over how many problems metric `key` is averaged.

    Problems are the questions of an evaluation. Returns `None` if no such metric was logged.

    Args:
        names: the names of all metrics.
        key: the name of the evaluation metric.
    """
    same_evaluation = []
    for name in names:
        if name.endswith(COUNTS) and key.startswith(name.removesuffix("problems")):
            same_evaluation.append(name)
    return max(same_evaluation, key=len, default=None)


def rewards(run: RunData, columns: dict[str, Column]) -> list[Panel]:
    """Return two panels: the weighted sum of the rewards, and the individual rewards.

    The curves come from `run.curves` or, if it is empty, from the metrics in `columns`. The second
    panel is empty if there is only one reward and it equals the sum. Both panels are empty if no
    rewards were logged.
    """
    curves = list(run.curves.values()) or logged_rewards(columns)
    total = Panel("Reward", "Weighted sum of the rewards, averaged over each step.")
    by_function = Panel("Reward by function", "Each reward, before it is weighted.")
    for curve in curves:
        panel = total if curve.label == "reward" else by_function
        panel.series.append(curve)
    if len(total.series) == len(by_function.series) == 1:
        [only_reward] = by_function.series
        if only_reward.values == total.series[0].values:
            by_function.series = []
    return [total, by_function]


def logged_rewards(columns: dict[str, Column]) -> list[Series]:
    """Return a curve for each reward in the metrics, for runs without logged completions.

    The curve of the weighted sum, `reward`, is last.
    """
    keys = {}
    for key in columns:
        if key.startswith("rewards/") and key.endswith("/mean"):
            keys[key.split("/")[1]] = key
    if "reward" in columns:
        keys["reward"] = "reward"
    curves = []
    for name, key in keys.items():
        curve = series(name, columns[key])
        curve.sampling_errors = at_steps(columns.get(f"{key}_se"), curve.steps)
        curves.append(curve)
    return curves


def held_out(columns: dict[str, Column], outcomes: Sequence[str] = ()) -> list[Panel]:
    """Return two panels of held-out rewards, one over all rows and one by task; each may be empty.

    `outcomes` names the outcome rewards. A pass@k that stays at 0 because its outcome reward is
    graded is left out (see `pass_rates_of_graded`).
    """
    note = "Mean over all held-out prompts; error bars show one standard error."
    of_all = Panel("Held-out rewards", note)
    of_each_task = Panel("Held-out rewards, by task", note)
    left_out = pass_rates_of_graded({key: column[1] for key, column in columns.items()}, outcomes)
    for key, column in columns.items():
        if not key.startswith("eval_") or key.endswith(NOT_HELD_OUT_ENDINGS) or key in left_out:
            continue
        if "completions/" in key or "clip_ratio" in key or is_of_episodes(key):
            continue
        panel = of_all
        label = key.removeprefix("eval_")
        if "tasks/" in key:
            panel = of_each_task
            label = label.replace("tasks/", "", 1)
        errors = columns.get(f"{key}_se")
        problems = columns.get(problems_key(columns, key) or "")
        curve = series(label, column, errors, problems)
        panel.series.append(curve)
    return [of_all, of_each_task]


def pass_rates_of_graded(values: Mapping[str, Values], outcomes: Sequence[str]) -> set[str]:
    """Return the pass@k metrics that stayed at 0 although the mean outcome reward exceeded 0.

    Such an outcome reward is graded: it also gives scores between 0 and 1. A pass@k of 0 then does
    not mean that the run failed, so it is not shown.

    Args:
        values: the values of each metric of a run, by name.
        outcomes: the names of the outcome rewards; each pass@k is compared with the first one that
            the same evaluation logged.
    """
    stayed_at_zero = set()
    for key, rates in values.items():
        evaluation, named, _ = key.partition("pass@")  # such as "eval_tasks/sort/"
        if not named or any(rates):
            continue
        keys_of_means = [f"{evaluation}{outcome}" for outcome in outcomes]
        logged = [values[mean_key] for mean_key in keys_of_means if mean_key in values]
        if logged and any(mean is not None and mean > 0 for mean in logged[0]):
            stayed_at_zero.add(key)
    return stayed_at_zero


def is_of_episodes(key: str) -> bool:
    """Return whether an evaluation metric describes episodes or tools, and so is not a reward."""
    return EPISODE_FIGURE.match(key) is not None


def of_parts(columns: dict[str, Column], kind: str, figure: str) -> dict[str, str]:
    """Return the names of the metrics `KIND/NAME/FIGURE`, by NAME; empty if none was logged.

    Args:
        columns: the metrics of the run.
        kind: "tasks" or "environments".
        figure: the end of the metrics' names, such as "groups/pass_rate".
    """
    beginning = f"{kind}/"
    ending = f"/{figure}"
    keys = {}
    for key in columns:
        if key.startswith(beginning) and key.endswith(ending):
            keys[key.removeprefix(beginning).removesuffix(ending)] = key
    return keys


def by_part(
    columns: dict[str, Column], kind: str, layouts: Sequence[tuple[str, str, str]]
) -> list[Panel]:
    """Return one panel for each layout, with a curve for each task or each environment.

    Args:
        columns: the metrics of the run.
        kind: "tasks" or "environments".
        layouts: the (title, metric, note) of each panel.
    """
    part_panels = []
    for title, figure, note in layouts:
        panel = Panel(title, note)
        for name, key in of_parts(columns, kind, figure).items():
            panel.series.append(series(name, columns[key]))
        part_panels.append(panel)
    return part_panels


def seconds(columns: dict[str, Column]) -> Panel:
    """Return the panel that shows how many seconds a step and each of its phases take.

    Phases that never reach `SHORTEST` seconds are left out.
    """
    panel = Panel("Seconds", "Where the time of a step goes.")
    if "step_time" in columns:
        panel.series.append(series("whole step", columns["step_time"]))
    for key, column in columns.items():
        if key.startswith(SECONDS):
            _, _, phase = key.partition("/")
            _, values = column
            longest = max((value for value in values if value is not None), default=0.0)
            if longest < SHORTEST:
                continue
            panel.series.append(series(phase, column))
    return panel
