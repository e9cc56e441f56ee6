"""How often does a curve of pure noise "rise" or "fall", and how often is a real rise called one?

    python -m benchmarks.curve_verdicts [--quick] [--errors] [--thresholds]

Simulates curves of 10, 20, 50 and 200 logged values whose noise has an autocorrelation from 0 to
0.9, and prints three figures for each case:

- the share of curves of pure noise that get a verdict;
- the share of real rises by three errors that are called a rise, for a steady rise and for a step;
- an upper bound: the largest share of steady rises that any test can detect if it calls at most 6 %
  of pure noise a change at each of these autocorrelations.

An "error" is the true standard error of the difference between the two ends that are shown.
`--errors` prints the same figures for tests that know the standard error of each value, and the
share of noise that is called a change if the noise is 1.25 and 2 times as large as that error.
`--thresholds` instead prints the Bayes factor that would give exactly 6 % (see
`grpo_ext.common.trend.least_factor`).

The bound is a linear program over the decisions on simulated curves, which are weighted as samples
from a mixture. A test may not depend on the origin of a curve or, without errors, on its unit; by
the theorem of Hunt and Stein, this restriction costs nothing in the worst case.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.signal import lfilter
from scipy.special import logsumexp

from grpo_ext.common.curves import curve_change, ends
from grpo_ext.common.estimates import Array
from grpo_ext.common.noise import whitened
from grpo_ext.common.trend import FACTOR_WITH_ERROR, least_factor, trend_evidence

LENGTHS = (10, 20, 50, 200)
CORRELATIONS = (0.0, 0.3, 0.5, 0.8, 0.9)
NOISE_SHARE = 0.06  # of pure noise that may be called a change
ERRORS = 3.0  # of a real rise


def noise_curves(rng: np.random.Generator, tries: int, count: int, correlation: float) -> Array:
    """Return stationary AR(1) noise of variance 1, (tries, count)."""
    fresh = rng.standard_normal((tries, count))
    fresh[:, 1:] *= np.sqrt(1 - correlation**2)
    return np.asarray(lfilter([1.0], [1.0, -correlation], fresh, axis=1))


def error_of_change(count: int, correlation: float) -> float:
    """Return the true standard error of the difference between the ends of such a curve."""
    at = np.arange(count)
    covariance = correlation ** np.abs(at[:, None] - at)
    weights = np.zeros(count)
    weights[: ends(count)] = -1 / ends(count)
    weights[-ends(count) :] += 1 / ends(count)
    return float(np.sqrt(weights @ covariance @ weights))


def ramp(count: int) -> Array:
    """Return a steady rise by 1 between the means of both ends."""
    line = np.arange(count) / count
    return line / (line[-ends(count) :].mean() - line[: ends(count)].mean())


def step(count: int) -> Array:
    """Return a rise by 1 in the middle."""
    return (np.arange(count) >= count / 2).astype(float)


def verdict_shares(curves: Array, error: float | None = None) -> tuple[float, float]:
    """Return the share of curves that are said to rise, and of those said to fall.

    `error` is the logged standard error of each value; by default, none is logged.
    """
    errors = None if error is None else [error] * curves.shape[1]
    changes = [curve_change(curve.tolist(), sampling_errors=errors) for curve in curves]
    verdicts = [change.verdict for change in changes if change is not None]
    return verdicts.count("rose") / len(curves), verdicts.count("fell") / len(curves)


def bounds(
    count: int,
    tries: int = 2000,
    correlations: Sequence[float] = CORRELATIONS,
    known: bool = False,
) -> list[float]:
    """Return, for each of `correlations`, the largest share of steady rises that a test can detect.

    A one-sided test calls at most half of `NOISE_SHARE` a rise at each correlation; the best test
    may differ between correlations. With `known`, the test knows the standard error of the values.
    """
    rng = np.random.default_rng(count)
    rises = [ERRORS * error_of_change(count, r) * ramp(count) for r in correlations]
    noise = [noise_curves(rng, tries, count, r) for r in correlations]
    rising = [
        noise_curves(rng, tries, count, r) + rise
        for r, rise in zip(correlations, rises, strict=True)
    ]
    curves = np.concatenate([*noise, *rising])  # (2 R tries, count)
    densities = [log_densities(curves, r, 0 * rises[0], known) for r in correlations]
    densities += [
        log_densities(curves, r, rise, known) for r, rise in zip(correlations, rises, strict=True)
    ]
    mixture = logsumexp(densities, axis=0) - np.log(len(densities))
    weights = np.exp(densities - mixture) / len(curves)  # (2 R, 2 R tries)
    noise_weights, rise_weights = np.split(weights, 2)
    limits = np.full(len(correlations), NOISE_SHARE / 2)
    return [
        -float(linprog(-row, A_ub=noise_weights, b_ub=limits, bounds=(0, 1)).fun)
        for row in rise_weights
    ]


def log_densities(curves: Array, r: float, rise: Array, known: bool = False) -> Array:
    """Return the log density (M,) of curves (M, N), without their origin and, unless `known`, unit.

    It is up to a constant that is the same for all `r` and rises.

    The curves have AR(1) noise of variance 1 around `rise` (N,). The density of a direction is the
    integral of the normal density over all radii.
    """
    count = curves.shape[1]
    scale = np.sqrt(1 - r**2)
    constant, mean, *white = whitened(np.column_stack([np.ones(count), rise, *curves]), r).T / scale
    length = np.linalg.norm(constant)
    constant = constant / length
    centered = np.array(white) - np.outer(np.array(white) @ constant, constant)
    mean = mean - constant * (constant @ mean)
    if known:
        squares = ((centered - mean) ** 2).sum(axis=1)
        return -(count - 1) * np.log(scale) - np.log(length) - squares / 2
    norms = np.linalg.norm(centered, axis=1)
    log_density = -(count - 1) * (np.log(scale) + np.log(norms)) - np.log(length)
    radii = np.linspace(1e-3, np.sqrt(count) + 20, 1000)
    log_radial = (count - 2) * np.log(radii) - radii**2 / 2
    along = np.linspace(-15, 15, 301)  # the mean along the direction of a curve
    integrals = logsumexp(log_radial + along[:, None] * radii, axis=1) - logsumexp(log_radial)
    return log_density + np.interp(centered @ mean / norms, along, integrals) - mean @ mean / 2


def exact_factors(count: int, tries: int, error: float | None = None) -> list[float]:
    """Return, by correlation, the Bayes factor that a share `NOISE_SHARE` of pure noise exceeds.

    `error` is the standard error of the values, which should be 1; `None` if the test does not know
    it.
    """
    rng = np.random.default_rng([1, count])
    factors = []
    for r in CORRELATIONS:
        curves = noise_curves(rng, tries, count, r)
        evidence = [trend_evidence(curve, error=error) for curve in curves]
        factors.append(float(np.exp(np.quantile(evidence, 1 - NOISE_SHARE))))
    return factors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="200 curves of each kind, not 2,000")
    parser.add_argument("--errors", action="store_true", help="the error of each value is known")
    parser.add_argument("--thresholds", action="store_true", help="print Bayes factors instead")
    args = parser.parse_args()
    tries = 200 if args.quick else 2000
    error = 1.0 if args.errors else None
    if args.thresholds:
        for count in (10, 14, 20, 30, 50, 100, 200, 600, 2000):
            factors = exact_factors(count, tries, error)
            shown = " ".join(f"{factor:5.2f}" for factor in factors)
            used = FACTOR_WITH_ERROR if args.errors else least_factor(count)
            print(f"{count:5} logs, used {used:.2f}: {shown}", flush=True)
        return
    titles = "logs  correlation  noise  steady rise  step  bound"
    print(titles + "  1.25 times  2 times" if args.errors else titles)
    for count in LENGTHS:
        for r, bound in zip(CORRELATIONS, bounds(count, tries, known=args.errors), strict=True):
            curves = noise_curves(np.random.default_rng([2, count]), tries, count, r)
            noise = sum(verdict_shares(curves, error))
            rise = ERRORS * error_of_change(count, r)
            steady, _ = verdict_shares(curves + rise * ramp(count), error)
            at_once, _ = verdict_shares(curves + rise * step(count), error)
            row = f"{count:4}  {r:11}  {noise:5.3f}  {steady:11.2f}  {at_once:4.2f}  {bound:5.2f}"
            if args.errors:
                larger = sum(verdict_shares(1.25 * curves, error))
                much_larger = sum(verdict_shares(2 * curves, error))
                row += f"  {larger:10.2f}  {much_larger:7.2f}"
            print(row, flush=True)


if __name__ == "__main__":
    main()
