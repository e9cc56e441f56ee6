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
    """The first and the last value of a curve, each a mean over `count` neighboring values.

    The errors and the bounds of the last value are `None` if the noise of the curve is unknown. The
    verdict is then `None`, too, except that a long constant curve "did not clearly change". It is
    also `None` if both errors are 0.
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
        """True if the ends differ by less than the sum of their errors.

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
    """Return the ends of a curve and whether it rose or fell; `None` without a finite value.

    With `errors`, as for held-out evaluations, each end is the mean of a tenth of the values (at
    least one). Its error is the mean of their errors, because all evaluations use the same
    problems. Without `errors`, or if one at the ends is missing, each end is the mean of `ends(N)`
    values, and its error comes from the noise of the curve around its trend. With fewer than
    `FEWEST_VALUES` values, the ends are then the first and the last value, without errors or
    verdict.

    Args:
        values: (N,), in the order of the steps; values that are `None` or not finite are skipped.
        errors: (N,), the standard errors of the values; ignored for a single value.
        problems: (N,), the number of problems of each value, for the degrees of freedom of its
            error (Welch); `None` means that the errors are known exactly.
        sampling_errors: (N,), the standard errors of the values of a training curve, where each
            value is a mean over different prompts. The noise is assumed to be at least as large.
            Ignored unless all remaining values have one.
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
        errors: (N,), the standard errors of the values.
        problems: (N,), the number of problems of each value, or `None` if the errors are exact.
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
        # Welch and Satterthwaite
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

    The whole curve decides whether there is a trend (`has_trend`); the ends decide its direction.
    If the line through the curve has the opposite direction, as when a curve dips and recovers, the
    curve has neither risen nor fallen.
    With fewer than `FEWEST_VALUES` values, the ends are single values without errors or verdict. A
    constant curve has no errors, but a verdict. For `sampling_errors`, see `curve_change`.
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
        share = min(1.0, MOST_VALUES / len(values))  # because neighbors are averaged below
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

    This is a tenth of them, but at least 5 or, with fewer than 15 values, a third.
    """
    return max(total // 10, min(total // 3, 5))
