"""The rules of a recipe on a trainer's arguments that were built in Python."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import cast

from trl import GRPOConfig, ModelConfig

from grpo_ext.recipe.fields import field_problems
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.recipe.rules import GRPO_RULES, Values, check_values, flat_values
from grpo_ext.recipe.schema import GRPOExtConfig, RunConfig


def with_our_defaults(args: GRPOConfig) -> GRPOExtConfig:
    """The same object; a plain `GRPOConfig`, or a user's own kind of one, gets each missing field with our default."""
    for name, default in flat_values({}, {"training": GRPOExtConfig}).defaults.items():
        if not hasattr(args, name):
            setattr(args, name, default)
    return cast(GRPOExtConfig, args)


def check_arguments(args: GRPOExtConfig, num_processes: int) -> None:
    """Refuse arguments that are wrong by themselves or contradict each other, by the same rules as recipes.

    What only a recipe says (the model, its adapter, the data) is not known here, and the rules end where they ask for it. A
    value that differs from its default counts as set. `RecipeError` names all that is wrong, each with what to write instead.
    """
    problems = field_problems(args, GRPOExtConfig)
    unsound = {problem.key for problem in problems if problem.key}
    found = check_values(argument_values(args, unsound), GRPO_RULES, {}, num_processes)
    problems += [problem for problem in found if not problem.idle]
    if problems:
        raise RecipeError(problems)


def argument_values(args: GRPOExtConfig, unsound: set[str]) -> Values:
    """The arguments as the rules read a recipe's values."""
    defaults = flat_values({}, {"training": GRPOExtConfig}).defaults
    elsewhere = {f.name for cls in (RunConfig, ModelConfig) for f in dataclasses.fields(cls)} - set(defaults)
    given = {}
    for name in defaults.keys() - unsound:
        value = getattr(args, name)
        value = value.value if isinstance(value, Enum) else value
        if value != defaults[name]:
            given[name] = value
    given.pop("steps_per_generation", None)  # TRL sets it and `generation_batch_size`, of which a recipe names one
    return Values(given, defaults, unsound | elsewhere)
