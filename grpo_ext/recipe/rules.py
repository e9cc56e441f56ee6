"""The rules between the values of a recipe, or of arguments built in Python, and the code that
applies them.

A rule is a short function of the values and the number of processes, which yields problems. Rules
need no GPU and no data.
"""

import dataclasses
import os
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from string import Formatter
from typing import Any, cast

from trl import GRPOConfig, ModelConfig, SFTConfig

from grpo_ext.recipe import (
    batch,
    best_model,
    episode_options,
    group_options,
    loss_rules,
    needs,
    overlap_options,
    row_options,
    run_rules,
    safety_options,
    several_tasks,
    vllm_options,
)
from grpo_ext.recipe.fields import field_problems
from grpo_ext.recipe.folder import settings_of
from grpo_ext.recipe.needs import Dependency
from grpo_ext.recipe.notes import ARGUMENT_NOTES, notes_of
from grpo_ext.recipe.overlap_options import SEPARATE_SAMPLER
from grpo_ext.recipe.problems import Problem, RecipeError
from grpo_ext.recipe.schema import GRPOExtConfig, LaunchConfig, RunConfig
from grpo_ext.recipe.typed_values import Refusal, Rule, Unsound, Values


def check_values(
    values: Values,
    rules: tuple[Rule, ...],
    places: dict[str, str | None],
    num_processes: int | None = None,
) -> list[Problem]:
    """Return all problems that `rules` find; `num_processes` defaults to what `processes`
    returns.
    """
    problems: list[Problem] = []
    with suppress(Unsound):
        count = num_processes or processes(values)  # reads the accelerate config, so only once
        for rule in rules:
            with suppress(Unsound):
                problems += rule(values, count)
    return [problem.placed(places) for problem in problems]


def flat_values(
    values: dict[str, dict[str, Any]], schema: dict[str, type], unsound: Iterable[str] = ()
) -> Values:
    """Return the values of all parts of a recipe as one mapping, over the defaults of their
    dataclasses.
    """
    defaults: dict[str, Any] = {}
    for cls in schema.values():
        for f in dataclasses.fields(cls):
            default = None if f.default is dataclasses.MISSING else f.default
            defaults.setdefault(
                f.name, default if f.default_factory is dataclasses.MISSING else f.default_factory()
            )
    return Values(
        {key: value for part in values.values() for key, value in part.items()}, defaults, unsound
    )


def processes(v: Values) -> int:
    """Return how many processes train: those that the launcher started, else those that the
    accelerate config would start.
    """
    return int(os.environ.get("WORLD_SIZE", 0)) or settings_of(v).get("num_processes", 1)


def check_keys(rules: Iterable[Rule], classes: Iterable[type]) -> None:
    """Raise `KeyError` if a rule's key or message names no field of the `classes`."""
    fields = {f.name for cls in classes for f in dataclasses.fields(cls)}
    for rule in rules:
        named: set[str] = set()
        if isinstance(rule, Dependency):
            named = {rule.key, *rule.needed}
        if isinstance(rule, Refusal):
            parts = Formatter().parse(rule.message)
            named = {rule.key, *(name.partition("[")[0] for _, name, _, _ in parts if name)}
        if not named <= fields:
            raise KeyError(f"{rule} names what is no field of a recipe: {named - fields}")


GRPO_RULES: tuple[Rule, ...] = (
    *run_rules.RULES,
    *needs.NEEDS,
    *batch.RULES,
    *group_options.RULES,
    *several_tasks.RULES,
    *row_options.RULES,
    *loss_rules.RULES,
    *best_model.RULES,
    *vllm_options.RULES,
    *overlap_options.RULES,
    *safety_options.RULES,
    *episode_options.RULES,
)
SFT_RULES: tuple[Rule, ...] = run_rules.SUPERVISED_RULES
check_keys(GRPO_RULES, (GRPOExtConfig, RunConfig, ModelConfig))
check_keys(SFT_RULES, (SFTConfig, LaunchConfig, ModelConfig))


def with_our_defaults(args: GRPOConfig) -> GRPOExtConfig:
    """Return the same object; a `GRPOConfig`, or a user's subclass of it, gets each missing field
    with our default.
    """
    for name, default in flat_values({}, {"training": GRPOExtConfig}).defaults.items():
        if not hasattr(args, name):
            setattr(args, name, default)
    return cast(GRPOExtConfig, args)


def check_arguments(
    args: GRPOExtConfig, num_processes: int, separate_sampler: bool = False
) -> None:
    """Refuse arguments that are wrong by themselves or contradict each other, by the same rules as
    recipes.

    What only a recipe says (the model, its adapter, the data) is not known here: a rule that asks
    for it ends. A value that differs from its default counts as set. `separate_sampler` says
    whether the trainer was given a sampler that is another engine. `RecipeError` names all that is
    wrong, each with what to write instead.
    """
    problems = field_problems(args, GRPOExtConfig)
    unsound = {problem.key for problem in problems if problem.key}
    values = argument_values(args, unsound)
    if separate_sampler:
        values[SEPARATE_SAMPLER] = True
    problems += check_values(values, GRPO_RULES, {}, num_processes)
    if problems:
        raise RecipeError(problems)


def argument_notes(args: GRPOExtConfig, num_processes: int) -> list[Problem]:
    """Return the notes on checked arguments: odd values that train as they say."""
    return notes_of(argument_values(args, set()), ARGUMENT_NOTES, num_processes)


def argument_values(args: GRPOExtConfig, unsound: set[str]) -> Values:
    """Return the arguments in the form in which rules read the values of a recipe."""
    defaults = flat_values({}, {"training": GRPOExtConfig}).defaults
    elsewhere = {f.name for cls in (RunConfig, ModelConfig) for f in dataclasses.fields(cls)} - set(
        defaults
    )
    values = {}
    for name in defaults.keys() - unsound:
        value = getattr(args, name)
        if isinstance(value, Enum):
            value = value.value
        if value != defaults[name]:
            values[name] = value
    # TRL sets it and `generation_batch_size`, of which a recipe names one
    values.pop("steps_per_generation", None)
    return Values(values, defaults, unsound | elsewhere)
