"""Guess a number in several turns. The rows are seeds: the environment `guess` draws the number, and says its range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from grpo_ext.tasks.base import Messages, Row, Task, chat

SYSTEM_PROMPT = (
    "You guess a number. After each guess you are told whether it is too low or too high. Think, then write your guess between "
    "<answer> and </answer>."
)


@dataclass
class GuessTask(Task):
    """Games of guessing a number, for `environment: guess`.

    The environment's number is `low` plus the seed modulo how many there are. Held-out seeds begin at 0, so that a multiple of
    that many held-out games has each number equally often; training seeds follow them.

    Args:
        num_problems, num_test_problems: games of either split.
        system_prompt: the system message; an empty string leaves it out.
        user_prompt: the user message; what the environment says of the range follows it.
    """

    name: ClassVar[str] = "guess"
    default_rewards: ClassVar[dict[str, float]] = {"environment": 1.0}

    num_problems: int = 1024
    num_test_problems: int = 124
    system_prompt: str = SYSTEM_PROMPT
    user_prompt: str = "Guess my number."

    def generate(self, split: str) -> Iterator[Row]:
        """The seeds of a split."""
        first, count = (0, self.num_test_problems) if split == "test" else (self.num_test_problems, self.num_problems)
        yield from ({"seed": seed} for seed in range(first, first + count))

    def prompt(self, row: Row) -> Messages:
        return chat(self.system_prompt, self.user_prompt)
