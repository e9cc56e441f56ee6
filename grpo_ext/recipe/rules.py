"""Check the values of a recipe, or arguments built in Python, against the rules between them.

A rule is a short function of the values and the number of processes that yields problems. Rules
need neither a GPU nor the data.
"""

import dataclasses
import fnmatch
import os
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from string import Formatter
from typing import Any, cast

from trl import GRPOConfig, ModelConfig, SFTConfig

from grpo_ext.recipe import (
    advantage_options,
    batch,
    best_model,
    episode_options,
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
from grpo_ext.recipe.fields import field_problems
from grpo_ext.recipe.folder import settings_of
from grpo_ext.recipe.notes import ARGUMENT_NOTES, GRPO_NOTES, SFT_NOTES, notes_of
from grpo_ext.recipe.overlap_options import SEPARATE_SAMPLER
from grpo_ext.recipe.problems import Problem, RecipeError
from grpo_ext.recipe.rule_kinds import Dependency, Idle, Refusal, Rule
from grpo_ext.recipe.schema import GRPOExtConfig, LaunchConfig, RunConfig
from grpo_ext.recipe.typed_values import Unsound, Values


def check_values(
    values: Values,
    rules: tuple[Rule, ...],
    places: dict[str, str | None],
    num_processes: int | None = None,
) -> list[Problem]:
    """Return all problems that `rules` find.

    A rule that reads a refused or unknown value is skipped.

    Args:
        values: the values of the recipe.
        rules: the rules to apply.
        places: where each key was set.
        num_processes: the number of training processes. `None`: the number that `processes`
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
    """Merge the values of all parts of a recipe into one mapping with the defaults of all fields.

    `unsound` are the keys whose values were refused or are unknown; reading one raises `Unsound`.
    """
    defaults: dict[str, Any] = {}
    for cls in schema.values():
        for f in dataclasses.fields(cls):
            default = None
            if f.default is not dataclasses.MISSING:
                default = f.default
            elif f.default_factory is not dataclasses.MISSING:
                default = f.default_factory()
            defaults.setdefault(f.name, default)
    merged: dict[str, Any] = {}
    for part in values.values():
        merged |= part
    return Values(merged, defaults, unsound)


def processes(v: Values) -> int:
    """Return the number of training processes.

    It is the number that the launcher started (`WORLD_SIZE`), else the number in the recipe's
    accelerate config, else 1.
    """
    return int(os.environ.get("WORLD_SIZE", 0)) or settings_of(v).get("num_processes", 1)


def check_keys(rules: Iterable[Rule], classes: Iterable[type]) -> None:
    """Raise `KeyError` if a rule's key or message names something that is not a field."""
    fields = {f.name for cls in classes for f in dataclasses.fields(cls)}
    for rule in rules:
        named: set[str] = set()
        if isinstance(rule, Dependency):
            named = {rule.key, *rule.needed}
        if isinstance(rule, Idle):
            named = set(rule.always)
            named |= {pattern for pattern in rule.patterns if not fnmatch.filter(fields, pattern)}
        if isinstance(rule, Refusal):
            named = {rule.key}
            for _, name, _, _ in Formatter().parse(rule.message):
                if name:
                    named.add(name.partition("[")[0])
        if not named <= fields:
            raise KeyError(f"{rule} names keys that are not fields of a recipe: {named - fields}")


# the plugins of `reward_options` may register what the rules after them look up
GRPO_RULES: tuple[Rule, ...] = (
    *run_rules.RULES,
    *batch.RULES,
    *group_options.RULES,
    *several_tasks.RULES,
    *row_options.RULES,
    *reward_options.RULES,
    *objective_options.RULES,
    *advantage_options.RULES,
    *scoring_options.RULES,
    *step_options.RULES,
    *best_model.RULES,
    *vllm_options.RULES,
    *overlap_options.RULES,
    *safety_options.RULES,
    *episode_options.RULES,
)
SFT_RULES: tuple[Rule, ...] = run_rules.SUPERVISED_RULES
check_keys((*GRPO_RULES, *GRPO_NOTES), (GRPOExtConfig, RunConfig, ModelConfig))
check_keys((*SFT_RULES, *SFT_NOTES), (SFTConfig, LaunchConfig, ModelConfig))


def with_our_defaults(args: GRPOConfig) -> GRPOExtConfig:
    """Set the fields that a `GRPOConfig` lacks to our defaults, and return the same object."""
    for name, default in flat_values({}, {"training": GRPOExtConfig}).defaults.items():
        if not hasattr(args, name):
            setattr(args, name, default)
    return cast(GRPOExtConfig, args)


def check_arguments(
    args: GRPOExtConfig, num_processes: int, separate_sampler: bool = False
) -> None:
    """Check arguments built in Python by the same rules as recipes.

    Rules that depend on the model, its adapter or the data are skipped, because only a recipe names
    these. A value that differs from its default counts as set.

    Args:
        args: the arguments of the trainer.
        num_processes: the number of training processes.
        separate_sampler: whether the trainer was given a sampler that is a separate engine.

    Raises:
        RecipeError: if anything is wrong. It lists all problems, each with what to write instead.
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
    """Return notes on arguments that were checked: values that are odd, but are used as given."""
    return notes_of(argument_values(args, set()), ARGUMENT_NOTES, num_processes)


def argument_values(args: GRPOExtConfig, unsound: set[str]) -> Values:
    """Convert trainer arguments to the `Values` that rules read, omitting those in `unsound`.

    Arguments that equal their defaults count as unset. `steps_per_generation` always does, because
    TRL sets it in addition to `generation_batch_size`.
    """
    defaults = flat_values({}, {"training": GRPOExtConfig}).defaults
    elsewhere: set[str] = set()
    for cls in (RunConfig, ModelConfig):
        elsewhere |= {f.name for f in dataclasses.fields(cls)}
    elsewhere -= defaults.keys()
    values = {}
    for name in defaults.keys() - unsound:
        value = getattr(args, name)
        if isinstance(value, Enum):
            value = value.value
        if value != defaults[name]:
            values[name] = value
    # TRL sets both this and `generation_batch_size`; a recipe sets at most one
    values.pop("steps_per_generation", None)
    return Values(values, defaults, unsound | elsewhere)
