"""Drawing further prompts, and what is said of the groups of a generation."""

from __future__ import annotations

import math

import pytest
import torch
from datasets import Dataset

from grpo_ext.curriculum.sampler import PromptSupply
from grpo_ext.step.groups import GroupRule
from grpo_ext.step.metrics import GroupLog


def rows_until(supply, *sizes):
    return [[row["n"] for row in supply.take(size)] for size in sizes]


@pytest.mark.parametrize("stream", [False, True])
def test_further_prompts_go_on_from_any_point(stream):
    rows = Dataset.from_list([{"n": n} for n in range(10)])

    def make() -> PromptSupply:
        return PromptSupply(rows.to_iterable_dataset() if stream else rows, seed=3)

    supply = make()
    first, second = rows_until(supply, 7, 3)
    assert sorted(first + second) == list(range(10))
    again = rows_until(supply, 10)[0]
    assert sorted(again) == list(range(10)) and again != first + second
    supply.put([{"n": 50}, {"n": 51}])
    assert [row["n"] for row in supply.peek(1)] == [50]
    assert rows_until(supply, 1) == [[50]]
    other = make()
    other.load_state_dict(supply.state_dict())
    assert rows_until(other, 3, 9) == rows_until(supply, 3, 9)
    assert rows_until(make(), 7) == [first]
    peeking = make()
    assert [row["n"] for row in peeking.peek(4)] == first[:4] and rows_until(peeking, 7, 3) == [
        first,
        second,
    ]
    assert rows_until(PromptSupply(rows, seed=4), 7) != [first]


def test_a_supply_without_rows_says_so():
    with pytest.raises(ValueError, match="the training stream yielded no rows"):
        PromptSupply(
            Dataset.from_list([{"n": 1}]).to_iterable_dataset().filter(lambda row: False), 0
        ).take(1)


def test_the_figures_of_a_generation():
    log = GroupLog()
    stats = GroupRule(2).judge(torch.tensor([0, 0, 0, 0, 1, 1, 0, 1.0]))
    for _ in range(2):
        log.start()
        log.generated(stats, torch.tensor([0.0, 0.0, math.nan, 0.5]))
        figures = log.figures()
    assert (figures["groups/all_right"], figures["groups/all_wrong"], figures["groups/mixed"]) == (
        0.25,
        0.5,
        0.25,
    )
    assert figures["groups/kept"] == 1
    assert figures["groups/reward_std"] == pytest.approx(0.5 / 3)
    log.start()
    unscored = torch.full((2,), math.nan)
    log.generated(GroupRule(2).judge(torch.tensor([0, 1, math.nan, math.nan])), unscored)
    assert "groups/reward_std" not in log.figures()
    assert log.figures()["groups/mixed"] == 0.5  # a group that was not scored is none of the three
