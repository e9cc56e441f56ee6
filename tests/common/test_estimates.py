"""How often intervals hold the truth, and verdicts are wrong, over many made-up samples and curves.

`python -m benchmarks.curve_verdicts` prints the shares.
"""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binomtest, nct, t

from benchmarks.curve_verdicts import (
    CORRELATIONS,
    bounds,
    error_of_change,
    noise_curves,
    ramp,
    step,
)
from grpo_ext.common.curves import curve_change
from grpo_ext.common.estimates import mean_difference, mean_of
from grpo_ext.common.noise import whitened, whitened_products
from grpo_ext.common.trend import (
    AUTOCORRELATIONS,
    EXACT,
    SHAPE_WEIGHTS,
    SIZE,
    has_trend,
    trend_evidence,
    trend_shapes,
)
from grpo_ext.evaluation.table import gained
from grpo_ext.observe.changes import change_of_series
from grpo_ext.observe.read_run import Series

UNCHANGED = "did not clearly change"


def called(curves, errors=None, sampling_errors=None):
    """The share of curves that are said to rise, and of those said to fall."""
    changes = [curve_change(curve, errors, sampling_errors=sampling_errors) for curve in curves]
    verdicts = [change.verdict for change in changes]
    assert None not in verdicts
    return verdicts.count("rose") / len(verdicts), verdicts.count("fell") / len(verdicts)


@pytest.mark.parametrize("correlation", [0.0, 0.8, 0.9])
@pytest.mark.parametrize("count", [10, 50])
def test_noise_rarely_rises_or_falls(count, correlation):
    curves = noise_curves(np.random.default_rng(count), 300, count, correlation)
    rose, fell = called(curves)
    assert rose + fell <= 0.08  # 6 % and two standard errors of 300 tries


LEAST = {  # shares of steady rises by three errors for each of CORRELATIONS
    10: (0.05, 0.1, 0.2, 0.5, 0.65),
    20: (0.45, 0.3, 0.25, 0.4, 0.6),
    50: (0.9, 0.85, 0.8, 0.5, 0.65),
    200: (0.9, 0.9, 0.9, 0.85, 0.8),
}
LEAST_STEPS = {
    10: (0.07, 0.15, 0.35, 0.7, 0.85),
    20: (0.45, 0.4, 0.5, 0.9, 0.95),
    50: (0.9, 0.9, 0.9, 0.95, 0.95),
    200: (0.95, 0.95, 0.95, 0.95, 0.95),
}


@pytest.mark.slow
@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize("count", [10, 20, 50, 200])
def test_noise_rises_or_falls_in_at_most_six_of_a_hundred_curves(count, correlation):
    """Rises are called one at least as often as `LEAST` and `LEAST_STEPS` say.

    The bound is the largest share of steady rises by three errors that any test can find which is
    wrong in at most 6 % of the noise at each of CORRELATIONS (benchmarks/curve_verdicts.py):

        logs   r = 0   0.3   0.5   0.8   0.9
          10    0.44  0.31  0.35  0.71  0.82
          20    0.76  0.62  0.46  0.71  0.90
          50    0.98  0.96  0.90  0.69  0.89
         200    0.99  0.98  0.99  0.96  0.96

    No single test reaches the bound at all r: with 10 logs the least share is at most 0.29, with 20
    0.42, and with 50 0.67. So 80 % is asked for with 200 logs, and with 50 up to r = 0.5.
    """
    at = CORRELATIONS.index(correlation)
    rng = np.random.default_rng([count, int(10 * correlation)])
    curves = noise_curves(rng, 2000, count, correlation)
    rose, fell = called(curves)
    error = error_of_change(count, correlation)
    assert rose + fell <= 0.06
    rises = curves[:500]
    assert called(rises + 3 * error * ramp(count))[0] >= LEAST[count][at]
    assert called(rises + 6 * error * ramp(count))[0] >= 0.4
    assert called(rises + 3 * error * step(count))[0] >= LEAST_STEPS[count][at]


