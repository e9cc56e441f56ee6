"""The num_generations that fits training rows, against sums over binomial distributions and
hypergeometric draws.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from grpo_ext.evaluation.group_size import (
    advice_on_group_size,
    best_group_size,
    mean_stds,
    size_of,
)
from grpo_ext.evaluation.score import Sample


def expected_std(p, size):
    """The expected std of a group of completions that each pass with probability p."""
    return sum(
        math.comb(size, k) * p**k * (1 - p) ** (size - k) * math.sqrt(k * (size - k)) / size
        for k in range(size + 1)
    )


def best_of(rates, largest):
    """The best group size of prompts with these pass rates."""
    signal = {
        size: np.mean([expected_std(p, size) for p in rates]) / math.sqrt(size)
        for size in range(2, largest + 1)
    }
    return max(signal, key=lambda size: signal[size]), signal


def test_the_std_of_random_groups_is_that_of_all_groups():
    scores = np.array([[1.0, 0, 0, 0, 0], [0.5, 1, 0, 0.25, 0], [1, 1, 1, 1, 1], [0.1] * 5])
    stds = mean_stds(scores)
    for row, of_row in zip(scores, stds, strict=True):
        for size, std in zip(range(2, 6), of_row, strict=True):
            exact = np.mean([np.std(group) for group in combinations(row, size)])
            error = 1e-12 if len(set(row)) < 3 else 0.02
            assert std == pytest.approx(exact, abs=error)
    assert not stds[2:].any()


@pytest.mark.parametrize("p", [0.5, 0.1, 0.05])
def test_the_best_size_of_prompts_with_one_pass_rate(p):
    rng = np.random.default_rng(1)
    scores = (rng.random((3000, 16)) < p).astype(float)
    size = size_of(scores, range(3000))
    wanted, signal = best_of([p], 16)
    assert abs(size.best - wanted) <= 1
    assert size.low <= wanted <= size.high
    for number, relative in size.efficiency.items():
        assert relative == pytest.approx(signal[number] / signal[wanted], abs=0.03)


def test_prompts_that_are_never_or_always_solved_change_nothing():
    rng = np.random.default_rng(2)
    some = (rng.random((500, 12)) < 0.2).astype(float)
    padded = np.concatenate([some, np.zeros((300, 12)), np.ones((200, 12))])
    one = size_of(some, range(500))
    other = size_of(padded, range(1000))
    assert one.best == other.best
    assert one.efficiency == pytest.approx(other.efficiency, abs=0.01)


def test_the_range_covers_the_best_size_about_as_often_as_it_says():
    wanted, _ = best_of([0.3, 0.05], 12)
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(40):
        rates = np.repeat([0.3, 0.05], 40)
        scores = (rng.random((80, 12)) < rates[:, None]).astype(float)
        size = size_of(scores, range(80))
        covered += size.low <= wanted <= size.high
    assert covered >= 34


def sample(row, score):
    return Sample(row, "text", {"right": score, "form": 1.0}, 3)


def test_rows_with_unscored_completions_are_left_out():
    rows = [[1.0, 0.0, 0.0, 0.0], [1.0, None, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    samples = [sample(i, score) for i, row in enumerate(rows) for score in row]
    size = best_group_size(samples, ["right"], 4)
    assert size == size_of(np.array([rows[0], rows[2]]), [0, 2])
    assert size.best == 4
    assert "rows: 4 or more (95 % range from 4). With 4 completions" in size.sentence(present=4)
    assert "To compare larger groups, use --num_samples 8." in size.sentence(present=4)
    line = size.sentence(present=2)
    share = f"{size.efficiency[2]:.0%}"
    assert (
        f"With the recipe's num_generations of 2, the signal-to-noise ratio is {share} of" in line
    )


def test_without_a_mixed_row_there_is_no_best_size():
    samples = [sample(row, score) for row, score in enumerate([1.0, 0.0]) for _ in range(4)]
    assert best_group_size(samples, ["right"], 4) is None
    assert "No num_generations up to 4 gives signal" in advice_on_group_size(None, 4, 8)
    assert best_group_size(samples, [], 4) is None
    assert "with a single completion of each row" in advice_on_group_size(None, 1, 8)


def test_one_row_has_no_range():
    size = best_group_size([sample(0, score) for score in (1.0, 0.0, 1.0)], ["right"], 3)
    assert (size.low, size.high) == (None, None)
    assert "range" not in size.sentence(3)
