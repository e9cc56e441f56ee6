"""The values of a recipe as its rules read them, and the kinds of rules.

`v.beta` has the type of the field `beta`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_ext.recipe.problems import Problem

if TYPE_CHECKING:
    from trl import ModelConfig

    from grpo_ext.recipe.schema import GRPOExtConfig, RunConfig

    class Fields(GRPOExtConfig, RunConfig, ModelConfig):
        """The fields of a recipe; two have narrower types than in TRL (see `fields.TYPES`)."""

        num_generations: int
        generation_kwargs: dict[str, Any] | None

else:

    class Fields:
        """The fields are declared for mypy only; at run time `Values` looks them up."""


class Unsound(Exception):
    """A rule read a value that is unknown, or that is wrong and has been reported already."""


class Values(dict[str, Any], Fields):
    """The values that a recipe sets, with the `defaults` of its fields for all other keys.

    Iteration yields only the keys that are set. Reading a key in `unsound`, whose value was refused
    or is unknown, raises `Unsound`, which ends the rule. Reading a key that is not a field raises
    `KeyError`, so that a rule with a misspelled key fails instead of never firing.
    """

    def __init__(
        self, settings: dict[str, Any], defaults: dict[str, Any], unsound: Iterable[str] = ()
    ):
        super().__init__(settings)
        self.defaults = defaults
        self.unsound = frozenset(unsound)

    def __missing__(self, key: str) -> Any:
        if key in self.unsound:
            raise Unsound(key)
        if key not in self.defaults:
            raise KeyError(f"no field of this recipe is named {key!r}")
        return self.defaults[key]

    def has(self, key: str) -> bool:
        """Return whether recipes of this kind (GRPO or supervised) have the field `key`."""
        return key in self.defaults

    def replaced(self, **values: Any) -> "Values":
        """Return the same recipe with some values replaced."""
        return Values({**self, **values}, self.defaults, self.unsound)

    if not TYPE_CHECKING:  # mypy knows the fields by name and type

        def __getattr__(self, key: str) -> Any:
            if key.startswith("__"):  # a protocol of Python, such as that of `copy`
                raise AttributeError(key)
            return self[key]


#: A rule takes the values and the number of processes, and yields the problems of the recipe.
Rule = Callable[[Values, int], Iterator[Problem]]


@dataclass(frozen=True)
class Refusal:
    """A rule with a single predicate: where it holds, the recipe has a problem."""

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
    """A rule: an option needs values of other options, unless its own value is in `free`."""

    key: str
    free: tuple[Any, ...]  #: values that need nothing
    #: for each other option, the values that fit; the first one is proposed
    needed: Mapping[str, tuple[Any, ...]]

    def __call__(self, v: Values, num_processes: int) -> Iterator[Problem]:
        if v[self.key] in self.free:
            return
        for other, fitting in self.needed.items():
            if v[other] not in fitting:
                proposed = "null" if fitting[0] is None else str(fitting[0]).lower()
                yield Problem(f"{self.key}: {v[self.key]} needs {other}: {proposed}.", self.key)


@dataclass(frozen=True)
class Idle:
    """A note: options that are set but have no effect unless another option enables them."""

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
