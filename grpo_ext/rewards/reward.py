"""A reward: a registered function with its options, called as TRL calls rewards.

Authors get plain strings, whatever the trainer passes, and only the columns that they name.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_ext.rewards.explanation import Explanation
from grpo_ext.rewards.signature import EXTRAS, Signature, complete_options

Score = float | None


@dataclass(frozen=True)
class Example:
    """A completion, and the score that the reward must give it; None where it must decline.

    `columns` are those of this one row, `completion_ids` maybe among them; with `options` the reward is built.
    """

    completion: str
    score: Score
    columns: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, list[Any]]:
        """What the reward is called with."""
        return {"completions": [self.completion], **{key: [value] for key, value in self.columns.items()}}


@dataclass(frozen=True)
class RewardInfo:
    """An entry of the catalogue. Options without a default have the value `REQUIRED`.

    `optional` are options, too, with their defaults; where one is not set, a column of its name is read if there is one.
    """

    name: str
    summary: str
    columns: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    optional: dict[str, Any] = field(default_factory=dict)
    needs_cpu: bool = False
    examples: tuple[Example, ...] = ()
    doc: str = ""


@dataclass(frozen=True)
class Registration:
    """What `register` keeps of a function."""

    name: str
    function: Callable
    signature: Signature
    needs_cpu: bool
    examples: tuple[Example, ...]
    explain: Callable[..., Explanation] | None = None

    @property
    def info(self) -> RewardInfo:
        doc = inspect.getdoc(self.function) or ""
        summary = " ".join(doc.split("\n\n")[0].split())
        takes = self.signature.columns, self.signature.options, self.signature.optional
        return RewardInfo(self.name, summary, *takes, self.needs_cpu, self.examples, doc)


class Reward:
    """A callable with TRL's signature for rewards.

    Its `name`, also `__name__`, is that of its metric. It has the data set `columns` that it needs, its `options`, defaults
    included, the `examples` of what it gives, and `needs_cpu`: whether it is heavy enough to run in worker processes.
    """

    def __init__(self, registration: Registration, options: dict[str, Any], name: str | None = None):
        self.registration = registration
        self.options = complete_options(registration.name, registration.signature, options)
        self.name = self.__name__ = name or registration.name
        self.columns = registration.signature.columns
        self.needs_cpu = registration.needs_cpu
        self.examples = registration.examples

    def __call__(self, /, *, completions: Sequence, **given: Any) -> list[Score]:
        """One score a completion, None where the reward declines.

        Args:
            completions: texts, or lists of chat messages, of which the last one's content is taken.
            given: the data set's columns, a list each with one entry a completion, and TRL's extras, such as `prompts`.
                `ValueError` if a column that the function needs is not there.
        """
        texts = [plain_text(completion) for completion in completions]
        return self.registration.function(completions=texts, **self.arguments(given), **self.options)

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Of everything `given` beside the completions, what the function reads."""
        signature = self.registration.signature
        for name in signature.columns:
            if name not in given:
                there = ", ".join(key for key in given if key not in EXTRAS) or "none"
                raise ValueError(f"Reward {self.name!r} reads the column {name!r}, which is missing. There: {there}.")
        if signature.extras.get("completion_ids") and given.get("completion_ids") is None:
            raise ValueError(f"Reward {self.name!r} reads `completion_ids`, the token ids, which were not passed.")
        wanted = given if signature.rest else (*signature.columns, *signature.optional, *signature.extras)
        return {name: given[name] for name in wanted if name in given and name not in self.options}

    def __repr__(self) -> str:
        return f"Reward({', '.join([repr(self.name), *(f'{k}={v!r}' for k, v in self.options.items())])})"


def plain_text(completion: Any) -> str:
    """The text of a completion: itself, or the content of its last message; `TypeError` if it is neither."""
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
    raise TypeError(f"A completion is a string or a list of messages, not {type(completion).__name__}.")
