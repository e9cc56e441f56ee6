"""Means with standard errors and 95 % intervals, and verdicts on whether a metric rose or fell.

Most standard errors, intervals and verdicts that the package shows come from this module or from
`grpo_ext.common.curves`; the range of group sizes in `evaluation.group_size` is a bootstrap:

- `mean_of`: the mean over rows, with a cluster-robust error for several rows of the same problem,
  and Student's t interval, or Wilson's for values from 0 to 1.
- `mean_difference`: the mean of paired differences between two evaluations of the same rows.
- `mean_over_runs`: the mean of a metric over several seeds.
- `curves.curve_change`: compares the first with the last values of a curve, using the standard
  errors of its values; for a training curve, tests for a trend in noise of unknown autocorrelation
  (`trend.has_trend`).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

Array = NDArray[np.float64]
Verdict = Literal["rose", "fell", "did not clearly change"]

LEVEL = 0.95  # confidence level; without a change, at most 1 - LEVEL of the verdicts are wrong
Z = float(ndtri((1 + LEVEL) / 2))


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and interval, both `None` for a single problem."""

    mean: float
    error: float | None
    low: float | None
    high: float | None
    problems: int  # number of independent problems; in `mean_over_runs`, of runs

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on this mean, interpreted as a change; `None` without an interval."""
        if self.low is None or self.high is None:
            return None
        return verdict_of(self.low, self.high)


def verdict_of(low: float, high: float) -> Verdict:
    """Return the verdict on a change with the interval from `low` to `high`."""
    if low > 0:
        return "rose"
    if high < 0:
        return "fell"
    return "did not clearly change"


def clearly_above(
    mean: float,
    error: float | None,
    other: float,
    other_error: float | None,
) -> bool:
    """Return whether a mean is above another one with confidence `LEVEL` (two-sided z-test).

    Args:
        mean: the mean that should be larger.
        error: its standard error; `None` (unknown) counts as 0.
        other: the other mean.
        other_error: the standard error of the other mean; `None` counts as 0.
    """
    error_of_difference = float(np.hypot(error or 0.0, other_error or 0.0))
    return mean - other > Z * error_of_difference


def with_error(mean: float, error: float | None) -> str:
    """Format a mean, with its standard error if it is known."""
    return f"{mean:.3f}" if error is None else f"{mean:.3f} ± {error:.3f}"


def t_quantile(freedom: float) -> float:
    """Return the half-width of a confidence interval in standard errors (Student's t).

    `freedom` is the number of degrees of freedom.
    """
    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def mean_of(
    values: Sequence[float] | Array,
    problems: Sequence[Hashable] | None = None,
) -> Estimate | None:
    """Return the mean of `values`, ignoring NaN, with its error; `None` if all values are NaN.

    The variance of the mean is s^2 / n, or cluster-robust if a problem has several rows (Liang and
    Zeger 1986), and the interval uses Student's t. If all values are from 0 to 1, the interval is
    Wilson's (1927). It is computed for the effective number of rows: the number for which a
    proportion would have this variance (Korn and Graubard 1998). The error is then at least the
    half-width of this interval divided by 1.96, so that ten correct of ten do not give "1 ± 0". If
    the values are not all 0 or 1, or a problem has several rows, the returned interval is computed
    for fewer rows, so that it is wider, as with Student's t.
    With a single problem, the error and the interval are `None`.

    Args:
        values: (N,), one value for each row.
        problems: (N,), the problem of each row; by default, each row is a separate problem.
    """
    finite = np.asarray(values, dtype=float)
    keep = ~np.isnan(finite)
    finite = finite[keep]
    if not len(finite):
        return None
    cluster = clusters(problems, keep)
    count = int(cluster.max()) + 1
    mean = float(finite.mean())
    if count == 1:
        return Estimate(mean, None, None, None, 1)
    error = float(np.sqrt(variance_of_mean(finite, cluster)))
    if finite.min() < 0 or finite.max() > 1:
        reach = t_quantile(count - 1) * error
        return Estimate(mean, error, mean - reach, mean + reach, count)
    variance = error**2 * (count - 1) / count
    rows = effective_rows(mean, variance, count)
    low, high = wilson(mean, rows)
    error = max(error, (high - low) / 2 / Z)
    is_binary = bool(np.isin(finite, (0, 1)).all())
    if not is_binary or count < len(finite):
        # the variance was estimated, so widen the interval as Student's t does
        shrink = (Z / t_quantile(count - 1)) ** 2
        low, high = wilson(mean, rows * shrink)
    return Estimate(mean, error, low, high, count)


def mean_over_runs(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of a metric over independent runs, such as several seeds.

    The standard error comes from the scatter of the runs or from their own standard errors,
    whichever is larger, because a few runs may agree by chance. The interval is Student's t. If no
    run has a standard error and all means are -1, 0 or 1, the interval is that of
    `mean_difference`. A single run is returned unchanged.
    """
    if len(estimates) == 1:
        return estimates[0]
    values = np.array([estimate.mean for estimate in estimates])
    errors = [estimate.error for estimate in estimates]
    count = len(values)
    has_errors = any(error is not None for error in errors)
    if not has_errors and np.isin(values, (-1, 0, 1)).all():
        difference = mean_difference(np.zeros(count), values)
        assert difference is not None  # there are values
        return difference
    scatter = float(values.std(ddof=1) / np.sqrt(count))
    variances = [(error or 0.0) ** 2 for error in errors]
    within = float(np.sqrt(sum(variances)) / count)
    error = max(scatter, within)
    mean = float(values.mean())
    reach = t_quantile(count - 1) * error
    return Estimate(mean, error, mean - reach, mean + reach, count)


def mean_difference(
    before: Sequence[float] | Array,
    after: Sequence[float] | Array,
    problems: Sequence[Hashable] | None = None,
) -> Estimate | None:
    """Return the mean increase from `before` to `after` over rows; `None` if no row has both.

    The interval is Student's t. If every problem's mean difference is -1, 0 or 1, as for correct
    and wrong answers, the interval is that of Bonett and Price (2012), which adds one pair that
    rose and one that fell: even if all observed pairs agree, others might not.

    Args:
        before: (N,), one value for each row; NaN if the row has none.
        after: (N,), the values of the same rows afterwards.
        problems: (N,), the problem of each row; by default, each row is a separate problem.
    """
    values_before = np.asarray(before, dtype=float)
    values_after = np.asarray(after, dtype=float)
    differences = values_after - values_before
    keep = ~np.isnan(differences)
    differences = differences[keep]
    if not len(differences):
        return None
    cluster = clusters(problems, keep)
    sizes = np.bincount(cluster)
    count = len(sizes)
    mean = float(differences.mean())
    if count == 1:
        return Estimate(mean, None, None, None, 1)
    error = float(np.sqrt(variance_of_mean(differences, cluster)))
    by_problem = np.bincount(cluster, differences) / sizes
    if not np.isin(by_problem, (-1, 0, 1)).all():
        reach = t_quantile(count - 1) * error
        return Estimate(mean, error, mean - reach, mean + reach, count)
    pairs = count + 2
    up = float((by_problem > 0).sum() + 1) / pairs
    down = float((by_problem < 0).sum() + 1) / pairs
    center = up - down
    variance = (up + down - center**2) / pairs
    adjusted = float(np.sqrt(variance))
    low = max(-1.0, center - Z * adjusted)
    high = min(1.0, center + Z * adjusted)
    return Estimate(mean, max(error, adjusted), low, high, count)


def clusters(
    problems: Sequence[Hashable] | None,
    keep: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Return the problem of each kept row as an index, numbered from 0.

    If `problems` is `None`, each row is a separate problem.
    """
    if problems is None:
        return np.arange(int(keep.sum()))
    numbers: dict[Hashable, int] = {}
    by_row = []
    for problem in compress(problems, keep):
        by_row.append(numbers.setdefault(problem, len(numbers)))
    return np.array(by_row)


def variance_of_mean(values: Array, cluster: NDArray[np.int64]) -> float:
    """Return the cluster-robust variance of the mean of values (N,).

    `cluster` (N,) is the index of each value's cluster. There must be at least two clusters, and
    they must be independent.
    """
    deviations = values - values.mean()
    sums = np.bincount(cluster, deviations)  # (clusters,)
    count = len(sums)
    squares = float((sums**2).sum())
    return count / (count - 1) * squares / len(values) ** 2


def effective_rows(share: float, variance: float, count: int) -> float:
    """Return the number of independent rows for which a proportion would have this variance.

    Args:
        share: the proportion, from 0 to 1.
        variance: the variance of its estimate.
        count: the number of problems, which is returned if the variance is 0.
    """
    if variance <= 1e-12:
        return float(count)
    return share * (1 - share) / variance


def wilson(share: float, rows: float) -> tuple[float, float]:
    """Return the bounds of Wilson's score interval for a proportion (Wilson 1927).

    (share + z^2 / 2n +- z sqrt(share (1 - share) / n + z^2 / 4n^2)) / (1 + z^2 / n)

    Here n is `rows`, which need not be whole.
    """
    shrink = 1 + Z**2 / rows
    center = (share + Z**2 / (2 * rows)) / shrink
    variance = share * (1 - share) / rows
    variance += Z**2 / (4 * rows**2)
    half_width = float(Z / shrink * np.sqrt(variance))
    low = max(0.0, center - half_width)
    high = min(1.0, center + half_width)
    return low, high
