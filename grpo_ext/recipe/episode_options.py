"""The option about episodes of several turns. `docs/several-turns.md` explains it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_ext.environments.episode_rules import episode_rules
from grpo_ext.objective.advantage import SUM_THEN_NORMALIZE
from grpo_ext.recipe.needs import compares_groups
from grpo_ext.recipe.problems import Problem

# of `generation_kwargs`, which would end turns in another way
TURN_ENDS = {"stop", "stop_strings", "stop_token_ids", "max_tokens", "max_new_tokens", "max_time"}


@dataclass
class EpisodeOptions:
    """The recipe key about episodes; a base of `GRPOExtConfig`.

    Args:
        environment (`dict` or `str`, *optional*): what answers the model's turns: its name, or a
            name with options, as in `{name: guess, high: 31, turns: 5}`. Every environment has the
            limits `turns` (8) of an episode, `turn_tokens` of a turn, `step_timeout` (10 seconds)
            and `answer_characters` (10,000) of an answer, and `credit` (`"episode"` or `"turn"`).
            The run ends if more than `max_failure_rate` (0.5) of the last 256 turns failed.
            `max_completion_length` bounds the whole episode with its answers. `None`: a completion
            is one turn.
    """

    environment: dict | str | None = None


def environment_rules(v: Mapping[str, Any], _: int) -> Iterator[Problem]:
    """The environment is a known one and takes its options, and no other option contradicts it."""
    if v["environment"] is None:
        return
    try:
        rules = episode_rules(v["environment"])
    except ValueError as error:
        yield Problem(str(error), "environment")
        return
    if rules.credit == "turn":
        wanted = {
            "multi_objective_aggregation": SUM_THEN_NORMALIZE,
            "group_filter": "off",  # signal is of whole episodes
            "advantage_normalizer": "all",
        }
        if v["tie_break_reward"] is not None:
            yield Problem(
                "environment: credit: turn compares the rewards to go of each turn, and "
                "tie_break_reward those of whole episodes. Take tie_break_reward out.",
                "tie_break_reward",
            )
        if compares_groups(v):
            yield Problem("environment: credit: turn needs scale_rewards: group.", "scale_rewards")
        for key, value in wanted.items():
            if v[key] != value:
                yield Problem(f"environment: credit: turn needs {key}: {value}.", key)
    if v["curriculum"] == "adaptive" or v["pass_rates_file"]:
        words = "pass rates are counted by prompt, and the games of one prompt differ by their seed"
        yield Problem(
            f"environment: {words}: take curriculum and pass_rates_file out.", "curriculum"
        )
    for key in sorted(TURN_ENDS & {*(v["generation_kwargs"] or {})}):
        yield Problem(
            f"environment: a turn ends with an end token or at turn_tokens: take {key} out.",
            "generation_kwargs",
        )
