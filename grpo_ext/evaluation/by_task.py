"""Compute the metrics of an evaluation over all rows and, if rows name a task, for each task."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_ext.common.columns import TASK
from grpo_ext.environments.episode_figures import episode_figures, figures_by_environment
from grpo_ext.evaluation.compare import compare
from grpo_ext.evaluation.completions import Row
from grpo_ext.evaluation.score import (
    OUTCOME,
    Figures,
    Sample,
    number_of_problems,
    outcome_figures,
    summarize,
    with_outcome,
)


def figures_of(
    rows: Sequence[Row],
    samples: list[Sample],
    names: list[str],
    outcomes: Sequence[str],
    k: int,
) -> Figures:
    """Return the metrics of an evaluation, over all rows and for each task.

    These are `problems` (the number of distinct problems), the metrics of `summarize`, those of
    `outcome_figures` if there are outcome rewards, and those of `episode_figures` if any sample is
    an episode. If environments have names, the metrics of `figures_by_environment` are added.

    If the rows have a column "task", the metrics of each task are added under `tasks/NAME/`, except
    those of `figures_by_environment` and of rewards that scored none of the task's samples.

    Args:
        rows: the evaluated rows.
        samples: `k` completions of each row.
        names: the names of the rewards.
        outcomes: the names of the rewards that decide pass@k, in the order of `outcome_order`; if
            empty, there is no pass@k.
        k: the number of completions of each row.
    """
    figures = _figures(samples, names, outcomes, k)
    figures |= figures_by_environment([sample.counts for sample in samples if sample.counts])
    for task, of_task in samples_by_task(rows, samples).items():
        task_names = scored_by(names, of_task)
        task_figures = _figures(of_task, task_names, outcomes, k)
        for key, figure in task_figures.items():
            figures[f"tasks/{task}/{key}"] = figure
    return figures


def scored_by(names: Sequence[str], samples: list[Sample]) -> list[str]:
    """Return the names of the rewards that scored at least one sample."""
    scored = []
    for name in names:
        if any(sample.rewards[name] is not None for sample in samples):
            scored.append(name)
    return scored


def samples_by_task(rows: Sequence[Row], samples: list[Sample]) -> dict[str, list[Sample]]:
    """Return the samples of each task, sorted by task name; rows without a task are left out."""
    tasks: dict[str, list[Sample]] = {}
    for sample in samples:
        task = rows[sample.row].get(TASK)
        if isinstance(task, str):
            tasks.setdefault(task, []).append(sample)
    return dict(sorted(tasks.items()))


@dataclass(frozen=True)
class PartOfTask:
    """The rows and samples of one task in an evaluation, or all of them if no row names a task."""

    prefix: str  # prepended to the names of its metrics: "tasks/NAME/", or "" for all rows
    rows: list[Row]
    samples: list[Sample]
    outcome: str  # the name of the reward that judges these rows; "" if there is none


def parts_of_tasks(
    rows: Sequence[Row],
    samples: list[Sample],
    outcomes: Sequence[str],
) -> list[PartOfTask]:
    """Split an evaluation by task; if no row names a task, return a single part with all rows.

    If only some rows name a task, the others are left out.

    Args:
        rows: the evaluated rows.
        samples: the completions of `rows`.
        outcomes: the outcome rewards in the order of `outcome_order`. The outcome of a task is the
            first one that scored any of its samples. If no row names a task, it is the first of
            all.
    """
    tasks = samples_by_task(rows, samples)
    if not tasks:
        outcome = next(iter(outcomes), "")
        return [PartOfTask("", list(rows), samples, outcome)]
    parts = []
    for task, of_task in tasks.items():
        numbers = sorted({sample.row for sample in of_task})
        task_rows = [rows[number] for number in numbers]
        outcome = next(iter(scored_by(outcomes, of_task)), "")
        parts.append(PartOfTask(f"tasks/{task}/", task_rows, of_task, outcome))
    return parts


def _figures(
    samples: list[Sample],
    names: list[str],
    outcomes: Sequence[str],
    k: int,
) -> Figures:
    figures = {"problems": number_of_problems(samples), **summarize(samples, names)}
    if outcomes:
        judged = with_outcome(samples, outcomes)
        figures |= outcome_figures(judged, OUTCOME, k)
    figures |= episode_figures([sample.counts for sample in samples if sample.counts])
    return figures


def compare_by_task(
    rows: Sequence[Row],
    before: dict[str, list[Sample]],
    after: dict[str, list[Sample]],
    names: list[str],
    outcomes: Sequence[str],
) -> dict[str, Any]:
    """Return the result of `compare`, with the differences within each task added to each part.

    The keys of the added differences are `tasks/TASK/KEY`, where KEY is the name of a reward, such
    as `accuracy`, or the key for the length. The lists `became_right` and `became_wrong` are for
    all tasks together.

    Args:
        rows: the evaluated rows.
        before: the samples of the first evaluation, by part: `greedy` and optionally `sampled`.
        after: the samples of the second evaluation, with the same parts.
        names: the names of the rewards.
        outcomes: the outcome rewards in the order of `outcome_order`.
    """
    differences = compare(before, after, names, outcomes)
    for part in before:
        later = samples_by_task(rows, after[part])
        for task, of_task in samples_by_task(rows, before[part]).items():
            task_differences = compare({part: of_task}, {part: later[task]}, names, ())
            for name, change in task_differences[part].items():
                differences[part][f"tasks/{task}/{name}"] = change
    return differences
