"""The noise of a curve around its trend, whose neighbouring values may be correlated.

Model: y_t = trend_t + e_t, with e a stationary AR(1) process of unknown autocorrelation and
variance. Few values say little about the autocorrelation, so it is not estimated: all candidates
count, by their likelihood without the trend's coefficients (REML) and a prior. With a single
estimate, 10 values of pure noise at an autocorrelation of 0.8 would "change" in one of four curves.
`tests/common/test_estimates.py` counts how often verdicts are wrong.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
MOST_VALUES = 2000  # whose noise is fitted; neighbours in a longer curve are averaged
# autocorrelations, from 0 up to that of a curve whose noise hardly differs from a trend
CANDIDATES = 24
HIGHEST = 0.96
HIGHEST_OF_FEW = 0.99
FEW = 50  # values


@dataclass(frozen=True)
class Noise:
    """What a curve says about its noise, for each candidate autocorrelation."""

    autocorrelations: Array  # (24,), of neighbouring values
    weights: Array  # (24,), posterior probabilities
    variances: Array  # (24,), of a single value
    freedom: int  # degrees of freedom of each variance

    def error_of_mean(self, count: int) -> float:
        """Return the standard error of the mean of `count` neighbouring values."""
        shares = mean_variances(self.autocorrelations, count)
        variance = self.weights @ (self.variances * shares)
        return float(np.sqrt(variance))


def fit_noise(values: Array) -> Noise | None:
    """Return the noise of a curve of at least 10 values (N,); `None` if it is constant."""
    deviations = values - values.mean()
    scale = float(np.abs(deviations).max())
    largest = float(np.abs(values).max())
    if scale <= 1e-12 * max(1.0, largest):
        return None
    curve = deviations / scale
    trend = trend_basis(len(curve))
    count, terms = trend.shape
    freedom = count - terms
    # The reference prior of the autocorrelation, (1 - r^2)^-1/2 (Berger and Yang 1994), for few
    # values; flatter for many.
    tilt = min(0.5, 10 / count)
    highest = HIGHEST_OF_FEW if count < FEW else HIGHEST
    autocorrelations = (np.arange(CANDIDATES) + 0.5) / CANDIDATES * highest
    columns = np.column_stack([trend, curve])
    transformed = whitened(columns, autocorrelations[:, None, None])  # (24, N, P + 1)
    # The last entry is the length of what the trend does not explain of the curve.
    diagonals = np.diagonal(np.linalg.qr(transformed, mode="r"), axis1=1, axis2=2)  # (24, P + 1)
    squares = np.maximum(diagonals[:, -1] ** 2, 1e-20)  # of a curve that is its trend
    half_determinants = np.log(np.abs(diagonals[:, :-1])).sum(axis=1)
    likelihoods = -half_determinants - freedom / 2 * np.log(squares)
    unscaled = 1 - autocorrelations**2
    log_weights = (0.5 - tilt) * np.log(unscaled) + likelihoods
    variances = scale**2 * squares / freedom / unscaled
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    return Noise(autocorrelations, weights, variances, freedom)


def trend_basis(count: int) -> Array:
    """Return the shapes of a trend, (N, P): constant, line, and for longer curves fast rises.

    The fast rises are at the start and at the end of the curve.
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
    """Return columns (N, C) with AR(1) noise so that its values are independent.

    The transformation is that of Prais and Winsten (1954). For several autocorrelations r, (R,
    1, 1), the result is (R, N, C).
    """
    first = np.sqrt(1 - r**2) * columns[:1]
    others = columns[1:] - r * columns[:-1]
    return np.concatenate([first, others], axis=-2)


def mean_variances(autocorrelations: Array, count: int) -> Array:
    """Return the variance of a mean of `count` neighbours, (24,), relative to a single value's."""
    lags = np.arange(1, count)
    powers = autocorrelations[:, None] ** lags  # (24, count - 1)
    covariances = powers @ (count - lags)
    return (count + 2 * covariances) / count**2


def error_of_neighbours(values: Array, count: int, autocorrelation: float = 0.0) -> float:
    """Return the standard error of a mean of `count` neighbouring values of a curve.

    The curve may jump or fall. The error comes from the differences of neighbours, whose variance
    is 2 (1 - r) times that of a value (von Neumann 1941). So only what differs from one value to
    the next is noise; slower movement is not.

    Args:
        values: (N,), the curve.
        count: values of the mean.
        autocorrelation: r, that of the noise.
    """
    squared_differences = np.diff(values) ** 2  # (N - 1,)
    variance = squared_differences.mean() / 2 / (1 - autocorrelation)
    [share] = mean_variances(np.array([autocorrelation]), count)
    return float(np.sqrt(variance * share))


def autocorrelation_of_neighbours(values: Array) -> float:
    """Return the autocorrelation of the noise of a curve (N,), from 0 to 0.9; 0 if it is constant.

    Squared differences of values two apart are 1 + r times those of neighbours, which a slow trend
    hardly changes. Few values say little, so the estimate is shrunk to 0 as if 10 more values had
    shown none.
    """
    neighbours = (np.diff(values) ** 2).mean()
    if neighbours == 0:
        return 0.0
    count = len(values)
    differences = values[2:] - values[:-2]
    two_apart = (differences**2).mean()
    estimate = np.clip(two_apart / neighbours - 1, 0, 0.9)
    return float(estimate * count / (count + 10))


def means_of_neighbours(values: Array, count: int) -> Array:
    """Return the means of all runs of `count` neighbouring values, (N - count + 1,)."""
    return np.convolve(values, np.full(count, 1 / count), mode="valid")
