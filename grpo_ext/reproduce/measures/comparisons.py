"""Measures that compare runs: ends, steps and seconds to a reward, equal time, growth."""

from math import log2

import numpy as np

from grpo_ext.observe.read_run import RunData
from grpo_ext.reproduce.measures.base import (
    Figure,
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

Runs = list[RunData]


@measure
def difference(runs: Runs, metric: str) -> Figure | None:
    """The end of a curve in the first run less that in the second."""
    first = end_of(runs[0], metric)
    second = end_of(runs[1], metric)
    if first is None or second is None:
        return None
    details = f"{first[0]:.3g} and {second[0]:.3g}"
    return figure(first[0] - second[0], together(first[1], second[1]), details)


@measure
def reaches_sooner(runs: Runs, metric: str, by: str = "steps", share: float = 0.8) -> Figure | None:
    """The first run's steps (or seconds) to a common level, divided by the second run's.

    The level is a share of the way from their beginnings to the lower of their ends. Above 1 the
    second run is sooner.
    """
    both = [beginning_and_end(run, metric) for run in runs[:2]]
    begin = float(np.mean([begin for begin, _ in both]))
    level = begin + share * (min(top for _, top in both) - begin)
    needed = []
    for run in runs[:2]:
        step = reaches(run, metric, level)
        if step is None:
            return None
        needed.append(step if by == "steps" else float(seconds_of(run)[: int(step)].sum()))
    if not needed[1]:
        return None
    return figure(needed[0] / needed[1], details=f"{needed[0]:.3g} and {needed[1]:.3g} {by}")


@measure
def seconds_ratio(runs: Runs) -> Figure | None:
    """The median seconds of a step of the first run by those of the second."""
    first, second = (seconds_of(run) for run in runs[:2])
    if not len(first) or not len(second):
        return None
    slow = float(np.median(first))
    fast = float(np.median(second))
    return figure(slow / fast, details=f"{slow:.3g} s and {fast:.3g} s")


@measure
def at_equal_time(runs: Runs, metric: str) -> Figure | None:
    """A metric of the first run less the second's, after the seconds of the shorter run."""
    totals = [float(seconds_of(run).sum()) for run in runs[:2]]
    least = min(totals)
    reached = []
    for run in runs[:2]:
        elapsed = seconds_of(run).cumsum()
        steps = steps_of(run, metric)
        at = elapsed[np.minimum(steps.astype(int), len(elapsed)) - 1]
        values = values_of(run, metric)[(at <= least * 1.001) & (at > 0.8 * least)]
        if not len(values):
            return None
        reached.append((float(values.mean()), mean_error(values_of(run, metric), len(values))))
    details = f"{reached[0][0]:.3g} and {reached[1][0]:.3g} after {least:.0f} s"
    error = together(reached[0][1], reached[1][1])
    return figure(reached[0][0] - reached[1][0], error, details)


@measure
def bend(runs: Runs) -> Figure | None:
    """The quadratic part of a step's seconds, relative to those at the longest completions.

    0 if the seconds grow linearly with the length.
    """
    lengths: list[float] = []
    seconds: list[float] = []
    for run in runs:
        of_run = seconds_of(run)[1:]  # the first step warms up
        if not len(of_run):
            return None
        lengths.append(float(values_of(run, "completions/mean_length").mean()))
        seconds.append(float(np.median(of_run)))
    square, _, _ = np.polyfit(lengths, seconds, 2)
    longest = int(np.argmax(lengths))
    pairs = (f"{length:.0f} tokens {s:.2g} s" for length, s in zip(lengths, seconds, strict=True))
    return figure(
        float(square * lengths[longest] ** 2 / seconds[longest]), details=", ".join(pairs)
    )


@measure
def best_group_size(runs: Runs, metric: str, success: str) -> Figure | None:
    """log2 of the best run's group size times the initial success rate; 0 for its inverse."""
    last = [end_of(run, metric) for run in runs]
    rates = [values_of(run, success)[:5].mean() for run in runs if len(values_of(run, success))]
    if not rates or any(one is None for one in last):
        return None
    sizes = [run.recipe.get("num_generations", 8) for run in runs]
    levels = [one[0] for one in last if one is not None]
    best = sizes[int(np.argmax(levels))]
    rate = float(np.mean(rates))
    if rate <= 0:
        return None
    each = ", ".join(f"{size}: {level:.3g}" for size, level in zip(sizes, levels, strict=True))
    return figure(log2(best * rate), details=f"1 / success = {1 / rate:.3g}; ends by size {each}")
