"""Measures that compare runs by their final values, their speed, and how time grows with length."""

from math import log2

import numpy as np

from grpo_ext.reproduce.measures.base import (
    Figure,
    Runs,
    end_of,
    figure,
    mean_error,
    measure,
    seconds_of,
    steps_of,
    together,
    values_of,
)
from grpo_ext.reproduce.measures.curves import beginning_and_end, reaches


@measure
def difference(runs: Runs, metric: str) -> Figure | None:
    """Return the final value of a metric in the first run minus that in the second run.

    A final value is the mean of the last tenth of a curve (see `ends` for short curves). Returns
    `None` if a run has no values.
    """
    first = end_of(runs[0], metric)
    second = end_of(runs[1], metric)
    if first is None or second is None:
        return None
    first_mean, first_error = first
    second_mean, second_error = second
    error = together(first_error, second_error)
    return figure(first_mean - second_mean, error, f"{first_mean:.3g} and {second_mean:.3g}")


@measure
def reaches_sooner(
    runs: Runs,
    metric: str,
    by: str = "steps",
    share: float = 0.8,
) -> Figure | None:
    """Return what it costs `runs[0]` to reach a level, divided by what it costs `runs[1]`.

    If the ratio is above 1, `runs[1]` reaches the level sooner. Returns `None` if either run never
    reaches it, or if the cost for `runs[1]` is 0.

    Args:
        runs: the two runs.
        metric: the name of the metric.
        by: the unit of the cost, "steps" or "seconds".
        share: the level, as a fraction of the way from the mean of the two beginnings (0) to the
            lower of the two ends (1).
    """
    first, second = runs[:2]
    first_begin, first_end = beginning_and_end(first, metric)
    second_begin, second_end = beginning_and_end(second, metric)
    begin = (first_begin + second_begin) / 2
    level = begin + share * (min(first_end, second_end) - begin)
    costs = []
    for run in (first, second):
        step = reaches(run, metric, level)
        if step is None:
            return None
        if by == "steps":
            costs.append(step)
        else:
            seconds = seconds_of(run)[: int(step)]
            costs.append(float(seconds.sum()))
    first_cost, second_cost = costs
    if not second_cost:
        return None
    details = f"{first_cost:.3g} and {second_cost:.3g} {by}"
    return figure(first_cost / second_cost, details=details)


@measure
def seconds_ratio(runs: Runs) -> Figure | None:
    """Return the first run's median seconds per step, divided by the second run's.

    Returns `None` if a run logged no times.
    """
    first = seconds_of(runs[0])
    second = seconds_of(runs[1])
    if not len(first) or not len(second):
        return None
    slow = float(np.median(first))
    fast = float(np.median(second))
    return figure(slow / fast, details=f"{slow:.3g} s and {fast:.3g} s")


@measure
def at_equal_time(runs: Runs, metric: str) -> Figure | None:
    """Return a metric of the first run minus that of the second, after equal training time.

    Each run's value is the mean over the last fifth of the shorter run's training time. Returns
    `None` if a run logged no times, or no value of the metric in that fifth.
    """
    totals = [float(seconds_of(run).sum()) for run in runs[:2]]
    total = min(totals)
    means = []
    errors = []
    for run in runs[:2]:
        elapsed = seconds_of(run).cumsum()
        if not len(elapsed):
            return None
        steps = steps_of(run, metric).astype(int)
        times = elapsed[np.minimum(steps, len(elapsed)) - 1]
        curve = values_of(run, metric)
        is_late = (times > 0.8 * total) & (times <= total * 1.001)
        values = curve[is_late]
        if not len(values):
            return None
        means.append(float(values.mean()))
        errors.append(mean_error(curve, len(values)))
    details = f"{means[0]:.3g} and {means[1]:.3g} after {total:.0f} s"
    return figure(means[0] - means[1], together(*errors), details)


@measure
def bend(runs: Runs) -> Figure | None:
    """Fit seconds per step as a quadratic function of length, and return the quadratic share.

    Each run contributes one point; with fewer than three different completion lengths, the fit is
    not unique. The quadratic share is the quadratic term at the longest length, divided by the
    seconds per step measured there. It is 0 if the seconds grow linearly with the length. Returns
    `None` if a run logged fewer than two steps.
    """
    lengths = []
    medians = []
    details = []
    for run in runs:
        seconds = seconds_of(run)[1:]  # the first step warms up
        if not len(seconds):
            return None
        length = float(values_of(run, "completions/mean_length").mean())
        median = float(np.median(seconds))
        lengths.append(length)
        medians.append(median)
        details.append(f"{length:.0f} tokens {median:.2g} s")
    square, _, _ = np.polyfit(lengths, medians, 2)
    longest = int(np.argmax(lengths))
    share = float(square * lengths[longest] ** 2 / medians[longest])
    return figure(share, details=", ".join(details))


@measure
def best_group_size(runs: Runs, metric: str, success: str) -> Figure | None:
    """Return log2 of the product of the best group size and the initial success rate.

    The result is 0 if the best size is the inverse of the success rate. The best size is the group
    size of the run in which `metric` ends highest. The initial success rate is the mean of the
    first five values of `success`, averaged over the runs that logged it. Returns `None` if a run
    has no values of `metric`, or if the success rate is 0 or unknown.

    Args:
        runs: runs with different group sizes.
        metric: the name of the metric whose final values are compared.
        success: the name of the metric for the success rate.
    """
    levels = []
    sizes = []
    ends = []
    rates = []
    for run in runs:
        end = end_of(run, metric)
        if end is None:
            return None
        level, _ = end
        size = run.recipe.get("num_generations", 8)
        levels.append(level)
        sizes.append(size)
        ends.append(f"{size}: {level:.3g}")
        successes = values_of(run, success)
        if len(successes):
            rates.append(successes[:5].mean())
    if not rates or np.mean(rates) <= 0:
        return None
    rate = float(np.mean(rates))
    best = sizes[int(np.argmax(levels))]
    details = f"1 / success = {1 / rate:.3g}; ends by size {', '.join(ends)}"
    return figure(log2(best * rate), details=details)
