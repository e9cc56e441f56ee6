"""Which rows pose the same problem, so that their completions are not independent evidence."""

from collections.abc import Iterable
from typing import Any

from grpo_ext.curriculum.pass_rates import prompt_id
from grpo_ext.environments.base import Environment
from grpo_ext.environments.guarded import protected
from grpo_ext.evaluation.completions import Completion, Row
from grpo_ext.rewards.reward import Reward

IMAGES = ("image", "images")  # columns that TRL adds to the prompt


def problem_of(row: Row, completion: Completion, rewards: Iterable[Any]) -> str:
    """Return 12 hexadecimal digits of a row's prompt, images and columns that `rewards` read.

    Of an episode it is the prompt with the environment's `problem_key`, or with its seed if that is
    `None`.
    """
    episode = completion.episode
    if episode is None:
        names = {"prompt", *IMAGES, *columns_read(row, rewards)}
        return prompt_id({name: row[name] for name in names & row.keys()})
    key = None
    if isinstance(episode.environment, Environment):  # a class as TRL has them knows only seeds
        with protected(episode.seed, "problem_key"):
            key = episode.environment.problem_key()
    game = episode.seed if key is None else ["problem", key]
    return prompt_id([row["prompt"], game])


def columns_read(row: Row, rewards: Iterable[Any]) -> set[str]:
    """Return the columns that rewards read; all of them for an unregistered function."""
    columns: set[str] = set()
    for reward in rewards:
        function = getattr(reward, "reward", reward)  # behind its guard
        if isinstance(function, Reward):
            columns |= function.select_arguments(row).keys()
        elif not hasattr(function, "parameters"):  # a model reads only the prompt
            columns |= row.keys()
    return columns
