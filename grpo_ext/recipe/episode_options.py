"""The option about episodes of several turns. `docs/several-turns.md` explains them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_ext.common.modules import load_file
from grpo_ext.environments.rules import episode_rules
from grpo_ext.recipe.problems import Problem

if TYPE_CHECKING:
    from grpo_ext.recipe.rules import Values


@dataclass
class EpisodeOptions:
    """The recipe key about episodes; a base of `GRPOExtConfig`.

    Args:
        environment (`dict` or `str`, *optional*): what answers the model's turns, by name or with options, as in
            `{name: guess, high: 31, turns: 5}`. Of every environment: `turns` (8) of an episode, `turn_tokens` of a turn,
            `step_timeout` (10 seconds) and `answer_characters` (10,000) of an answer, all at most. `max_completion_length` is
            of the whole episode, answers included. `None`: a completion is one turn.
    """

    environment: dict | str | None = None


def environment_rules(v: Values, _: int) -> Iterator[Problem]:
    """The environment is known and takes its options, and what stands beside it knows of turns."""
    if v["environment"] is None:
        return
    for path in () if "reward_plugins" in v.unsound else v["reward_plugins"] or ():
        with suppress(Exception):  # told where the rewards are built
            load_file(path)
    try:
        rules = episode_rules(v["environment"])
    except ValueError as error:
        yield Problem(str(error), "environment")
        return
    if rules.credit == "turn" and (v["scale_rewards"] == "batch" or v["multi_objective_aggregation"] != "sum_then_normalize"):
        words = "environment: credit: turn compares rewards to go within their group"
        yield Problem(f"{words}: write scale_rewards: group and leave multi_objective_aggregation out.", "scale_rewards")
    beside = {"use_transformers_continuous_batching": True, "loss_normalization": "micro_batch"}
    for key, value in beside.items():
        if v[key] == value:
            yield Problem(f"environment does not go with {key}: {value}: take one of the two out.", key)
    if {"stop_strings", "max_new_tokens"} & {*(v["generation_kwargs"] or {})}:
        words = "a turn ends with an end token or at turn_tokens: take stop_strings and max_new_tokens out."
        yield Problem(f"environment: {words}", "generation_kwargs")
