"""Figures of micro-batches and ranks become one value each, in one call to the other ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from grpo_ext.objective.policy import Stat
from grpo_ext.step.metrics import StepStats, length_figures, reward_figures, sampler_stats
from grpo_ext.step.records import Ranks

NAN = math.nan


def settled(*ranks):
    """What two ranks find together; each is a list of its micro-batches' figures."""
    sent = []
    for batches in ranks:  # first what each would send
        stats = StepStats()
        for figures in batches:
            stats.add(figures)
        stats.merge(Ranks(gather=lambda mine: (sent.append(mine), mine)[1]))
    found = []
    calls = []
    for batches in ranks:
        stats = StepStats()
        for figures in batches:
            stats.add(figures)
        found.append(
            stats.merge(Ranks(gather=lambda mine: (calls.append(mine), torch.cat(sent))[1]))
        )
    assert all(figures == found[0] for figures in found) and len(calls) == len(ranks)
    return found[0]


def test_means_are_weighted_over_micro_batches_and_ranks():
    first = [{"x": Stat(torch.tensor(6.0), torch.tensor(2))}, {"x": Stat(1.0, 1.0)}]
    assert settled(first, [{"x": Stat(9.0, 5.0)}]) == {"x": (6 + 1 + 9) / (2 + 1 + 5)}


def test_the_smallest_and_the_largest_of_all():
    first = [
        {"low": Stat(0.4, 3, "min"), "high": Stat(2.0, 3, "max")},
        {"low": Stat(0.7, 1, "min"), "high": Stat(1.0, 1, "max")},
    ]
    second = [{"low": Stat(0.5, 1, "min"), "high": Stat(3.0, 1, "max")}]
    assert settled(first, second) == {"high": 3.0, "low": pytest.approx(0.4)}


def test_a_micro_batch_or_a_rank_that_noted_nothing_is_left_out():
    """Weight 0 says that there was nothing to note: a least ratio of 0 would be a lie."""
    first = [{"mean": Stat(4.0, 2), "low": Stat(0.9, 2, "min"), "high": Stat(1.1, 2, "max")}]
    nothing = [{"mean": Stat(0.0, 0), "low": Stat(0.0, 0, "min"), "high": Stat(5.0, 0, "max")}]
    wanted = {"mean": 2.0, "low": pytest.approx(0.9), "high": pytest.approx(1.1)}
    assert settled(first, nothing) == wanted == settled(first + nothing, first)
    assert settled(nothing, nothing) == {}


def test_what_is_not_a_number_is_left_out_with_its_weight():
    first = [
        {"mean": Stat(NAN, 7), "low": Stat(NAN, 1, "min")},
        {"mean": Stat(4.0, 2), "low": Stat(0.3, 1, "min")},
    ]
    second = [{"mean": Stat(NAN, 1), "low": Stat(0.6, 1, "min")}]
    assert settled(first, second) == {"mean": 2.0, "low": pytest.approx(0.3)}
    assert settled([{"x": Stat(NAN)}], [{"x": Stat(NAN)}]) == {}


def test_a_step_begins_anew():
    stats = StepStats()
    stats.add({"x": Stat(1.0)})
    assert stats.merge(Ranks()) == {"x": 1.0}
    assert stats.merge(Ranks(gather=lambda mine: pytest.fail("there is nothing to send"))) == {}


def test_lengths_of_completions():
    figures = length_figures(torch.tensor([4, 0, 9, 7]), torch.tensor([False, False, True, False]))
    assert figures["completions/mean_length"] == 5 and figures["completions/clipped_ratio"] == 0.25
    assert (figures["completions/min_length"], figures["completions/max_length"]) == (0, 9)
    ended = [figures[f"completions/{name}_terminated_length"] for name in ("mean", "min", "max")]
    assert ended == [pytest.approx(11 / 3), 0, 7]
    assert (
        length_figures(torch.tensor([3]), torch.tensor([True]))[
            "completions/mean_terminated_length"
        ]
        == 0
    )


