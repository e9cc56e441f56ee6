"""Figures of an evaluation against brute force."""

from __future__ import annotations

import itertools
import math
import random
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.evaluation.completions import Completion
from grpo_ext.evaluation.score import (
    Sample,
    mixed_share,
    outcome_figures,
    over_rows,
    pass_at_k,
    row_means,
    score_completions,
    summarize,
)
from grpo_ext.objective.advantage import equal_in_group


def samples(scores):
    return [
        Sample(row, "", {"r": score}, 1)
        for row, row_scores in enumerate(scores)
        for score in row_scores
    ]


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(scores, k):
    expected = statistics.mean(
        statistics.mean(any(subset) for subset in itertools.combinations(row, k)) for row in scores
    )
    assert pass_at_k(samples(scores), "r", k)[0] == pytest.approx(expected)


def test_pass_at_k_refuses_too_few_samples():
    with pytest.raises(ValueError, match="pass@3 needs 3"):
        pass_at_k(samples([[1.0, 0.0]]), "r", 3)


def test_unscored_samples_leave_the_mean():
    mean, error = over_rows(row_means(samples([[1.0, None], [0.0, 0.0], [None, None]]), "r"))
    assert mean == 0.5
    assert error == pytest.approx(0.5)  # two rows at 1 and 0: s = 0.7071, / sqrt(2)


def test_the_standard_error_covers_the_truth():
    """Rows with their own pass rates, eight samples each: a 95 % interval holds the true mean about 95 % of the time."""
    rng = random.Random(0)
    hits, trials = 0, 400
    for _ in range(trials):
        rates = [rng.random() for _ in range(100)]
        scores = [[float(rng.random() < rate) for _ in range(8)] for rate in rates]
        mean, error = over_rows(row_means(samples(scores), "r"))
        hits += abs(mean - 0.5) <= 1.96 * error
    assert 0.92 <= hits / trials <= 0.98


def test_rewards_get_what_trl_would_give_them():
    seen = {}

    def reward(prompts, completions, completion_ids, target, **kwargs):
        seen.update(
            prompts=prompts,
            completions=completions,
            ids=completion_ids,
            target=target,
            rest=sorted(kwargs),
        )
        return [1.0, 0.0, None]

    chat = [{"role": "user", "content": "?"}]
    rows = [
        {"prompt": chat, "target": 3, "completion": "gold"},
        {"prompt": chat, "target": 4, "completion": "gold"},
    ]
    scored = score_completions(
        rows,
        [[Completion("a", [1]), Completion("b", [2, 3])], [Completion("c", [4])]],
        {"r": reward},
    )
    assert seen["completions"] == [[{"role": "assistant", "content": text}] for text in "abc"]
    assert seen["target"] == [3, 3, 4]
    assert seen["ids"] == [[1], [2, 3], [4]]
    assert seen["rest"] == []
    assert [(s.row, s.text, s.rewards["r"], s.length) for s in scored] == [
        (0, "a", 1.0, 1),
        (0, "b", 0.0, 2),
        (1, "c", None, 1),
    ]


def test_summary_has_means_errors_and_length():
    named = summarize([Sample(0, "", {"length": 0.5}, 10)], ["length"])
    assert named["length"] == 0.5 and named["completion_length"] == 10
    summary = summarize([Sample(0, "", {"r": 1.0}, 10), Sample(1, "", {"r": 0.0}, 20)], ["r"])
    assert summary == {"r": 0.5, "r_se": pytest.approx(math.sqrt(0.25)), "length": 15}


def test_figures_of_an_outcome():
    """Two rows of four: one solved twice (with 1 and 2), one never, though half a point was given."""
    figures = outcome_figures(samples([[1.0, 2.0, 0.0, None], [0.5, 0.0, 0.0, 0.0]]), "r", 4)
    assert figures == {
        "pass@1": 0.25,
        "pass@1_se": pytest.approx(0.25),  # of 0.5 and 0
        "mean@4": pytest.approx((1.0 + 0.125) / 2),
        "mean@4_se": pytest.approx((1.0 - 0.125) / 2),
        "pass@4": 0.5,
        "pass@4_se": pytest.approx(0.5),
        "mixed@4": 1.0,
        "mixed@4_se": 0.0,
    }
    assert list(outcome_figures(samples([[1.0], [0.0]]), "r", 1)) == ["pass@1", "pass@1_se"]


def test_rows_whose_scores_differ_have_signal_as_in_training():
    rows = [
        [1.0, 0.0, None],
        [0.3, 0.1 + 0.2, 0.3],
        [None, 1.0, 1.0],
        [0.5, 0.5, 0.25],
        [None, None, None],
    ]
    share, error = mixed_share(samples(rows), "r")
    trained = torch.tensor(
        [row for row in rows if None not in row]
    ).flatten()  # float32, in which 0.3 is 0.1 + 0.2
    assert (~equal_in_group(trained, 3)).view(-1, 3)[:, 0].tolist() == [False, True]
    assert (share, error) == (0.5, pytest.approx(math.sqrt(1 / 3 / 4)))


def test_the_error_of_pass_at_k_is_that_of_fresh_rows():
    """Its square against the variance of the estimate over 300 draws of 60 rows, 6 samples each."""
    rng = random.Random(1)
    draws = []
    for _ in range(300):
        rates = [rng.random() ** 2 for _ in range(60)]
        draws.append(
            pass_at_k(samples([[float(rng.random() < r) for _ in range(6)] for r in rates]), "r", 3)
        )
    spread = statistics.stdev(mean for mean, _ in draws)
    assert statistics.mean(error for _, error in draws) == pytest.approx(spread, rel=0.15)
    assert statistics.mean(mean for mean, _ in draws) == pytest.approx(
        1 - 16 / 35, abs=0.01
    )  # 1 - E[(1 - u^2)^3]
