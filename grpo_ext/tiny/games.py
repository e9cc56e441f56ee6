"""Synthetic demonstrations of games for a warm start: moves by the rules, with hardly a strategy."""

from __future__ import annotations

import random
from collections.abc import Iterator

from grpo_ext.environments.guess import Guess
from grpo_ext.tasks.guess import GuessTask
from grpo_ext.tiny.demonstrations import Demonstration


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
