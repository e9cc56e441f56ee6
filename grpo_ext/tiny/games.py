"""Synthetic demonstrations of games for a warm start: legal moves with hardly any strategy."""

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
    task: Countdown, count: int, *, turns: int = 5, give_up: float = 0.6, seed: int = 0
) -> Iterator[Demonstration]:
    """Yield `count` turns of Countdown with the tool `check`, each after those before it: a check, or the answer.

    Expressions are drawn blindly. After a "no" the answer is often the expression that was refused.

    Args:
        turns: of an episode, at most.
        give_up: chance to answer after an expression was refused.
        seed: of everything random here.
    """
    rng = random.Random(seed)
    problems, tools = list(task.generate("train")), [get_json_schema(Check().check)]
    for _ in range(count):
        row, world = rng.choice(problems), Check()
        world.reset(row)
        messages: list[dict[str, Any]] = task.prompt(row)
        equations = [equation for found in chains(tuple(sorted(row["nums"])), task.operators).values() for _, equation in found]
        while True:
            expression = rng.choice(equations)
            call = {"type": "function", "function": {"name": "check", "arguments": {"expression": expression}}}
            turn: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
            if rng.random() < 1 / turns:
                break
            told = world.check(expression)
            messages = [*messages, turn, {"role": "tool", "name": "check", "content": told}]
            turn = {"role": "assistant", "content": f"<answer>{expression}</answer>"}
            if told == "yes" or world.checks == turns - 1 or rng.random() < give_up:
                break
        yield {"prompt": messages, "completion": [turn], "tools": tools}
