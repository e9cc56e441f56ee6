"""The task `environment`: the rows of the recipe's environment, or seeds for its episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_ext.common.files import data_yaml
from grpo_ext.environments.episode_rules import episode_rules
from grpo_ext.environments.open_environments import close_played
from grpo_ext.tasks.base import Messages, Row, Task, chat, held_out

PROMPTS = data_yaml("grpo_ext.tasks", "prompts.yaml")["environment"]


@dataclass
class EnvironmentRows(Task):
    """Task with the rows of the recipe's environment, or with seeds if the environment has no rows.

    Each seed is for one episode. Held-out seeds start at 0, and training seeds follow them.
    """

    name: ClassVar[str] = "environment"
    default_rewards: ClassVar[dict[str, float]] = {"environment": 1.0}

    num_problems: int = 1024  # training episodes, if the rows are seeds
    num_test_problems: int = 124  # held-out episodes, if the rows are seeds
    # for rows without a prompt of their own; an empty string omits the message
    system_prompt: str = PROMPTS["system"]
    # for rows without a prompt of their own; precedes the text returned by `reset`
    user_prompt: str = PROMPTS["user"]

    def __post_init__(self) -> None:
        self._environment: str | Mapping[str, Any] | None = None

    def use_environment(self, environment: str | Mapping[str, Any] | None) -> None:
        if environment is None:
            raise ValueError(
                "`task: environment` uses the rows of the recipe's environment, but no environment "
                "is set. Set one, such as `environment: {name: gymnasium:FrozenLake-v1}`."
            )
        self._environment = environment

    def generate(self, split: str) -> Iterator[Row]:
        """Yield the rows of a split; an environment is opened to read them, and closed again.

        Raises:
            ValueError: if no environment is set (as is always the case in an entry of `tasks`), if
                the environment cannot be opened, or if `split` is neither "train" nor "test".
        """
        is_held_out = held_out(split)
        if self._environment is None:
            raise ValueError(
                "`task: environment` has no environment to get rows from. In a recipe, this task "
                "cannot be an entry of `tasks`: set `task: environment` instead of `tasks`. In "
                "Python, call `use_environment` first."
            )
        rules = episode_rules(self._environment)
        try:
            rows = rules.probe.rows(split)
            if rows is not None:
                yield from rows
                return
        finally:
            close_played([rules], lasting=True)
        seeds = range(self.num_test_problems)
        if not is_held_out:
            seeds = range(self.num_test_problems, self.num_test_problems + self.num_problems)
        for seed in seeds:
            yield {"seed": seed}

    def held_out_key(self, row: Row) -> Any:
        return super().held_out_key(row) if "prompt" in row else row["seed"]

    def prompt(self, row: Row) -> Messages:
        if "prompt" in row:
            return row["prompt"]
        return chat(self.system_prompt, self.user_prompt)
