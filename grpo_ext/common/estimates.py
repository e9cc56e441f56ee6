"""Means with standard errors and 95 % intervals, and the verdict whether a figure rose or fell.

Every error, interval and verdict that the package shows comes from here and from
`grpo_ext.common.curves`:

- `mean_of`: a mean over rows, where rows of the same problem count as one (cluster-robust), with an
  interval by Student's t, or by Wilson for values from 0 to 1.
- `mean_difference`: paired differences between two evaluations of the same rows.
- `mean_over_runs`: a figure of several seeds.
- `curves.curve_change`: first against last values of a curve by the errors of its values, or for a
  curve of training whether it has a trend, given noise whose autocorrelation is unknown
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

LEVEL = 0.95  # of intervals; a verdict is wrong in at most 1 - LEVEL of the cases without a change
Z = float(ndtri((1 + LEVEL) / 2))


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error and its interval, which are `None` for a single problem."""

    mean: float
    error: float | None
    low: float | None
    high: float | None
    problems: int  # independent ones

    @property
    def verdict(self) -> Verdict | None:
        """Whether this difference is an increase or a decrease; `None` without an interval."""
        return None if self.low is None or self.high is None else verdict_of(self.low, self.high)


def verdict_of(low: float, high: float) -> Verdict:
    """Return what the interval of a change says."""
    if low > 0:
        return "rose"
    if high < 0:
        return "fell"
    return "did not clearly change"


def clearly_above(
    mean: float, error: float | None, other: float, other_error: float | None
) -> bool:
    """Return whether a mean is above another by more than chance; an unknown error counts as 0."""
    return mean - other > Z * float(np.hypot(error or 0.0, other_error or 0.0))


def with_error(mean: float, error: float | None) -> str:
    """Return a mean with its standard error, if that is known, as text."""
    return f"{mean:.3f}" if error is None else f"{mean:.3f} ± {error:.3f}"


def t_quantile(freedom: float) -> float:
    """Return how many standard errors an interval reaches on each side, by Student's t."""
    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def mean_of(
    values: Sequence[float] | Array, problems: Sequence[Hashable] | None = None
) -> Estimate | None:
    """Return the mean of one value for each row; NaN is left out. `None` if nothing is left.

    The variance is s^2 / n, and with several rows of a problem the cluster-robust one (Liang and
    Zeger 1986). The interval is by Student's t. If all values are from 0 to 1 it is Wilson's (1927)
    for as many rows as would give a share this variance (Korn and Graubard 1998), and the error is
    at least half of that interval over 1.96: ten of ten right are not "1 ± 0".

    Args:
        values: (N,)
        problems: (N,), what each row asks; default: each row is a problem of its own.
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
    single = count == len(finite) and bool(np.isin(finite, (0, 1)).all())
    if not single:  # the variance was estimated
        shrink = (Z / t_quantile(count - 1)) ** 2
        low, high = wilson(mean, rows * shrink)
    return Estimate(mean, error, low, high, count)


def mean_over_runs(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of one figure over independent runs, as of several seeds.

    The standard error is that of the runs' scatter, or that of the runs' own errors if it is
    larger: few runs may agree by chance. The interval is by Student's t. Runs without own errors
    whose figures are all -1, 0 or 1 have the interval of `mean_difference`. A single run keeps its
    own interval.
    """
    if len(estimates) == 1:
        return estimates[0]
    values = np.array([estimate.mean for estimate in estimates])
    errors = [estimate.error for estimate in estimates]
    count = len(values)
    if all(error is None for error in errors) and np.isin(values, (-1, 0, 1)).all():
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

    The interval is by Student's t. If all differences are -1, 0 or 1, as of right and wrong
    answers, it is that of Bonett and Price (2012), which adds one pair of each kind that differs:
    that all pairs agree does not prove that all would.
    """
    differences = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
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


def clusters(problems: Sequence[Hashable] | None, keep: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of each kept row's problem, from 0."""
    if problems is None:
        return np.arange(int(keep.sum()))
    numbers: dict[Hashable, int] = {}
    by_row = []
    for problem in compress(problems, keep):
        by_row.append(numbers.setdefault(problem, len(numbers)))
    return np.array(by_row)


def variance_of_mean(values: Array, cluster: NDArray[np.int64]) -> float:
    """Return the variance of the mean of values (N,) with independent clusters."""
    deviations = values - values.mean()
    sums = np.bincount(cluster, deviations)  # (clusters,)
    count = len(sums)
    squares = float((sums**2).sum())
    return count / (count - 1) * squares / len(values) ** 2


def effective_rows(share: float, variance: float, count: int) -> float:
    """Return how many independent rows have this variance; `count` if the values do not vary."""
    if variance <= 1e-12:
        return float(count)
    return share * (1 - share) / variance


def wilson(share: float, rows: float) -> tuple[float, float]:
    """Return the bounds of Wilson's score interval of a share (Wilson 1927).

    (share + z^2 / 2n +- z sqrt(share (1 - share) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    """
    shrink = 1 + Z**2 / rows
    center = (share + Z**2 / (2 * rows)) / shrink
    variance = share * (1 - share) / rows
    variance += Z**2 / (4 * rows**2)
    half_width = float(Z / shrink * np.sqrt(variance))
    low = max(0.0, center - half_width)
    high = min(1.0, center + half_width)
    return low, high
