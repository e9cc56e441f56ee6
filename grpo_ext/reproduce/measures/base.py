"""The result of a measure, the registry of measures, and helper functions for measures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo_ext.common.curves import FEWEST_VALUES, ends
from grpo_ext.common.estimates import Estimate, t_quantile
from grpo_ext.common.noise import MOST_VALUES, fit_noise
from grpo_ext.observe.read_run import RunData

Array = NDArray[np.float64]
Runs = list[RunData]  # the runs of a claim with the same seed, in the order of `Claim.runs`
SMOOTHING = 0.6  # weight of the previous smoothed value; a steady rise lags by 1.5 steps
# phases of an optimizer step whose time is logged, excluding evaluations, checkpoints and pauses
PHASES = (
    "environment",
    "generation",
    "sync",
    "waiting",
    "rewards",
    "scoring",
    "train",
    "optimizer",
)


@dataclass(frozen=True)
class Figure:
    """A number measured for one seed, with its error, and details to show beside it."""

    estimate: Estimate
    details: str = ""


Measure = Callable[..., Figure | None]  # returns `None` if the logs lack values that it uses
MEASURES: dict[str, Measure] = {}


def measure(function: Measure) -> Measure:
    """Decorator that registers a measure under the name of its function.

    The function is called with the `Runs` of a claim and with the claim's `arguments` as keyword
    arguments. It returns a `Figure`, or `None` if the logs lack values that it uses.
    """
    MEASURES[function.__name__] = function
    return function


def figure(
    value: float,
    error: float | None = None,
    details: str = "",
    freedom: float = np.inf,
) -> Figure:
    """Return a `Figure` for a number, with a 95% interval based on Student's t-distribution.

    Args:
        value: the number.
        error: the standard error of the number; if `None`, there is no interval either.
        details: text to show with the number.
        freedom: the degrees of freedom of `error`; infinite by default.
    """
    if error is None:
        return Figure(Estimate(value, None, None, None, 1), details)
    reach = t_quantile(min(freedom, 1e9)) * error
    estimate = Estimate(value, error, value - reach, value + reach, 1)
    return Figure(estimate, details)


def exact(value: float, details: str = "") -> Figure:
    """Return a `Figure` for an exact number (error 0), with `details` to show beside it."""
    return Figure(Estimate(value, 0.0, value, value, 1), details)


def rows_with(run: RunData, metric: str) -> list[dict[str, Any]]:
    """Return the rows of `metrics.jsonl` in which a metric is a number, in the order of steps."""
    rows = []
    for row in run.metrics:
        if isinstance(row.get(metric), int | float):
            rows.append(row)
    return rows


def values_of(run: RunData, metric: str) -> Array:
    """Return the logged values of a metric, of shape (N,), in the order of the steps."""
    values = [row[metric] for row in rows_with(run, metric)]
    return np.array(values, dtype=float)


def steps_of(run: RunData, metric: str) -> Array:
    """Return the steps at which a metric was logged, of shape (N,)."""
    steps = [row["step"] for row in rows_with(run, metric)]
    return np.array(steps, dtype=float)


def seconds_of(run: RunData) -> Array:
    """Return the total seconds of all `PHASES` for each step with `time/train`, of shape (N,)."""
    seconds = []
    for row in rows_with(run, "time/train"):
        by_phase = [float(row.get(f"time/{phase}") or 0) for phase in PHASES]
        seconds.append(sum(by_phase))
    return np.array(seconds, dtype=float)


def mean_error(values: Array, count: int) -> float | None:
    """Return the standard error of the mean of `count` consecutive values of a curve (N,).

    The error is estimated from the noise of the curve's last `MOST_VALUES` values around their
    trend. If the curve is longer than that, `count` is limited to `MOST_VALUES` too. Returns `None`
    for fewer than `FEWEST_VALUES` values, and 0 for a constant curve.
    """
    if len(values) < FEWEST_VALUES:
        return None
    if len(values) > MOST_VALUES:
        return mean_error(values[-MOST_VALUES:], min(count, MOST_VALUES))
    noise = fit_noise(values)
    if noise is None:
        return 0.0
    return noise.error_of_mean(count)


def end_of(run: RunData, metric: str) -> tuple[float, float | None] | None:
    """Return the mean of a curve's last values, and the standard error of this mean.

    The last tenth of the values is averaged, or a larger part of a short curve (see `ends`).
    Returns `None` if the metric was not logged. The error is `None` if there are fewer than
    `FEWEST_VALUES` values.
    """
    values = values_of(run, metric)
    if not len(values):
        return None
    count = ends(len(values)) or 1
    mean = float(values[-count:].mean())
    return mean, mean_error(values, count)


def together(*errors: float | None) -> float | None:
    """Return the standard error of a sum of independent numbers; `None` if an error is `None`."""
    squares = 0.0
    for error in errors:
        if error is None:
            return None
        squares += error**2
    return float(np.sqrt(squares))
