"""Synthetic demonstrations of word problems for a warm start, with right arithmetic but poor judgement.

A demonstration writes the steps of a problem's reference answer, and then the result:

    <think>
    The boxes hold 9*2=18 pens.
    Ana has 18+3=21 pens in all.
    </think>
    <answer>
    21
    </answer>

Every equation is right, but most demonstrations do only the first of two steps, and some use a wrong operation, or omit, double
or misplace a tag. Others are only equations, so that the model learns numbers without stories. Reinforcement learning can
teach the model to finish the problem, to choose each operation by the story, and to keep the format.
"""

import random
import re
from collections.abc import Iterator

from grpo_ext.rewards.answers import ANSWER, ANSWER_END, TAGS, THINK, THINK_END
from grpo_ext.tasks.base import Row
from grpo_ext.tasks.countdown import apply
from grpo_ext.tasks.gsm8k import GSM8K
from grpo_ext.tiny.demonstrations import Demonstration

# A step as GSM8K writes it, with its calculator mark: `9*2=<<9*2=18>>18`.
STEP = re.compile(r"(\d+)([-+*/])(\d+)=<<[^<>]*>>(\d+)")


def word_problem_demonstrations(
    task: GSM8K,
    count: int,
    *,
    stop_early: float = 0.6,  # probability of omitting all steps after the first
    wrong_operation: float = 0.15,  # probability, for each step, of a wrong addition or subtraction
    untidy: float = 0.25,  # probability of a fault in the tags
    bare: float = 0.25,  # share of demonstrations that are only equations
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


def attempt(
    problem: Row, rng: random.Random, stop_early: float, wrong_operation: float
) -> tuple[list[str], int]:
    """Return the sentences of one attempt and its result. A wrong result of a step enters the next step."""
    reference = problem["answer"].splitlines()[:-1]  # the last line is `#### n`
    if rng.random() < stop_early:
        reference = reference[:1]
    sentences = []
    was, now = None, 0  # result of the previous step, in the reference and here
    for line in reference:
        step = STEP.search(line)
        assert step is not None  # each line of the task's own problems has one
        x, sign, y = int(step[1]), step[2], int(step[3])
        if x == was:
            x = now
        elif y == was:
            y = now
        if not apply(sign, x, y) or rng.random() < wrong_operation:
            sign = rng.choice(
                [other for other in "+-" if other != sign and apply(other, x, y)] or [sign]
            )
        was, now = int(step[4]), apply(sign, x, y) or 0  # never 0: a sum is always possible
        sentences.append(f"{line[: step.start()]}{x}{sign}{y}={now}{line[step.end() :]}")
    return sentences, now


def equation(max_number: int, rng: random.Random) -> str:
    """Return a right equation with numbers as in the stories: sums and differences may have products as operands."""
    sign = rng.choice("++--*/")
    while True:
        x, y = rng.randint(2, max_number), rng.randint(2, max_number)
        if sign in "+-" and rng.random() < 0.5:
            x *= rng.randint(2, max_number)
            if rng.random() < 0.2:
                x, y = y, x
        if result := apply(sign, x, y):
            return f"{x}{sign}{y}={result}"


def misplaced(lines: list[str], rng: random.Random) -> list[str]:
    """Return the lines of a completion with one tag omitted, doubled, or swapped with another."""
    lines = list(lines)
    place, other = rng.sample([i for i, line in enumerate(lines) if line in TAGS], 2)
    fault = rng.choice(("left out", "doubled", "swapped"))
    if fault == "left out":
        del lines[place]
    elif fault == "doubled":
        lines.insert(place, lines[place])
    else:
        lines[place], lines[other] = lines[other], lines[place]
    return lines
