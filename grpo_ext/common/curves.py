"""First and last values of a curve with their standard errors, and whether it rose or fell."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from grpo_ext.common.estimates import Array, Verdict, t_quantile, verdict_of
from grpo_ext.common.noise import MOST_VALUES, fit_noise
from grpo_ext.common.trend import has_trend

FEWEST_VALUES = 10  # of a curve without errors; fewer say too little about its noise


@dataclass(frozen=True)
class Change:
    """First and last value of a curve with standard errors, each a mean over `count` neighbours.

    Errors, bounds (of the last value) and verdict are `None` if nothing says how noisy the curve
    is.
    """

    first: float
    last: float
    count: int
    first_error: float | None = None
    last_error: float | None = None
    last_low: float | None = None
    last_high: float | None = None
    verdict: Verdict | None = None


def curve_change(
    values: Sequence[float | None],
    errors: Sequence[float | None] | None = None,
    problems: Sequence[float | None] | None = None,
    sampling_errors: Sequence[float | None] | None = None,
) -> Change | None:
    """Return the ends of a curve and whether it rose or fell; `None` for an empty curve.

    With `errors` (of held-out evaluations) the ends are single values, of more than ten those of
    the first and last tenth, whose errors count as one error: all evaluations have the same
    problems. `problems`, how many, says how well the errors are known (Welch). Without errors the
    ends are `ends(N)` values, and the noise around the trend says how well they are known;
    `sampling_errors` say how large this noise is at least.

    Args:
        values, errors, problems: (N,), in the order of the steps; values that are `None` are left
            out.
        sampling_errors: (N,), standard errors of the values of a curve of training, each of which
            is a mean over other prompts. Used if all values that count have one.
    """
    indices = [i for i, value in enumerate(values) if value is not None and np.isfinite(value)]
    finite = np.array([values[i] for i in indices], dtype=float)
    if not len(finite):
        return None
    if errors is not None and len(finite) > 1:
        bars = np.array([errors[i] for i in indices], dtype=float)
        tenth = max(1, len(finite) // 10)
        end_bars = np.concatenate([bars[:tenth], bars[-tenth:]])
        if np.isfinite(end_bars).all():
            counts = None if problems is None else [problems[i] for i in indices]
            return change_by_errors(finite, bars, counts, tenth)
    if sampling_errors is None:
        return change_by_noise(finite)
    noise = np.array([sampling_errors[i] for i in indices], dtype=float)
    return change_by_noise(finite, noise)


def change_by_errors(
    values: Array, errors: Array, problems: Sequence[float | None] | None, count: int
) -> Change:
    """Return the change between the ends of a curve, judged by the standard errors of its values.

    Each end is the mean of `count` values.
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
        first, last, count, first_error, last_error, last - last_reach, last + last_reach, verdict
    )


def change_by_noise(values: Array, sampling_errors: Array | None = None) -> Change:
    """Return the change between the ends of a curve of training.

    The verdict uses the whole curve (`has_trend`), and for the direction the ends that are shown.
    """
    if len(values) < FEWEST_VALUES:
        return Change(float(values[0]), float(values[-1]), 1)
    count = ends(len(values))
    first = float(values[:count].mean())
    last = float(values[-count:].mean())
    curve = values
    error_of_values: float | None = None
    if sampling_errors is not None and np.isfinite(sampling_errors).all():
        # One for all values: few groups say little about the error of their own mean, and groups
        # that agree by chance would have none.
        share = min(1.0, MOST_VALUES / len(values))  # neighbours are averaged
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
    if has_trend(curve, error_of_values):
        verdict = verdict_of(change, change)
    return Change(first, last, count, error, error, last - reach, last + reach, verdict)


def ends(total: int) -> int:
    """Return how many values stand for each end of a curve: a tenth, at least 5 if there are 15."""
    return max(total // 10, min(total // 3, 5))
