"""Figures of an evaluation against brute force."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from grpo_ext.environments.base import Environment
from grpo_ext.environments.guess import Guess
from grpo_ext.evaluation.completions import Completion
from grpo_ext.evaluation.problem import problem_of
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
from grpo_ext.rewards import build, register


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
    assert pass_at_k(samples(scores), "r", k).mean == pytest.approx(expected)


def test_pass_at_k_refuses_too_few_samples():
    with pytest.raises(ValueError, match="pass@3 needs at least 3"):
        pass_at_k(samples([[1.0, 0.0]]), "r", 3)


def test_unscored_samples_leave_the_mean():
    some = samples([[1.0, None], [0.0, 0.0], [None, None]])
    found = over_rows(some, row_means(some, "r"))
    assert found.mean == 0.5
    assert found.error == pytest.approx(0.5)  # two rows at 1 and 0: s = 0.7071, / sqrt(2)


def test_the_standard_error_covers_the_truth():
    """Rows with their own pass rates, eight samples each.

    A 95 % interval holds the true mean about 95 % of the time.
    """
    rng = random.Random(0)
    hits = 0
    trials = 400
    for _ in range(trials):
        rates = [rng.random() for _ in range(100)]
        scores = [[float(rng.random() < rate) for _ in range(8)] for rate in rates]
        some = samples(scores)
        found = over_rows(some, row_means(some, "r"))
        hits += found.low <= 0.5 <= found.high
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
    """Two rows of four.

    One solved twice (with 1 and 2), one never, though half a point was given.
    """
    figures = outcome_figures(samples([[1.0, 2.0, 0.0, 1.0], [0.5, 0.0, 0.0, 0.0]]), "r", 4)
    of_two = wilson_width(2, 2) / 2 / 1.959964
    assert figures == {
        "pass@1": 0.375,
        "pass@1_se": pytest.approx(0.375),  # of 0.75 and 0
        "mean@4": pytest.approx((1.0 + 0.125) / 2),
        "mean@4_se": pytest.approx((1.0 - 0.125) / 2),
        "pass@4": 0.5,
        "pass@4_se": pytest.approx(0.5),
        "mixed@4": 1.0,
        "mixed@4_se": pytest.approx(of_two),  # two of two are not all
    }
    assert list(outcome_figures(samples([[1.0], [0.0]]), "r", 1)) == ["pass@1", "pass@1_se"]


def wilson_width(count, rows):
    interval = binomtest(count, rows).proportion_ci(method="wilson")
    return interval.high - interval.low


def test_no_figure_counts_completions_without_a_score():
    """A row without any score, as of another task, leaves all figures.

    A missing score is no failure.
    """
    some = samples([[1.0, 1.0, 1.0, None], [None] * 4, [0.0, 0.0, 0.0, 0.0]])
    figures = outcome_figures(some, "r", 4)
    assert figures["pass@1"] == figures["mean@4"] == 0.5
    assert figures["pass@4"] == 0.0  # of the only row with four scores
    figures = outcome_figures(samples([[None, None]]), "r", 2)
    assert figures["pass@1"] is None is figures["mean@2"] is figures["pass@2"]


def test_rows_whose_scores_differ_have_signal_as_in_training():
    rows = [
        [1.0, 0.0, None],
        [0.3, 0.1 + 0.2, 0.3],
        [None, 1.0, 1.0],
        [0.5, 0.5, 0.25],
        [None, None, None],
    ]
    share = mixed_share(samples(rows), "r")
    trained = torch.tensor(
        [row for row in rows if None not in row]
    ).flatten()  # float32, in which 0.3 is 0.1 + 0.2
    assert (~equal_in_group(trained, 3)).view(-1, 3)[:, 0].tolist() == [False, True]
    assert (share.mean, share.error) == (0.5, pytest.approx(math.sqrt(1 / 3 / 4)))


def test_the_error_of_pass_at_k_is_that_of_fresh_rows():
    """Its square against the variance of the estimate over 300 draws of 60 rows, 6 samples each."""
    rng = random.Random(1)
    draws = []
    for _ in range(300):
        rates = [rng.random() ** 2 for _ in range(60)]
        draws.append(
            pass_at_k(samples([[float(rng.random() < r) for _ in range(6)] for r in rates]), "r", 3)
        )
    spread = statistics.stdev(draw.mean for draw in draws)
    assert statistics.mean(draw.error for draw in draws) == pytest.approx(spread, rel=0.15)
    assert statistics.mean(draw.mean for draw in draws) == pytest.approx(
        1 - 16 / 35, abs=0.01
    )  # 1 - E[(1 - u^2)^3]


def test_rows_with_one_prompt_count_once():
    """Four copies of each of ten problems say as much as the ten."""
    scores = [1.0, 0.0, 0.5, 0.25, 0.0, 1.0, 1.0, 0.75, 0.5, 0.5]
    rows = [
        {"prompt": f"problem {i}", "gold": i, "id": 10 * k + i} for k in range(4) for i in range(10)
    ]

    @register("by_gold")
    def by_gold(completions, gold):
        return [scores[number] for number in gold]

    reward = build("by_gold")

    made = [[Completion(row["prompt"].split()[1], [1])] for row in rows]
    copies = summarize(score_completions(rows, made, {"r": reward}), ["r"])
    once = summarize(score_completions(rows[:10], made[:10], {"r": reward}), ["r"])
    assert copies["r"] == pytest.approx(once["r"])
    assert copies["r_se"] == pytest.approx(once["r_se"])
    one_prompt = [{**row, "prompt": "?"} for row in rows[:10]]  # each gold is another problem
    asked = summarize(score_completions(one_prompt, made[:10], {"r": reward}), ["r"])
    assert asked["r_se"] == pytest.approx(once["r_se"])


def test_games_with_one_number_count_once():
    """`guess` draws the same number for every 31st seed."""
    games = []
    for seed in (3, 34, 4):
        game = Guess()
        game.reset({"seed": seed})
        games.append(SimpleNamespace(environment=game, seed=seed, single_turn=False))
    problems = [problem_of({"prompt": "?"}, Completion("", [], episode=game), []) for game in games]
    assert problems[0] == problems[1] != problems[2]
    plain = SimpleNamespace(environment=Environment(), seed=3, single_turn=False)
    other = SimpleNamespace(environment=Environment(), seed=34, single_turn=False)
    assert problem_of({"prompt": "?"}, Completion("", [], episode=plain), []) != problem_of(
        {"prompt": "?"}, Completion("", [], episode=other), []
    )
