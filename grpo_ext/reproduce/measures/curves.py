"""Measures of a metric's curve: ends, changes, order, dips and falls."""

import numpy as np

from grpo_ext.common.curves import ends
from grpo_ext.common.estimates import Estimate, mean_over_runs
from grpo_ext.common.noise import error_of_neighbors, means_of_neighbors
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
    """Return the mean of the last tenth of a curve; `None` if the curve has no values.

    For short curves, `ends` says how many values are averaged.
    """
    last = end_of(runs[0], metric)
    return None if last is None else figure(*last)


@measure
def end_of_sum(runs: Runs, metrics: list[str], weights: list[float]) -> Figure | None:
    """Return the weighted sum of the final values of several metrics of one run.

    A final value is the mean of the last tenth of a curve (see `ends` for short curves). Returns
    `None` if one of the metrics has no values.

    Args:
        runs: a list with the run.
        metrics: the names of the metrics.
        weights: the weights of the metrics, in the same order.
    """
    total = 0.0
    errors: list[float | None] = []
    for metric, weight in zip(metrics, weights, strict=True):
        last = end_of(runs[0], metric)
        if last is None:
            return None
        mean, error = last
        total += weight * mean
        errors.append(None if error is None else weight * error)
    return figure(total, together(*errors))


@measure
def change(runs: Runs, metric: str) -> Figure | None:
    """Return the mean of the last fifth of a curve minus the mean of its first fifth.

    Returns `None` if there are fewer than five values.
    """
    values = values_of(runs[0], metric)
    if len(values) < 5:
        return None
    count = len(values) // 5
    first = float(values[:count].mean())
    last = float(values[-count:].mean())
    error = mean_error(values, count)
    details = f"from {first:.3g} to {last:.3g}"
    return figure(last - first, together(error, error), details)


@measure
def mean_where(
    runs: Runs,
    metric: str,
    other: str,
    at_least: float,
    at_most: float,
) -> Figure | None:
    """Return the mean of a metric over the steps in which another metric is within bounds.

    Returns `None` if there are no such steps.

    Args:
        runs: a list with the run.
        metric: the name of the metric.
        other: the name of the other metric.
        at_least: the lower bound of the other metric.
        at_most: the upper bound of the other metric.
    """
    rows = rows_with(runs[0], metric)
    values = []
    for row in rows:
        level = row.get(other)
        if isinstance(level, int | float) and at_least <= level <= at_most:
            value = Estimate(float(row[metric]), None, None, None, 1)
            values.append(value)
    if not values:
        return None
    # The interval is computed with Student's t, as if the steps were independent.
    return Figure(mean_over_runs(values), f"{len(values)} of {len(rows)} steps")


@measure
def later(
    runs: Runs,
    first: str,
    second: str,
    share: float = 0.5,
) -> Figure | None:
    """Return how many steps later the metric `second` rises than the metric `first`.

    A metric's time is the step at which it has completed a `share` of its own rise. The result is
    negative if `second` is earlier. Returns `None` if one of the metrics did not rise, or never
    reaches the share.

    Args:
        runs: a list with the run.
        first: the name of a metric.
        second: the name of another metric.
        share: the share of the rise, from 0 (the beginning) to 1 (the end).
    """
    steps = []
    for metric in (first, second):
        begin, end = beginning_and_end(runs[0], metric)
        level = begin + share * (end - begin)
        step = reaches(runs[0], metric, level)
        if step is None or not rose(runs[0], metric):
            return None
        steps.append(step)
    return figure(steps[1] - steps[0], details=f"steps {steps[0]:g} and {steps[1]:g}")


