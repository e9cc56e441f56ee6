"""The kinds of rules for the problems of a recipe, and for the notes on it.

A rule reads the `Values` of a recipe and yields its problems. Any function with that signature is a
rule; the classes here are for rules that need only a predicate or a table.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import yaml

from grpo_ext.recipe.problems import Problem
from grpo_ext.recipe.typed_values import Values

#: A rule takes the values and the number of processes, and yields the problems of the recipe.
Rule = Callable[[Values, int], Iterator[Problem]]


@dataclass(frozen=True)
class Refusal:
    """A rule with a single predicate: if it holds, the recipe has a problem."""

    key: str  #: the key at fault
    message: str  #: what is wrong and what to write; fields in braces stand for their values
    holds: Callable[[Values], object]

    def __call__(self, v: Values, num_processes: int) -> Iterator[Problem]:
        if self.holds(v):
            yield Problem(self.message.format_map(v), self.key)


def refuses(key: str, message: str) -> Callable[[Callable[[Values], object]], Refusal]:
    """Return a decorator that turns a predicate into a `Refusal` with this key and message."""
    return partial(Refusal, key, message)


#: What most options of this package need: the loss of this package instead of TRL's.
STEP_NORMALIZATION = {"loss_normalization": ("step",)}


@dataclass(frozen=True)
class Dependency:
    """A rule: an option needs certain values of other options, unless its value is in `free`."""

    key: str
    free: tuple[Any, ...]  #: values that need nothing
    #: for each other option, the values that fit
    needed: Mapping[str, tuple[Any, ...]]

    def __call__(self, v: Values, num_processes: int) -> Iterator[Problem]:
        if v[self.key] in self.free:
            return
        for other, fitting in self.needed.items():
            if v[other] not in fitting:
                proposed = "` or `".join(map(in_yaml, fitting))
                yield Problem(f"`{self.key}: {v[self.key]}` needs `{other}: {proposed}`.", self.key)


def in_yaml(value: object) -> str:
    """Return a plain value as a recipe writes it, such as `null` or `'off'`."""
    return yaml.safe_dump(value).partition("\n")[0]


@dataclass(frozen=True)
class Idle:
    """A rule that notes options that are set, but have no effect without another option.

    Options that are off (`false`, 0, empty) are not noted.
    """

    patterns: tuple[str, ...]  #: the options; `*` stands for any characters
    works: Callable[[Values], object]  #: whether the options have an effect
    remedy: str  #: what enables them
    always: tuple[str, ...] = ()  #: options that match a pattern but always have an effect

    def __call__(self, v: Values, num_processes: int) -> Iterator[Problem]:
        if self.works(v):
            return
        for key in v:
            if v[key] and self.covers(key):
                yield Problem(f"{key} does nothing without {self.remedy}.", key)

    def covers(self, key: str) -> bool:
        """Return whether the note is about `key`."""
        matches = any(fnmatchcase(key, pattern) for pattern in self.patterns)
        return matches and key not in self.always