@pytest.mark.slow
@pytest.mark.parametrize("correlation", CORRELATIONS)
@pytest.mark.parametrize("count", [10, 20, 50, 200])
def test_with_errors_few_logs_are_enough(count, correlation):
    rng = np.random.default_rng([count, int(10 * correlation)])
    curves = noise_curves(rng, 2000, count, correlation)
    rise = 3 * error_of_change(count, correlation)
    errors = [1.0] * count
    noise = sum(called(curves, None, errors))
    larger = sum(called(1.25 * curves[:1000], None, errors))
    steady, _ = called(curves[:1000] + rise * ramp(count), None, errors)
    at_once, _ = called(curves[:1000] + rise * step(count), None, errors)
    assert noise <= 0.065  # 6 % and a standard error of 2,000 tries
    assert larger <= 0.18
    assert steady >= 0.75 and at_once >= 0.8


@pytest.mark.parametrize("count", [10, 20])
def test_with_errors_a_rise_is_called_one_that_is_not_without(count):
    curves = noise_curves(np.random.default_rng(9), 150, count, 0.0)
    rise = 3 * error_of_change(count, 0.0) * ramp(count)
    errors = [1.0] * count
    assert sum(called(curves, None, errors)) <= 0.1  # 6 % and two standard errors
    assert called(curves + rise, None, errors)[0] >= 0.72
    assert called(curves + rise)[0] <= 0.6


def test_errors_that_are_far_too_small_hardly_matter():
    """The scale is then estimated, as without errors; a single missing error means that none is
    known.
    """
    curves = noise_curves(np.random.default_rng(10), 150, 20, 0.0)
    for error in (0.3, 1e-3, 1e-300):
        assert sum(called(curves, None, [error] * 20)) <= 0.15, error
    assert called(curves[:50], None, [1e100] * 20) == (0, 0)
    for errors in ([0.0] * 20, [1.0] * 19 + [None], [math.inf] * 20):
        assert called(curves[:50], None, errors) == called(curves[:50])


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_likelihood_with_errors_is_the_integral_over_the_variance(correlation):
    """By quadrature over the factor k of the variance, whose density is 1 / k^2 above 1."""
    values = noise_curves(np.random.default_rng(11), 1, 12, correlation)[0] * 1.5
    at = np.arange(12)
    base = correlation ** abs(np.subtract.outer(at, at))
    logs = []
    for shape in (None, *trend_shapes(12).T):
        covariance = base
        if shape is not None:
            precision = np.linalg.inv(base + 1e6)
            covariance = base + SIZE / (shape @ precision @ shape) * np.outer(shape, shape)
        precision = np.linalg.inv(covariance)
        ones = precision.sum()
        squares = values @ precision @ values - (precision @ values).sum() ** 2 / ones
        constant = -np.linalg.slogdet(covariance)[1] / 2 - math.log(ones) / 2

        def density(k, squares=squares, constant=constant):
            return np.exp(constant - 11 / 2 * np.log(k) - squares / 2 / k)

        larger, _ = quad(lambda k: density(k) / k**2, 1, np.inf)
        logs.append(math.log(EXACT * density(1.0) + (1 - EXACT) * larger))
    expected = math.log(np.dot(SHAPE_WEIGHTS, np.exp(np.array(logs[1:]) - logs[0])))
    found = trend_evidence(values, np.array([correlation]), error=1.0)
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_bound_is_below_the_power_with_known_autocorrelation():
    """The linear program against the t-test of the rise, which may use more."""
    for correlation, bound in zip(CORRELATIONS, bounds(10, 400), strict=True):
        rise = 3 * error_of_change(10, correlation) * ramp(10)
        most = power_with_known_autocorrelation(rise, correlation)
        assert 0.25 < bound <= most + 0.05  # two standard errors


