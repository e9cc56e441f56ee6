"""Synthetic demonstrations of games for a warm start: moves by the rules, with hardly a strategy."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from transformers.utils import get_json_schema

from grpo_ext.environments.check import Check
from grpo_ext.environments.guess import Guess
from grpo_ext.tasks.countdown import Countdown
from grpo_ext.tasks.guess import GuessTask
from grpo_ext.tiny.demonstrations import Demonstration, chains


def guess_demonstrations(
    task: GuessTask, count: int, *, turns: int = 5, listens: float = 0.5, seed: int = 0
) -> Iterator[Demonstration]:
    """Yield `count` guesses, each after a game so far: `prompt` is the conversation, `completion` the next guess.

    Args:
        turns: guesses of a game.
        listens: share of the guesses that are among the numbers that the answers leave; the others are any number.
        seed: of everything random here.
    """
    rng = random.Random(seed)
    for _ in range(count):
        game = Guess()
        *system, asked = task.prompt({})
        opening = game.reset({"seed": rng.randrange(1000)})
        messages = [*system, {**asked, "content": f"{asked['content']}\n{opening}"}]
        low, high = game.low, game.high
        for turn in range(turns):
            guess = rng.randint(low, high) if rng.random() < listens else rng.randint(game.low, game.high)
            if guess == game.target or rng.random() < 1 / (turns - turn):
                break
            answer, _ = game.step(str(guess))
            low, high = (max(low, guess + 1), high) if answer == "low" else (low, min(high, guess - 1))
            messages += [{"role": "assistant", "content": str(guess)}, {"role": "user", "content": answer}]
        yield {"prompt": messages, "completion": [{"role": "assistant", "content": str(guess)}]}


def check_demonstrations(
    task: Countdown, count: int, *, slip: float = 0.1, give_up: float = 0.6, seed: int = 0
) -> Iterator[Demonstration]:
    """Yield `count` episodes of Countdown with the tool `check`: checks, what the tool says, and the answer.

    Expressions are drawn blindly, but none of a value that was tried. The answer is the expression of the last check, which is
    often one that was refused.

    Args:
        slip: chance that an expression ends with its first number again, so that the model has met what the tool says of it.
        give_up: chance to answer after an expression was refused.
        seed: of everything random here.
    """
    rng = random.Random(seed)
    problems, tools = list(task.generate("train")), [get_json_schema(Check().check)]
    for _ in range(count):
        row, world = rng.choice(problems), Check()
        row = {**row, "nums": rng.sample(row["nums"], len(row["nums"]))}
        world.reset(row)
        by_value = chains(tuple(sorted(row["nums"])), task.operators)
        untried, messages, done = sorted(by_value), [], False
        while not done:
            value = rng.choice(untried)
            first, *others, last = rng.choice(by_value[value])[1].split()
            if last != first and rng.random() < slip:
                last = first
            else:
                untried.remove(value)
            expression = " ".join([first, *others, last])
            call = {"type": "function", "function": {"name": "check", "arguments": {"expression": expression}}}
            told = world.check(expression)
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "name": "check", "content": told})
            done = told == "yes" or not untried or rng.random() < give_up
        messages.append({"role": "assistant", "content": f"<answer>{expression}</answer>"})
        yield {"prompt": task.prompt(row), "completion": messages, "tools": tools}
