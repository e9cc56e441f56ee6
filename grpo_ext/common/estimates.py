"""Means with standard errors and 95% intervals, and verdicts on whether a metric rose or fell.

Most standard errors, intervals and verdicts that the package shows come from these functions; the
range of group sizes in `evaluation.group_size` is a bootstrap interval instead.

- `mean_of`: the mean over rows. Its error is cluster-robust if a problem has several rows; its
  interval is Student's t, or Wilson's for values from 0 to 1.
- `mean_difference`: the mean of paired differences between two evaluations of the same rows.
- `mean_over_runs`: the mean of a metric over several seeds.
- `curves.curve_change`: the change from the first to the last values of a curve. It is judged by
  the standard errors of the values or, for a training curve, by a test for a trend in noise of
  unknown autocorrelation (`trend.has_trend`).
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

LEVEL = 0.95  # confidence level of the intervals, and of the verdicts that follow from them
Z = float(ndtri((1 + LEVEL) / 2))


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and 95% interval, which are `None` for a single problem."""

    mean: float
    error: float | None
    low: float | None
    high: float | None
    problems: int  # number of independent problems, or of runs in `mean_over_runs`

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on a metric whose change is this mean; `None` if there is no interval."""
        if self.low is None or self.high is None:
            return None
        return verdict_of(self.low, self.high)


def verdict_of(low: float, high: float) -> Verdict:
    """Return the verdict on a change whose confidence interval is from `low` to `high`.

    It is "rose" if the interval is above 0, "fell" if it is below 0, otherwise "did not clearly
    change".
    """
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
    """Return whether a mean is above another mean with confidence `LEVEL` (two-sided z-test).

    Args:
        mean: the mean to test.
        error: its standard error; `None` (unknown) counts as 0.
        other: the other mean.
        other_error: the standard error of the other mean; `None` counts as 0.
    """
    error_of_difference = float(np.hypot(error or 0.0, other_error or 0.0))
    return mean - other > Z * error_of_difference


def with_error(mean: float, error: float | None) -> str:
    """Format a mean with its standard error, such as `0.512 ± 0.031`, or alone if it has none."""
    return f"{mean:.3f}" if error is None else f"{mean:.3f} ± {error:.3f}"


def t_quantile(freedom: float) -> float:
    """Return the half-width of Student's 95% interval, in standard errors.

    `freedom` is the number of degrees of freedom.
    """
    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def mean_of(
    values: Sequence[float] | Array,
    problems: Sequence[Hashable] | None = None,
) -> Estimate | None:
    """Return the mean of `values`, ignoring NaN, with its standard error and 95% interval.

    The variance of the mean is s^2 / n, or cluster-robust if a problem has several rows (Liang and
    Zeger 1986). If a value is below 0 or above 1, the interval is Student's t.

    If all values are from 0 to 1, the interval is Wilson's (1927) for the effective number of rows,
    for which a proportion would have this variance (Korn and Graubard 1998). The error is then at
    least the half-width of that interval divided by 1.96, so that ten correct answers out of ten do
    not give "1 ± 0". If the values are not all 0 or 1, or a problem has several rows, the variance
    is only an estimate. The interval is then computed for fewer rows, which widens it about as much
    as Student's t widens a normal interval.

    If there is only one problem, the error and the interval are `None`. If there are no values, or
    all of them are NaN, the result is `None`.

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

    The standard error is computed from the scatter of the runs and from their own standard errors,
    and the larger result is used, because a few runs may agree by chance. The interval is Student's
    t. If no run has a standard error and all means are -1, 0 or 1, the means are treated as paired
    differences, as in `mean_difference`. The estimate from a single run is returned unchanged.

    Args:
        estimates: the estimate from each run; at least one.
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

    The error is cluster-robust if a problem has several rows, and the interval is Student's t. If
    every problem's mean difference is -1, 0 or 1, as for correct and wrong answers, the interval is
    that of Bonett and Price (2012). They add one pair that rose and one that fell, because other
    pairs might differ even if all observed pairs agree. The error is then at least the standard
    error that this interval is computed from. If there is only one problem, the error and the
    interval are `None`.

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
    """Return the index of each kept row's problem; problems are numbered from 0.

    Args:
        problems: (N,), the problem of each row; `None` means that each row is a separate problem.
        keep: (N,), whether to keep each row.
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
    """Return the number of independent rows for which a proportion would have a given variance.

    Args:
        share: the proportion, from 0 to 1.
        variance: the variance of the estimated proportion.
        count: the number of problems, which is returned if the variance is at most 1e-12.
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
