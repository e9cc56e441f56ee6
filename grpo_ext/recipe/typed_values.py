"""Typed access to the values of a recipe: `v.beta` has the type of the field `beta`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trl import ModelConfig

    from grpo_ext.recipe.schema import GRPOExtConfig, RunConfig

    class Fields(GRPOExtConfig, RunConfig, ModelConfig):
        """The fields of a recipe; two have narrower types than in TRL (see `fields.TYPES`)."""

        num_generations: int
        generation_kwargs: dict[str, Any] | None

else:

    class Fields:
        """Empty at run time: the fields are declared only for mypy, and `Values` looks them up."""


class Unsound(Exception):
    """Raised when a rule reads a key whose value is unknown or was already reported as wrong."""


class Values(dict[str, Any], Fields):
    """The values that a recipe sets, with the `defaults` of its fields for all other keys.

    Values are read by key or as attributes. Iteration, `in` and `get` see only the keys that are
    set. Reading any other key returns its default, except in two cases: a key in `unsound`, whose
    value was rejected or is unknown, raises `Unsound`, which ends the rule; and a key that is not a
    field raises `KeyError`, so that a rule with a misspelled key fails instead of never firing.
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
        """Return a copy with some values replaced."""
        return Values({**self, **values}, self.defaults, self.unsound)

    if not TYPE_CHECKING:  # mypy knows the fields by name and type

        def __getattr__(self, key: str) -> Any:
            if key.startswith("__"):  # a protocol of Python, such as that of `copy`
                raise AttributeError(key)
            return self[key]
