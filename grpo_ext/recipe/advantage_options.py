"""Options for advantages, and their rules; see `docs/groups.md`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from grpo_ext.objective.advantage import (
    SUM_THEN_NORMALIZE,
    TRL_ADVANTAGES,
    TRL_JOINT_ADVANTAGES,
    advantage_names,
    get_advantages,
    joint_advantage_names,
)
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import STEP_NORMALIZATION, Dependency, Rule
from grpo_ext.recipe.typed_values import Values
from grpo_ext.recipe.values import convert

#: Required by options for which a completion has a single reward, the weighted sum of all rewards.
WEIGHTED_SUM = {"multi_objective_aggregation": (SUM_THEN_NORMALIZE,)}


@dataclass
class AdvantageOptions:
    """Recipe keys for advantages; a base of `GRPOExtConfig`.

    Args:
        std_estimator (`str`, defaults to `"sample"`): the estimator of the standard deviation of
            rewards. `"sample"` divides by n - 1, as TRL does; `"population"` divides by n, as the
            GRPO paper does.
        advantage_normalizer (`str`, defaults to `"all"`): which completions count in the divisor of
            the policy loss: all of them (`"all"`), or only those in groups whose rewards differ
            (`"useful"`).
    """

    std_estimator: Literal["sample", "population"] = "sample"
    advantage_normalizer: Literal["all", "useful"] = "all"


def compares_groups(v: Values) -> bool:
    """Return whether the advantages of `scale_rewards` depend on other groups, too, as for `batch`.

    Return `False` for an estimator that is not registered.
    """
    return v.scale_rewards in advantage_names() and not get_advantages(v.scale_rewards).within_group


def unknown_advantages(v: Values, _: int) -> Iterator[Problem]:
    """Yield a problem for each unknown advantage estimator.

    Also yield a problem for a `tie_break_reward` with an estimator whose advantages depend on other
    groups, too.
    """
    registered = {
        "scale_rewards": (*advantage_names(), True, False),
        "multi_objective_aggregation": joint_advantage_names(),
    }
    for key, names in registered.items():
        try:
            convert(key, v[key], Literal[names])
        except ValueError as error:
            yield Problem(str(error), key)
    if v.tie_break_reward is not None and compares_groups(v):
        yield Problem(
            f"`tie_break_reward: {v.tie_break_reward}` requires advantages that depend only on the "
            f"rewards in a completion's own group, but with `scale_rewards: {v.scale_rewards}` "
            "they also depend on other groups. Set `scale_rewards: group`.",
            "tie_break_reward",
        )


RULES: tuple[Rule, ...] = (
    Dependency("scale_rewards", (*TRL_ADVANTAGES, True, False), STEP_NORMALIZATION),
    Dependency("multi_objective_aggregation", TRL_JOINT_ADVANTAGES, STEP_NORMALIZATION),
    Dependency("std_estimator", ("sample",), WEIGHTED_SUM),
    Dependency("advantage_normalizer", ("all",), STEP_NORMALIZATION | WEIGHTED_SUM),
    unknown_advantages,
)
