"""How a recipe's faults are told: all at once, each with its place and what to write instead; and what was seen besides."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self


@dataclass(frozen=True)
class Problem:
    """One fault of a recipe."""

    message: str  # what is wrong and what to write instead
    key: str | None = None  # the recipe key that it is about, if it is about one
    place: str | None = None  # where that key was set, such as `recipes/countdown/tiny.yaml:12` or `command line`
    idle: bool = False  # the value does nothing beside the others: a slip in a recipe, and harmless from Python

    def placed(self, places: Mapping[str, str | None]) -> Self:
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
