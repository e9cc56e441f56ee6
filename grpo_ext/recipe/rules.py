"""The rules between the values of a recipe, or of arguments built in Python, and the code that
applies them.

A rule is a short function of the values and the number of processes, which yields problems. Rules
need no GPU and no data.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Any, cast

from trl import GRPOConfig, ModelConfig

from grpo_ext.recipe import contradictions, loss_rules, safety_options
from grpo_ext.recipe.batch import whole_eval_groups, whole_groups
from grpo_ext.recipe.best_model import best_model
from grpo_ext.recipe.contradictions import Contradiction
from grpo_ext.recipe.episode_options import environment_rules
from grpo_ext.recipe.fields import field_problems
from grpo_ext.recipe.folder import settings_of
from grpo_ext.recipe.group_options import metric_rules, tie_break_rules
from grpo_ext.recipe.needs import NEEDS, need
from grpo_ext.recipe.notes import ARGUMENT_NOTES, notes_of
from grpo_ext.recipe.overlap_options import (
    SEPARATE_SAMPLER,
    overlap_rules,
    partial_rollout_rules,
)
from grpo_ext.recipe.problems import Problem, RecipeError
from grpo_ext.recipe.row_options import row_rules
from grpo_ext.recipe.schema import GRPOExtConfig, RunConfig
from grpo_ext.recipe.several_tasks import several_tasks_rules
from grpo_ext.recipe.vllm_options import adapter_rules, server_url_rules


class Unsound(Exception):
    """A rule asked for a value that is not known, or is wrong by itself and already has its
    problem.
    """


class Values(dict):
    """The values that a recipe sets, over the `defaults` of its fields; iteration yields only the
    keys that are set.

    Reading a key in `unsound`, whose value was refused or is unknown, raises `Unsound`, which ends
    the rule. Reading a key that is not a field raises `KeyError`, so that a rule with a mistyped
    key fails instead of never firing.
    """

    def __init__(
        self, given: dict[str, Any], defaults: dict[str, Any], unsound: Iterable[str] = ()
    ):
        super().__init__(given)
        self.defaults = defaults
        self.unsound = frozenset(unsound)

    def __missing__(self, key: str) -> Any:
        if key in self.unsound:
            raise Unsound(key)
        if key not in self.defaults:
            raise KeyError(f"no field of this recipe is named {key!r}")
        return self.defaults[key]

    def has(self, key: str) -> bool:
        """Whether this kind of recipe, for GRPO or for supervised training, has the field `key`."""
        return key in self.defaults


Rule = Callable[[Values, int], Iterator[Problem]]


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


def rule_of(contradiction: Contradiction) -> Rule:
    """Return the rule that finds a contradiction."""

    def rule(v: Values, _: int) -> Iterator[Problem]:
        if contradiction.holds(v):
            yield Problem(contradiction.message.format_map(v), contradiction.key)

    return rule


SFT_RULES: tuple[Rule, ...] = tuple(
    rule_of(row) for row in (*contradictions.ALWAYS, *contradictions.SUPERVISED)
)

GRPO_RULES: tuple[Rule, ...] = (
    *(rule_of(row) for row in (*contradictions.ALWAYS, *contradictions.GRPO)),
    *(need(*row) for row in NEEDS),
    whole_groups,
    whole_eval_groups,
    loss_rules.plugins,
    loss_rules.loss_type,
    loss_rules.advantages,
    loss_rules.constant_divisor,
    loss_rules.reference,
    best_model,
    adapter_rules,
    server_url_rules,
    overlap_rules,
    partial_rollout_rules,
    loss_rules.scorable,
    metric_rules,
    tie_break_rules,
    several_tasks_rules,
    row_rules,
    safety_options.health,
    environment_rules,
)


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
    given = {}
    for name in defaults.keys() - unsound:
        value = getattr(args, name)
        value = value.value if isinstance(value, Enum) else value
        if value != defaults[name]:
            given[name] = value
    given.pop(
        "steps_per_generation", None
    )  # TRL sets it and `generation_batch_size`, of which a recipe names one
    return Values(given, defaults, unsound | elsewhere)
