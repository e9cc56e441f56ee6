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
    end_of,
    figure,
    mean_error,
    measure,
    steps_of,
    together,
    values_of,
)

Runs = list[RunData]


@measure
def end(runs: Runs, metric: str) -> Figure | None:
    """The mean of the last tenth of a curve."""
    last = end_of(runs[0], metric)
    return None if last is None else figure(*last)


@measure
def end_of_sum(runs: Runs, metrics: list[str], weights: list[float]) -> Figure | None:
    """The weighted sum of the ends of several curves of one run."""
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
    """The mean of a metric over the steps in which another metric is within bounds."""
    rows = [row for row in runs[0].metrics if isinstance(row.get(metric), int | float)]
    levels = [row.get(other) for row in rows]
    values = [
        float(row[metric])
        for row, level in zip(rows, levels, strict=True)
        if isinstance(level, int | float) and at_least <= level <= at_most
    ]
    if not values:
        return None
    estimate = mean_over_steps(values)
    return Figure(estimate, f"{len(values)} of {len(rows)} steps")


@measure
def later(runs: Runs, first: str, second: str, share: float = 0.5) -> Figure | None:
    """How many steps later the second metric rises by a share; `None` if one did not rise."""
    steps = []
    for metric in (first, second):
        begin, top = beginning_and_end(runs[0], metric)
        step = reaches(runs[0], metric, begin + share * (top - begin))
        if step is None or not rose(runs[0], metric):
            return None
        steps.append(step)
    return figure(steps[1] - steps[0], details=f"steps {steps[0]:g} and {steps[1]:g}")


@measure
def noisier(runs: Runs, first: str, second: str) -> Figure | None:
    """The first metric's step-to-step deviation less the second's, in the last half."""
    spreads = []
    for metric in (first, second):
        values = values_of(runs[0], metric)
        if len(values) < 8:
            return None
        spreads.append(float(np.diff(values[len(values) // 2 :]).std() / np.sqrt(2)))
    return figure(spreads[0] - spreads[1], details=f"{spreads[0]:.3g} and {spreads[1]:.3g}")


@measure
def dip(runs: Runs, metric: str) -> Figure | None:
    """How far a curve falls to its lowest part and rises again, less the effect of chance.

    The smaller of fall and rise counts.

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
    """How far metrics end below their best (negative), for the least fall, less chance."""
    falls = []
    details = []
    for metric in metrics:
        values = values_of(runs[0], metric)
        count = ends(len(values))
        if count < 1:
            return None
        means = means_of_neighbours(values, count)
        error = error_of_neighbours(values, count)
        fell = float(means[-1] - means.max() + by_chance(error, len(means)))
        falls.append((fell, error))
        details.append(f"{metric} {means.max():.3g} to {means[-1]:.3g}")
    least, error = max(falls)
    return figure(least, together(error, error), "; ".join(details))


@measure
def alarm_agrees(runs: Runs, rule: str, metric: str = "reward") -> Figure | None:
    """The share of runs where `rule` raised an alarm exactly if the metric fell by a fifth."""
    right = []
    for run in runs:
        fell = fall([run], [metric])
        if fell is None:
            return None
        best = float(means_of_neighbours(values_of(run, metric), 5).max())
        collapsed = fell.estimate.mean < -0.2 * abs(best)
        raised = any(row.get("alarm") == rule for row in run.metrics)
        right.append(float(raised == collapsed))
    return figure(float(np.mean(right)), details=f"{sum(right):.0f} of {len(right)} runs")


def mean_over_steps(values: list[float]) -> Estimate:
    """Return the mean of independent values with the interval of Student's t."""
    return mean_over_runs([Estimate(value, None, None, None, 1) for value in values])


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
    """Whether the last fifth of a curve is above the first one by more than two standard errors."""
    rise = change([run], metric)
    if rise is None:
        return False
    return rise.estimate.mean > 2 * (rise.estimate.error or 0.0)


def reaches(run: RunData, metric: str, level: float) -> float | None:
    """Return the first step where the smoothed curve is at `level` or above, or `None`."""
    values: Array = np.array(smooth(values_of(run, metric).tolist(), SMOOTHING))
    above = np.flatnonzero(values >= level)
    return float(steps_of(run, metric)[above[0]]) if len(above) else None
