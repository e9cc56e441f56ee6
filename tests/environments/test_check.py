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


def test_demonstrations_keep_to_the_rules_and_know_no_strategy():
    task = Countdown(num_problems=200, min_numbers=3, max_numbers=3, max_number=9, operators="+-", max_target=30)
    rows = list(check_demonstrations(task, 2000, seed=1))
    answers = [row for row in rows if "tool_calls" not in row["completion"][0]]
    right = 0
    for row in answers:
        *_, call, told = row["prompt"]
        [call] = call["tool_calls"]
        assert row["completion"][0]["content"] == f"<answer>{call['function']['arguments']['expression']}</answer>"
        right += told["content"] == "yes"
    assert 0.05 < right / len(answers) < 0.4  # blind expressions; some end with the one that was found
