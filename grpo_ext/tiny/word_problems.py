"""Synthetic demonstrations of word problems for a warm start: correct arithmetic, poor judgment.

A demonstration consists of the steps of a problem's reference answer, followed by the result:

    <think>
    The boxes hold 9*2=18 pens.
    Ana has 18+3=21 pens in all.
    </think>
    <answer>
    21
    </answer>

Every equation is correct, but most demonstrations of a problem with two steps contain only the
first, and some use a wrong operation, or omit, double or misplace a tag. Others consist only of
equations, so that the model learns arithmetic without stories. Reinforcement learning can teach the
model to finish the problem, to choose each operation according to the story, and to keep the
format.
"""

import random
import re
from collections.abc import Iterator

from grpo_ext.rewards.answers import ANSWER, ANSWER_END, TAGS, THINK, THINK_END
from grpo_ext.tasks.base import Row
from grpo_ext.tasks.countdown import apply
from grpo_ext.tasks.gsm8k import GSM8K
from grpo_ext.tiny.demonstrations import Demonstration

# A step as GSM8K writes it, with its calculator annotation: `9*2=<<9*2=18>>18`.
STEP = re.compile(r"(\d+)([-+*/])(\d+)=<<[^<>]*>>(\d+)")


def word_problem_demonstrations(
    task: GSM8K,
    count: int,
    *,
    stop_early: float = 0.6,
    wrong_operation: float = 0.15,
    untidy: float = 0.25,
    bare: float = 0.25,
    seed: int = 0,
) -> Iterator[Demonstration]:
    """Yield demonstrations on training problems, as dicts with `prompt` and `completion` messages.

    Args:
        task: the task that generates the problems.
        count: the number of demonstrations.
        stop_early: the probability of omitting all steps after the first.
        wrong_operation: the probability, for each step, of adding or subtracting where the story
            needs another operation. Even so, the equation is correct.
        untidy: the probability that a tag is omitted, doubled or swapped with another.
        bare: the share of demonstrations that consist only of equations, without a problem.
        seed: the seed of all random choices.
    """
    rng = random.Random(seed)
    problems = list(task.generate("train"))
    for _ in range(count):
        if rng.random() < bare:
            prompt = [{"role": "user", "content": "Calculate."}]
            lines = [equation(task.max_number, rng) for _ in range(8)]
        else:
            problem = rng.choice(problems)
            prompt = task.prompt(problem)
            steps, result = attempt(problem, rng, stop_early, wrong_operation)
            lines = [THINK, *steps, THINK_END, ANSWER, str(result), ANSWER_END]
            if rng.random() < untidy:
                lines = with_tag_fault(lines, rng)
        completion = [{"role": "assistant", "content": "\n".join(lines)}]
        yield {"prompt": prompt, "completion": completion}


def attempt(
    problem: Row,
    rng: random.Random,
    stop_early: float,
    wrong_operation: float,
) -> tuple[list[str], int]:
    """Return the sentences of one attempt and its result.

    If a step has a wrong result, the next step uses that result. If the operation of the next step
    is then impossible, for example because a division would leave a remainder, the step adds or
    subtracts instead.

    Args:
        problem: a row that the task generated.
        rng: the random number generator.
        stop_early: the probability of omitting all steps after the first.
        wrong_operation: the probability, for each step, of adding or subtracting where the story
            needs another operation.
    """
    reference = problem["answer"].splitlines()[:-1]  # the last line is `#### n`
    if rng.random() < stop_early:
        reference = reference[:1]
    sentences = []
    result = 0
    reference_result = None  # the result in the reference for the previous step
    for line in reference:
        step = STEP.search(line)
        assert step is not None  # each line of the task's own problems has one
        x = int(step[1])
        operator = step[2]
        y = int(step[3])
        if x == reference_result:
            x = result
        elif y == reference_result:
            y = result
        if not apply(operator, x, y) or rng.random() < wrong_operation:
            other_operators = []
            for sign in "+-":
                if sign != operator and apply(sign, x, y):
                    other_operators.append(sign)
            operator = rng.choice(other_operators or [operator])
        reference_result = int(step[4])
        result = apply(operator, x, y) or 0  # never 0: a sum is always possible
        sentences.append(f"{line[: step.start()]}{x}{operator}{y}={result}{line[step.end() :]}")
    return sentences, result


def equation(max_number: int, rng: random.Random) -> str:
    """Return a correct equation such as `9*2=18`, with numbers like those in the stories.

    The numbers range from 2 to `max_number`. In a sum or difference, one of them may instead be the
    product of two such numbers.
    """
    operator = rng.choice("++--*/")
    while True:
        x = rng.randint(2, max_number)
        y = rng.randint(2, max_number)
        if operator in "+-" and rng.random() < 0.5:
            x *= rng.randint(2, max_number)
            if rng.random() < 0.2:
                x, y = y, x
        result = apply(operator, x, y)
        if result:
            return f"{x}{operator}{y}={result}"


def with_tag_fault(lines: list[str], rng: random.Random) -> list[str]:
    """Return the lines of a completion with one tag omitted, doubled, or swapped with another.

    `lines` is left unchanged; at least two of its entries must be tags.
    """
    lines = list(lines)
    tags = [i for i, line in enumerate(lines) if line in TAGS]
    tag, other_tag = rng.sample(tags, 2)
    fault = rng.choice(("omitted", "doubled", "swapped"))
    if fault == "omitted":
        del lines[tag]
    elif fault == "doubled":
        lines.insert(tag, lines[tag])
    else:
        lines[tag], lines[other_tag] = lines[other_tag], lines[tag]
    return lines
