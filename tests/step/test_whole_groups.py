"""Judging groups, joining them, and how many more are to be generated."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.step.groups import GroupRule, Groups, count, groups_to_draw, join_groups, silenced
from grpo_ext.step.records import Scored

NAN = math.nan


def test_groups_are_judged_by_what_varies():
    outcomes = torch.tensor(
        [1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0.2, 0.4, 0, 0, 1, NAN, 1, 1, NAN, NAN, NAN, NAN]
    )
    stats = GroupRule(4).judge(outcomes)
    assert stats.kept.tolist() == [False, False, True, True, False, False]
    assert stats.all_right.tolist() == [True, False, False, False, True, False]
    assert stats.all_wrong.tolist() == [
        False,
        True,
        False,
        False,
        False,
        False,
    ]  # of the last nothing is known
    assert (stats.right.tolist(), stats.scored.tolist()) == ([4, 0, 1, 0, 3, 0], [4, 4, 4, 4, 3, 0])
    assert GroupRule(4, pass_threshold=0.3).judge(outcomes).right.tolist() == [4, 0, 1, 1, 3, 0]


def table_of(lengths, first=0):
    """A table with one row a completion; token ids say which row they are of."""
    width = max(lengths)
    rows = len(lengths)
    ids = torch.arange(first, first + rows).unsqueeze(1).expand(-1, width)
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    return Scored(
        prompt_ids=ids[:, :1] + 100,
        prompt_mask=torch.ones(rows, 1).long(),
        completion_ids=ids * mask,
        completion_mask=mask,
        advantages=torch.ones(rows),
        counted=torch.ones(rows),
        signal=torch.ones(rows),
        policy_step=torch.zeros(rows),
        old_per_token_logps=-ids.float() * mask,
    )


def groups_of(lengths, step, first=0):
    """Groups of two; the rewards are the row's number and its double."""
    rewards = torch.arange(first, first + len(lengths)).float()
    return Groups(
        table_of(lengths, first),
        torch.stack([rewards, 2 * rewards], 1),
        (step,) * (len(lengths) // 2),
    )


def test_groups_of_several_generations_make_one():
    joined = join_groups([groups_of([1, 2, 3, 4], 7), None, groups_of([5, 1], 8, first=4)])
    assert joined.steps == (7, 7, 8)
    picked = joined.take([2, 0])
    assert picked.steps == (8, 7)
    assert picked.rewards.tolist() == [[4, 8], [5, 10], [0, 0], [1, 2]]
    assert picked.table.prompt_ids.flatten().tolist() == [104, 105, 100, 101]
    assert picked.table.completion_mask.sum(1).tolist() == [5, 1, 1, 2]
    assert picked.table.old_per_token_logps[0].tolist() == [-4.0] * 5
    assert joined.take([1]).table.completion_ids.shape == (2, 4)  # no wider than it need be
    assert joined.take([]) is None
    assert join_groups([None]) is None


def test_silenced_groups_count_nowhere():
    groups = silenced(groups_of([3, 2], 7))
    table = groups.table
    assert table.completion_mask.sum(1).tolist() == [0, 0] and table.completion_ids.shape == (2, 3)
    assert [x.tolist() for x in (table.counted, table.signal, table.advantages)] == [[0, 0]] * 3
    assert groups.rewards.isnan().all() and groups.steps == (7,)
    assert (count(None), count(groups)) == (0, 1)


@settings(deadline=None)
@given(
    missing=st.integers(1, 40),
    kept=st.integers(0, 40),
    more=st.integers(0, 40),
    units=st.integers(1, 8),
)
def test_as_many_are_drawn_as_will_be_needed(missing, kept, more, units):
    most = 40 * units
    number = groups_to_draw(missing, kept, kept + more, most, units)
    assert number % units == 0 and missing <= number <= most
    if kept and number + units <= most:
        assert number * kept / (kept + more) >= missing - 1e-9
        assert (number - units) * kept / (kept + more) < missing
