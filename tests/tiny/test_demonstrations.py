"""Demonstrations of Countdown.

Every label and every sum is right, attempts go downwards, no held-out problem is shown.
"""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from grpo_ext.tasks.countdown import Countdown
from grpo_ext.tiny.demonstrations import attempts_downwards, chains, countdown_demonstrations

FORM = re.compile(r"<think>\n(.+)\n</think>\n<answer>\n(.+)\n</answer>")


def make(operators: str = "+-", **options):
    task = Countdown(
        min_numbers=3,
        max_numbers=3,
        max_number=12,
        operators=operators,
        max_target=36,
        system_prompt="",
        user_prompt="{nums} = {target}",
    )
    for row in countdown_demonstrations(task, 2_000, **options):
        (user,), (assistant,) = row["prompt"], row["completion"]
        left, target = user["content"].split(" = ")
        yield (
            list(map(int, left.split(", "))),
            int(target),
            *FORM.fullmatch(assistant["content"]).groups(),
        )


@pytest.mark.parametrize("operators", ["+-", "+-*/"])
def test_every_step_and_every_label_is_right(operators: str) -> None:
    verdicts = set()
    for nums, target, work, answer in make(operators):
        for attempt in work.split("; "):
            body, verdict = attempt.rsplit(f" vs {target} ", 1)
            parts = body.split(" → ")
            for before, after in pairwise(parts):
                a, sign, b = before.split()
                expected = {
                    "+": int(a) + int(b),
                    "-": int(a) - int(b),
                    "*": int(a) * int(b),
                    "/": int(a) / int(b),
                }[sign]
                assert expected == int(after.split()[0])
            used = [parts[0].split()[0], *(part.split()[2] for part in parts[:-1])]
            assert sorted(map(int, used)) == sorted(nums)
            assert (verdict == "yes") == (int(parts[-1]) == target)
            verdicts.add(verdict)
        # python's own arithmetic is the oracle; the text is of our making
        assert eval(answer) == int(parts[-1])
        assert sorted(map(int, re.findall(r"\d+", answer))) == sorted(nums)
    assert verdicts == {"yes", "no"}


def test_no_step_of_an_attempt_exceeds_the_largest_value() -> None:
    attempts = attempts_downwards(
        (5, 17, 33, 40), "+-", 60
    )  # by hand, without the limit: 95, 85, 61 as well
    assert [value for value, *_ in attempts] == [51, 29, 19, 15, 5]
    for _, steps, equation in attempts:
        assert max(map(int, re.findall(r"→ (\d+)", steps))) <= 60
        assert sorted(map(int, re.findall(r"\d+", equation))) == [5, 17, 33, 40]


def test_values_go_down_and_round_and_work_ends_with_a_hit() -> None:
    for nums, _, work, _ in make(give_up=0.2):
        values = list(map(int, re.findall(r"→ (\d+) vs", work)))
        assert len(values) == len(set(values)) <= 4
        assert (
            sum(before < after for before, after in pairwise(values)) <= 1
        )  # from the least to the largest
        assert "yes" not in work or work.endswith("yes")
        if len(values) > 1 and "yes" not in work:
            assert len(values) == len(attempts_downwards(tuple(sorted(nums)), "+-", 36))


@pytest.mark.parametrize(
    ("give_up", "low", "high"), [(0.0, 1.9, 3.0), (0.7, 1.3, 1.6), (1.0, 1.0, 1.0)]
)
def test_giving_up_sets_the_number_of_attempts(give_up: float, low: float, high: float) -> None:
    works = [work for _, _, work, _ in make(give_up=give_up)]
    assert low <= sum(work.count(";") + 1 for work in works) / len(works) <= high


def test_persistence_solves_everything_and_giving_up_does_not() -> None:
    # what reinforcement learning can gain on these problems
    def solved(**options) -> float:
        rows = list(make(**options))
        return sum(eval(answer) == target for _, target, _, answer in rows) / len(rows)

    assert solved(give_up=0.0) == 1.0
    assert 0.2 < solved(give_up=1.0) < 0.4


def test_a_value_has_one_equation_with_its_numbers_from_the_largest() -> None:
    assert attempts_downwards((2, 3, 9), "+-", 36) == [
        (14, "9 + 3 → 12 + 2 → 14", "9 + 3 + 2"),
        (10, "9 + 3 → 12 - 2 → 10", "9 + 3 - 2"),
        (8, "9 - 3 → 6 + 2 → 8", "9 - 3 + 2"),
        (4, "9 - 3 → 6 - 2 → 4", "9 - 3 - 2"),
    ]
    assert [value for value, _, _ in attempts_downwards((2, 3, 9), "+-", 9)] == [8, 4]
    assert [value for value, _, _ in attempts_downwards((60, 60), "+-", 100)] == [120, 0]


def test_only_training_problems_are_shown() -> None:
    task = Countdown(min_numbers=3, max_numbers=3, max_number=12, operators="+-", max_target=36)
    held_out = {(*sorted(row["nums"]), row["target"]) for row in task.generate("test")}
    assert not any((*sorted(nums), target) in held_out for nums, target, _, _ in make())


def test_same_seed_same_demonstrations() -> None:
    assert list(make(seed=3)) == list(make(seed=3)) != list(make(seed=4))


def test_chains_reach_every_target_of_sums_and_differences() -> None:
    task = Countdown(min_numbers=3, max_numbers=3, max_number=12, operators="+-", max_target=36)
    assert all(
        row["target"] in chains(tuple(sorted(row["nums"])), "+-") for row in task.generate("test")
    )


def test_chains_write_brackets_where_they_are_needed() -> None:
    assert ("2 + 3 → 5 * 4 → 20", "(2 + 3) * 4") in chains((2, 3, 4), "+*")[20]
    assert all(
        eval(equation) == value
        for value, found in chains((2, 3, 4), "+-*/").items()
        for _, equation in found
    )
