"""Rows of any data set, for users' own prompts and rewards without a task class."""

from dataclasses import dataclass
from typing import ClassVar

from grpo_ext.tasks.base import Messages, Row, Task, chat, template_fields


@dataclass
class Prompts(Task):
    """A data set whose rows have a prompt, or the columns of a template for it; rewards read all columns.

    Without `system_prompt` and `user_prompt`, the prompt of a row does not change: chat messages, for the tokenizer's chat
    template, or a text, which the model continues.

    `rename_columns` gives columns the names that rewards read, as in {"solution": "answer"}.

    `user_prompt` has columns of the row in braces, as in "{question} Answer briefly."; then `prompt_column` is not read.
    `ValueError` if its braces do not match or, when rows are read, if a column is missing.
    """

    name: ClassVar[str] = "prompts"

    prompt_column: str = "prompt"  # a text or a list of messages
    system_prompt: str | None = (
        None  # if it is set, a prompt that is a text becomes the user's message
    )
    user_prompt: str | None = None
    rename_columns: dict[str, str] | None = (
        None  # the name that rewards read -> the column of the data
    )

    def __post_init__(self) -> None:
        template_fields(self.user_prompt or "")  # raises if its braces do not match

    def columns(self, row: Row) -> Row:
        return {name: row[column] for name, column in (self.rename_columns or {}).items()}

    def prompt(self, row: Row) -> Messages | str:
        prompt = (
            row[self.prompt_column]
            if self.user_prompt is None
            else self.user_prompt.format_map(row)
        )
        plain = isinstance(prompt, str) and self.user_prompt is None and not self.system_prompt
        return prompt if plain else chat(self.system_prompt, prompt)
