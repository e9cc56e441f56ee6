"""What was found: faults, notes, and the figures behind them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo_ext.recipe.problems import Problem, RecipeError


@dataclass
class Findings:
    """The findings on one recipe."""

    problems: list[Problem] = field(default_factory=list)  # what would break the run or spoil its signal
    notes: list[Problem] = field(default_factory=list)  # worth knowing, or what could not be looked at from here
    figures: dict[str, Any] = field(default_factory=dict)  # what was seen, by part ("batch", "prompts", "disk")
    places: dict[str, str | None] = field(default_factory=dict, repr=False)  # where each key of the recipe was set
    elsewhere: bool = False  # the run will be on another machine

    @property
    def sound(self) -> bool:
        return not self.problems

    def problem(self, message: object, key: str | None = None) -> None:
        """Add a fault of `key`."""
        self.problems.append(Problem(str(message), key).placed(self.places))

    def note(self, message: object, key: str | None = None) -> None:
        """Add something worth knowing about `key`."""
        self.notes.append(Problem(str(message), key).placed(self.places))

    def absent(self, message: object, key: str | None = None) -> None:
        """Add what this machine lacks: a fault, or worth knowing where the run will be elsewhere."""
        (self.note if self.elsewhere else self.problem)(message, key)

    def refuse(self) -> None:
        """`RecipeError` with all faults, if there are any."""
        if self.problems:
            raise RecipeError(self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: `{"sound": true, "problems": [{"message", "key", "place"}], "notes": [...], ...}`."""
        found = {name: [asdict(p) for p in getattr(self, name)] for name in ("problems", "notes")}
        return {"sound": self.sound, **found, **self.figures}


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Keep the warnings of one logger, and of those under it, back."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
