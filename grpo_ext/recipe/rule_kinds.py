"""Kinds of rules, which find problems in a recipe or yield notes about it.

A rule is called with the `Values` of a recipe and the number of processes, and yields problems or
notes. Any function with that signature is a rule; the classes here are for rules that need only a
predicate or a table.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import yaml

from grpo_ext.common.untrusted import one_line
from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.typed_values import Values

#: A rule takes the values and the number of processes, and yields problems or notes.
Rule = Callable[[Values, int], Iterator[Problem]]


@dataclass(frozen=True)
class Refusal:
    """A rule that yields one problem if a predicate of the recipe's values is true."""

    key: str  #: the key at fault
    message: str  #: what is wrong and how to fix it; `{beta}` stands for the value of `beta`
    holds: Callable[[Values], object]

    def __call__(self, v: Values, num_processes: int) -> Iterator[Problem]:
        if self.holds(v):
            yield Problem(self.message.format_map(v), self.key)


def refuses(key: str, message: str) -> Callable[[Callable[[Values], object]], Refusal]:
    """Decorator that turns a predicate of `Values` into a `Refusal` with this key and message."""
    return partial(Refusal, key, message)


#: What most options of this package require: the package's own loss instead of TRL's.
STEP_NORMALIZATION = {"loss_normalization": ("step",)}


@dataclass(frozen=True)
class Dependency:
    """A rule that yields a problem for each option whose value conflicts with that of `key`."""

    key: str
    free: tuple[Any, ...]  #: the values of `key` that require nothing
    #: for each other option, its allowed values; a problem proposes all of them
    needed: Mapping[str, tuple[Any, ...]]

    def __call__(self, v: Values, num_processes: int) -> Iterator[Problem]:
        if v[self.key] in self.free:
            return
        for other, fitting in self.needed.items():
            if v[other] not in fitting:
                proposed = "` or `".join(map(in_yaml, fitting))
                given = in_yaml(v[self.key])
                yield Problem(f"`{self.key}: {given}` needs `{other}: {proposed}`.", self.key)


def in_yaml(value: object) -> str:
    """Return a value as YAML on one line, such as `null`, `'off'` or `{name: guess}`."""
    try:
        text = yaml.safe_dump(
            value, default_flow_style=True, width=math.inf, sort_keys=False, allow_unicode=True
        )
    except yaml.YAMLError:  # a value from Python
        return one_line(value)
    return one_line(text.removesuffix("...\n").rstrip("\n"))


@dataclass(frozen=True)
class Idle:
    """A rule that yields a note for each option that is set but has no effect.

    Options with a false value (`false`, 0, `null` or empty) get no note.
    """

    patterns: tuple[str, ...]  #: the options; `*` matches any characters
    works: Callable[[Values], object]  #: whether the options have an effect
    remedy: str  #: the setting that gives the options an effect
    always: tuple[str, ...] = ()  #: options that match a pattern but always have an effect

    def __call__(self, v: Values, num_processes: int) -> Iterator[Problem]:
        if self.works(v):
            return
        for key in v:
            if v[key] and self.covers(key):
                yield Problem(f"{key} does nothing without {self.remedy}.", key)

    def covers(self, key: str) -> bool:
        """Return whether `key` matches one of `patterns` and is not in `always`."""
        matches = any(fnmatchcase(key, pattern) for pattern in self.patterns)
        return matches and key not in self.always
