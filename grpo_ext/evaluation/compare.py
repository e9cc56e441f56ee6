"""The comparison of two models on the same rows: paired differences with intervals, and the problems that changed."""

from collections.abc import Callable
from statistics import fmean
from typing import Any

import numpy as np

from grpo_ext.evaluation.score import Sample, Value, passes, row_means, score_of


def bootstrap_interval(values: list[float], resamples: int = 2000) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of a mean (Efron and Tibshirani 1993, chapter 13), by a fixed seed.

    `values` has one value for each row, since rows are resampled. `ValueError` if it is empty.
    """
    if not values:
        raise ValueError("a bootstrap interval needs at least one value.")
    rng = np.random.default_rng(0)
    rows = np.asarray(values, dtype=np.float64)  # (n,)
    low, high = np.quantile([rng.choice(rows, len(rows)).mean() for _ in range(resamples)], [0.025, 0.975])
    return float(low), float(high)


def paired_difference(before: list[Sample], after: list[Sample], value: Value, resamples: int = 2000) -> dict[str, Any] | None:
    """Return how much `value` increases from before to after, row by row, so that the difficulty of rows cancels out.

    The keys are `mean`, the bounds `low` and `high` of its bootstrap interval, and `rows`, the number of rows with both values;
    `None` if there are no such rows.
    """
    first, second = row_means(before, value), row_means(after, value)
    differences = [second[row] - first[row] for row in first if row in second]
    if not differences:
        return None
    low, high = bootstrap_interval(differences, resamples)
    return {"mean": fmean(differences), "low": low, "high": high, "rows": len(differences)}


def changed_rows(before: list[Sample], after: list[Sample], right: Callable[[Sample], bool]) -> dict[str, list[int]]:
    """Return the rows that became right and those that became wrong, from one sample of each row."""
    was, now = ({s.row: right(s) for s in samples} for samples in (before, after))
    rows = sorted(was.keys() & now.keys())
    return {
        "became_right": [row for row in rows if now[row] and not was[row]],
        "became_wrong": [row for row in rows if was[row] and not now[row]],
    }


def compare(before: dict[str, list[Sample]], after: dict[str, list[Sample]], names: list[str], outcome: str) -> dict[str, Any]:
    """Return all differences of the rewards `names` between two evaluations of the same rows.

    `{"greedy": {"countdown": {"mean": 0.1, "low": 0.05, "high": 0.15, "rows": 189}, ..., "length": {...}}, "sampled": {...},
    "became_right": [3, 17], "became_wrong": [5]}`. A row with a score of 1 or more by the reward `outcome` is solved.
    """
    found: dict[str, Any] = {}
    for part in ("greedy", "sampled"):
        if part not in before or part not in after:
            continue
        pairs = {name: paired_difference(before[part], after[part], score_of(name)) for name in names}
        pairs["length"] = paired_difference(before[part], after[part], lambda s: s.length)
        found[part] = {name: difference for name, difference in pairs.items() if difference is not None}
    if outcome in names:
        found |= changed_rows(before["greedy"], after["greedy"], lambda s: passes(s, outcome))
    return found
