"""Filling a step with groups that have signal, by a generation that is only pretended."""

from __future__ import annotations

import itertools

import pytest
import torch

from grpo_ext import GRPOExtConfig
from grpo_ext.step.groups import Groups
from grpo_ext.step.records import Scored
from grpo_ext.step.refill import RefillRule, not_too_old, refill

SIZE = 2
STEP = 5


def groups_of(prompts, step=STEP):
    """Two completions a prompt, whose tokens are the prompt's number."""
    rows = torch.tensor([p for p in prompts for _ in range(SIZE)]).unsqueeze(1)
    ones = torch.ones(len(rows))
    table = Scored(
        rows,
        torch.ones_like(rows),
        rows,
        torch.ones_like(rows),
        ones,
        ones,
        ones,
        ones,
        ones.long(),
    )
    return Groups(table, rows.float(), (step,) * len(prompts))


def numbers(groups):
    return [] if groups is None else groups.table.prompt_ids[::SIZE, 0].tolist()


class Run:
    """Prompts 1, 2, 3, ...

    Of which those in `dead` have no signal; `rounds` are the prompts of each generation.
    """

    def __init__(self, dead=(), **rule):
        self.dead, self.rounds, self.supply = set(dead), [], itertools.count(1)
        self.rule = RefillRule(**{"max_rounds": 4, "max_staleness": 1, "may_carry": True, **rule})

    def generate(self, prompts):
        self.rounds.append(prompts)
        return groups_of(prompts), torch.tensor([p not in self.dead for p in prompts])

    def __call__(self, wanted, carried=None, step=STEP):
        take = lambda number: list(itertools.islice(self.supply, number))  # noqa: E731
        return refill(wanted, take, self.generate, carried, step, self.rule)


def test_a_step_that_is_full_at_once_takes_one_round():
    run = Run()
    filled = run(4)
    assert run.rounds == [[1, 2, 3, 4]] and numbers(filled.groups) == [1, 2, 3, 4]
    assert (filled.used, filled.further, filled.missing, filled.carried) == (4, 0, 0, None)


def test_rounds_go_on_with_the_share_seen_so_far_and_the_rest_is_carried():
    run = Run(dead=[2, 3])
    filled = run(4)
    assert run.rounds == [
        [1, 2, 3, 4],
        [5, 6, 7, 8],
    ]  # half had signal: 4 for the 2 that are missing
    assert numbers(filled.groups) == [1, 4, 5, 6] and numbers(filled.carried) == [7, 8]
    assert (filled.used, filled.further, filled.reused, filled.missing) == (4, 4, 0, 0)


def test_where_nothing_may_be_carried_just_what_is_missing_is_drawn():
    run = Run(dead=[2, 3, 5], may_carry=False, max_staleness=0)
    filled = run(4)
    assert run.rounds == [[1, 2, 3, 4], [5, 6], [7]]
    assert numbers(filled.groups) == [1, 4, 6, 7] and filled.carried is None and filled.further == 3


def test_carried_groups_come_first_and_those_too_old_are_dropped():
    carried = groups_of([90], STEP - 2), groups_of([91], STEP - 1)
    both = Groups(
        groups_of([90, 91]).table, groups_of([90, 91]).rewards, carried[0].steps + carried[1].steps
    )
    run = Run()
    filled = run(3, both)
    assert run.rounds == [[1, 2]] and numbers(filled.groups) == [91, 1, 2]
    assert filled.groups.steps == (STEP - 1, STEP, STEP)
    assert (filled.expired, filled.reused, filled.further) == (1, 1, 0)


def test_more_carried_than_wanted_needs_no_generation_and_keeps_the_rest():
    run = Run()
    filled = run(2, groups_of([91, 92, 93]))
    assert (
        run.rounds == [] and numbers(filled.groups) == [91, 92] and numbers(filled.carried) == [93]
    )
    assert (filled.used, filled.reused, filled.further) == (2, 2, 0)


def test_when_the_rounds_run_out_silenced_groups_fill_the_step():
    run = Run(dead=range(2, 100), max_rounds=2)
    filled = run(3)
    assert len(run.rounds) == 3 and (filled.used, filled.missing) == (1, 2)
    assert numbers(filled.groups) == [1, 2, 3] and filled.carried is None
    assert filled.groups.table.counted.tolist() == [1, 1, 0, 0, 0, 0]
    assert filled.groups.table.completion_mask.sum(1).tolist() == [1, 1, 0, 0, 0, 0]
    assert filled.groups.rewards.isnan().flatten().tolist() == [False] * 2 + [True] * 4


def test_groups_come_in_multiples_of_the_unit():
    """Three ranks with groups of two: a generation has a multiple of three groups."""
    run = Run(dead=[1], unit=3)
    filled = run(6)
    assert list(map(len, run.rounds)) == [6, 3]
    assert numbers(filled.groups) == [2, 3, 4, 5, 6, 7] and numbers(filled.carried) == [8, 9]


def arguments(
    group: int, passes: int = 1, accumulation: int = 1, staleness: int = 1, overlap: str = "off"
) -> GRPOExtConfig:
    return GRPOExtConfig(
        report_to=[],
        per_device_train_batch_size=group,
        group_filter_max_rounds=4,
        max_staleness=staleness,
        steps_per_generation=passes,
        num_iterations=1,
        gradient_accumulation_steps=accumulation,
        num_generations=group,
        overlap=overlap,
    )


@pytest.mark.parametrize(
    "passes, accumulation, staleness, overlap, may_carry",
    [
        (1, 1, 0, "off", False),
        (1, 1, 1, "off", True),
        (4, 2, 1, "off", False),
        (4, 2, 2, "off", True),
        (4, 2, 2, "one_step", False),
        (4, 2, 4, "one_step", True),
    ],
)
def test_groups_are_carried_where_they_live_until_the_next_generation(
    passes, accumulation, staleness, overlap, may_carry
):
    assert (
        RefillRule.of(arguments(8, passes, accumulation, staleness, overlap), 1).may_carry
        is may_carry
    )


@pytest.mark.parametrize("group, ranks, unit", [(8, 1, 1), (8, 2, 1), (3, 2, 2), (4, 6, 3)])
def test_the_unit_gives_all_ranks_equally_many_completions(group, ranks, unit):
    assert RefillRule.of(arguments(group), ranks).unit == unit
    assert unit * group % ranks == 0


def test_freshness():
    assert not_too_old(None, 3, 1) == (None, 0)
    groups = groups_of([1, 2], 4)
    assert numbers(not_too_old(groups, 5, 1)[0]) == [1, 2] and not_too_old(groups, 6, 1) == (
        None,
        2,
    )
