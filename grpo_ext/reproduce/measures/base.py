"""What a measure returns, and the register of measures."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grpo_ext.common.curves import FEWEST_VALUES, ends
from grpo_ext.common.estimates import Estimate, t_quantile
from grpo_ext.common.noise import MOST_VALUES, fit_noise
from grpo_ext.observe.read_run import RunData

Array = NDArray[np.float64]
SMOOTHING = 0.6  # weight of the smoothed value before; a steady rise lags by 1.5 steps


@dataclass(frozen=True)
class Figure:
    """A measured number with its error within the seed, and details for the reader."""

    estimate: Estimate
    details: str = ""


Measure = Callable[..., Figure | None]  # `None`: the logs do not show it
MEASURES: dict[str, Measure] = {}


def measure(function: Measure) -> Measure:
    """Register a measure under the name of its function.

    Its first argument is the list of a claim's runs, all of one seed, in the order of the claim;
    the others are the claim's `arguments`.
    """
    MEASURES[function.__name__] = function
    return function


def figure(
    value: float, error: float | None = None, details: str = "", freedom: float = np.inf
) -> Figure:
    """Return a number with its standard error and interval; without an error no interval."""
    if error is None:
        return Figure(Estimate(value, None, None, None, 1), details)
    reach = t_quantile(min(freedom, 1e9)) * error
    return Figure(Estimate(value, error, value - reach, value + reach, 1), details)


def exact(value: float, details: str = "") -> Figure:
    """Return a computed number, which has no error."""
    return Figure(Estimate(value, 0.0, value, value, 1), details)


def values_of(run: RunData, metric: str) -> Array:
    """Return the logged values of a metric, (N,), in the order of the steps."""
    logged = (row.get(metric) for row in run.metrics)
    return np.array([value for value in logged if isinstance(value, int | float)], dtype=float)


def steps_of(run: RunData, metric: str) -> Array:
    """Return the steps at which a metric was logged, (N,)."""
    rows = [row for row in run.metrics if isinstance(row.get(metric), int | float)]
    return np.array([row["step"] for row in rows], dtype=float)


def mean_error(values: Array, count: int) -> float | None:
    """Return the standard error of the mean of `count` neighbours of a curve (N,) with a trend.

    `None` for fewer than ten values; 0 for a constant curve.
    """
    if len(values) < FEWEST_VALUES:
        return None
    if len(values) > MOST_VALUES:
        return mean_error(values[-MOST_VALUES:], min(count, MOST_VALUES))
    noise = fit_noise(values)
    return 0.0 if noise is None else noise.error_of_mean(count)


def end_of(run: RunData, metric: str) -> tuple[float, float | None] | None:
    """Return mean and standard error of a curve's last tenth; `None` for an empty curve."""
    values = values_of(run, metric)
    if not len(values):
        return None
    count = ends(len(values)) or 1
    return float(values[-count:].mean()), mean_error(values, count)


def together(*errors: float | None) -> float | None:
    """Return the error of a sum or difference of independent numbers; `None` if one is unknown."""
    if any(error is None for error in errors):
        return None
    return float(np.sqrt(sum(error**2 for error in errors if error is not None)))


def seconds_of(run: RunData) -> Array:
    """Return the seconds of each step, (N,), without evaluations, checkpoints and pauses."""
    phases = ("generation", "sync", "waiting", "rewards", "scoring", "train", "optimizer")
    rows = [row for row in run.metrics if isinstance(row.get("time/train"), int | float)]
    return np.array(
        [sum(float(row.get(f"time/{phase}") or 0) for phase in phases) for row in rows], dtype=float
    )
