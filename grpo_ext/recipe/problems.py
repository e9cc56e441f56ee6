"""Problems and notes about a recipe, collected so that all of them are reported at once."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self


@dataclass(frozen=True)
class Problem:
    """A problem found in a recipe, or a note about it."""

    message: str  # what is wrong and how to fix it
    key: str | None = None  # the recipe key at fault, if there is one
    place: str | None = (
        None  # where the key was set or the fault is, such as `tiny.yaml:12` or `command line`
    )

    def placed(self, places: Mapping[str, str | None]) -> Self:
        """Return a copy whose `place` is looked up in `places` by the problem's key.

        The place is `None` if the problem has no key, or `places` does not contain it.
        """
        return replace(self, place=places.get(self.key) if self.key else None)

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class RecipeError(ValueError):
    """Raised if a recipe cannot be run; `problems` lists everything that is wrong with it.

    If the error was raised while loading a recipe in which each value is valid by itself and only
    combinations of values are at fault, `recipe` is that recipe; otherwise it is `None`.
    """

    def __init__(self, problems: Iterable[Problem], recipe: Any = None):
        self.problems = list(problems)
        self.recipe = recipe
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass
class Findings:
    """Collects the problems, notes and figures from all checks of a recipe."""

    # what would break the run or make its signal useless
    problems: list[Problem] = field(default_factory=list)
    # hints, and checks that could not be done on this machine
    notes: list[Problem] = field(default_factory=list)
    # results by part, such as "batch", "prompts" or "disk"
    figures: dict[str, Any] = field(default_factory=dict)
    # where each key of the recipe was set
    places: dict[str, str | None] = field(default_factory=dict, repr=False)
    elsewhere: bool = False  # the run will be on another machine

    @property
    def sound(self) -> bool:
        return not self.problems

    def has_problem(self, key: str) -> bool:
        return any(problem.key == key for problem in self.problems)

    def mentions(self, key: str) -> bool:
        """Return whether a problem or a note is about `key`."""
        return any(problem.key == key for problem in (*self.problems, *self.notes))

    def problem(self, message: object, key: str | None = None) -> None:
        """Add a problem about `key`, with the place where `key` was set."""
        self.problems.append(Problem(str(message), key).placed(self.places))

    def note(self, message: object, key: str | None = None) -> None:
        """Add a note about `key`, with the place where `key` was set."""
        self.notes.append(Problem(str(message), key).placed(self.places))

    def absent(self, message: object, key: str | None = None) -> None:
        """Report that this machine lacks something: as a note if `elsewhere`, else as a problem."""
        (self.note if self.elsewhere else self.problem)(message, key)

    def refuse(self) -> None:
        """Raise `RecipeError` with all problems, if there are any."""
        if self.problems:
            raise RecipeError(self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Return the findings as data that can be written as JSON.

        The result has the form `{"sound": true, "problems": [{"message", "key", "place"}], "notes":
        [...], ...}`, where the remaining keys are those of `figures`.
        """
        return {
            "sound": self.sound,
            "problems": [asdict(problem) for problem in self.problems],
            "notes": [asdict(note) for note in self.notes],
            **self.figures,
        }
