"""Check the values of a recipe for combinations that do not work.

A rule is called with the values and the number of processes, and yields problems. Rules run without
a GPU and without loading data.
"""

import dataclasses
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from grpo_ext.recipe import (
    advantage_options,
    batch,
    best_model,
    deterministic_options,
    episode_options,
    generation_options,
    group_options,
    objective_options,
    overlap_options,
    reward_options,
    row_options,
    run_rules,
    safety_options,
    scoring_options,
    several_tasks,
    step_options,
    vllm_options,
)
from grpo_ext.recipe.fields import default_of
from grpo_ext.recipe.folder import settings_of
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.rule_kinds import Rule
from grpo_ext.recipe.typed_values import Unsound, Values


def check_values(
    values: Values,
    rules: tuple[Rule, ...],
    places: dict[str, str | None],
    num_processes: int | None = None,
) -> list[Problem]:
    """Apply rules to the values of a recipe, and return all problems that they find.

    A rule ends as soon as it reads a value that was rejected or is unknown; the problems that it
    has already found are returned. If the number of processes depends on such a value, no rule is
    applied.

    Args:
        values: the values of the recipe.
        rules: the rules to apply.
        places: the place where each key was set, which is added to the problems.
        num_processes: the number of training processes; if `None`, `processes(values)` is used.
    """
    problems: list[Problem] = []
    with suppress(Unsound):
        count = num_processes or processes(values)  # once, since it reads the accelerate config
        for rule in rules:
            with suppress(Unsound):
                problems += rule(values, count)
    return [problem.placed(places) for problem in problems]


def flat_values(
    values: dict[str, dict[str, Any]], schema: dict[str, type], unsound: Iterable[str] = ()
) -> Values:
    """Merge the values of all parts of a recipe into one mapping with the defaults of all fields.

    Args:
        values: the values that are set, by part and key.
        schema: the dataclass of each part; if several have the same field, the default of the first
            one counts.
        unsound: keys whose values were rejected or are unknown; reading one raises `Unsound`.
    """
    defaults: dict[str, Any] = {}
    for cls in schema.values():
        for f in dataclasses.fields(cls):
            defaults.setdefault(f.name, default_of(f))
    merged: dict[str, Any] = {}
    for part in values.values():
        merged |= part
    return Values(merged, defaults, unsound)


def processes(v: Values) -> int:
    """Return the number of training processes.

    It is `WORLD_SIZE`, which the launcher sets, or else `num_processes` in the recipe's accelerate
    config, or else 1.
    """
    return int(os.environ.get("WORLD_SIZE", 0)) or settings_of(v).get("num_processes") or 1


# the plugins that `reward_options` loads may register names that the rules after it look up
GRPO_RULES: tuple[Rule, ...] = (
    *run_rules.RULES,
    *batch.RULES,
    *generation_options.RULES,
    *group_options.RULES,
    *several_tasks.RULES,
    *row_options.RULES,
    *reward_options.RULES,
    *objective_options.RULES,
    *advantage_options.RULES,
    *scoring_options.RULES,
    *deterministic_options.RULES,
    *step_options.RULES,
    *best_model.RULES,
    *vllm_options.RULES,
    *overlap_options.RULES,
    *safety_options.RULES,
    *episode_options.RULES,
)
SFT_RULES: tuple[Rule, ...] = run_rules.SUPERVISED_RULES
