"""Advantages of turns, against the formula written as loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.objective.advantage import group_advantages, turn_advantages

# Of eighths, which float32 adds without rounding: what is left of a rounding error would be divided
# by a std of about 0.
VALUES = st.integers(-24, 24).map(lambda eighths: eighths / 8)
EPISODES = st.lists(
    st.tuples(VALUES, st.lists(VALUES, min_size=1, max_size=4)), min_size=4, max_size=4
)


def by_loops(episodes, scale):
    """One group: G_ik = r_i - sum over j < k of g_ij, minus its mean over the episodes that have a
    turn k, over their std.
    """
    longest = max(len(gains) for _, gains in episodes)
    found = [[0.0] * longest for _ in episodes]
    for k in range(longest):
        to_go = {
            i: reward - sum(gains[:k])
            for i, (reward, gains) in enumerate(episodes)
            if k < len(gains)
        }
        mean = sum(to_go.values()) / len(to_go)
        squares = sum((value - mean) ** 2 for value in to_go.values())
        std = math.sqrt(squares / (len(to_go) - 1)) if len(to_go) > 1 else math.nan
        for i, value in to_go.items():
            found[i][k] = (value - mean) / (std + 1e-4) if scale == "group" else value - mean
        if len(to_go) == 1:
            found[next(iter(to_go))][k] = 0.0
    return found


@pytest.mark.parametrize("scale", ["group", "none"])
@settings(max_examples=100, deadline=None)
@given(first=EPISODES, second=EPISODES)
def test_they_are_those_of_the_formula(first, second, scale):
    both = [*first, *second]
    longest = max(len(gains) for _, gains in both)
    rewards = torch.tensor([reward for reward, _ in both], dtype=torch.float64)
    table = torch.zeros(8, longest, dtype=torch.float64)
    for i, (_, gains) in enumerate(both):
        table[i, : len(gains)] = torch.tensor(gains)
    turns = torch.tensor([len(gains) for _, gains in both])
    found = turn_advantages(rewards, table, turns, 4, scale)
    for wanted, part in ((by_loops(first, scale), found[:4]), (by_loops(second, scale), found[4:])):
        width = len(wanted[0])
        assert torch.allclose(part[:, :width], torch.tensor(wanted, dtype=torch.float64), atol=1e-6)
        assert not part[:, width:].any()


def test_episodes_of_one_turn_have_the_advantages_of_their_group():
    rewards = torch.tensor([1.0, 0.0, math.nan, 1.0, 2.0, 2.0, 2.0, 2.0])
    found = turn_advantages(rewards, torch.zeros(8, 1), torch.ones(8, dtype=torch.long), 4)
    assert torch.equal(found.squeeze(1), group_advantages(rewards, 4))
