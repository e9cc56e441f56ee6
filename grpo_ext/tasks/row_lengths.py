"""Drop rows whose prompt or reference answer has too many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo_ext.common.columns import IMAGES
from grpo_ext.common.prompt_tokens import encode_prompts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from grpo_ext.tasks.base import Row, Task


@dataclass
class LengthFilter:
    """A `RowFilter` that drops rows whose prompt or reference answer has too many tokens.

    A prompt is tokenized as for the model, with the chat template and its generation prompt. The
    reference answer, from `Task.reference_answer`, is tokenized without special tokens.

    Attributes:
        tokenizer: the model's tokenizer.
        max_prompt_tokens: the maximum number of tokens in a prompt; `None` means no limit.
        max_answer_tokens: the maximum number of tokens in a reference answer; `None` means no
            limit.
        chat_template_kwargs: further arguments for the chat template.
        read: the number of rows passed to `keeps`.
        kept: the number of rows that were kept.
        shortest_prompt: the number of tokens in the shortest prompt so far; `None` if prompts have
            not been counted.
        shortest_answer: the number of tokens in the shortest reference answer so far; `None` if
            answers have not been counted.
    """

    tokenizer: PreTrainedTokenizerBase
    max_prompt_tokens: int | None = None
    max_answer_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    read: int = field(default=0, init=False)
    kept: int = field(default=0, init=False)
    shortest_prompt: int | None = field(default=None, init=False)
    shortest_answer: int | None = field(default=None, init=False)

    @property
    def title(self) -> str:
        return "count tokens"

    @property
    def limits(self) -> str:
        """The limits that are set, such as `max_prompt_tokens 300 and max_answer_tokens 200`."""
        names = ("max_prompt_tokens", "max_answer_tokens")
        stated = [f"{name} {getattr(self, name)}" for name in names if getattr(self, name)]
        return " and ".join(stated)

    def summary(self, part: str = "") -> str:
        """Return a message that says how many rows were kept.

        Args:
            part: words to put before the total, such as "the first ".
        """
        return f"{self.limits}: {self.kept:,} of {part}{self.read:,} rows remain"

    def keeps(self, task: Task, rows: Sequence[Row]) -> list[bool]:
        """Return whether to keep each row, and update the counts and the shortest lengths.

        Raises:
            ValueError: if the task cannot turn a row into an example. If `max_prompt_tokens` is
                set, it is also raised if prompts have images, whose tokens only the model's
                processor can count, or if the chat template takes too long; if `max_answer_tokens`
                is set, also if a row has no reference answer.
        """
        if not rows:
            return []
        examples = list(map(task.example, rows))
        stays = np.ones(len(examples), dtype=bool)
        if self.max_prompt_tokens is not None:
            lengths = self.prompt_lengths(examples)
            self.shortest_prompt = smallest(self.shortest_prompt, lengths)
            stays &= np.array(lengths) <= self.max_prompt_tokens
        if self.max_answer_tokens is not None:
            lengths = self.answer_lengths(task, examples)
            self.shortest_answer = smallest(self.shortest_answer, lengths)
            stays &= np.array(lengths) <= self.max_answer_tokens
        self.read += len(rows)
        self.kept += int(stays.sum())
        return stays.tolist()

    def prompt_lengths(self, examples: Sequence[Row]) -> list[int]:
        """Return the number of tokens in each example's prompt.

        Raises:
            ValueError: if a prompt has images, or the chat template takes too long.
        """
        for name in IMAGES:
            if any(example.get(name) is not None for example in examples):
                raise ValueError(
                    f"max_prompt_tokens counts the tokens of text, but the column {name!r} "
                    "adds images to the prompts. Remove max_prompt_tokens."
                )
        prompts = [example["prompt"] for example in examples]
        encoded = encode_prompts(prompts, self.tokenizer, self.chat_template_kwargs)
        return list(map(len, encoded))

    def answer_lengths(self, task: Task, examples: Sequence[Row]) -> list[int]:
        """Return the number of tokens in each example's reference answer.

        Raises:
            ValueError: if an example has no reference answer.
        """
        answers = list(map(task.reference_answer, examples))
        encoded = self.tokenizer(answers, add_special_tokens=False)
        return list(map(len, encoded.input_ids))

    def nothing_left(self, count: int) -> str:
        """Return the error message to raise if none of `count` rows is kept."""
        reasons = []
        too_low = []
        for key, noun, shortest in (
            ("max_prompt_tokens", "prompt", self.shortest_prompt),
            ("max_answer_tokens", "reference answer", self.shortest_answer),
        ):
            if shortest is None:
                continue
            reasons.append(f"the shortest {noun} has {shortest} tokens")
            if shortest > getattr(self, key):  # the limit is set, or none would have been counted
                too_low.append(key)
        if not too_low:  # no row has both a short prompt and a short answer
            too_low = ["max_prompt_tokens or max_answer_tokens"]
        return (
            f"{self.limits}: none of the {count:,} rows remains; {', '.join(reasons)}. Raise "
            f"{' and '.join(too_low)}."
        )


def smallest(previous: int | None, lengths: Sequence[int]) -> int:
    """Return the smallest of `lengths` and, unless it is `None`, `previous`."""
    if previous is None:
        return min(lengths)
    return min(previous, *lengths)
