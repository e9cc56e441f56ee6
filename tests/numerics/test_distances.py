"""The distance between two sets of log-probs, against the formulas written out on numbers."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_ext.common.mismatch_bars import KL, MEAN_LOG_RATIO, SHARE_FAR
from grpo_ext.numerics.distances import BANDS, QUARTERS, by_position, by_probability, distance

MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
LOGPS = torch.tensor([[-0.5, -2.0, -1.0, -9.0], [-3.0, -0.05, -9.0, -9.0]])
DIFFERENCES = [[0.02, -0.3, 0.11, 5.0], [0.0, -0.09, 5.0, 5.0]]


def kept(rows):
    """The entries of nested lists where `MASK` is 1, row by row."""
    mask = MASK.tolist()
    return [
        [value for value, counts in zip(row, marks, strict=True) if counts]
        for row, marks in zip(rows, mask, strict=True)
    ]


def test_each_figure_is_that_of_its_formula():
    found = distance(LOGPS, LOGPS + torch.tensor(DIFFERENCES), MASK)
    rows = kept(DIFFERENCES)
    tokens = [value for row in rows for value in row]
    k3 = [math.exp(x) - 1 - x for x in tokens]
    assert found.tokens == 5 and found.not_finite == 0
    assert found.kl == pytest.approx(sum(k3) / 5, rel=1e-5)
    assert found.mean == pytest.approx(sum(map(abs, tokens)) / 5, rel=1e-5)
    assert found.largest == pytest.approx(0.3, rel=1e-5)
    far = [not 0.9 <= math.exp(x) <= 1.1 for x in tokens]
    assert found.share_far == sum(far) / 5 == 0.4
    # Liang and Zeger: the squared sums of the rows' deviations
    center = sum(k3) / 5
    sums = [sum(k - center for k in k3[:3]), sum(k - center for k in k3[3:])]
    assert found.kl_error == pytest.approx(
        math.sqrt(2 * (sums[0] ** 2 + sums[1] ** 2)) / 5, rel=1e-3
    )


def test_k3_estimates_the_divergence_of_two_distributions():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 50, generator=generator)
    scores[1] = scores[0] + 0.2 * scores[1]
    p, q = scores.double().softmax(-1)
    exact = (p * (p / q).log()).sum().item()
    drawn = p.multinomial(400_000, replacement=True, generator=generator)
    logps = p.log()[drawn].view(400, 1000)
    found = distance(logps, q.log()[drawn].view(400, 1000), torch.ones(400, 1000))
    assert abs(found.kl - exact) < 4 * found.kl_error < 0.05 * exact


def test_equal_log_probs_are_at_distance_zero():
    found = distance(LOGPS, LOGPS, MASK)
    assert (found.kl, found.mean, found.largest, found.share_far) == (0.0, 0.0, 0.0, 0.0)
    assert found.exceeded == []


def test_tokens_that_are_not_finite_are_counted_and_left_out():
    other = LOGPS.clone()
    other[0, 0] = math.nan
    other[1, 1] = -math.inf
    found = distance(LOGPS, other, MASK)
    assert found.tokens == 3 and found.not_finite == 2 and found.mean == 0.0
    assert found.exceeded == ["not finite"]
    nothing = distance(LOGPS, torch.full_like(LOGPS, math.nan), MASK)
    assert nothing.tokens == 0 and nothing.exceeded == ["not finite"]


def test_without_a_token_there_is_no_distance():
    assert distance(LOGPS, LOGPS, torch.zeros_like(MASK)) is None


def test_each_limit_is_told_by_name():
    ones = torch.ones(1, 1000)
    zeros = torch.zeros(1, 1000)
    above_kl = math.sqrt(2 * KL.limit) * 1.1  # k3 of a small x is x^2 / 2
    assert distance(zeros, zeros + above_kl, ones).exceeded == ["KL"]
    assert "mean" in distance(zeros, zeros - 1.01 * MEAN_LOG_RATIO.limit, ones).exceeded
    few = zeros.clone()
    few[0, : round(1000 * SHARE_FAR.limit) + 1] = -0.11
    assert distance(zeros, few, ones).exceeded == ["share"]


def test_quarters_are_those_of_each_completion():
    mask = torch.tensor([[1] * 8, [1] * 4 + [0] * 4])
    lengths = mask.sum(1)
    logps = torch.zeros(2, 8)
    other = torch.tensor([[1, 1, 2, 2, 3, 3, 4, 4], [1, 2, 3, 4, 9, 9, 9, 9]]).float()
    parts = by_position(logps, other, mask, lengths)
    assert list(parts) == list(QUARTERS)
    assert [part.mean for part in parts.values()] == pytest.approx([1, 2, 3, 4])
    assert [part.tokens for part in parts.values()] == [3, 3, 3, 3]


def test_bands_of_probability_have_every_token_once():
    p = torch.tensor([[0.95, 0.9, 0.7, 0.5], [0.3, 0.05, 0.01, 0.001]])
    logps = p.log()
    # rounding of the logarithm must not move a token over its border
    logps = logps + 1e-6
    parts = by_probability(logps, logps, torch.ones(2, 4))
    assert list(parts) == [name for _, name in BANDS]
    assert [part.tokens for part in parts.values()] == [2, 2, 1, 2, 1]
    empty = by_probability(logps[:1], logps[:1], torch.ones(1, 4))
    assert list(empty.values())[2:] == [None, None, None]
