"""Whether a curve has a trend: the Bayes factor of a trend in noise against noise alone.

Both sides have stationary AR(1) noise of unknown autocorrelation and variance. A trend is a steady
rise, a step, or a rise that levels off. The factor that calls a trend one is chosen so that noise
is called one in at most 6 % of the curves, whatever its autocorrelation is from 0 to 0.9.
`python -m benchmarks.curve_verdicts` counts that, prints the best that any test can do, and with
`--thresholds` the factors that would do it exactly.
"""

import numpy as np
from scipy.special import logsumexp

from grpo_ext.common.noise import Array, whitened

AUTOCORRELATIONS = np.linspace(0, 0.95, 96)  # 2,000 values tell neighbours of them apart
SHAPE_WEIGHTS = (0.8, 0.1, 0.1)  # prior, of `trend_shapes`
SIZE = 12.0  # prior variance of a trend, in squares of its standard error


def has_trend(values: Array) -> bool:
    """Return whether a curve (N,), N >= 10, changes by more than its noise explains."""
    return trend_evidence(values) > np.log(least_factor(len(values)))


def least_factor(count: int) -> float:
    """Return the Bayes factor from which a curve of `count` values has a trend: 3.5 for up to 20
    values, 2.0 for 200.

    Fitted to simulated noise.
    """
    return 3.5 * (20 / max(count, 20)) ** 0.25


def trend_evidence(values: Array, autocorrelations: Array = AUTOCORRELATIONS) -> float:
    """Return the logarithm of the Bayes factor of a trend against none, for values (N,).

    For each autocorrelation r, mean and variance have the reference prior, and the coefficient of
    a shape is normal with `SIZE` times the variance of its estimate (Zellner's g-prior; Liang et
    al. 2008). With a trend all r have equal prior weight. Without one the weight is (1 - r^2)^-a,
    where a falls from 1.25 for short curves to 0 for long ones: slow noise explains a trend of few
    values, and would otherwise often be called one. This imitates the least favourable prior
    (Elliott, Mueller and Watson 2015).
    """
    count = len(values)
    columns = np.column_stack([trend_shapes(count), values])
    columns = columns - columns.mean(axis=0)
    columns = np.column_stack([np.ones(count), columns / np.abs(columns).max(axis=0)])
    white = whitened(columns, autocorrelations[:, None, None])  # (R, N, 5)
    products = white.transpose(0, 2, 1) @ white  # (R, 5, 5)
    constant = products[:, :1, :1]
    products = products - products[:, :, :1] @ products[:, :1, :] / constant  # around the mean
    squares = products[:, -1, -1]
    lengths = np.diagonal(products, axis1=1, axis2=2)[:, 1:-1]
    explained = products[:, 1:-1, -1] ** 2 / lengths / squares[:, None]  # (R, 3), R^2
    unscaled = 1 - autocorrelations**2
    log_likelihoods = np.log(unscaled / constant[:, 0, 0]) / 2 - (count - 1) / 2 * np.log(squares)
    log_priors = -min(1.25, 35 / count) * np.log(unscaled)
    log_factors = -np.log1p(SIZE) / 2 - (count - 1) / 2 * np.log1p(-SIZE / (1 + SIZE) * explained)
    with_trend = log_likelihoods + logsumexp(log_factors, axis=1, b=SHAPE_WEIGHTS)
    without = log_likelihoods + log_priors - logsumexp(log_priors)
    return float(logsumexp(with_trend) - np.log(len(unscaled)) - logsumexp(without))


def trend_shapes(count: int) -> Array:
    """Return a steady rise, a step in the middle and a rise that levels off, (N, 3)."""
    t = np.arange(count) / count
    return np.column_stack([t, t >= 0.5, 1 - np.exp(-8 * t)])
