"""Rewards: registered functions with their options, callable with TRL's reward signature.

A function gets the completions as strings, even if the trainer passes chat messages. It gets only
the columns that it names, unless it takes `**kwargs`.
"""

from collections.abc import Callable, Mapping, Sequence
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
    """A completion with its expected score.

    Args:
        completion: the text of the completion.
        score: the expected score; `None` if the reward must decline the completion.
        columns: the column values for this completion, which may include `completion_ids`.
        options: the options to build the reward with.
    """

    completion: str
    score: Score
    columns: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def arguments(self) -> dict[str, list[Any]]:
        """The reward's arguments for a batch with this example as its only row."""
        columns = {name: [value] for name, value in self.columns.items()}
        return {"completions": [self.completion], **columns}


def shipped_examples(reward: str) -> tuple[Example, ...]:
    """Return a reward's examples from `data/examples.yaml`; `()` if it has none there."""
    examples = []
    for group in _SHIPPED.get(reward, ()):
        columns = group.get("columns", {})
        options = group.get("options", {})
        for completion, score in group["scores"]:
            examples.append(Example(completion, score, columns, options))
    return tuple(examples)


@dataclass(frozen=True, kw_only=True)
class RewardInfo(Signature):
    """A registry entry: a function's signature, its docstring, and the arguments of `register`."""

    name: str
    summary: str  # the first paragraph of `doc`, on one line
    doc: str = ""
    function: Callable  # a function, or an object with `__call__`
    registered: Callable | None = None  # the object that was decorated: `function`, or its class
    needs_cpu: NeedsCpu = False
    asks_server: bool = False
    loads_model: bool = False
    examples: tuple[Example, ...] = ()
    explain: Callable[..., Explanation] | None = None


class Reward:
    """A registered reward with its options, which can be called with TRL's reward signature.

    Args:
        registration: the reward's registry entry.
        options: values that override the default options.
        name: the name of the reward's metric. If it is `None`, the registered name is used.

    Attributes:
        registration: the reward's registry entry.
        options: the values of all options, including defaults.
        name: the name of the reward's metric; also stored as `__name__`.
        columns: the dataset columns that the reward requires.
        needs_cpu: whether to run the reward in worker processes; `"formulas"` means only for rows
            that compare formulas, or on which the reward fails.
        tasks: the values of the column `task` for which a `Guard` calls the reward; `None` means
            all rows.
        examples: completions with their expected scores.

    Raises:
        ValueError: if an option is unknown, missing or has a value of the wrong type.
    """

    def __init__(self, registration: RewardInfo, options: dict[str, Any], name: str | None = None):
        self.registration = registration
        self.options = complete_options(registration.name, registration, options)
        self.name = self.__name__ = name or registration.name
        self.columns = registration.columns
        self.needs_cpu = registration.needs_cpu
        self.tasks: tuple[str, ...] | None = None
        self.examples = registration.examples

    def __call__(self, /, *, completions: Sequence, **arguments: Any) -> list[Score]:
        """Return one score for each completion; `None` where the reward declines to score.

        Args:
            completions: strings, or lists of chat messages, of which only the last message is read.
            arguments: the dataset columns, each a list with one entry per completion, and TRL's
                other arguments, such as `prompts`.

        Raises:
            TypeError: if a completion is neither a string nor a list of messages.
            ValueError: if a column that the reward requires is missing.
        """
        texts = [plain_text(completion) for completion in completions]
        selected = self.select_arguments(arguments)
        return self.registration.function(completions=texts, **selected, **self.options)

    def select_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of TRL's arguments that the function takes, except `completions`.

        An option that is set takes precedence over a column of the same name.

        Raises:
            ValueError: if a column that the reward requires is missing.
        """
        signature = self.registration
        for name in signature.columns:
            if name not in arguments:
                columns = [key for key in arguments if key not in EXTRAS]
                raise ValueError(
                    f"Reward {self.name!r} reads the column {name!r}, which is missing. "
                    f"The columns are: {', '.join(columns) or 'none'}."
                )
        return {name: argument for name, argument in arguments.items() if self.reads(name)}

    def reads(self, name: str) -> bool:
        """Return whether the column or TRL argument called `name` is passed to the function.

        It is not passed if an option of the same name is set, which takes precedence.
        """
        signature = self.registration
        named = (*signature.columns, *signature.optional, *signature.extras)
        return name not in self.options and (signature.rest or name in named)


def plain_text(completion: object) -> str:
    """Return the text of a completion, which is a string or a list of messages.

    For a list, this is the text of the last message, or "" if that message only calls tools or the
    list is empty.

    Raises:
        TypeError: if the completion is anything else.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, list | tuple):
        message = completion[-1] if completion else ""
        content = message.get("content") if isinstance(message, dict) else message
        if content is None:
            return ""
        if isinstance(content, str):
            return content
        if isinstance(content, list):
            return "".join(block.get("text") or "" for block in content if isinstance(block, dict))
    raise TypeError(f"A completion must be a string or a list of messages; got {completion!r:.80}.")
