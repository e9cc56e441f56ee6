"""The order of prompts.

TRL's where nothing is asked for, and by what is known of them where it is.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.trainer.utils import RepeatSampler

from grpo_ext.common.hashes import prompt_id
from grpo_ext.curriculum.difficulty import difficulty_fault, from_easy_to_hard
from grpo_ext.curriculum.pass_rates import PassRates, read_pass_rates
from grpo_ext.curriculum.sampler import PromptSampler
from tests.support.logs import write_json_rows

NAMES = [f"prompt {i}" for i in range(12)]


@settings(deadline=None)
@given(
    rows=st.integers(1, 30),
    prompts=st.integers(1, 6),
    seed=st.integers(0, 9),
    shuffle=st.booleans(),
)
def test_without_a_curriculum_the_order_is_that_of_trl_in_every_epoch(rows, prompts, seed, shuffle):
    theirs = RepeatSampler(range(rows), 2, prompts, 3, shuffle, seed)
    ours = PromptSampler(rows, prompts, 2, 3, seed, shuffle)
    assert len(ours) == len(theirs)
    for epoch in range(3):
        ours.set_epoch(epoch)
        wanted = list(theirs)
        assert list(ours) == wanted
    fresh = PromptSampler(rows, prompts, 2, 3, seed, shuffle)  # as after a resume
    fresh.set_epoch(2)
    assert list(fresh) == wanted


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=5),
    st.integers(2, 16),
)
def test_the_chance_of_signal_is_that_of_a_beta(counts, size):
    rates = PassRates(list(map(str, range(len(counts)))))
    for i, (right, wrong) in enumerate(counts):
        rates.observe(str(i), right, right + wrong)
    p = (np.arange(20_000) + 0.5) / 20_000
    for (right, wrong), chance in zip(counts, rates.chance_of_signal(size), strict=True):
        density = p**right * (1 - p) ** wrong
        wanted = (density * (1 - p**size - (1 - p) ** size)).sum() / density.sum()
        assert chance == pytest.approx(wanted, abs=1e-5)


def test_counts_decay_and_rows_with_one_prompt_share_them():
    rates = PassRates(["a", "b", "a"], decay=0.5, start={"a": (4, 8)})
    rates.observe("a", 4, 4)
    rates.observe("elsewhere", 4, 4)
    assert rates.state_dict() == {"right": [6, 0], "samples": [8, 0]}
    chances = rates.chance_of_signal(2).tolist()
    assert chances[0] == chances[2] != chances[1]
    for _ in range(80):
        rates.observe("a", 4, 4)
    other = PassRates(["a", "b", "a"])
    other.load_state_dict(rates.state_dict())
    assert other.state_dict() == rates.state_dict()
    with pytest.raises(ValueError, match="pass rates for 2 prompts, but the dataset has 3"):
        PassRates(["a", "b", "c"]).load_state_dict(rates.state_dict())


def known():
    """Prompts 0 to 3 always solved, 4 to 7 in half, 8 to 11 never."""
    rates = PassRates(NAMES)
    for i, name in enumerate(NAMES):
        rates.observe(name, (16, 8, 0)[i // 4], 16)
    return rates


def shares(**kwargs):
    drawn = Counter()
    sampler = PromptSampler(12, 1, 8, 1, 5, rates=known(), **kwargs)
    for epoch in range(200):
        sampler.set_epoch(epoch)
        drawn.update(index // 4 for index in sampler)
    return [drawn[kind] / drawn.total() for kind in range(3)]


def test_adaptive_draws_what_has_signal_and_lets_nothing_starve():
    chance = known().chance_of_signal(8)
    wanted = [0.7 * chance[i] / chance.sum() * 4 + 0.3 / 3 for i in (0, 4, 8)]
    assert shares(floor=0.3) == pytest.approx(wanted, abs=0.03)  # 2,400 draws
    assert wanted[1] > 0.5 and min(wanted) > 0.1


def test_an_epoch_begun_again_is_the_same_although_more_is_known():
    """As a trainer resumes: the epoch's generations are gone through again up to where it was."""
    whole = PromptSampler(12, 3, 2, 1, 7, rates=known())
    going = iter(whole)
    first = [next(going) for _ in range(12)]  # two generations
    whole.rates.observe(NAMES[0], 0, 16)
    state = whole.state_dict()
    rest = list(going)
    again = PromptSampler(12, 3, 2, 1, 7, rates=known())
    again.load_state_dict(state)
    again.set_epoch(0)
    assert list(again) == first + rest
    assert again.draw_further(5, 40) == whole.draw_further(5, 40) != whole.draw_further(5, 45)


