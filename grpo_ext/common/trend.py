"""Whether a curve has a trend: the Bayes factor of a trend in noise against noise alone.

Both sides have stationary AR(1) noise of unknown autocorrelation. Its variance is unknown or, if
the standard errors of the values are known, at least theirs, and probably theirs. A trend is a
steady rise, a step, or a rise that levels off. The factor that calls a trend one is chosen so that
noise is called one in at most 6 % of the curves, whatever its autocorrelation is from 0 to 0.9.
`python -m benchmarks.curve_verdicts` counts that, prints the best that any test can do, and with
`--thresholds` the factors that would do it exactly; with `--errors` all for known errors.
"""

import numpy as np
from scipy.special import gammainc, gammaln

from grpo_ext.common.noise import Array, whitened

AUTOCORRELATIONS = np.linspace(0, 0.95, 96)  # 2,000 values tell neighbours of them apart
SHAPE_WEIGHTS = (0.8, 0.1, 0.1)  # prior, of `trend_shapes`
EXACT = 0.7  # prior probability that standard errors are right, and not too small
FACTOR_WITH_ERROR = 1.6  # Bayes factor from which a curve whose errors are known has a trend
SIZE = 12.0  # prior variance of a trend, in squares of its standard error


def has_trend(values: Array, error: float | None = None) -> bool:
    """Return whether a curve (N,), N >= 10, changes by more than its noise explains.

    `error` is the standard error of its values, if it is known and above 0.
    """
    factor = FACTOR_WITH_ERROR if error else least_factor(len(values))
    return trend_evidence(values, error=error or None) > np.log(factor)


def least_factor(count: int) -> float:
    """Return the Bayes factor that proves a trend: 3.5 for up to 20 values, 2.0 for 200.

    Fitted to simulated noise.
    """
    return 3.5 * (20 / max(count, 20)) ** 0.25


def trend_evidence(
    values: Array, autocorrelations: Array = AUTOCORRELATIONS, error: float | None = None
) -> float:
    """Return the logarithm of the Bayes factor of a trend against none, for values (N,).

    For each autocorrelation r, the mean has the reference prior, and the coefficient of a shape is
    normal with `SIZE` times the variance of its estimate (Zellner's g-prior; Liang et al. 2008).
    The variance of the noise has the reference prior, or with the standard `error` of the values
    that of `log_likelihood_with_error`. The prior weights of r imitate the least favourable prior
    (Elliott, Mueller and Watson 2015):

    - Without errors all r have equal weight if there is a trend. If there is none the weight is
      (1 - r^2)^-a, where a falls from 1.25 for short curves to 0 for long ones: slow noise explains
      a trend of few values, and would otherwise often be called one.
    - With errors all r have equal weight, but with a trend r = 0 has 80 / N^2 (at most 0.32)
      more of it: in a run the sampling errors of different steps are independent.
    """
    count = len(values)
    columns = np.column_stack([trend_shapes(count), values])
    columns = columns - columns.mean(axis=0)
    units = np.abs(columns).max(axis=0)
    columns = np.column_stack([np.ones(count), columns / units])
    white = whitened(columns, autocorrelations[:, None, None])  # (R, N, 5)
    products = white.transpose(0, 2, 1) @ white  # (R, 5, 5)
    constant = products[:, :1, :1]
    projections = products[:, :, :1] @ products[:, :1, :] / constant
    products = products - projections  # around the mean
    squares = products[:, -1, -1]  # (R,)
    diagonals = np.diagonal(products, axis1=1, axis2=2)  # (R, 5)
    lengths = diagonals[:, 1:-1]
    covariances = products[:, 1:-1, -1]  # (R, 3)
    explained = covariances**2 / lengths / squares[:, None]  # (R, 3), R^2
    unexplained = 1 - SIZE / (1 + SIZE) * explained
    remaining = squares[:, None] * unexplained
    unscaled = 1 - autocorrelations**2
    weights = np.ones(len(unscaled))  # with a trend
    weights_without = np.ones(len(unscaled))
    if error is None:
        log_without = -(count - 1) / 2 * np.log(squares)
        log_shapes = -(count - 1) / 2 * np.log(remaining)
        weights_without = unscaled ** -min(1.25, 35 / count)
    else:
        relative = np.clip(error / units[-1], 1e-6, 1e6)
        variance = unscaled * relative**2  # of the whitened values
        log_without = log_likelihood_with_error(squares, variance, count)
        log_shapes = log_likelihood_with_error(remaining, variance[:, None], count)
        share = min(0.32, 80 / count**2)  # of r = 0; the rest is spread over all r
        weights[autocorrelations == 0] += len(weights) * share / (1 - share)
    log_shapes += np.log(SHAPE_WEIGHTS)
    log_with = np.logaddexp.reduce(log_shapes, axis=1) - np.log1p(SIZE) / 2
    log_constant = np.log(unscaled / constant[:, 0, 0]) / 2
    log_with += np.log(weights / weights.sum())
    log_without += np.log(weights_without / weights_without.sum())
    with_trend = np.logaddexp.reduce(log_constant + log_with)
    without = np.logaddexp.reduce(log_constant + log_without)
    return float(with_trend - without)


def log_likelihood_with_error(squares: Array, variance: Array, count: int) -> Array:
    """Return the log likelihood of whitened values whose standard errors may be too small.

    It is that of `count` values with this sum of squares around their mean, up to a constant.

    With the prior probability `EXACT` the variance is right. Else the true one is k times as large,
    and k has a Pareto distribution of index 1: the median of the factor of the error is 1.4.
    """
    half = squares / variance / 2
    shape = count / 2 + 0.5
    with np.errstate(divide="ignore"):  # the incomplete gamma function is 0 for small squares
        log_incomplete = np.log(gammainc(shape, half))
    larger = gammaln(shape) - shape * np.log(half) + log_incomplete
    either = np.logaddexp(np.log(EXACT) - half, np.log(1 - EXACT) + larger)
    log_scale = (count - 1) / 2 * np.log(variance)
    return np.asarray(either - log_scale)


def trend_shapes(count: int) -> Array:
    """Return a steady rise, a step in the middle and a rise that levels off, (N, 3)."""
    rise = np.arange(count) / count
    step = rise >= 0.5
    levelling_off = 1 - np.exp(-8 * rise)
    return np.column_stack([rise, step, levelling_off])