@measure
def noisier(runs: Runs, first: str, second: str) -> Figure | None:
    """Return the noise of the first metric minus that of the second.

    The noise is the standard deviation of the differences between consecutive values, divided by
    sqrt(2), in the last half of the values. Returns `None` if a metric has fewer than 8 values.

    Args:
        runs: a list with the run.
        first: the name of a metric.
        second: the name of another metric.
    """
    spreads = []
    for metric in (first, second):
        values = values_of(runs[0], metric)
        if len(values) < 8:
            return None
        last_half = values[len(values) // 2 :]
        differences = np.diff(last_half)
        spreads.append(float(differences.std() / np.sqrt(2)))
    return figure(spreads[0] - spreads[1], details=f"{spreads[0]:.3g} and {spreads[1]:.3g}")


@measure
def dip(runs: Runs, metric: str) -> Figure | None:
    """Return the depth of a curve's dip, corrected for the dip that pure noise would show.

    The depth is the smaller of the fall to the lowest part and the rise after it. The lowest of m
    means of noise is about sqrt(2 ln m) standard errors below their average. This amount is
    subtracted, so the result is at most 0 if the curve only falls or only rises. Returns `None` if
    there are fewer than three values.
    """
    values = values_of(runs[0], metric)
    count = ends(len(values))
    if count < 1:
        return None
    means = means_of_neighbors(values, count)
    lowest = int(means.argmin())
    depth = min(means[0], means[-1]) - means[lowest]
    error = error_of_neighbors(values, count)
    details = (
        f"{means[0]:.3g}, {means[lowest]:.3g} about step {lowest + (count + 1) / 2:.0f}, "
        f"{means[-1]:.3g}"
    )
    chance = by_chance(error, len(means))
    return figure(float(depth - chance), together(error, error), details)


@measure
def fall(runs: Runs, metrics: list[str]) -> Figure | None:
    """Return by how much a metric ends below its best, corrected for what noise alone would show.

    The result is the mean of the last values minus the best mean of as many consecutive values (see
    `ends`), plus the depth of the fall that noise alone would show; it is negative if the metric
    fell further than that. If there are several metrics, the highest result, which stands for the
    smallest fall, is returned. Returns `None` if a metric has fewer than three values.
    """
    falls = []
    details = []
    for metric in metrics:
        values = values_of(runs[0], metric)
        count = ends(len(values))
        if count < 1:
            return None
        means = means_of_neighbors(values, count)
        error = error_of_neighbors(values, count)
        chance = by_chance(error, len(means))
        below_best = float(means[-1] - means.max() + chance)
        falls.append((below_best, error))
        details.append(f"{metric} {means.max():.3g} to {means[-1]:.3g}")
    least, error = max(falls)
    return figure(least, together(error, error), "; ".join(details))


@measure
def alarm_agrees(runs: Runs, rule: str, metric: str = "reward") -> Figure | None:
    """Return the share of runs in which an alarm was correct.

    The alarm is correct if it was raised and the metric ended more than a fifth below its best, or
    if neither is the case. How far it ended below its best is corrected for noise (see `fall`).
    Returns `None` if a run has fewer than three values of the metric.

    Args:
        runs: one or several runs.
        rule: the name of the alarm's rule.
        metric: the name of the metric.
    """
    agreeing = 0
    for run in runs:
        fell = fall([run], [metric])
        if fell is None:
            return None
        values = values_of(run, metric)
        best = float(means_of_neighbors(values, min(5, len(values))).max())
        collapsed = fell.estimate.mean < -0.2 * abs(best)
        raised = any(row.get("alarm") == rule for row in run.metrics)
        agreeing += raised == collapsed
    return figure(agreeing / len(runs), details=f"{agreeing} of {len(runs)} runs")


def by_chance(error: float, count: int) -> float:
    """Estimate how far the lowest of several means of pure noise is below their average.

    The result is `error * sqrt(2 ln count)`, in the unit of `error`.

    Args:
        error: the standard error of one mean.
        count: the number of means.
    """
    standard_errors = np.sqrt(2 * np.log(max(count, 1)))
    return error * float(standard_errors)


def beginning_and_end(run: RunData, metric: str) -> tuple[float, float]:
    """Return the means of the first and the last tenth of a curve; NaN if the curve is empty.

    For short curves, `ends` says how many values are averaged; at least one is used.
    """
    values = values_of(run, metric)
    if not len(values):
        return np.nan, np.nan
    count = ends(len(values)) or 1
    beginning = float(values[:count].mean())
    end = float(values[-count:].mean())
    return beginning, end


def rose(run: RunData, metric: str) -> bool:
    """Return whether a curve's last fifth is above the first by more than two standard errors.

    An unknown error counts as 0. Returns `False` if there are fewer than five values.
    """
    rise = change([run], metric)
    if rise is None:
        return False
    return rise.estimate.mean > 2 * (rise.estimate.error or 0.0)


def reaches(run: RunData, metric: str, level: float) -> float | None:
    """Return the step at which a metric's smoothed curve first reaches a level.

    Args:
        run: the run that logged the metric.
        metric: the name of the metric.
        level: the value to reach.

    Returns:
        The step, or `None` if the curve never reaches the level.
    """
    values = values_of(run, metric).tolist()
    curve: Array = np.array(smooth(values, SMOOTHING))
    above = np.flatnonzero(curve >= level)
    if not len(above):
        return None
    return float(steps_of(run, metric)[above[0]])
