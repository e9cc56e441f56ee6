"""Identify rows that pose the same problem, because their completions are not independent."""

from collections.abc import Iterable
from typing import Any

from grpo_ext.common.columns import IMAGES
from grpo_ext.common.hashes import prompt_id
from grpo_ext.environments.base import Environment
from grpo_ext.environments.guarded import protected
from grpo_ext.evaluation.completions import Completion, Row
from grpo_ext.rewards.reward_columns import columns_read


def problem_of(row: Row, completion: Completion, rewards: Iterable[Any]) -> str:
    """Return an id, in 12 hexadecimal digits, for the problem that a row poses.

    The id is a hash of the prompt, the images and the columns that the rewards read. For an episode
    in an environment, it is a hash of the prompt and the environment's `problem_key`, or of the
    prompt and the episode's seed if there is no such key. Errors raised by `problem_key` are not
    caught.

    Args:
        row: the row, with `prompt`.
        completion: a completion of the row; if it is an episode, its environment provides the key.
        rewards: the rewards of the evaluation.
    """
    episode = completion.episode
    if episode is None or episode.single_turn:
        names = {"prompt", *IMAGES, *columns_read(row, rewards)}
        columns = {name: row[name] for name in names & row.keys()}
        return prompt_id(columns)
    key = None
    if isinstance(episode.environment, Environment):  # TRL's environments have no `problem_key`
        with protected(episode.seed, "problem_key"):
            key = episode.environment.problem_key()
    game = episode.seed if key is None else ["problem", key]
    return prompt_id([row["prompt"], game])
