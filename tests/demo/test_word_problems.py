"""Demonstrations of word problems: careless in the ways that they say, and never wrong in their arithmetic."""

from __future__ import annotations

import random
import re

from grpo_ext.rewards import build
from grpo_ext.tasks.gsm8k import GSM8K
from grpo_ext.tiny.word_problems import equation, word_problem_demonstrations

TASK = GSM8K(num_problems=500, max_number=12, system_prompt="")
EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
VALUES = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y, "/": lambda x, y: x / y}


def texts(count, **settings):
    rows = word_problem_demonstrations(TASK, count, **settings)
    return [(row["prompt"][-1]["content"], row["completion"][0]["content"]) for row in rows]


def test_every_equation_is_right():
    checked = 0
    for _, text in texts(600):
        for x, sign, y, value in EQUATION.findall(text):
            assert VALUES[sign](int(x), int(y)) == int(value)
            checked += 1
    assert checked > 600


def test_without_faults_every_answer_is_the_gold_one():
    gold = {row["question"]: row["answer"] for row in TASK.generate("train")}
    told = texts(200, stop_early=0, wrong_operation=0, untidy=0, bare=0)
    scores = build("accuracy")(
        completions=[text for _, text in told], solution=[gold[question] for question, _ in told]
    )
    assert scores == [1.0] * 200
    assert build("format", mode="strict")(completions=[text for _, text in told]) == [1.0] * 200


def test_faults_come_as_often_as_asked():
    tidy = build("format")(completions=[text for _, text in texts(1000, untidy=0.25, bare=0)])
    assert 0.68 < sum(tidy) / len(tidy) < 0.82
    bare = [question == "Calculate." for question, _ in texts(1000, bare=0.25)]
    assert 0.2 < sum(bare) / len(bare) < 0.3
    two_steps = {row["question"] for row in TASK.generate("train") if len(row["answer"].splitlines()) == 3}
    short = [text.count("=") == 1 for q, text in texts(1000, stop_early=0.6, untidy=0, bare=0) if q in two_steps]
    assert 0.53 < sum(short) / len(short) < 0.67


def test_the_seed_fixes_everything():
    assert texts(20, seed=1) == texts(20, seed=1) != texts(20, seed=2)


def test_bare_equations_are_right_and_positive():
    rng = random.Random(0)
    for _ in range(300):
        x, sign, y, value = EQUATION.fullmatch(equation(12, rng)).groups()
        assert VALUES[sign](int(x), int(y)) == int(value) > 0
