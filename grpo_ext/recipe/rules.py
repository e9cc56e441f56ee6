"""What must hold between the values of a recipe, or of arguments built in Python: the machinery, and which rules each has.

A rule is a short function of the values that yields problems. Rules see only what can be known without a GPU; the number of
processes is the launcher's, or what the accelerate config says.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from typing import Any, cast

from trl import GRPOConfig, ModelConfig

from grpo_ext.recipe import contradictions, losses, safety_options
from grpo_ext.recipe.batch import whole_eval_groups, whole_groups
from grpo_ext.recipe.episode_options import environment_rules
from grpo_ext.recipe.fields import field_problems
from grpo_ext.recipe.folder import settings_of
from grpo_ext.recipe.group_options import harvest_rules, metric_rules, unread
from grpo_ext.recipe.problems import Problem, RecipeError
from grpo_ext.recipe.schema import GRPOExtConfig, RunConfig
from grpo_ext.recipe.step_options import speed_rules
from grpo_ext.recipe.vllm_options import adapter_rules


class Unsound(Exception):
    """A rule asked for a value that is wrong by itself, of which all is said, or that is not known."""


class Values(dict):
    """The values that a recipe sets, over the `defaults` of every known field; iterating goes over what is set.

    To ask for one of `unsound`, keys whose values were refused or are not known, raises `Unsound`, which ends the rule.
    """

    def __init__(self, given: dict[str, Any], defaults: dict[str, Any], unsound: Iterable[str] = ()):
        super().__init__(given)
        self.defaults = defaults
        self.unsound = frozenset(unsound)

    def __missing__(self, key: str) -> Any:
        if key in self.unsound:
            raise Unsound(key)
        return self.defaults.get(key)


Rule = Callable[[Values, int], Iterator[Problem]]


def check_values(
    values: Values, rules: tuple[Rule, ...], places: dict[str, str | None], num_processes: int | None = None
) -> list[Problem]:
    """All problems between the values of a recipe; without `num_processes`, of as many as the launcher started."""
    problems: list[Problem] = []
    with suppress(Unsound):
        count = num_processes or processes(values)  # once: it reads the accelerate config
        for rule in rules:
            with suppress(Unsound):
                problems += rule(values, count)
    return [problem.placed(places) for problem in problems]


def flat_values(values: dict[str, dict[str, Any]], schema: dict[str, type], unsound: Iterable[str] = ()) -> Values:
    """The values of all parts of a recipe as one mapping over the defaults of their dataclasses."""
    defaults: dict[str, Any] = {}
    for cls in schema.values():
        for f in dataclasses.fields(cls):
            default = None if f.default is dataclasses.MISSING else f.default
            defaults.setdefault(f.name, default if f.default_factory is dataclasses.MISSING else f.default_factory())
    return Values({key: value for part in values.values() for key, value in part.items()}, defaults, unsound)


def processes(v: Values) -> int:
    """How many processes train: as many as the launcher started, else what the recipe's accelerate config would start."""
    return int(os.environ.get("WORLD_SIZE", 0)) or settings_of(v).get("num_processes", 1)


def rule_of(key: str, contradicted: Callable[[Values], Any], words: str) -> Rule:
    """The rule that a row of `contradictions` states."""

    def rule(v: Values, _: int) -> Iterator[Problem]:
        if contradicted(v):
            yield Problem(words.format_map(v), key)

    return rule


SFT_RULES: tuple[Rule, ...] = tuple(rule_of(*row) for row in (*contradictions.ALWAYS, *contradictions.SUPERVISED))

GRPO_RULES: tuple[Rule, ...] = (
    *(rule_of(*row) for row in (*contradictions.ALWAYS, *contradictions.GRPO)),
    whole_groups,
    whole_eval_groups,
    contradictions.weights_match,
    losses.loss_type,
    losses.normalization,
    losses.reference,
    adapter_rules,
    contradictions.scorable,
    contradictions.temperature,
    contradictions.best_model,
    metric_rules,
    unread,
    safety_options.health,
    harvest_rules,
    environment_rules,
    speed_rules,
)


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
