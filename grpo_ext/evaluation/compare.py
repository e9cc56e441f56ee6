"""Two models on the same rows: paired differences with their uncertainty, and the problems that changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grpo_ext.evaluation.score import Sample, Value, passes, row_means, score_of


def bootstrap_interval(
    values: list[float], level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """The percentile bootstrap interval of a mean (Efron and Tibshirani 1993, chapter 13).

    Args:
        values: one a row; rows are what is resampled, so several samples of a row go in as their mean.
        level: the share of intervals that hold the truth.
        resamples: how many means of resampled rows the percentiles are taken of.
        seed: of the resampling.

    Raises:
        ValueError: for no values.
    """
    if not values:
        raise ValueError("a bootstrap interval needs at least one value.")
    rng = np.random.default_rng(seed)
    rows = np.asarray(values, dtype=np.float64)  # (n,)
    means = np.array([rng.choice(rows, len(rows)).mean() for _ in range(resamples)])
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_difference(
    before: list[Sample], after: list[Sample], value: Value, **options: Any
) -> dict[str, Any] | None:
    """How much higher `value` is after than before, row by row, so that how hard a row is cancels out.

    Args:
        before, after: samples of the two models on the same rows.
        value: what is compared; rows for which one of them has none are left out.
        **options: of `bootstrap_interval`.

    Returns:
        `mean` of the rows' differences, `low` and `high` of its bootstrap interval, and `rows`, how many have a value from
        both; `None` where none has.
    """
    first, second = row_means(before, value), row_means(after, value)
    differences = [second[row] - first[row] for row in first if row in second]
    if not differences:
        return None
    low, high = bootstrap_interval(differences, **options)
    return {"mean": sum(differences) / len(differences), "low": low, "high": high, "rows": len(differences)}


def changed_rows(before: list[Sample], after: list[Sample], right: Callable[[Sample], bool]) -> dict[str, list[int]]:
    """The rows whose greedy completion became right, and those whose became wrong.

    Args:
        before, after: one sample a row.
        right: whether a completion solves its row.
    """
    was, now = ({s.row: right(s) for s in samples} for samples in (before, after))
    rows = sorted(was.keys() & now.keys())
    return {
        "became_right": [row for row in rows if now[row] and not was[row]],
        "became_wrong": [row for row in rows if was[row] and not now[row]],
    }


def compare(
    before: dict[str, list[Sample]], after: dict[str, list[Sample]], names: list[str], outcome: str
) -> dict[str, Any]:
    """All differences between two evaluations of the same rows.

    Args:
        before, after: the samples of each, under "greedy" and, where there are any, "sampled".
        names: the rewards.
        outcome: the reward that says whether a row is solved (a score of 1 or more).

    Returns:
        `{"greedy": {"countdown": {"mean": 0.1, "low": 0.05, "high": 0.15, "rows": 189}, ..., "length": {...}},
        "sampled": {...}, "became_right": [3, 17], "became_wrong": [5]}`.
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
