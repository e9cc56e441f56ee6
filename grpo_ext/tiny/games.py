"""Synthetic demonstrations of games for a warm start: legal moves with hardly any strategy."""

import random
import re
from collections.abc import Iterator

from transformers.utils import get_json_schema

from grpo_ext.environments.check import Check
from grpo_ext.environments.guess import Guess
from grpo_ext.tasks.countdown import Countdown
from grpo_ext.tasks.guess import GuessTask
from grpo_ext.tiny.demonstrations import Demonstration, chains


def guess_demonstrations(
    task: GuessTask, count: int, *, turns: int = 5, listens: float = 0.5, seed: int = 0
) -> Iterator[Demonstration]:
    """Yield `count` guesses in the course of games: `prompt` is the conversation so far, `completion` the next guess.

    A game has at most `turns` guesses. A share `listens` of the guesses agrees with the answers so far; the others are random
    numbers of the whole range.
    """
    rng = random.Random(seed)
    for _ in range(count):
        game = Guess()
        *system, asked = task.prompt({})
        opening = game.reset({"seed": rng.randrange(1000)})
        messages = [*system, {**asked, "content": f"{asked['content']}\n{opening}"}]
        for turn in range(turns):
            guess = rng.choice(game.left if rng.random() < listens else range(game.low, game.high + 1))
            if guess == game.target or rng.random() < 1 / (turns - turn):
                break
            answer, _ = game.step(str(guess))
            messages += [{"role": "assistant", "content": str(guess)}, {"role": "user", "content": answer}]
        yield {"prompt": messages, "completion": [{"role": "assistant", "content": str(guess)}]}


def check_demonstrations(task: Countdown, count: int, *, give_up: float = 0.6, seed: int = 0) -> Iterator[Demonstration]:
    """Yield `count` episodes of Countdown with the tool `check`: calls, results, and the answer.

    An episode checks expressions of random values, each value once, whose numbers are a rotation of those in the prompt. Its
    answer is the last expression, which is often wrong: a share `give_up` of the episodes checks only once, and the others
    until the tool says yes.
    """
    rng = random.Random(seed)
    problems, tools = list(task.generate("train")), [get_json_schema(Check().check)]
    for _ in range(count):
        row, world = rng.choice(problems), Check()
        nums = rng.sample(row["nums"], len(row["nums"]))
        world.reset(row)
        by_value = expressions_around(nums, task.operators)
        untried, messages, done = sorted(by_value), [], False
        gives_up = rng.random() < give_up
        while not done:
            untried.remove(value := rng.choice(untried))
            expression = rng.choice(by_value[value])
            call = {"type": "function", "function": {"name": "check", "arguments": {"expression": expression}}}
            told = world.check(expression)
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "name": "check", "content": told})
            done = told == "yes" or not untried or gives_up
        messages.append({"role": "assistant", "content": f"<answer>{expression}</answer>"})
        yield {"prompt": task.prompt({**row, "nums": nums}), "completion": messages, "tools": tools}


def expressions_around(nums: list[int], operators: str) -> dict[int, list[str]]:
    """Return the equations of `chains`, by value, whose numbers are a rotation of `nums`."""
    orders = [nums[place:] + nums[:place] for place in range(len(nums))]
    found: dict[int, list[str]] = {}
    for value, equations in chains(tuple(sorted(nums)), operators).items():
        for _, equation in equations:
            if [int(number) for number in re.findall(r"\d+", equation)] in orders:
                found.setdefault(value, []).append(equation)
    return found
