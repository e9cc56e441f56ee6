"""Estimate the noise of a curve around its trend; neighboring values may be correlated.

The model is y_t = trend_t + e_t, where e is a stationary AR(1) process of unknown autocorrelation
and variance. A few values say little about the autocorrelation, so there is no single estimate:
results are averaged over candidates, weighted by their restricted likelihood (REML) and a prior.
With a single estimate, a quarter of the curves that consist of 10 values of pure noise would seem
to change if the autocorrelation is 0.8. `tests/common/test_estimates.py` measures how often
verdicts are wrong.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MOST_VALUES = 2000  # maximum length of a fitted curve; longer curves are averaged in blocks
# The candidate autocorrelations range from 0 to where noise can hardly be told from a trend.
CANDIDATES = 24
HIGHEST = 0.96
HIGHEST_OF_FEW = 0.99  # for curves with fewer than `FEW` values
FEW = 50


@dataclass(frozen=True)
class Noise:
    """A noise model fitted to a curve.

    For each candidate autocorrelation, it holds the posterior weight and the variance of the noise.
    """

    autocorrelations: Array  # (24,), the candidates: correlations of neighboring values
    weights: Array  # (24,), posterior probabilities of the candidates
    variances: Array  # (24,), variance of a single value under each candidate
    freedom: int  # degrees of freedom of each variance

    def error_of_mean(self, count: int) -> float:
        """Return the standard error of the mean of `count` neighboring values."""
        shares = mean_variances(self.autocorrelations, count)
        variance = self.weights @ (self.variances * shares)
        return float(np.sqrt(variance))


def fit_noise(values: Array) -> Noise | None:
    """Fit a noise model to a curve (N,) with N >= 10; return `None` if the curve is constant."""
    deviations = values - values.mean()
    scale = float(np.abs(deviations).max())
    largest = float(np.abs(values).max())
    if scale <= 1e-12 * max(1.0, largest):
        return None
    curve = deviations / scale
    trend = trend_basis(len(curve))
    count, terms = trend.shape
    freedom = count - terms
    # For short curves, the prior of the autocorrelation is the reference prior (1 - r^2)^-1/2
    # (Berger and Yang 1994); for longer ones it is flatter.
    tilt = min(0.5, 10 / count)
    highest = HIGHEST_OF_FEW if count < FEW else HIGHEST
    autocorrelations = (np.arange(CANDIDATES) + 0.5) / CANDIDATES * highest
    columns = np.column_stack([trend, curve])
    transformed = whitened(columns, autocorrelations[:, None, None])  # (24, N, P + 1)
    # The last diagonal entry is the norm of the curve's residual after the trend.
    triangular = np.linalg.qr(transformed, mode="r")  # (24, P + 1, P + 1)
    diagonals = np.diagonal(triangular, axis1=1, axis2=2)  # (24, P + 1)
    squares = np.maximum(diagonals[:, -1] ** 2, 1e-20)  # avoids 0 if the trend fits exactly
    of_trend = np.abs(diagonals[:, :-1])  # (24, P)
    half_determinants = np.log(of_trend).sum(axis=1)
    likelihoods = -half_determinants - freedom / 2 * np.log(squares)
    unscaled = 1 - autocorrelations**2
    log_weights = (0.5 - tilt) * np.log(unscaled) + likelihoods
    variances = scale**2 * squares / freedom / unscaled
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    return Noise(autocorrelations, weights, variances, freedom)


@cache
def trend_basis(count: int) -> Array:
    """Return basis functions (N, P) for a trend in N = `count` values.

    They are a constant, a line, and an exponential that decays from the start. If there are at
    least 25 values, an exponential that rises towards the end is added.
    """
    t = np.arange(count)
    shapes = [
        np.ones(count),
        np.linspace(-1, 1, count),
        np.exp(-6 * t / count),
    ]
    if count >= 25:
        shapes.append(np.exp(-6 * t[::-1] / count))
    return np.column_stack(shapes)


def whitened(columns: Array, r: float | Array) -> Array:
    """Transform columns (N, C) so that AR(1) errors become uncorrelated across rows.

    This is the transformation of Prais and Winsten (1954) for the autocorrelation `r`. If `r` is an
    array (R, 1, 1), the result has the shape (R, N, C).
    """
    first = np.sqrt(1 - r**2) * columns[:1]
    later = columns[1:] - r * columns[:-1]
    return np.concatenate([first, later], axis=-2)


def whitened_products(columns: Array, autocorrelations: Array) -> Array:
    """Whiten columns (N, C) for autocorrelations (R,), and return their Gram matrices (R, C, C).

    Their entries are polynomials in the autocorrelation, so the time is not proportional to N * R.
    """
    r = autocorrelations[:, None, None]
    of_neighbors = columns[1:].T @ columns[:-1]
    inner = columns[1:-1]
    return columns.T @ columns - r * (of_neighbors + of_neighbors.T) + r**2 * (inner.T @ inner)


def mean_variances(autocorrelations: Array, count: int) -> Array:
    """Return the variance of the mean of `count` neighboring values, relative to that of one value.

    The result (R,) has one variance for each of the `autocorrelations` (R,).
    """
    lags = np.arange(1, count)
    powers = autocorrelations[:, None] ** lags  # (R, count - 1)
    covariances = powers @ (count - lags)
    return (count + 2 * covariances) / count**2


def error_of_neighbors(values: Array, count: int, autocorrelation: float = 0.0) -> float:
    """Return the standard error of a mean of `count` neighboring values of a curve.

    The curve may rise, fall or jump. The error is estimated from the differences between neighbors,
    so slow movements do not count as noise. The variance of a difference is 2 (1 - r) times the
    variance of a value (von Neumann 1941).

    Args:
        values: (N,), the curve, with N >= 2.
        count: the number of values in the mean.
        autocorrelation: r, the autocorrelation of the noise.
    """
    squared_differences = np.diff(values) ** 2  # (N - 1,)
    variance = squared_differences.mean() / 2 / (1 - autocorrelation)
    [share] = mean_variances(np.array([autocorrelation]), count)
    return float(np.sqrt(variance * share))


def autocorrelation_of_neighbors(values: Array) -> float:
    """Estimate the autocorrelation (0 to 0.9) of a curve's noise; 0 if the curve (N,) is constant.

    On average, squared differences between values two apart are 1 + r times as large as those
    between neighbors; r is estimated from this ratio, which a slow trend hardly affects. Because a
    few values say little, the estimate is shrunk toward 0, as if 10 more values had shown no
    autocorrelation. The curve must have at least three values.
    """
    neighbors = (np.diff(values) ** 2).mean()
    if neighbors == 0:
        return 0.0
    count = len(values)
    differences = values[2:] - values[:-2]
    two_apart = (differences**2).mean()
    estimate = np.clip(two_apart / neighbors - 1, 0, 0.9)
    return float(estimate * count / (count + 10))


def means_of_neighbors(values: Array, count: int) -> Array:
    """Return the moving averages (N - count + 1,) of `count` neighboring values."""
    weights = np.full(count, 1 / count)
    return np.convolve(values, weights, mode="valid")
