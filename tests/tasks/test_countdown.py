"""Countdown: solvable problems, splits that share none, honest ends of small spaces, prompts and
files.
"""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.tasks.countdown import Countdown, reachable
from tests.support.runaway import no_runaway

TINY = {"min_numbers": 3, "max_numbers": 3, "max_number": 12, "operators": "+-", "max_target": 36}


def key(row: dict) -> tuple:
    return (*sorted(row["nums"]), row["target"])


def values_by_brute_force(nums: tuple[int, ...], operators: str) -> set[Fraction]:
    """Every value of an equation over all of `nums`, by combining any two until one is left."""
    if len(nums) == 1:
        return {Fraction(nums[0])}
    found = set()
    for i, j in permutations(range(len(nums)), 2):
        rest = tuple(n for place, n in enumerate(nums) if place not in (i, j))
        for sign in operators:
            a = Fraction(nums[i])
            b = Fraction(nums[j])
            if sign == "/" and b == 0:
                continue
            result = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[sign]
            found |= values_by_brute_force((*rest, result), operators)
    return found


def test_fifty_thousand_problems_each_once() -> None:
    with no_runaway(60):
        rows = list(Countdown().generate("train"))
    assert len(rows) == 50_000
    assert len(set(map(key, rows))) == 50_000
    assert {len(row["nums"]) for row in rows} == {3, 4}
    assert all(1 <= n <= 99 for row in rows for n in row["nums"])
    assert all(1 <= row["target"] <= 100 for row in rows)


def test_drawn_problems_are_solvable() -> None:
    rows = list(Countdown(num_problems=60).generate("train"))
    for row in rows:
        assert row["target"] in values_by_brute_force(tuple(row["nums"]), "+-*/"), row


@pytest.mark.parametrize("operators", ["+-", "*", "+-*/"])
@given(nums=st.lists(st.integers(1, 9), min_size=2, max_size=4))
@settings(max_examples=25, deadline=None)
def test_reachable_values_are_values(operators: str, nums: list[int]) -> None:
    assert reachable(tuple(nums), operators) <= values_by_brute_force(tuple(nums), operators)


@given(nums=st.lists(st.integers(1, 30), min_size=3, max_size=3))
@settings(max_examples=50, deadline=None)
def test_reachable_misses_no_sum_or_difference(nums: list[int]) -> None:
    # With + and - alone, every value of at least 0 can be reached by whole steps that are never
    # negative.
    signed = set()
    for order in permutations(nums):
        for signs in product((1, -1), repeat=2):
            signed.add(order[0] + signs[0] * order[1] + signs[1] * order[2])
    assert reachable(tuple(nums), "+-") == {value for value in signed if value >= 0}


@pytest.mark.parametrize("fields", [{}, TINY])
def test_splits_share_no_problem_whatever_the_seeds(fields: dict) -> None:
    train = set(
        map(key, Countdown(**{**fields, "num_problems": 20_000}, task_seed=1).generate("train"))
    )
    test = set(map(key, Countdown(**fields, task_seed=2).generate("test")))
    assert train and test and not train & test


def test_same_seed_same_rows_other_seed_other_rows() -> None:
    first = list(Countdown(num_problems=100).generate("train"))
    assert first == list(Countdown(num_problems=100).generate("train"))
    assert first != list(Countdown(num_problems=100, task_seed=1).generate("train"))


def test_a_small_space_is_listed_completely_and_ends() -> None:
    task = Countdown(**TINY)
    train = list(task.generate("train"))
    test = list(task.generate("test"))
    everything = {
        (a, b, c, target)
        for a in range(1, 13)
        for b in range(a, 13)
        for c in range(b, 13)
        for target in values_by_brute_force((a, b, c), "+-")
        if 1 <= target <= 36
    }
    assert set(map(key, train)) | set(map(key, test)) == everything
    assert len(train) + len(test) == len(everything)
    assert 0.1 < len(test) / len(everything) < 0.2


def test_a_large_space_that_runs_dry_ends_too() -> None:
    task = Countdown(
        min_numbers=4, max_numbers=4, min_number=1, max_number=9, operators="+", max_target=10
    )
    assert 0 < len(list(task.generate("train"))) < 100


def test_prompt_names_numbers_target_and_operators() -> None:
    system, user = Countdown(operators="+-").prompt({"nums": [8, 3, 11], "target": 16})
    assert system["role"] == "system" and user["role"] == "user"
    for part in (
        "8, 3, 11",
        "16",
        "(+, -)",
        "<think>",
        "</think>",
        "<answer>\n(1 + 2) - 3\n</answer>",
    ):
        assert part in user["content"]


def test_prompt_can_be_replaced() -> None:
    task = Countdown(system_prompt="", user_prompt="Make {target} from {nums}.")
    assert task.prompt({"nums": [1, 2, 3], "target": 6}) == [
        {"role": "user", "content": "Make 6 from 1, 2, 3."}
    ]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"user_prompt": "Make {target}."}, "nums"),
        ({"user_prompt": "Make {target} from {numbers}."}, "numbers"),
        ({"user_prompt": "Make {target} from {nums"}, "brace"),
        ({"operators": "+^"}, "operators"),
        ({"min_numbers": 5, "max_numbers": 4}, "min_numbers"),
        ({"min_number": 0}, "min_number"),
        ({"test_fraction": 15}, "test_fraction"),
    ],
)
def test_wrong_fields_are_named(fields: dict, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Countdown(**fields)


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
@pytest.mark.parametrize("streaming", [False, True])
def test_rows_from_files(kind: str, streaming: bool, tmp_path) -> None:
    from datasets import Dataset

    rows = [{"nums": [44, 19, 35], "target": 98}, {"nums": [63, 95, 96], "target": 64}]
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    elif kind == "json":
        path.write_text(json.dumps(rows))
    elif kind == "csv":
        path.write_text('nums,target\n"[44, 19, 35]",98\n"[63 95 96]",64\n')
    else:
        Dataset.from_list(rows).to_parquet(path)
    task = Countdown()
    examples = list(task.dataset(dataset_name=str(path), streaming=streaming))
    assert [{"nums": example["nums"], "target": example["target"]} for example in examples] == rows
    assert [example["prompt"] for example in examples] == [task.prompt(row) for row in rows]


def test_own_rows_stream_as_they_are_in_memory() -> None:
    task = Countdown(num_problems=20)
    assert list(task.dataset(streaming=True)) == list(task.dataset())


def test_a_file_without_the_columns_is_refused(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"numbers": [1, 2], "target": 3}\n')
    with pytest.raises(ValueError, match="nums"):
        Countdown().dataset(dataset_name=str(path))


def test_its_own_rewards_judge_a_right_and_a_wrong_answer() -> None:
    from grpo_ext.rewards import build

    reward = build("countdown")
    row = {"nums": [[3, 5, 1], [3, 5, 1]], "target": [3, 3]}
    texts = [
        "<think>\nx\n</think>\n<answer>\n5 + 1 - 3\n</answer>",
        "<think>\nx\n</think>\n<answer>\n5 - 1 - 3\n</answer>",
    ]
    assert reward(prompts=["", ""], completions=texts, completion_ids=[[], []], **row) == [1.0, 0.0]
