"""Decide whether a curve has a trend: the Bayes factor of a trend plus noise against noise alone.

Both hypotheses have stationary AR(1) noise of unknown autocorrelation. The noise variance is
unknown. If the standard errors of the values are known, the variance that they imply is the most
likely one, and a lower bound. A trend is a steady change, a step, or a change that levels off. The
threshold of the Bayes factor is chosen so that at most 6% of curves of pure noise are said to have
a trend, for every autocorrelation from 0 to 0.9. `python -m benchmarks.curve_verdicts` measures
this rate; `--thresholds` prints the factors that would give exactly 6%, and `--errors` does both
for known standard errors.
"""

from functools import cache

import numpy as np
from scipy.special import gammainc, gammaln

from grpo_ext.common.noise import Array, whitened_products

AUTOCORRELATIONS = np.linspace(0, 0.95, 96)  # fine enough for the precision of 2,000 values
SHAPE_WEIGHTS = (0.8, 0.1, 0.1)  # prior probabilities of the `trend_shapes`
EXACT = 0.7  # prior probability that standard errors are right rather than too small
FACTOR_WITH_ERROR = 1.6  # Bayes factor threshold for curves with known standard errors
SIZE = 12.0  # prior variance of a trend's coefficient, in units of its squared standard error


def has_trend(values: Array, error: float | None = None) -> bool:
    """Return whether a curve changes by more than its noise explains.

    Args:
        values: (N,), the curve, with N >= 10. Its values are finite and not all equal.
        error: the standard error that all values have; `None` or 0 if it is unknown.
    """
    factor = FACTOR_WITH_ERROR if error else least_factor(len(values))
    return trend_evidence(values, error=error or None) > np.log(factor)


def slope_of(values: Array) -> float:
    """Return the slope, per value, of the least-squares line through a curve (N,) with N >= 2."""
    at = np.arange(len(values)) - (len(values) - 1) / 2
    return float(at @ (values - values.mean()) / (at @ at))


def least_factor(count: int) -> float:
    """Return the Bayes factor above which a curve without known errors is said to have a trend.

    The factor is 3.5 for up to 20 values, and then falls as `count ** -0.25`, to 2.0 for 200
    values. The formula was fitted to simulated noise.
    """
    return 3.5 * (20 / max(count, 20)) ** 0.25


def trend_evidence(
    values: Array,
    autocorrelations: Array = AUTOCORRELATIONS,
    error: float | None = None,
) -> float:
    """Return the logarithm of the Bayes factor of a trend against no trend, for values (N,).

    For each autocorrelation r, the mean has the reference prior, and the coefficient of a shape has
    a normal prior with `SIZE` times the variance of its estimate (Zellner's g-prior; Liang et al.
    2008). The noise variance has the reference prior or, if the standard `error` of the values is
    given, the prior of `log_likelihood_with_error`. The prior weights of r approximate the least
    favorable prior (Elliott, Mueller and Watson 2015):

    - Without `error`, all r have equal weight under a trend. Under no trend, the weight is
      (1 - r^2)^-a, where a falls from 1.25 for short curves to 0 for long ones: in a short curve,
      slow noise looks like a trend and would otherwise often be taken for one.
    - With `error`, all r have equal weight, except that under a trend r = 0 gets an additional
      80 / N^2 (at most 0.32) of the weight, because sampling errors of different steps of a run are
      independent.

    Args:
        values: (N,), the curve.
        autocorrelations: (R,), the candidates for the autocorrelation r of the noise.
        error: the standard error that all values have, above 0; `None` if it is unknown.
    """
    count = len(values)
    columns = np.column_stack([trend_shapes(count), values])
    columns = columns - columns.mean(axis=0)
    units = np.abs(columns).max(axis=0)
    columns = np.column_stack([np.ones(count), columns / units])
    products = whitened_products(columns, autocorrelations)  # (R, 5, 5)
    constant = products[:, :1, :1]
    projections = products[:, :, :1] @ products[:, :1, :] / constant
    products = products - projections  # products of deviations from the mean
    squares = products[:, -1, -1]  # (R,)
    diagonals = np.diagonal(products, axis1=1, axis2=2)  # (R, 5)
    lengths = diagonals[:, 1:-1]
    covariances = products[:, 1:-1, -1]  # (R, 3)
    explained = covariances**2 / lengths / squares[:, None]  # (R, 3), R^2
    unexplained = 1 - SIZE / (1 + SIZE) * explained
    remaining = squares[:, None] * unexplained
    unscaled = 1 - autocorrelations**2
    weights = np.ones(len(unscaled))  # prior weights of all r under a trend
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
    log_with = np.logaddexp.reduce(log_shapes, axis=1)
    log_with -= np.log1p(SIZE) / 2
    log_constant = np.log(unscaled / constant[:, 0, 0]) / 2
    log_with += np.log(weights / weights.sum())
    log_without += np.log(weights_without / weights_without.sum())
    with_trend = np.logaddexp.reduce(log_constant + log_with)
    without = np.logaddexp.reduce(log_constant + log_without)
    return float(with_trend - without)


def log_likelihood_with_error(squares: Array, variance: Array, count: int) -> Array:
    """Return the log likelihood of whitened values whose standard errors may be too small.

    A constant term is left out. With prior probability `EXACT`, the variance is right; otherwise
    the true variance is k times as large, where k has a Pareto distribution of index 1 (so the
    median factor of the standard error is 1.4).

    Args:
        squares: the sum of squares of the values around their mean; of any shape.
        variance: the variance that the standard errors imply; broadcast to `squares`.
        count: the number of values.
    """
    half = squares / variance / 2
    shape = count / 2 + 0.5
    with np.errstate(divide="ignore"):  # for small squares the incomplete gamma function is 0
        log_incomplete = np.log(gammainc(shape, half))
    larger = gammaln(shape) - shape * np.log(half) + log_incomplete
    log_exact = np.log(EXACT) - half
    log_larger = np.log(1 - EXACT) + larger
    either = np.logaddexp(log_exact, log_larger)
    log_scale = (count - 1) / 2 * np.log(variance)
    return np.asarray(either - log_scale)


@cache
def trend_shapes(count: int) -> Array:
    """Return three shapes of a trend: a steady rise, a step, and a rise that levels off.

    The result has the shape (N, 3), where N is `count`.
    """
    rise = np.arange(count) / count
    step = rise >= 0.5
    levelling_off = 1 - np.exp(-8 * rise)
    return np.column_stack([rise, step, levelling_off])
