"""Compare the first and last values of a curve, with standard errors and a verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from grpo_ext.common.estimates import Array, Verdict, t_quantile, verdict_of
from grpo_ext.common.noise import MOST_VALUES, fit_noise
from grpo_ext.common.trend import has_trend, slope_of

FEWEST_VALUES = 10  # fewer values without errors say too little about the noise


@dataclass(frozen=True)
class Change:
    """The change between the ends of a curve, where each end is a mean of neighboring values.

    The errors and bounds are `None` if no usable errors were given and none can be estimated,
    because the curve is constant or has fewer than `FEWEST_VALUES` values.

    Attributes:
        first: the mean at the start.
        last: the mean at the end.
        count: the number of values in each mean.
        first_error: the standard error of `first`.
        last_error: the standard error of `last`.
        last_low: the lower bound of the 95% interval of `last`.
        last_high: the upper bound of the 95% interval of `last`.
        verdict: whether the curve rose or fell; `None` if both errors are 0, or if the curve has
            fewer than `FEWEST_VALUES` values and no usable errors.
    """

    first: float
    last: float
    count: int
    first_error: float | None = None
    last_error: float | None = None
    last_low: float | None = None
    last_high: float | None = None
    verdict: Verdict | None = None

    @property
    def ends_overlap(self) -> bool:
        """Whether the two ends differ by less than the sum of their standard errors.

        `False` if an error is unknown.
        """
        if self.first_error is None or self.last_error is None:
            return False
        return abs(self.last - self.first) < self.first_error + self.last_error


def curve_change(
    values: Sequence[float | None],
    errors: Sequence[float | None] | None = None,
    problems: Sequence[float | None] | None = None,
    sampling_errors: Sequence[float | None] | None = None,
) -> Change | None:
    """Return the change between the ends of a curve; `None` if the curve has no finite value.

    If `errors` are given, as for held-out evaluations, each end is the mean of a tenth of the
    values (at least one). The error of an end is then the mean of the errors of these values,
    because all evaluations use the same problems.

    If there are no `errors`, or one of those at the ends is missing, each end is the mean of
    `ends(N)` values, and its error is estimated from the noise of the curve around its trend. In
    this case, a curve of fewer than `FEWEST_VALUES` values has its first and last value as ends,
    and neither errors nor a verdict.

    Args:
        values: (N,), in the order of the steps; values that are `None` or not finite are skipped.
        errors: (N,), the standard errors of the values; ignored if only one value is finite.
        problems: (N,), the number of problems in each evaluation, which determines the degrees of
            freedom of its error (Welch); `None` means that the errors are known exactly.
        sampling_errors: (N,), for a training curve, the standard error of each value as a mean over
            the prompts of its step. The noise of the curve is assumed to be at least as large.
            Ignored if `errors` are used, or if a finite value has no sampling error.
    """
    curve = np.array(values, dtype=float)  # `None` becomes NaN
    keep = np.isfinite(curve)
    finite = curve[keep]
    if not len(finite):
        return None
    if errors is not None and len(finite) > 1:
        bars = np.array(errors, dtype=float)[keep]
        tenth = max(1, len(finite) // 10)
        end_bars = np.concatenate([bars[:tenth], bars[-tenth:]])
        if np.isfinite(end_bars).all():
            counts = None if problems is None else list(compress(problems, keep))
            return change_by_errors(finite, bars, counts, tenth)
    if sampling_errors is None:
        return change_by_noise(finite)
    noise = np.array(sampling_errors, dtype=float)[keep]
    return change_by_noise(finite, noise)


def change_by_errors(
    values: Array,
    errors: Array,
    problems: Sequence[float | None] | None,
    count: int,
) -> Change:
    """Return the change between the ends of a curve, judged by the standard errors of its values.

    Args:
        values: (N,), the curve.
        errors: (N,), the standard errors of the values; finite at both ends.
        problems: (N,), the number of problems in each evaluation; `None` if the errors are exact.
        count: the number of values in the mean at each end.
    """
    first = float(values[:count].mean())
    last = float(values[-count:].mean())
    first_error = float(errors[:count].mean())
    last_error = float(errors[-count:].mean())
    first_freedom = np.inf
    last_freedom = np.inf
    if problems is not None and problems[0] and problems[-1]:
        first_freedom = max(1.0, problems[0] - 1)
        last_freedom = max(1.0, problems[-1] - 1)
    last_reach = t_quantile(last_freedom) * last_error
    change = last - first
    error = float(np.hypot(first_error, last_error))
    verdict: Verdict | None = None
    if error > 0:
        # Welch-Satterthwaite degrees of freedom
        by_freedom = first_error**4 / first_freedom + last_error**4 / last_freedom
        freedom = error**4 / (by_freedom or 1e-300)
        reach = t_quantile(min(freedom, 1e9)) * error
        verdict = verdict_of(change - reach, change + reach)
    return Change(
        first,
        last,
        count,
        first_error,
        last_error,
        last_low=last - last_reach,
        last_high=last + last_reach,
        verdict=verdict,
    )


def change_by_noise(values: Array, sampling_errors: Array | None = None) -> Change:
    """Return the change between the ends of a training curve, judged by the noise of the curve.

    The verdict is "rose" or "fell" only if the whole curve has a trend (`has_trend`), and the ends
    and the straight line through the curve agree on its direction. They can disagree if, for
    example, the curve dips and recovers. In a curve of more than `MOST_VALUES` values, neighboring
    values are averaged before the trend and the noise are estimated.

    If there are fewer than `FEWEST_VALUES` values, the ends are the first and the last value, and
    there are neither errors nor a verdict. A constant curve has no errors; its verdict is "did not
    clearly change".

    Args:
        values: (N,), the curve; all values are finite.
        sampling_errors: (N,), the standard errors of the values. The noise is assumed to be at
            least as large. They are ignored if one of them is not finite.
    """
    if len(values) < FEWEST_VALUES:
        return Change(float(values[0]), float(values[-1]), 1)
    count = ends(len(values))
    first = float(values[:count].mean())
    last = float(values[-count:].mean())
    curve = values
    error_of_values: float | None = None
    if sampling_errors is not None and np.isfinite(sampling_errors).all():
        # Use one error for all values: a few groups say little about the error of their own mean,
        # and groups that agree by chance would have an error of 0.
        # averaging neighbors, as below, reduces the variance
        share = min(1.0, MOST_VALUES / len(values))
        variance = (sampling_errors**2).mean() * share
        error_of_values = float(np.sqrt(variance))
    if len(values) > MOST_VALUES:
        parts = np.array_split(values, MOST_VALUES)
        curve = np.array([part.mean() for part in parts])
    noise = fit_noise(curve)
    if noise is None:
        return Change(first, last, count, verdict="did not clearly change")
    error = noise.error_of_mean(ends(len(curve)))
    reach = t_quantile(noise.freedom) * error
    change = last - first
    verdict: Verdict = "did not clearly change"
    if has_trend(curve, error_of_values) and change * slope_of(curve) > 0:
        verdict = verdict_of(change, change)
    return Change(
        first,
        last,
        count,
        first_error=error,
        last_error=error,
        last_low=last - reach,
        last_high=last + reach,
        verdict=verdict,
    )


def ends(total: int) -> int:
    """Return how many of `total` values to average at each end of a curve.

    The result is a tenth of `total`, but at least 5. If `total` is below 15, it is a third. Both
    are rounded down.
    """
    return max(total // 10, min(total // 3, 5))
