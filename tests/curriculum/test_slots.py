"""Hard prompts take several slots of a generation, whose completions are one group."""

from __future__ import annotations

import math
from itertools import groupby

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.curriculum.pass_rates import PassRates
from grpo_ext.curriculum.sampler import PromptSampler
from grpo_ext.objective.advantage import group_advantages
from grpo_ext.step.groups import GroupShape

COUNTS = st.lists(
    st.integers(0, 16).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    min_size=1,
    max_size=12,
)


def rates_of(counts):
    start = {str(i): (right, samples) for i, (right, samples) in enumerate(counts)}
    return PassRates(list(map(str, range(len(counts)))), start=start)


@given(COUNTS, st.integers(2, 8), st.integers(1, 6))
def test_a_prompt_takes_the_fewest_slots_with_one_right_completion_expected(counts, size, most):
    for (right, samples), slots in zip(counts, rates_of(counts).slots(size, most), strict=True):
        expected = (right + 1) / (samples + 2) * size  # right completions in a slot
        assert 1 <= slots <= most
        assert slots == most or slots * expected >= 1 - 1e-6
        assert slots == 1 or (slots - 1) * expected < 1


@given(COUNTS, st.integers(2, 6), st.integers(1, 4), st.integers(1, 12), st.integers(0, 5))
def test_a_generation_has_as_many_completions_whatever_its_prompts_take(
    counts, size, most, prompts, seed
):
    prompts = min(prompts, len(counts))
    rates = rates_of(counts)
    sampler = PromptSampler(
        len(counts), prompts, size, 2, seed, rates=rates, floor=0.1, most_slots=most
    )
    indices = list(sampler)
    assert len(indices) == len(sampler)
    slots = rates.slots(size, most)
    a_generation = size * prompts
    for first in range(0, len(indices), 2 * a_generation):
        once = indices[first : first + a_generation]
        assert (
            indices[first + a_generation : first + 2 * a_generation] == once
        )  # for its second use
        runs = [(index, len(list(run))) for index, run in groupby(once)]
        assert len({index for index, _ in runs}) == len(runs)  # the slots of a prompt are adjacent
        assert all(length == size * slots[index] for index, length in runs[:-1])
        assert runs[-1][1] <= size * slots[runs[-1][0]]


def test_one_slot_each_is_the_order_without_slots():
    easy = [(8, 8)] * 9
    with_slots, without = (
        list(PromptSampler(9, 3, 4, 1, 5, rates=rates_of(easy), most_slots=most)) for most in (4, 1)
    )
    assert with_slots == without


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 99))
def test_groups_of_unequal_size_are_compared_each_by_itself(slots, seed):
    shape = GroupShape.of_slots([i for i, number in enumerate(slots) for _ in range(number)], 2)
    assert shape.sizes == tuple(2 * number for number in slots)
    generator = torch.Generator().manual_seed(seed)
    rewards = torch.randint(0, 3, (sum(shape.sizes),), generator=generator).double()
    rewards[torch.rand(len(rewards), generator=generator) < 0.2] = math.nan
    spread = shape.spread(rewards)
    assert spread.shape == (len(slots) * shape.largest,)
    assert torch.equal(shape.gather(spread).nan_to_num(nan=9.0), rewards.nan_to_num(nan=9.0))
    advantages = shape.gather(group_advantages(spread, shape.largest))
    for first, size in zip(shape.starts, shape.sizes, strict=True):
        alone = group_advantages(rewards[first : first + size], size)
        assert torch.allclose(advantages[first : first + size], alone, atol=1e-12)
    numbers = torch.arange(len(slots))
    assert shape.repeat(numbers).tolist() == shape.numbers


def test_the_chance_of_signal_is_that_of_the_whole_group():
    rates = rates_of([(0, 14), (8, 8)])
    assert rates.slots(4, 4).tolist() == [4, 1]
    chances = rates.chance_of_signal(4, 4)
    assert chances[0] == pytest.approx(rates.chance_of_signal(16)[0])
    assert chances[1] == pytest.approx(rates.chance_of_signal(4)[1])
