"""Synthetic demonstrations of word problems for a warm start: form and arithmetic are there, judgement is not.

A demonstration writes the steps of a problem's reference answer, and then the result:

    <think>
    The boxes hold 9*2=18 pens.
    Ana has 18+3=21 pens in all.
    </think>
    <answer>
    21
    </answer>

Every equation is worked out rightly, but of two steps the demonstrator mostly does only the first, sometimes adds where it
should take away, and sometimes leaves out, doubles or misplaces a tag. Between the problems stand bare equations, so that
numbers are learnt apart from stories. What is left for reinforcement learning: to finish the problem, to choose each
operation by the story, and to keep to the form.
"""

import random
import re
from collections.abc import Iterator

from grpo_ext.rewards.answers import ANSWER, ANSWER_END, TAGS, THINK, THINK_END
from grpo_ext.tasks.base import Row
from grpo_ext.tasks.gsm8k import GSM8K, OPERATIONS
from grpo_ext.tiny.demonstrations import Demonstration

# A step as GSM8K writes it, with its calculator mark: `9*2=<<9*2=18>>18`.
STEP = re.compile(r"(\d+)([-+*/])(\d+)=<<[^<>]*>>(\d+)")


def word_problem_demonstrations(
    task: GSM8K,
    count: int,
    *,
    stop_early: float = 0.6,  # chance that all steps after the first are left out
    wrong_operation: float = 0.15,  # chance, for each step, that it adds or subtracts where that is wrong
    untidy: float = 0.25,  # chance of a fault in the tags
    bare: float = 0.25,  # share of demonstrations that are bare equations, without a problem
    seed: int = 0,
) -> Iterator[Demonstration]:
    """Yield `count` demonstrations on training problems of `task`, as `prompt` and `completion` messages."""
    rng = random.Random(seed)
    problems = list(task.generate("train"))
    for _ in range(count):
        if rng.random() < bare:
            prompt = [{"role": "user", "content": "Calculate."}]
            text = "\n".join(equation(task.max_number, rng) for _ in range(8))
        else:
            problem = rng.choice(problems)
            prompt = task.prompt(problem)
            steps, result = attempt(problem, rng, stop_early, wrong_operation)
            lines = [THINK, *steps, THINK_END, ANSWER, str(result), ANSWER_END]
            text = "\n".join(misplaced(lines, rng) if rng.random() < untidy else lines)
        yield {"prompt": prompt, "completion": [{"role": "assistant", "content": text}]}


def attempt(problem: Row, rng: random.Random, stop_early: float, wrong_operation: float) -> tuple[list[str], int]:
    """The sentences of one attempt and the result it comes to; what an earlier step got wrong is carried on."""
    reference = problem["answer"].splitlines()[:-1]  # the last line is `#### n`
    if rng.random() < stop_early:
        reference = reference[:1]
    sentences = []
    was, now = None, 0  # result of the step before, in the reference and here
    for line in reference:
        step = STEP.search(line)
        assert step is not None  # each line of the task's own problems has one
        x, sign, y = int(step[1]), step[2], int(step[3])
        if x == was:
            x = now
        elif y == was:
            y = now
        if not works(x, sign, y) or rng.random() < wrong_operation:
            sign = rng.choice([other for other in "+-" if other != sign and works(x, other, y)] or [sign])
        was, now = int(step[4]), OPERATIONS[sign](x, y)
        sentences.append(f"{line[: step.start()]}{x}{sign}{y}={now}{line[step.end() :]}")
    return sentences, now


def works(x: int, sign: str, y: int) -> bool:
    """Whether the operation leads from two numbers above 0 to a whole number above 0."""
    return {"+": True, "-": x > y, "*": True, "/": x % y == 0}[sign]


def equation(max_number: int, rng: random.Random) -> str:
    """One equation, a right one, with numbers as the stories have them: products meet in sums and differences."""
    sign = rng.choice("++--*/")
    while True:
        x, y = rng.randint(2, max_number), rng.randint(2, max_number)
        if sign in "+-" and rng.random() < 0.5:
            x *= rng.randint(2, max_number)
            if rng.random() < 0.2:
                x, y = y, x
        if works(x, sign, y):
            return f"{x}{sign}{y}={OPERATIONS[sign](x, y)}"


def misplaced(lines: list[str], rng: random.Random) -> list[str]:
    """The lines of a completion with one tag left out, doubled, or swapped with another."""
    lines = list(lines)
    places = [i for i, line in enumerate(lines) if line in TAGS]
    place, other = rng.sample(places, 2)
    fault = rng.choice(("left out", "doubled", "swapped"))
    if fault == "left out":
        del lines[place]
    elif fault == "doubled":
        lines.insert(place, lines[place])
    else:
        lines[place], lines[other] = lines[other], lines[place]
    return lines
