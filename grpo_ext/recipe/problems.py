"""How a recipe's faults are told: every one of them at once, each with its place and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One fault of a recipe."""

    message: str  # what is wrong and what to write instead
    key: str | None = None  # the recipe key that it is about, if it is about one
    place: str | None = None  # where that key was set, such as `recipes/countdown/tiny.yaml:12` or `command line`
    idle: bool = False  # the value does nothing beside the others: a slip in a recipe, and harmless from Python

    def placed(self, places: Mapping[str, str | None]) -> Problem:
        """The same fault with the place where its key was set."""
        return replace(self, place=places.get(self.key) if self.key else None)

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class RecipeError(ValueError):
    """A recipe that cannot be run, with all its `problems`.

    Where each of its values is sound by itself, `recipe` is there, so that its parts can be looked at.
    """

    def __init__(self, problems: Iterable[Problem], recipe: Any = None):
        self.problems = list(problems)
        self.recipe = recipe
        super().__init__("\n".join(str(problem) for problem in self.problems))