def test_rewards_of_completions():
    rewards = torch.tensor([[1.0, 2.0], [0.0, NAN], [NAN, NAN]])
    weighted = torch.tensor([2.0, 0.0, NAN])
    signal = torch.tensor([True, False, False])
    figures = reward_figures(["a", "b"], rewards, weighted, signal)
    assert (figures["rewards/a/mean"], figures["rewards/b/mean"], figures["reward"]) == (
        0.5,
        2.0,
        1.0,
    )
    assert figures["rewards/a/std"] == pytest.approx(math.sqrt(0.5)) and figures[
        "reward_std"
    ] == pytest.approx(math.sqrt(2))
    assert figures["frac_reward_zero_std"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("size", [1, 4])
def test_errors_of_rewards_are_of_the_mean_of_the_groups(size):
    """All groups have one size, so their means are a sample of independent values."""
    rewards = np.random.default_rng(1).normal(size=(6, size)) + np.arange(6)[:, None]
    column = torch.tensor(rewards).flatten()
    groups = torch.arange(6).repeat_interleave(size)
    figures = reward_figures(["a"], column[:, None], 2 * column, column > 0, groups)
    expected = rewards.mean(axis=1).std(ddof=1) / math.sqrt(6)
    assert figures["rewards/a/mean_se"] == pytest.approx(expected)
    assert figures["reward_se"] == pytest.approx(2 * expected)


def test_errors_of_rewards_leave_out_what_was_not_scored():
    """By the formula: with 2 groups, sums of deviations from the mean, twice the sum of squares."""
    rewards = torch.tensor([[1.0, NAN], [0.0, NAN], [NAN, 2.0], [3.0, 1.0], [NAN, NAN]])
    groups = torch.tensor([3, 3, 3, 5, 7])
    signal = torch.ones(5, dtype=torch.bool)
    figures = reward_figures(["a", "b"], rewards, rewards[:, 0], signal, groups)
    mean = 4 / 3
    squares = (1.0 + 0.0 - 2 * mean) ** 2 + (3.0 - mean) ** 2
    assert figures["rewards/a/mean_se"] == pytest.approx(math.sqrt(2 / 1 * squares) / 3)
    assert figures["rewards/b/mean_se"] == pytest.approx(0.5)
    alone = reward_figures(["a"], rewards[:3], rewards[:3, 0], signal[:3], groups[:3])
    assert "reward" in alone and not any(name.endswith("_se") for name in alone)  # one group


def test_how_far_scores_are_from_the_samplers_own():
    scored = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -9.0, 0.0]])
    sampled = torch.tensor([[-1.5, NAN, -3.0], [-0.5, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    weights = torch.tensor([[0.0], [1.5]])
    found = settled([sampler_stats(scored, sampled, mask, weights)])
    assert found["sampling/logp_difference/mean"] == pytest.approx(1 / 3)
    assert (
        found["sampling/logp_difference/max"] == 0.5
        and found["sampling/ratio/share_masked"] == 3 / 4
    )
    assert found["sampling/ratio/share_far"] == 2 / 3
    expected = ((math.exp(0.5) - 1 - 0.5) + 0 + (math.exp(-0.5) - 1 + 0.5)) / 3
    assert found["sampling/kl"] == pytest.approx(expected)
    ends = found["sampling/ratio/min"], found["sampling/ratio/max"]
    assert ends == (pytest.approx(math.exp(-0.5)), pytest.approx(math.exp(0.5)))
    by_token = torch.tensor([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])  # padding has the ratio 1
    assert (
        settled([sampler_stats(scored, sampled, mask, by_token)])["sampling/ratio/share_masked"]
        == 1 / 4
    )
    nothing = sampler_stats(scored, torch.full_like(sampled, NAN), mask, None)
    assert settled([nothing]) == {"sampling/ratio/share_masked": 0.0}
