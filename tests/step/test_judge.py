"""When a completion counts as cut off, and how rewards become advantages."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.objective.advantage import has_signal
from grpo_ext.step.judge import (
    AdvantageRule,
    EndRule,
    by_token,
    fill_unscored,
    group_outcomes,
    outcome_index,
    outcome_order,
)
from grpo_ext.step.records import Generation, table_of

NAN = math.nan
END = 2
PAD = 0


@pytest.mark.parametrize(
    "completion, truncated",
    [
        ([5, END], False),
        ([5, PAD], False),
        ([5, 6, 7, END], False),
        ([5, 6, 7, 8], True),
        ([5], True),
        ([], False),
    ],
)
def test_without_an_end_token_a_completion_is_truncated_however_short(completion, truncated):
    assert EndRule(frozenset((END, PAD)), limit=4).truncated([[1]], [completion]) == [truncated]


@pytest.mark.parametrize(
    "length, context, last, truncated",
    [
        (3, None, 7, False),
        (4, None, 7, True),
        (4, None, 8, False),
        (4, None, END, False),
        (2, 5, 7, False),
        (3, 5, 7, True),
        (3, 5, 8, False),
    ],
)
def test_a_stop_string_ends_what_is_shorter_than_its_room_or_ends_with_it(
    length, context, last, truncated
):
    """With a context of 5 and a prompt of 2 tokens there is room for 3. 8 is the stop string."""
    rule = EndRule(
        frozenset((END,)), limit=4, context=context, ends_with_string=lambda ids: ids[-1] == 8
    )
    assert rule.truncated([[1, 1]], [[7] * (length - 1) + [last]]) == [truncated]


def rule(**settings):
    return AdvantageRule(**{"num_generations": 3, "weights": torch.tensor([1.0, 0.5]), **settings})


REWARDS = torch.tensor([[1.0, 2.0], [0.0, NAN], [NAN, NAN], [1.0, 4.0], [1.0, 4.0], [1.0, 4.0]])


def test_the_weighted_sum_leaves_out_what_is_missing():
    found = rule().weighted(REWARDS)
    torch.testing.assert_close(found, torch.tensor([2.0, 0.0, NAN, 3.0, 3.0, 3.0]), equal_nan=True)
    signal = has_signal(rule().advantages(REWARDS), 3)
    assert signal.tolist() == [True] * 3 + [False] * 3


def float64(rows):
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("size", range(2, 65))
def test_a_group_of_equal_rewards_has_no_signal_whatever_their_arithmetic(size):
    """Sums that are equal on paper, with a missing reward, and with each reward normalized first:
    exactly 0.
    """
    same = float64([[0.7]] * size)
    mixed = float64([[0.1 + 0.2, 100.0] if i % 2 else [0.3, 100.0] for i in range(size)])
    traded = float64([[30.0, 10.0] if i % 2 else [60.0, 0.0] for i in range(size)])
    with_gap = float64([[0.7, 0.1]] * size)
    with_gap[0, 0] = NAN
    for weights, rewards in (
        ([0.3], same),
        ([1.0, 0.7], mixed),
        ([0.1, 0.3], traded),
        ([0.3, 0.6], fill_unscored(with_gap, size)),
    ):
        for aggregation in ("sum_then_normalize", "normalize_then_sum"):
            if rewards is traded and aggregation == "normalize_then_sum":
                continue  # each of the two rewards differs
            settings = rule(num_generations=size, weights=float64(weights), aggregation=aggregation)
            advantages = settings.advantages(rewards)
            assert not advantages.any(), (aggregation, rewards[0])
            assert not has_signal(advantages, size).any()


@pytest.mark.parametrize("offset", [0.0, 100.0, 1e6])
def test_a_group_that_cancels_beside_one_that_does_not_stays_without_signal(offset):
    """Normalized first, two opposed rewards add up to 0, and the batch divides by the std of the
    other group. Large rewards of small std have large rounding errors once they are normalized.
    """
    cancels = [[offset + 0.1, 0.9], [offset + 0.7, 0.3], [offset + 0.4, 0.6]]
    differs = [[0.0, 1.0], [1.0, 1.0], [0.5, 0.0]]
    settings = rule(weights=float64([0.3, 0.3]), aggregation="normalize_then_sum")
    advantages = settings.advantages(float64(cancels + differs))
    assert has_signal(advantages, 3).tolist() == [False] * 3 + [True] * 3


def test_rewards_that_float32_rounds_to_one_value_differ():
    advantages = rule(num_generations=2, weights=float64([1.0])).advantages(
        float64([[1e8], [1e8 + 1]])
    )
    assert advantages.tolist() == pytest.approx([-0.7071, 0.7071], abs=1e-3)


@pytest.mark.parametrize("size", [2, 5, 8])
def test_rewards_to_go_that_are_equal_by_arithmetic_have_no_signal(size):
    """Episodes earn .1 a turn after 100 in the first.

    Rewards to go are equal on paper in each turn.
    """
    gains = [[100.1, 0.1, 0.1] if i % 2 else [100.3 - 0.2, 0.1, 0.1] for i in range(size)]
    rewards = float64([[sum(row)] for row in gains])
    settings = rule(num_generations=size, weights=float64([1.0]))
    advantages = settings.turn_advantages(rewards, gains)
    assert not advantages.any()
    gains[0] = [100.1, 0.2, 0.0]
    rewards[0] = 100.3
    by_turn = settings.turn_advantages(rewards, gains).ne(0).any(0).tolist()
    assert by_turn == [False, False, True]
    assert has_signal(settings.turn_advantages(rewards, gains), size).all()


@pytest.mark.parametrize(
    "settings, wanted",
    [
        ({"scale_rewards": "none"}, [1.0, -1.0]),
        ({"scale_rewards": "group"}, [1 / (math.sqrt(2) + 1e-4), -1 / (math.sqrt(2) + 1e-4)]),
        (
            {"scale_rewards": "group", "std_estimator": "population"},
            [1 / (1 + 1e-4), -1 / (1 + 1e-4)],
        ),
        ({"scale_rewards": "batch"}, [1 / (statistics.stdev([2, 0, 3, 3, 3]) + 1e-4)] * 2),
    ],
)
def test_advantages_by_hand(settings, wanted):
    found = rule(**settings).advantages(REWARDS)
    assert found[:2].abs().tolist() == pytest.approx(list(map(abs, wanted)))
    assert found[0] > 0 > found[1]
    assert found[2:].tolist() == [0, 0, 0, 0]  # not scored, and a group without signal, exactly


def test_each_reward_by_itself_first():
    """GDPO (arXiv 2601.05242).

    Centered and scaled in its group, weighted and summed, centered and scaled over the batch.
    """
    generator = torch.Generator().manual_seed(0)
    rewards = torch.rand(12, 3, generator=generator).double()
    weights = [1.0, 0.3, 2.0]
    group = 4
    totals = []
    for i in range(12):
        first = i // group * group
        total = 0.0
        for r, weight in enumerate(weights):
            column = [float(rewards[j, r]) for j in range(first, first + group)]
            scaled = (float(rewards[i, r]) - statistics.mean(column)) / (
                statistics.stdev(column) + 1e-4
            )
            total += weight * scaled
        totals.append(total)
    wanted = [(t - statistics.mean(totals)) / (statistics.stdev(totals) + 1e-4) for t in totals]
    made = AdvantageRule(
        group, torch.tensor(weights, dtype=torch.float64), aggregation="normalize_then_sum"
    )
    assert made.advantages(rewards).tolist() == pytest.approx(wanted, abs=1e-9)


def test_each_reward_by_itself_keeps_what_the_sum_hides():
    """Two rewards that cancel in the sum: there is no signal in it, and there is in each."""
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    made = {"num_generations": 3, "weights": torch.tensor([1.0, 1.0])}
    assert AdvantageRule(**made).advantages(rewards).tolist() == [0.0] * 6
    uneven = {**made, "weights": torch.tensor([1.0, 0.5]), "aggregation": "normalize_then_sum"}
    found = AdvantageRule(**uneven).advantages(rewards)
    assert found[0] > 0 > found[1] and found[0] == pytest.approx(float(found[3]))


def test_each_reward_by_itself_with_a_completion_that_none_scored():
    rewards = torch.tensor([[1.0], [0.0], [NAN], [3.0], [1.0], [2.0]])
    made = AdvantageRule(3, torch.ones(1), aggregation="normalize_then_sum")
    found = made.advantages(rewards)
    assert found[2] == 0.0 and found.isfinite().all() and found[0] > 0 > found[1]


def test_the_outcome_is_the_named_reward_or_that_of_the_largest_weight():
    assert outcome_index(["a", "b", "c"], [1.0, 2.0, 2.0], None) == 1
    assert outcome_index(["a", "b", "c"], [1.0, 2.0, 2.0], "c") == 2
    with pytest.raises(ValueError, match=r"no reward 'd'\. The rewards are a, b, c"):
        outcome_index(["a", "b", "c"], [1.0, 2.0, 2.0], "d")


def test_each_token_has_the_advantage_of_its_turn():
    mask = [[1, 1, 0, 0, 1, 0, 1, 1], [1, 0, 1, 0, 0, 0, 0, 0]]
    generation = Generation([[1], [1]], [[5] * 8, [5] * 3], 0, tool_mask=[mask[0], mask[1][:3]])
    table = table_of(generation, 0, torch.zeros(2, dtype=torch.bool), "cpu")
    found = (
        by_token(table, torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 0.0]]))
        * table.tool_mask
        * table.completion_mask
    )
    assert found.tolist() == [[1, 1, 0, 0, 2, 0, 3, 3], [4, 0, 5, 0, 0, 0, 0, 0]]


def test_turns_have_signal_if_any_turn_of_the_group_has_an_advantage():
    of_turns = torch.tensor([[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert has_signal(of_turns, 2).tolist() == [False, False, True, True]
    assert has_signal(of_turns, 4).tolist() == [True] * 4


def test_a_group_is_judged_by_the_largest_reward_that_scored_it():
    order = outcome_order(["format", "math", "code", "logged"], [0.25, 1.0, 0.5, 0.0], None)
    assert order == [1, 2, 0]
    assert outcome_order(["a", "b", "c"], [1.0, 2.0, 0.5], "c") == [2, 1, 0]
    assert outcome_order(["a", "b"], [0.0, 0.0], None) == [0]
    rewards = torch.tensor(
        [
            [0.1, 1.0, NAN, 7.0],
            [0.2, NAN, NAN, 7.0],  # one row of the group is not scored
            [0.3, NAN, 0.0, 7.0],
            [0.4, NAN, 1.0, 7.0],
            [0.5, NAN, NAN, 7.0],
            [0.6, NAN, NAN, 7.0],
            [NAN, NAN, NAN, 7.0],
            [NAN, NAN, NAN, 8.0],
        ]
    )
    wanted = torch.tensor([1.0, NAN, 0.0, 1.0, 0.5, 0.6, NAN, NAN])
    torch.testing.assert_close(group_outcomes(rewards, order, 2), wanted, equal_nan=True)
    failed = torch.zeros(8, 4, dtype=torch.bool)
    # on one row of the first group, and on one of the third, which it does not score at all
    failed[[1, 4], [1, 1]] = True
    wanted[4:6] = NAN
    found = group_outcomes(rewards, order, 2, failed)
    torch.testing.assert_close(found, wanted, equal_nan=True)


@given(st.data())
def test_one_reward_that_scores_all_is_the_outcome_of_all(data):
    rows = data.draw(
        st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=2), min_size=4, max_size=4)
    )
    rewards = torch.tensor(rows)
    assert torch.equal(
        group_outcomes(rewards, outcome_order(["a", "b"], [1, 2], None), 2), rewards[:, 1]
    )
