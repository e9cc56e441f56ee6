"""Synthetic demonstrations of games for a warm start: legal moves with hardly any strategy."""

from __future__ import annotations

import random
from collections.abc import Iterator

from grpo_ext.environments.guess import Guess
from grpo_ext.tasks.guess import GuessTask
from grpo_ext.tiny.demonstrations import Demonstration


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
