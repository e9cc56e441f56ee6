"""Records of a recipe's faults, so that all of them are reported at once."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self


@dataclass(frozen=True)
class Problem:
    """One fault of a recipe, or a note on it."""

    message: str  # what is wrong and what to write instead
    key: str | None = None  # the recipe key at fault, if there is one
    place: str | None = (
        None  # where that key was set, such as `recipes/countdown/tiny.yaml:12` or `command line`
    )

    def placed(self, places: Mapping[str, str | None]) -> Self:
        """Return the same problem with the place where its key was set."""
        return replace(self, place=places.get(self.key) if self.key else None)

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class RecipeError(ValueError):
    """Raised for a recipe that cannot be run, with all its `problems`.

    When a recipe is loaded, `recipe` is set if each value is valid and only combinations of values
    are at fault; otherwise it is `None`.
    """

    def __init__(self, problems: Iterable[Problem], recipe: Any = None):
        self.problems = list(problems)
        self.recipe = recipe
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass
class Findings:
    """The results of all checks of one recipe."""

    # faults that would break the run or spoil its signal
    problems: list[Problem] = field(default_factory=list)
    # hints, and checks that this machine cannot do
    notes: list[Problem] = field(default_factory=list)
    # results by part ("batch", "prompts", "disk")
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
        """Add a problem about `key`."""
        self.problems.append(Problem(str(message), key).placed(self.places))

    def note(self, message: object, key: str | None = None) -> None:
        """Add a note about `key`."""
        self.notes.append(Problem(str(message), key).placed(self.places))

    def absent(self, message: object, key: str | None = None) -> None:
        """Report what this machine lacks: a problem, or a note if the run will be elsewhere."""
        (self.note if self.elsewhere else self.problem)(message, key)

    def refuse(self) -> None:
        """Raise `RecipeError` with all problems, if there are any."""
        if self.problems:
            raise RecipeError(self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON.

        It has the form `{"sound": true, "problems": [{"message", "key", "place"}], "notes": [...],
        ...}`, where the remaining keys come from `figures`.
        """
        return {
            "sound": self.sound,
            "problems": [asdict(problem) for problem in self.problems],
            "notes": [asdict(note) for note in self.notes],
            **self.figures,
        }