def test_pass_rates_are_counted_from_completions(tmp_path):
    path = tmp_path / "rates_completions.jsonl"
    chat = [{"role": "user", "content": "two"}]
    rows = [
        {"prompt": "one", "part": part, "rewards": {"right": x}}
        for part, x in (("greedy", 1.0), ("sampled", 0.9))
    ]
    rows += [
        {"prompt": "one", "part": "sampled", "rewards": {"right": x}} for x in (2.0, 1.0, None)
    ]
    rows += [
        {"step": 3, "prompt": chat, "rewards": {"right": 0.0, "form": 1.0}}
    ]  # as a run's samples.jsonl has it
    write_json_rows(path, rows)
    assert read_pass_rates(path, ["right"], 1.0) == {
        prompt_id("one"): (2, 3),
        prompt_id(chat): (0, 1),
    }
    for bad in (
        "{",
        '{"prompt": "x"}',
        '{"prompt": "x", "rewards": {"form": 1.0}}',
        '{"prompt": "x", "rewards": {"right": "1"}}',
    ):
        (tmp_path / "bad.jsonl").write_text(bad + "\n")
        with pytest.raises(
            ValueError, match=r"bad\.jsonl:1: the line is not a completion with the reward right"
        ):
            read_pass_rates(tmp_path / "bad.jsonl", ["right"], 1.0)


def test_adaptive_draws_one_after_another_without_replacement():
    """How often each prompt is in a generation of two, beside the sum over both orders in which
    they can be drawn.
    """
    ids = [prompt_id(str(i)) for i in range(4)]
    counts = zip(ids, (40, 80, 0, 80), strict=True)
    rates = PassRates(ids, start={key: (right, 80) for key, right in counts})
    weights = rates.chance_of_signal(4)
    weights = 0.9 * weights / weights.sum() + 0.1 / 4
    wanted = [
        p + sum(q * p / (1 - q) for k, q in enumerate(weights) if k != i)
        for i, p in enumerate(weights)
    ]
    sampler = PromptSampler(4, 2, 4, 1, seed=0, rates=rates, floor=0.1)
    drawn = Counter(i for n in range(8000) for i in sampler.draw_further(2, n))
    assert [drawn[i] / 8000 for i in range(4)] == pytest.approx(wanted, abs=0.02)
    assert wanted[0] < 1 < 2 * weights[0]  # twice the weight would be more than one draw


def generations(sampler, epochs):
    """The prompts of each generation of a run of so many epochs."""
    found = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        indices = list(sampler)
        size = sampler.prompts * sampler.num_generations * sampler.repeat_count
        for start in range(0, len(indices), size):
            whole = indices[start : start + size]
            once = whole[: sampler.prompts * sampler.num_generations]
            assert whole == once * sampler.repeat_count
            found.append(once[:: sampler.num_generations])
    return found


@settings(deadline=None)
@given(
    hard=st.lists(st.integers(0, 5), min_size=1, max_size=30),
    prompts=st.integers(1, 6),
    epochs=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_easy_to_hard_goes_once_from_the_easiest_to_the_hardest(hard, prompts, epochs, seed):
    rows = len(hard)
    in_all = epochs * (rows // prompts)
    order = from_easy_to_hard(hard, seed)
    sampler = PromptSampler(rows, prompts, 2, 3, seed, easy_first=order, generations=in_all)
    found = generations(sampler, epochs)
    assert len(found) == in_all
    for one in found:
        assert len(set(one)) == prompts, "a prompt twice in one generation"
    levels = [[hard[row] for row in one] for one in found]
    for before, after in pairwise(levels):
        assert all(a <= b for a, b in zip(before, after, strict=True))
    if in_all > 1:
        assert levels[0] == sorted(hard)[:prompts] and levels[-1] == sorted(hard)[-prompts:]
    if epochs == 1 and rows % prompts == 0:
        assert sorted(row for one in found for row in one) == list(range(rows))
    fresh = PromptSampler(rows, prompts, 2, 3, seed, easy_first=order, generations=in_all)
    fresh.load_state_dict(sampler.state_dict())
    assert generations(fresh, epochs) == found


def test_a_long_run_takes_the_middle_rows_as_often_as_it_has_epochs():
    order = from_easy_to_hard(range(40), 0)
    sampler = PromptSampler(40, 4, 2, 1, 0, easy_first=order, generations=50)
    counts = Counter(row for one in generations(sampler, 5) for row in one)
    middle = [counts[row] for row in range(8, 32)]
    assert min(middle) >= 5 and max(middle) <= 6 and min(counts.values()) >= 1
    short = PromptSampler(40, 4, 2, 1, 0, easy_first=order, generations=3)
    assert generations(short, 1)[:3] == [[0, 1, 2, 3], [18, 19, 20, 21], [36, 37, 38, 39]]


def test_equal_rows_are_ordered_by_the_seed():
    one, two = (from_easy_to_hard([1, 0] * 20, seed) for seed in (0, 1))
    assert one != two and one == from_easy_to_hard([1, 0] * 20, 0)
    assert set(one[:20]) == set(two[:20]) == set(range(1, 40, 2))
    assert one[:20] != sorted(one[:20])


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        (
            "levle",
            [1],
            "the data has no column 'levle'. Did you mean 'level'? Its columns: prompt, level.",
        ),
        (
            "level",
            [1, None],
            "must have a number in each row, the lowest for the easiest; row 2 has None.",
        ),
        ("level", ["Level 3"], "row 1 has 'Level 3'."),
        ("level", [1.0, float("nan")], "row 2 has nan."),
    ],
)
def test_a_column_that_says_no_difficulty_is_told(column, values, words):
    fault = difficulty_fault(column, ["prompt", "level"], lambda: values)
    assert fault.endswith(words)
    assert difficulty_fault("level", ["prompt", "level"], lambda: [1, 2.5, True]) is None
