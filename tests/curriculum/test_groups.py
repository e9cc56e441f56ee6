"""Judging groups, joining them, drawing further prompts, and what is said of it all."""

from __future__ import annotations

import math

import pytest
import torch
from datasets import Dataset
from grpo_ext.curriculum.groups import GroupRule, Groups, groups_to_draw, join_groups, silence
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.curriculum.group_log import WINDOW, GroupLog, merge_metrics
from grpo_ext.curriculum.prompt_supply import PromptSupply

NAN = math.nan


def test_groups_are_judged_by_what_varies_or_by_their_pass_rate():
    outcomes = torch.tensor([1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0.2, 0.4, 0, 0, 1, NAN, 1, 1, NAN, NAN, NAN, NAN])
    stats = GroupRule(4).judge(outcomes)
    assert stats.kept.tolist() == [False, False, True, True, False, False]
    assert stats.all_right.tolist() == [True, False, False, False, True, False]
    assert stats.all_wrong.tolist() == [False, True, False, False, False, True]
    assert (stats.right.tolist(), stats.scored.tolist()) == ([4, 0, 1, 0, 3, 0], [4, 4, 4, 4, 3, 0])
    bounded = GroupRule(4, pass_rate_bounds=(0.25, 0.75)).judge(outcomes)
    assert bounded.kept.tolist() == [False, False, True, False, False, False]
    assert GroupRule(4, pass_threshold=0.3).judge(outcomes).right.tolist() == [4, 0, 1, 1, 3, 0]


def table_of(lengths, first=0):
    """A table with one row a completion; token ids say which row they are of."""
    width, rows = max(lengths), len(lengths)
    ids = torch.arange(first, first + rows).unsqueeze(1).expand(-1, width)
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    return {
        "prompt_ids": ids[:, :1] + 100,
        "prompt_mask": torch.ones(rows, 1).long(),
        "completion_ids": ids * mask,
        "completion_mask": mask,
        "advantages": torch.ones(rows),
        "counted": torch.ones(rows),
        "signal": torch.ones(rows),
        "old_per_token_logps": -ids.float() * mask,
        "num_items_in_batch": mask.sum(),
    }


def groups_of(lengths, step, first=0):
    return Groups(
        table_of(lengths, first), torch.arange(first, first + len(lengths)).float(), (step,) * (len(lengths) // 2)
    )


def test_groups_of_several_generations_make_one():
    joined = join_groups([groups_of([1, 2, 3, 4], 7), None, groups_of([5, 1], 8, first=4)])
    assert joined.steps == (7, 7, 8)
    picked = joined.take([2, 0])
    assert picked.steps == (8, 7)
    assert picked.rewards.tolist() == [4, 5, 0, 1]
    assert picked.table["prompt_ids"].flatten().tolist() == [104, 105, 100, 101]
    assert picked.table["completion_mask"].sum(1).tolist() == [5, 1, 1, 2]
    assert picked.table["old_per_token_logps"][0].tolist() == [-4.0] * 5
    assert joined.take([1]).table["completion_ids"].shape == (2, 4)  # no wider than it need be
    assert joined.take([]) is None
    assert join_groups([None]) is None


def test_silenced_rows_count_nowhere():
    table = silence(table_of([3, 2]), torch.tensor([True, False]))
    assert table["completion_mask"].sum(1).tolist() == [0, 2]
    assert [table[name].tolist() for name in ("counted", "signal", "advantages")] == [[0, 1]] * 3


@settings(deadline=None)
@given(missing=st.integers(1, 40), kept=st.integers(0, 40), more=st.integers(0, 40), units=st.integers(1, 8))
def test_as_many_are_drawn_as_will_be_needed(missing, kept, more, units):
    most = 40 * units
    number = groups_to_draw(missing, kept, kept + more, most, units)
    assert number % units == 0 and missing <= number <= most
    if kept and number + units <= most:
        assert number * kept / (kept + more) >= missing - 1e-9
        assert (number - units) * kept / (kept + more) < missing


def rows_until(supply, *sizes):
    return [[row["n"] for row in supply.take(size)] for size in sizes]


@pytest.mark.parametrize("stream", [False, True])
def test_further_prompts_go_on_from_any_point(stream):
    rows = Dataset.from_list([{"n": n} for n in range(10)])
    make = lambda: PromptSupply(rows.to_iterable_dataset() if stream else rows, seed=3)  # noqa: E731
    supply = make()
    first, second = rows_until(supply, 7, 3)
    assert sorted(first + second) == list(range(10))
    again = rows_until(supply, 10)[0]
    assert sorted(again) == list(range(10)) and again != first + second
    supply.put([{"n": 50}, {"n": 51}])
    assert rows_until(supply, 1) == [[50]]
    other = make()
    other.load_state_dict(supply.state_dict())
    assert rows_until(other, 3, 9) == rows_until(supply, 3, 9)
    assert rows_until(make(), 7) == [first]
    assert rows_until(PromptSupply(rows, seed=4), 7) != [first]


def test_a_supply_without_rows_says_so():
    with pytest.raises(ValueError, match="no rows"):
        PromptSupply(Dataset.from_list([{"n": 1}]).to_iterable_dataset().filter(lambda row: False), 0).take(1)


def test_rounds_of_a_generation_are_one_value_in_the_logs():
    metrics = {
        "reward": [9.0, 1.0, 4.0],
        "a/max_length": [3.0, 5.0],
        "a/min_length": [3.0, 5.0],
        "x": [NAN, 2.0],
        "y": [1.0],
    }
    merge_metrics(metrics, {"reward": 1}, [30, 10])
    assert metrics == {"reward": [9.0, 1.75], "a/max_length": [5.0], "a/min_length": [3.0], "x": [2.0], "y": [1.0]}


def test_advice_comes_once_and_names_an_option():
    now = iter(range(1000))
    log = GroupLog("off", clock=lambda: next(now))
    stats = GroupRule(2).judge(torch.tensor([0, 0, 0, 0, 1, 1, 0, 1.0]))
    heard = []
    for _ in range(WINDOW):
        log.start()
        log.generated(stats)
        figures = log.figures()
        heard.append(log.advice())
    assert [i for i, text in enumerate(heard) if text] == [WINDOW // 2 - 1]
    text = heard[WINDOW // 2 - 1]
    assert "75% of the last 40 groups had no signal (25% all right, 50% all wrong)" in text
    assert "group_filter: refill" in text and "curriculum: adaptive" in text
    assert (
        figures["groups/kept"] == 1 and figures["groups/useful_per_second"] == 0.5
    )  # two ticks of the clock a generation