def test_a_bound_for_independent_noise_alone_is_the_power_of_the_t_test():
    rise = 3 * error_of_change(10, 0.0) * ramp(10)
    [bound] = bounds(10, 4000, (0.0,))
    assert bound == pytest.approx(power_with_known_autocorrelation(rise, 0.0), abs=0.02)


def power_with_known_autocorrelation(rise, correlation):
    """The chance that the one-sided t-test of a line in whitened values finds this rise at 3 %."""
    at = np.arange(len(rise))
    covariance = correlation ** abs(np.subtract.outer(at, at))
    constant = np.ones(len(rise))
    precision = np.linalg.inv(covariance)
    mean = constant @ precision @ rise / (constant @ precision @ constant)
    noncentrality = math.sqrt((rise - mean) @ precision @ (rise - mean))
    freedom = len(rise) - 2
    return nct.sf(t.ppf(0.97, freedom), freedom, noncentrality)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_a_step_of_three_errors_is_called_a_rise(correlation):
    """With fifths of the curve compared, a step in its middle was called a rise in 5 % of curves of
    20 logs.
    """
    for count, least in ((20, 0.35), (50, 0.85)):
        curves = noise_curves(np.random.default_rng(7), 100, count, correlation)
        rise = 3 * error_of_change(count, correlation) * step(count)
        assert called(curves + rise)[0] >= least, count


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_evidence_is_the_ratio_of_two_gaussian_densities(correlation):
    """A trend whose coefficient has a normal prior is a Gaussian curve with a larger covariance.

    The autocorrelation is known here, and the unit is not.
    """
    values = noise_curves(np.random.default_rng(8), 1, 12, correlation)[0] + np.linspace(0, 2, 12)
    at = np.arange(12)
    covariance = correlation ** abs(np.subtract.outer(at, at))
    wide = covariance + 1e6  # a mean that may be anything
    factors = []
    for shape in trend_shapes(12).T:
        precision = np.linalg.inv(wide)
        extra = SIZE / (shape @ precision @ shape) * np.outer(shape, shape)
        # a variance of reference prior 1 / s^2 leaves |S|^-1/2 (y' S^-1 y)^-(N - 1) / 2
        logs = []
        for matrix in (wide + extra, wide):
            squares = values @ np.linalg.solve(matrix, values)
            logs.append(-np.linalg.slogdet(matrix)[1] / 2 - 11 / 2 * math.log(squares))
        factors.append(math.exp(logs[0] - logs[1]))
    expected = math.log(np.dot(SHAPE_WEIGHTS, factors))
    assert trend_evidence(values, np.array([correlation])) == pytest.approx(expected, rel=1e-3)


def test_products_of_whitened_columns_need_no_whitened_columns():
    columns = np.random.default_rng(12).standard_normal((50, 3)).cumsum(axis=0)
    white = whitened(columns, AUTOCORRELATIONS[:, None, None])
    found = whitened_products(columns, AUTOCORRELATIONS)
    np.testing.assert_allclose(found, white.transpose(0, 2, 1) @ white, rtol=1e-10)


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_a_rise_of_three_errors_in_a_long_curve_is_called_one(correlation):
    curves = noise_curves(np.random.default_rng(1), 150, 200, correlation)
    rise = 3 * error_of_change(200, correlation) * ramp(200)
    rose, fell = called(curves + rise)
    assert rose >= 0.8 and fell == 0


