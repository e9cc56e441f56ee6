"""Measures of curves: ends, changes, order, dips and falls."""

import numpy as np

from grpo_ext.common.curves import ends
from grpo_ext.common.estimates import Estimate, mean_over_runs
from grpo_ext.common.noise import error_of_neighbours, means_of_neighbours
from grpo_ext.observe.plots import smooth
from grpo_ext.observe.read_run import RunData
from grpo_ext.reproduce.measures.base import (
    SMOOTHING,
    Array,
    Figure,
    Runs,
    end_of,
    figure,
    mean_error,
    measure,
    rows_with,
    steps_of,
    together,
    values_of,
)


@measure
def end(runs: Runs, metric: str) -> Figure | None:
    """The mean of the last tenth of a curve."""
    last = end_of(runs[0], metric)
    return None if last is None else figure(*last)


@measure
def end_of_sum(runs: Runs, metrics: list[str], weights: list[float]) -> Figure | None:
    """The weighted sum of the ends of several curves of one run.

    Args:
        runs: the run.
        metrics: the curves.
        weights: their weights, in the same order.
    """
    total = 0.0
    errors: list[float | None] = []
    for metric, weight in zip(metrics, weights, strict=True):
        last = end_of(runs[0], metric)
        if last is None:
            return None
        total += weight * last[0]
        errors.append(None if last[1] is None else weight * last[1])
    return figure(total, together(*errors))


@measure
def change(runs: Runs, metric: str) -> Figure | None:
    """The mean of the last fifth of a curve less that of the first fifth."""
    values = values_of(runs[0], metric)
    if len(values) < 5:
        return None
    count = len(values) // 5
    first = float(values[:count].mean())
    last = float(values[-count:].mean())
    error = mean_error(values, count)
    return figure(last - first, together(error, error), f"from {first:.3g} to {last:.3g}")


@measure
def mean_where(
    runs: Runs, metric: str, other: str, at_least: float, at_most: float
) -> Figure | None:
    """The mean of a metric over the steps in which another metric is within bounds.

    Args:
        runs: the run.
        metric: the metric.
        other: the other metric.
        at_least: its lower bound.
        at_most: its upper bound.
    """
    rows = rows_with(runs[0], metric)
    values = []
    for row in rows:
        level = row.get(other)
        if isinstance(level, int | float) and at_least <= level <= at_most:
            values.append(Estimate(float(row[metric]), None, None, None, 1))
    if not values:
        return None
    # an interval by Student's t for independent steps
    return Figure(mean_over_runs(values), f"{len(values)} of {len(rows)} steps")


@measure
def later(runs: Runs, first: str, second: str, share: float = 0.5) -> Figure | None:
    """By how many steps the second metric reaches a share of its own rise later than the first.

    `None` if one did not rise.

    Args:
        runs: the run.
        first: a metric.
        second: another metric.
        share: of the rise.
    """
    steps = []
    for metric in (first, second):
        begin, end = beginning_and_end(runs[0], metric)
        step = reaches(runs[0], metric, begin + share * (end - begin))
        if step is None or not rose(runs[0], metric):
            return None
        steps.append(step)
    return figure(steps[1] - steps[0], details=f"steps {steps[0]:g} and {steps[1]:g}")


@measure
def noisier(runs: Runs, first: str, second: str) -> Figure | None:
    """The standard deviation from step to step of the first metric less that of the second.

    Args:
        runs: the run, of which the last half counts.
        first: a metric.
        second: another metric.
    """
    spreads = []
    for metric in (first, second):
        values = values_of(runs[0], metric)
        if len(values) < 8:
            return None
        spreads.append(float(np.diff(values[len(values) // 2 :]).std() / np.sqrt(2)))
    return figure(spreads[0] - spreads[1], details=f"{spreads[0]:.3g} and {spreads[1]:.3g}")


@measure
def dip(runs: Runs, metric: str) -> Figure | None:
    """How far a curve falls to its lowest part and rises again, less what chance alone would show.

    It is the smaller of fall and rise.

    The lowest of m means of noise is below their mean by about sqrt(2 ln m) errors, which is
    subtracted. The figure is negative if the curve only falls or only rises.
    """
    values = values_of(runs[0], metric)
    count = ends(len(values))
    if count < 1:
        return None
    means = means_of_neighbours(values, count)
    lowest = int(means.argmin())
    depth = min(means[0], means[-1]) - means[lowest]
    error = error_of_neighbours(values, count)
    details = (
        f"{means[0]:.3g}, {means[lowest]:.3g} about step {lowest + (count + 1) / 2:.0f}, "
        f"{means[-1]:.3g}"
    )
    return figure(float(depth - by_chance(error, len(means))), together(error, error), details)


@measure
def fall(runs: Runs, metrics: list[str]) -> Figure | None:
    """How far the metrics end below their best part (negative), less what chance alone would show.

    It is the fall of the metric that falls least.
    """
    falls = []
    details = []
    for metric in metrics:
        values = values_of(runs[0], metric)
        count = ends(len(values))
        if count < 1:
            return None
        means = means_of_neighbours(values, count)
        error = error_of_neighbours(values, count)
        falls.append((float(means[-1] - means.max() + by_chance(error, len(means))), error))
        details.append(f"{metric} {means.max():.3g} to {means[-1]:.3g}")
    least, error = max(falls)
    return figure(least, together(error, error), "; ".join(details))


@measure
def alarm_agrees(runs: Runs, rule: str, metric: str = "reward") -> Figure | None:
    """The share of the runs in which an alarm was right.

    It is right if it was raised exactly where the metric fell by a fifth for good.

    Args:
        runs: the runs.
        rule: the rule of the alarm.
        metric: the metric.
    """
    agreeing = 0
    for run in runs:
        fell = fall([run], [metric])
        if fell is None:
            return None
        best = float(means_of_neighbours(values_of(run, metric), 5).max())
        collapsed = fell.estimate.mean < -0.2 * abs(best)
        raised = any(row.get("alarm") == rule for row in run.metrics)
        agreeing += raised == collapsed
    return figure(agreeing / len(runs), details=f"{agreeing} of {len(runs)} runs")


def by_chance(error: float, count: int) -> float:
    """Return how far the lowest of `count` means of pure noise lies below their mean."""
    return error * float(np.sqrt(2 * np.log(max(count, 1))))


def beginning_and_end(run: RunData, metric: str) -> tuple[float, float]:
    """Return the means of the first and of the last tenth of a curve; NaN without values."""
    values = values_of(run, metric)
    count = ends(len(values)) or 1
    if not len(values):
        return np.nan, np.nan
    return float(values[:count].mean()), float(values[-count:].mean())


def rose(run: RunData, metric: str) -> bool:
    """Return whether the last fifth of a curve is above the first by more than two errors."""
    rise = change([run], metric)
    if rise is None:
        return False
    return rise.estimate.mean > 2 * (rise.estimate.error or 0.0)


def reaches(run: RunData, metric: str, level: float) -> float | None:
    """Return the step at which a smoothed curve reaches a level; `None` if it never does.

    Args:
        run: the run.
        metric: the metric.
        level: the level.
    """
    curve: Array = np.array(smooth(values_of(run, metric).tolist(), SMOOTHING))
    above = np.flatnonzero(curve >= level)
    if not len(above):
        return None
    return float(steps_of(run, metric)[above[0]])
