"""Countdown with a tool, and the demonstrations of it."""

from grpo_ext.environments.check import Check
from grpo_ext.tasks.countdown import Countdown
from grpo_ext.tiny.games import check_demonstrations

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


def expression_in(message: dict) -> str:
    [call] = message["tool_calls"]
    return call["function"]["arguments"]["expression"]


def test_demonstrations_keep_to_the_rules_and_know_no_strategy():
    task = Countdown(num_problems=200, min_numbers=3, max_numbers=3, max_number=9, operators="+-", max_target=30)
    right, given_up, checked, slipped = 0, 0, 0, 0
    for row in check_demonstrations(task, 2000, seed=1):
        *turns, answer = row["completion"]
        expressions, told = [expression_in(turn) for turn in turns[::2]], [turn["content"] for turn in turns[1::2]]
        assert answer["content"] == f"<answer>{expressions[-1]}</answer>"  # what was checked last, right or refused
        assert "yes" not in told[:-1]
        values = [eval(expression) for expression, words in zip(expressions, told, strict=True) if "its value" in words]
        assert len(values) == len(set(values))
        right += told[-1] == "yes"
        given_up += told[-1] != "yes"
        checked += len(told)
        slipped += sum("uses the numbers" in words for words in told)
    assert 0.3 < right / (right + given_up) < 0.5  # a quarter at once
    assert 0.07 < slipped / checked < 0.13


def test_demonstrations_end_also_where_the_target_is_out_of_reach():
    """Equations from left to right do not reach 2 * 3 + 4 * 5 with these numbers."""
    task = Countdown(num_problems=300, min_numbers=4, max_numbers=4, max_number=5, operators="+*", max_target=30)
    rows = list(check_demonstrations(task, 300, give_up=0.0, slip=0.0))
    assert len(rows) == 300
    assert {row["completion"][-2]["content"] == "yes" for row in rows} == {True, False}
