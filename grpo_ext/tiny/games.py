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

    Args:
        turns: the largest number of guesses in a game.
        listens: share of the guesses that agree with the answers so far; the others are random numbers of the whole range.
        seed: the seed of all random choices.
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
    """Yield `count` episodes of Countdown with the tool `check`: checks, what the tool says, and the answer.

    Values are drawn blindly, none twice. Numbers stand in the prompt's order, which may begin with any of them and goes round.
    The answer is what was checked last, which often was refused.

    Args:
        give_up: share of the episodes that check once, whatever the tool says; the others go on until it says yes.
        seed: of everything random here.
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
    """Of `chains`, the equations by value whose numbers go round in the order of `nums`."""
    orders = [nums[place:] + nums[:place] for place in range(len(nums))]
    found: dict[int, list[str]] = {}
    for value, equations in chains(tuple(sorted(nums)), operators).items():
        for _, equation in equations:
            if [int(number) for number in re.findall(r"\d+", equation)] in orders:
                found.setdefault(value, []).append(equation)
    return found
