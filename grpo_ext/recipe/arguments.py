"""Check training arguments that were built in Python against the rules for recipes."""

import dataclasses
from enum import Enum
from typing import cast

from trl import GRPOConfig, ModelConfig

from grpo_ext.recipe.fields import field_problems
from grpo_ext.recipe.notes import ARGUMENT_NOTES, notes_of
from grpo_ext.recipe.overlap_options import OWN_GENERATION, SEPARATE_SAMPLER
from grpo_ext.recipe.problems import Problem, RecipeError
from grpo_ext.recipe.rules import GRPO_RULES, check_values, flat_values
from grpo_ext.recipe.schema import GRPOExtConfig, RunConfig
from grpo_ext.recipe.typed_values import Values


def with_our_defaults(args: GRPOConfig) -> GRPOExtConfig:
    """Add the fields of `GRPOExtConfig` that `args` lacks, with their defaults, and return `args`.

    `args` is changed in place.
    """
    for name, default in flat_values({}, {"training": GRPOExtConfig}).defaults.items():
        if not hasattr(args, name):
            setattr(args, name, default)
    return cast(GRPOExtConfig, args)


def check_arguments(
    args: GRPOExtConfig,
    num_processes: int,
    separate_sampler: bool = False,
    own_generation: bool = False,
    chosen_eval_batch_size: int | None = None,
) -> None:
    """Check arguments built in Python against the rules for recipes.

    Rules that depend on the model, its adapter or the data are skipped, because only a recipe names
    these. A value that differs from its default counts as set. A value that fits its field only
    after conversion, such as the string `"5e-7"` for a number, is replaced in `args`.

    Args:
        args: the arguments of the trainer.
        num_processes: the number of training processes.
        separate_sampler: whether the trainer was given a sampler that is a separate engine.
        own_generation: whether the trainer was given a sampler or a `rollout_func`.
        chosen_eval_batch_size: the `per_device_eval_batch_size` that an earlier trainer chose; it
            counts as unset. `None` if no trainer has chosen one.

    Raises:
        RecipeError: if anything is wrong. The error lists all problems, each with a remedy.
    """
    problems = field_problems(args, GRPOExtConfig)
    unsound = {problem.key for problem in problems if problem.key}
    values = argument_values(args, unsound)
    eval_batch_size = args.per_device_eval_batch_size
    if eval_batch_size is not None and eval_batch_size == chosen_eval_batch_size:
        values = values.replaced(per_device_eval_batch_size=None)
    if separate_sampler:
        values[SEPARATE_SAMPLER] = True
    if own_generation:
        values[OWN_GENERATION] = True
    problems += check_values(values, GRPO_RULES, {}, num_processes)
    if problems:
        raise RecipeError(problems)


def argument_notes(args: GRPOExtConfig, num_processes: int) -> list[Problem]:
    """Return notes about arguments with valid but odd values, which are used as given."""
    return notes_of(argument_values(args, set()), ARGUMENT_NOTES, num_processes)


def argument_values(args: GRPOExtConfig, unsound: set[str]) -> Values:
    """Convert trainer arguments to the `Values` that rules read, omitting those in `unsound`.

    Arguments that equal their defaults count as unset. `steps_per_generation` always counts as
    unset, because TRL sets it in addition to `generation_batch_size`. Reading a key in `unsound`,
    or one that only a recipe has, such as `model_name_or_path`, raises `Unsound`.
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
