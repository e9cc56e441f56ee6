"""A reward: a registered function with its options, called as TRL calls rewards.

The function gets plain strings, whatever the trainer passes, and only the columns that it names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_ext.common.files import data_yaml
from grpo_ext.rewards.explanation import Explanation
from grpo_ext.rewards.signature import EXTRAS, Signature, complete_options

Score = float | None
NeedsCpu = bool | Literal["formulas"]

_SHIPPED: dict[str, list[dict[str, Any]]] = data_yaml("grpo_ext.rewards", "examples.yaml")


@dataclass(frozen=True)
class Example:
    """A completion and the score that the reward must give it; None where it must decline.

    `columns` are the values of this one row, which may include `completion_ids`; the reward is built with `options`.
    """

    completion: str
    score: Score
    columns: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, list[Any]]:
        """The arguments of the reward."""
        return {
            "completions": [self.completion],
            **{key: [value] for key, value in self.columns.items()},
        }


def shipped_examples(reward: str) -> tuple[Example, ...]:
    """Return the examples that `data/examples.yaml` has of a reward; none of a user's."""
    return tuple(
        Example(completion, score, group.get("columns", {}), group.get("options", {}))
        for group in _SHIPPED.get(reward, ())
        for completion, score in group["scores"]
    )


@dataclass(frozen=True, kw_only=True)
class RewardInfo(Signature):
    """An entry of the catalogue: the signature of a registered function, and what `register` got with it."""

    name: str
    summary: str  # the first paragraph of `doc`, on one line
    doc: str = ""
    function: Any  # what is called: a function, or an object with `__call__`
    registered: Any = None  # what was decorated: `function`, or its class
    needs_cpu: NeedsCpu = False
    asks_server: bool = False
    loads_model: bool = False
    examples: tuple[Example, ...] = ()
    explain: Callable[..., Explanation] | None = None


class Reward:
    """A callable with TRL's signature for rewards.

    `name`, also `__name__`, is the name of its metric. `columns` are the data set columns that it needs, `options` include
    the defaults, and `needs_cpu` says whether it is heavy enough for worker processes.
    """

    def __init__(self, registration: RewardInfo, options: dict[str, Any], name: str | None = None):
        self.registration = registration
        self.options = complete_options(registration.name, registration, options)
        self.name = self.__name__ = name or registration.name
        self.columns = registration.columns
        self.needs_cpu = registration.needs_cpu
        self.tasks: tuple[str, ...] | None = None  # the rows that it scores, by their column "task"
        self.examples = registration.examples

    def __call__(self, /, *, completions: Sequence, **given: Any) -> list[Score]:
        """Return one score for each completion, None where the reward declines.

        Args:
            completions: texts, or lists of chat messages; the reward reads the content of the last message.
            given: the data set's columns, each a list with one entry for each completion, and TRL's extras, such as
                `prompts`. `ValueError` if a column that the function needs is missing.
        """
        texts = [plain_text(completion) for completion in completions]
        return self.registration.function(
            completions=texts, **self.arguments(given), **self.options
        )

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the part of `given`, which has no completions, that the function reads."""
        signature = self.registration
        for name in signature.columns:
            if name not in given:
                there = ", ".join(key for key in given if key not in EXTRAS) or "none"
                raise ValueError(
                    f"Reward {self.name!r} reads the column {name!r}, which is missing. There: {there}."
                )
        wanted = (
            given
            if signature.rest
            else (*signature.columns, *signature.optional, *signature.extras)
        )
        return {name: given[name] for name in wanted if name in given and name not in self.options}


def plain_text(completion: Any) -> str:
    """Return the text of a completion, which is a string or a list of messages; `TypeError` for anything else."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, list | tuple):
        message = completion[-1] if completion else ""
        content = message.get("content") if isinstance(message, dict) else message
        if content is None:  # a message that only calls tools
            return ""
        if isinstance(content, str):
            return content
        if isinstance(content, list):
            return "".join(block.get("text") or "" for block in content if isinstance(block, dict))
    raise TypeError(
        f"A completion is a string or a list of messages, not {type(completion).__name__}."
    )
