"""The task `guess`: guess a number in several turns.

The rows are seeds for the environment `guess`, which derives the number from the seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from grpo_ext.common.files import data_yaml
from grpo_ext.tasks.base import Messages, Row, Task, chat, held_out

PROMPTS = data_yaml("grpo_ext.tasks", "prompts.yaml")["guess"]


@dataclass
class GuessTask(Task):
    """Task with number-guessing games, for `environment: guess`.

    Held-out seeds start at 0, and training seeds follow them. If the number of held-out games is a
    multiple of the number of possible targets, each target occurs equally often in these games.
    """

    name: ClassVar[str] = "guess"
    default_rewards: ClassVar[dict[str, float]] = {"environment": 1.0}

    num_problems: int = 1024  # training games
    num_test_problems: int = 124  # held-out games
    system_prompt: str = PROMPTS["system"]  # an empty string omits the message
    user_prompt: str = PROMPTS["user"]  # the environment appends the range of the number

    def generate(self, split: str) -> Iterator[Row]:
        """Yield a row with the column `seed` for each game of `split` ("train" or "test")."""
        seeds = range(self.num_test_problems)
        if not held_out(split):
            seeds = range(self.num_test_problems, self.num_test_problems + self.num_problems)
        for seed in seeds:
            yield {"seed": seed}

    def prompt(self, row: Row) -> Messages:
        return chat(self.system_prompt, self.user_prompt)
