"""What a reward does to its arguments, to random numbers, to the directory and to the process ends
with its call.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
from types import SimpleNamespace

import numpy
import pytest
import torch

from grpo_ext.rewards import Example, build, register
from grpo_ext.rewards.example_checks import constant_warning
from grpo_ext.rewards.guard import AsyncGuard, Guard
from tests.support.forked import LIMIT
from tests.support.registry_state import registry_as_before

TEXTS = ["a", "bb", "ccc"]


def lengths(completions):
    return [float(len(text)) for text in completions]


def draws() -> tuple:
    return random.random(), float(numpy.random.rand()), float(torch.rand(()))


def test_a_reward_that_adds_completions_is_as_wrong_as_one_that_returns_too_many():
    def appends(completions, **columns):
        completions.append("d")
        return lengths(completions)

    guard = Guard(appends)
    assert guard(completions=list(TEXTS)) == [None] * 3
    assert "returned 2 scores for 1 completion" in guard.last_error


def test_a_reward_that_clears_its_completions_and_raises_leaves_a_score_for_each():
    def clears(completions, gold, **columns):
        whole = len(completions) > 1
        found = lengths(completions)
        completions.clear()
        gold.clear()
        if whole:
            raise ValueError("not so many")
        return found

    texts = list(TEXTS)
    gold = [1, 2, 3]
    assert Guard(clears)(completions=texts, gold=gold) == [1.0, 2.0, 3.0]
    assert (texts, gold) == (TEXTS, [1, 2, 3])


def test_messages_and_lists_within_columns_stay_as_they_are():
    def spoils(completions, nums, **columns):
        completions[0][-1]["content"] = "spoilt"
        nums[0].append(7)
        return [1.0] * len(completions)

    shared = [1, 2]
    given = {"completions": [[{"role": "assistant", "content": "a"}]] * 2, "nums": [shared, shared]}
    assert Guard(spoils)(**given) == [1.0, 1.0]
    assert given["completions"][0][-1]["content"] == "a" and shared == [1, 2]


@pytest.mark.parametrize("count", [2, 8])
def test_one_score_for_many_completions_is_no_score(count):
    """Row by row such a function looks well, as it always answers with one score."""
    guard = Guard(lambda completions, **columns: [1.0])
    assert guard(completions=["x"] * count) == [None] * count
    assert f"returned 1 score for {count} completions" in guard.last_error


@pytest.mark.parametrize("bad", [1e39, -1e39, 1e300, 1.1e12])
def test_what_float32_cannot_square_is_no_score(bad):
    guard = Guard(
        lambda completions, **columns: [bad if text == "bb" else 1e12 for text in completions]
    )
    scores = guard(completions=TEXTS)
    assert scores == [1e12, None, 1e12]
    assert (
        torch.tensor([1e12 * 1e4] * 4096, dtype=torch.float32).square().sum().isfinite()
    )  # of the largest weight


class Endless:
    def __float__(self):
        while True:
            pass


def test_a_number_that_never_comes_is_given_up():
    guard = Guard(
        lambda completions, **columns: [Endless() if text == "bb" else 1 for text in completions],
        timeout=1.0,
    )
    assert guard(completions=TEXTS) == [1.0, None, 1.0]


def test_an_error_whose_words_never_come_is_given_up():
    class Mute(Exception):
        def __str__(self):
            while True:
                pass

    def mute(completions, **columns):
        if "bb" in completions:
            raise Mute
        return lengths(completions)

    assert Guard(mute, timeout=1.0)(completions=TEXTS) == [1.0, None, 3.0]


def moved(completions, folder, **columns):
    os.chdir(folder[0])
    return lengths(completions)


async def moved_later(completions, folder, **columns):
    await asyncio.sleep(0.01)
    return moved(completions, folder)


def test_the_directory_is_that_of_before(tmp_path):
    before = os.getcwd()
    given = {"completions": TEXTS, "folder": [str(tmp_path)] * 3}
    try:
        assert Guard(moved)(**given) == [1.0, 2.0, 3.0]
        assert os.getcwd() == before
        assert asyncio.run(AsyncGuard(moved_later)(**given)) == [1.0, 2.0, 3.0]
        assert os.getcwd() == before
    finally:
        os.chdir(before)


def draws_noise(completions, seen, **columns):
    seen[0].append(draws())
    return lengths(completions)


def seeds(completions, **columns):
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    return lengths(completions)


async def seeds_later(completions, **columns):
    await asyncio.sleep(0.01)
    return seeds(completions)


def seed_ours(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def test_random_numbers_of_training_are_its_own():
    seed_ours(5)
    expected = [draws() for _ in range(3)]
    seed_ours(5)
    found = [draws()]
    Guard(seeds)(completions=TEXTS)
    found.append(draws())

    async def together():
        await asyncio.gather(*(AsyncGuard(seeds_later)(completions=TEXTS) for _ in range(3)))

    asyncio.run(together())
    found.append(draws())
    assert found == expected


def test_what_a_reward_draws_is_of_the_step_and_its_completions():
    """So a resumed run draws the same, and no step draws what another has drawn."""
    noted: list[tuple] = []

    def noise(completions, **columns):
        noted.append(draws())
        return lengths(completions)

    guard = Guard(noise)
    for step, texts in ((1, TEXTS), (2, TEXTS), (2, ["x"]), (1, TEXTS)):
        guard(completions=texts, trainer_state=SimpleNamespace(global_step=step))
    assert noted[0] == noted[3] and len(set(noted)) == 3


def forks(completions, **columns):
    if not os.fork():
        return [0.0] * len(completions)
    return lengths(completions)


async def forks_later(completions, **columns):
    await asyncio.sleep(0)
    return forks(completions)


def in_a_process_of_its_own(answers) -> None:
    answers.put((Guard(forks)(completions=TEXTS), os.getpid()))
    answers.put((asyncio.run(AsyncGuard(forks_later)(completions=TEXTS)), os.getpid()))
    answers.put(("end", os.getpid()))


def test_a_process_that_a_reward_forks_off_goes_no_further_than_the_reward():
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    process = context.Process(target=in_a_process_of_its_own, args=(answers,))
    process.start()
    found = [answers.get() for _ in range(3)]
    process.join(timeout=LIMIT)
    assert [what for what, _ in found] == [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0], "end"]
    assert {pid for _, pid in found} == {process.pid} and answers.empty()


def test_the_failure_names_the_line_of_the_reward():
    def helper(text):
        return float(text)

    def fails(completions, **columns):
        return [helper(text) for text in completions]

    guard = Guard(fails)
    guard(completions=["x"])
    line = helper.__code__.co_firstlineno + 1
    assert guard.last_error.endswith(f"({__file__}:{line}, in helper)")


def test_the_line_is_the_rewards_where_a_library_raises():
    def fails(completions, **columns):
        return [numpy.linalg.inv(numpy.zeros((2, 2)))[0, 0] for _ in completions]

    guard = Guard(fails)
    guard(completions=["x"])
    last = guard.last_error.rpartition("\n")[2]
    assert (
        last.startswith("LinAlgError: ")
        and f"({__file__}:{fails.__code__.co_firstlineno + 1}, in " in last
    )


def test_failures_of_many_words_are_of_one_kind(caplog):
    def fails(completions, **columns):
        raise ValueError(f"first\nsecond: {completions}")

    Guard(fails, max_failure_rate=1)(completions=TEXTS)
    assert len(caplog.records) == 1


def test_a_constant_reward_is_told_and_one_that_can_differ_is_not():
    def constant(completions, **columns):
        return [1.0] * len(completions)

    assert "'constant' gave 1 to each of 3" in constant_warning(Guard(constant), [1.0, 1.0, 1.0])
    assert constant_warning(constant, [0.0, 0.0])
    assert constant_warning(constant, [1.0, 0.0]) is None
    assert (
        constant_warning(constant, [1.0]) is None
        and constant_warning(constant, [1.0, None]) is None
    )
    assert (
        constant_warning(Guard(build("language_consistency")), [1.0, 1.0, 1.0]) is None
    )  # its examples differ


def test_a_registered_reward_may_take_its_arguments_in_any_order():
    with registry_as_before():

        @register("in_trls_order", examples=[Example("a", 1.0)])
        def in_trls_order(prompts, completions, **kwargs):
            return [
                float(prompt == text) for prompt, text in zip(prompts, completions, strict=True)
            ]

        assert build("in_trls_order")(prompts=["a", "b"], completions=["a", "c"], gold=[1, 2]) == [
            1.0,
            0.0,
        ]
        with pytest.raises(TypeError, match="`completions` accepts only positional"):

            @register("by_place")
            def by_place(completions, /):
                return lengths(completions)