@pytest.mark.parametrize("count", [2, 10, 20, 50, 200])
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_held_out_evaluations_with_errors(count, correlation):
    """Noise is called a change in at most 5 % of the curves, a rise by three errors of the change
    in 80 %.
    """
    curves = noise_curves(np.random.default_rng(count), 2000, count, correlation)
    errors = [1.0] * count
    rose, fell = called(curves, errors)
    assert rose + fell <= 0.06
    rise = np.where(np.arange(count) < count // 2, 0.0, 3 * math.sqrt(2))
    assert called(curves + rise, errors)[0] >= 0.8


def test_a_fast_rise_is_called_one():
    """Learning is often done after a tenth of the run."""
    rng = np.random.default_rng(2)
    for count, rise in ((20, 15), (50, 8), (200, 6)):
        learned = rise * (1 - np.exp(-8 * np.arange(count) / count))
        rose, _ = called(noise_curves(rng, 50, count, 0.3) + learned)
        assert rose >= 0.8, count


@pytest.mark.parametrize("mirrored", [1, -1])
def test_a_dip_that_recovers_is_neither_a_rise_nor_a_fall(mirrored):
    """The line through the curve rises, while its ends fall by less than their errors."""
    at = np.arange(100)
    dip = np.where((at >= 10) & (at < 45), -0.02, 0.0)
    noise = 0.01 * np.random.default_rng(5).standard_normal(100)
    noise[90:] = noise[:10]
    noise[-1] -= 0.01
    curve = mirrored * (0.98 + dip + noise)
    assert has_trend(curve)
    change = curve_change(curve.tolist())
    assert abs(change.last - change.first) < change.last_error
    assert change.verdict == UNCHANGED


def test_the_last_lines_say_where_a_verdict_is_by_the_whole_curve():
    """The errors of single ends are large where few values say how noisy the curve is."""
    noisy = (0.4, 0.52, 0.41, 0.5, 0.44, 0.58, 0.46, 0.6, 0.5, 0.62)
    [gain] = gained([{"reward": value, "reward_se": 0.05} for value in noisy], ["r"])
    assert (gain.first, gain.last) == ("0.443 ± 0.164", "0.573 ± 0.164")
    assert gain.verdict == "rose, by the whole curve"
    steep = [0.1 * value + 0.01 * (value % 3) for value in range(12)]
    [gain] = gained([{"reward": value, "reward_se": 0.05} for value in steep], ["r"])
    assert gain.verdict == "rose"


@pytest.mark.parametrize("sampling_error", [None, 1.0])
def test_the_report_the_card_and_the_last_lines_say_the_same(sampling_error):
    rng = np.random.default_rng(3)
    for curve in noise_curves(rng, 20, 30, 0.5) + np.linspace(0, 4, 30):
        steps = list(range(1, 31))
        errors = None if sampling_error is None else [sampling_error] * 30
        shown = change_of_series(Series("reward", steps, curve.tolist(), sampling_errors=errors))
        log = [{"reward": value} for value in curve.tolist()]
        if sampling_error is not None:
            log = [{**row, "reward_se": sampling_error} for row in log]
        [gain] = gained(log, ["r"])
        assert gain.verdict.removesuffix(", by the whole curve") == shown["verdict"]
        assert gain.first == f"{shown['first']:.3f} ± {shown['first_error']:.3f}"
        assert shown["first_steps"] == [1, 5] and shown["last_steps"] == [26, 30]


def test_errors_of_evaluations_are_kept_however_many_there_are():
    values = [0.5 + 0.001 * (i % 2) for i in range(40)]
    change = curve_change(values, [0.03] * 40)
    assert (change.first_error, change.last_error) == pytest.approx((0.03, 0.03))
    assert change.verdict == UNCHANGED


def test_few_problems_need_a_larger_change():
    change = curve_change([0.2, 0.5], [0.1, 0.1], [200, 200])
    assert change.verdict == "rose"
    assert curve_change([0.2, 0.5], [0.1, 0.1], [3, 3]).verdict == UNCHANGED


def test_no_verdict_without_errors():
    assert curve_change([0.1, 0.9]).verdict is None
    assert curve_change([0.1, 0.9], [None, 0.1]).verdict is None
    assert curve_change([0.5] * 9 + [None]).verdict is None
    assert curve_change([0.5] * 10).verdict == UNCHANGED
    assert curve_change([]) is None is curve_change([None, math.nan])


@pytest.mark.parametrize(
    "values", [[1e308, -1e308] * 8, [0.0, 1e-320] * 8, list(map(float, range(5000))), [-0.0] * 12]
)
def test_odd_curves_of_a_log_are_no_error(values):
    with np.errstate(all="ignore"):
        assert curve_change(values).verdict in ("rose", UNCHANGED)


@given(st.lists(st.floats(-10, 10), min_size=10, max_size=60), st.floats(0.1, 10), st.floats(-5, 5))
def test_a_verdict_depends_on_neither_unit_nor_sign(values, unit, shift):
    rounded = [round(value, 3) for value in values]  # differences far above rounding
    verdict = curve_change(rounded).verdict
    moved = curve_change([unit * value + shift for value in rounded]).verdict
    mirrored = curve_change([-value for value in rounded]).verdict
    assert moved == verdict
    assert mirrored == {"rose": "fell", "fell": "rose"}.get(verdict, verdict)


@pytest.mark.parametrize("share, rows", [(0.97, 10), (0.5, 10), (0.02, 30), (0.99, 100)])
def test_intervals_of_shares_hold_the_truth(share, rows):
    """Exactly, over all counts of right rows: nominal up to what Wilson's interval can do, and
    never 27 %.
    """
    holds = 0.0
    for right in range(rows + 1):
        found = mean_of([1.0] * right + [0.0] * (rows - right))
        exact = binomtest(right, rows).proportion_ci(method="wilson")
        assert (found.low, found.high) == pytest.approx((exact.low, exact.high))
        assert found.error > 0
        chance = math.comb(rows, right) * share**right * (1 - share) ** (rows - right)
        holds += chance * (found.low <= share <= found.high)
    assert holds >= 0.89


@pytest.mark.parametrize("sampled", [False, True])
def test_intervals_with_several_rows_of_a_problem_hold_the_truth(sampled):
    """31 problems with four rows each, as greedy games (all four alike) or sampled ones; as
    independent rows 73 % held.
    """
    rng = np.random.default_rng(4)
    problems = [number for number in range(31) for _ in range(4)]
    holds = 0
    for _ in range(600):
        rates = rng.beta(2, 1, 31)  # mean 2/3
        if sampled:
            won = [float(rng.random() < rates[problem]) for problem in problems]
        else:
            once = rng.random(31) < rates
            won = [float(once[problem]) for problem in problems]
        found = mean_of(won, problems)
        assert found.problems == 31
        holds += found.low <= 2 / 3 <= found.high
    assert holds / 600 >= 0.93


def test_few_rows_have_intervals_by_t():
    values = [1.0, 2.0, 4.0, 7.0]
    found = mean_of(values)
    error = statistics.stdev(values) / 2
    low, high = t.interval(0.95, 3, loc=3.5, scale=error)
    assert (found.mean, found.error) == pytest.approx((3.5, error))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_equal_pairs_do_not_prove_that_all_are_equal():
    found = mean_difference([1.0] * 10, [1.0] * 10)
    assert found.mean == 0.0 and found.low < -0.1 and found.high > 0.1
    assert mean_difference([0.0] * 10, [1.0] * 10).verdict == "rose"
    assert mean_difference([0.0] * 3, [1.0] * 3).verdict == UNCHANGED


@pytest.mark.parametrize("pairs", [10, 30])
@pytest.mark.parametrize("gained_by", [0.0, 0.05, 0.2])
def test_differences_of_few_pairs_hold_the_truth(pairs, gained_by):
    """Pairs of right and wrong answers: the second model is also right where a share of the others
    was wrong.
    """
    rng = np.random.default_rng([5, pairs])
    holds = 0
    for _ in range(1000):
        before = (rng.random(pairs) < 0.7).astype(float)
        after = np.maximum(before, rng.random(pairs) < gained_by / 0.3)
        found = mean_difference(before, after)
        holds += found.low <= gained_by <= found.high
    assert holds / 1000 >= 0.94
