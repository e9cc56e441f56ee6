"""Countdown with a tool, and the demonstrations of it."""

import re

from grpo_ext.environments.check import Check
from grpo_ext.tasks.countdown import Countdown, reachable
from grpo_ext.tiny.demonstrations import chains, check_demonstrations, expressions_around

ROW = {"nums": [3, 5, 8], "target": 10}


def test_the_tool_says_what_an_expression_comes_to():
    world = Check()
    world.reset(ROW)
    [check] = world.tools()
    assert check("8 + 5 - 3") == "yes"
    assert check("8 + 5 + 3") == "no, its value is 16, not 10"
    assert check("8 + 2").startswith("no, it uses the numbers 2, 8")
    assert check("__import__('os')").startswith("no, the answer is not a plain expression")
    assert check(9**99).startswith("no, it uses the numbers")
    assert world.checks == 5 and world.state() == {"score": None, "checks": 5}


def numbers_in(row: dict) -> str:
    return re.search(r"the numbers ([\d, ]+)", row["prompt"][-1]["content"])[1]


def digits(text: str) -> str:
    return "".join(re.findall(r"\d", text))


def target_in(row: dict) -> str:
    return re.search(r"equals (\d+)", row["prompt"][-1]["content"])[1]


def expression_in(message: dict) -> str:
    [call] = message["tool_calls"]
    return call["function"]["arguments"]["expression"]


def test_demonstrations_keep_to_the_rules_and_know_no_strategy():
    task = Countdown(
        num_problems=200, min_numbers=3, max_numbers=3, max_number=9, operators="+-", max_target=30
    )
    right = 0
    for row in check_demonstrations(task, 2000, seed=1):
        *turns, answer = row["completion"]
        expressions = [expression_in(turn) for turn in turns[::2]]
        told = [turn["content"] for turn in turns[1::2]]
        assert (
            answer["content"] == f"<answer>{expressions[-1]}</answer>"
        )  # what was checked last, right or refused
        assert set(told[:-1]) <= {
            f"no, its value is {value}, not {target_in(row)}" for value in range(28)
        }
        values = [eval(expression) for expression in expressions]
        assert len(values) == len(set(values))
        right += told[-1] == "yes"
        around = 2 * digits(numbers_in(row))
        assert all(digits(text) in around and len(digits(text)) == 3 for text in expressions)
    assert 0.5 < right / 2000 < 0.6  # a quarter of those that check once, all others


def test_demonstrations_end_also_where_the_target_is_out_of_reach():
    """Equations from left to right do not reach each sum of two products."""
    task = Countdown(
        num_problems=300, min_numbers=4, max_numbers=4, max_number=5, operators="+*", max_target=30
    )
    rows = list(check_demonstrations(task, 300, give_up=0.0))
    assert len(rows) == 300
    assert {row["completion"][-2]["content"] == "yes" for row in rows} == {True, False}


def test_going_round_three_numbers_reaches_every_value():
    task = Countdown(
        num_problems=200, min_numbers=3, max_numbers=3, max_number=12, operators="+-", max_target=36
    )
    for row in task.generate("train"):
        nums = row["nums"]
        found = expressions_around(nums, "+-")
        assert (
            found.keys() == chains(tuple(sorted(nums)), "+-").keys() == reachable(tuple(nums), "+-")
        )
        assert all(eval(text) == value for value, texts in found.items() for text in texts)
