"""The recipe key for multi-turn episodes; see `docs/several-turns.md`."""

from collections.abc import Iterator
from dataclasses import dataclass

from grpo_ext.environments.episode_rules import episode_rules
from grpo_ext.objective.advantage import SUM_THEN_NORMALIZE
from grpo_ext.recipe.advantage_options import compares_groups
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import STEP_NORMALIZATION, Dependency, Rule, in_yaml, refuses
from grpo_ext.recipe.typed_values import Values

# keys of `generation_kwargs` that would end turns in other ways
TURN_ENDS = {"stop", "stop_strings", "stop_token_ids", "max_tokens", "max_new_tokens", "max_time"}

# Values that `credit: turn` needs; the last two because signal is judged for whole episodes.
WITH_CREDIT_BY_TURN = {
    "multi_objective_aggregation": SUM_THEN_NORMALIZE,
    "group_filter": "off",
    "advantage_normalizer": "all",
}


@dataclass
class EpisodeOptions:
    """The recipe key for episodes; a base of `GRPOExtConfig`.

    Args:
        environment (`dict` or `str`, *optional*): the environment that replies to the model: its
            name, or a mapping with options, such as `{name: guess, high: 31, turns: 5}`. Every
            environment has the limits `turns` per episode (8), `turn_tokens` per turn, and
            `step_timeout` (10 seconds) and `answer_characters` (10,000) per reply, and the options
            `credit` (`"episode"` or `"turn"`) and `threads` (the number of threads that run code
            that is not async; by default it runs in the main thread). An episode whose environment
            fails is left out, trained on, or played again (`on_failure`: `"mask"`, `"train"` or
            `"retry"`). The run stops if more than `max_failure_rate` (0.5) of the last 256 turns
            failed. `max_completion_length` limits the whole episode, including the replies. `None`:
            a completion is a single turn.
    """

    environment: dict | str | None = None


def environment_that_does_not_fit(v: Values, _: int) -> Iterator[Problem]:
    """The environment must be known, accept its options and not conflict with other keys."""
    if v.environment is None:
        return
    try:
        rules = episode_rules(v.environment)
    except ValueError as error:
        yield Problem(str(error), "environment")
        return
    if rules.credit == "turn":
        if v.tie_break_reward is not None:
            yield Problem(
                "environment: `credit: turn` compares the rewards-to-go of turns, but "
                "tie_break_reward compares whole episodes. Remove tie_break_reward.",
                "tie_break_reward",
            )
        if compares_groups(v):
            yield Problem(
                "environment: `credit: turn` compares turns within a group, but "
                f"`scale_rewards: {v.scale_rewards}` compares groups with each other. Write "
                "`scale_rewards: group`.",
                "scale_rewards",
            )
        for key, value in WITH_CREDIT_BY_TURN.items():
            if v[key] != value:
                yield Problem(f"environment: `credit: turn` needs `{key}: {in_yaml(value)}`.", key)
    if v.curriculum == "adaptive":
        yield Problem(
            "environment: `curriculum: adaptive` counts pass rates per prompt, but episodes of the "
            "same prompt differ by their seed. Write `curriculum: none`.",
            "curriculum",
        )
    if v.pass_rates_file:
        yield Problem(
            "environment: pass_rates_file has pass rates per prompt, but episodes of the same "
            "prompt differ by their seed. Remove pass_rates_file.",
            "pass_rates_file",
        )
    for key in sorted(TURN_ENDS & {*(v.generation_kwargs or {})}):
        yield Problem(
            f"environment: a turn ends at an end token or after turn_tokens tokens, so {key} "
            f"cannot end it. Remove {key} from generation_kwargs.",
            "generation_kwargs",
        )


@refuses(
    "max_completion_length",
    "`max_completion_length: null` leaves the episodes of environment without a limit. Write a "
    "number.",
)
def episodes_without_a_length(v: Values) -> bool:
    return v.max_completion_length is None and v.use_vllm and v.environment is not None


RULES: tuple[Rule, ...] = (
    Dependency(
        "environment",
        (None,),
        STEP_NORMALIZATION | {"use_transformers_continuous_batching": (False,)},
    ),
    environment_that_does_not_fit,
    episodes_without_a_length,
)
