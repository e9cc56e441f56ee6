"""What must hold between the values of a recipe: the machinery, and which rules each kind of recipe has.

A rule is a short function of the values that yields problems. Rules see only what can be known without a GPU; the number of
processes is the launcher's, or what the accelerate config says.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

from grpo_ext.recipe import contradictions, losses, safety_options
from grpo_ext.recipe.batch import whole_eval_groups, whole_groups
from grpo_ext.recipe.folder import settings_of
from grpo_ext.recipe.group_options import harvest_rules, metric_rules, unread
from grpo_ext.recipe.problems import Problem
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
    speed_rules,
)
