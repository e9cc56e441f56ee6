"""The task `prompts`: rows of any dataset, for users' own prompts without a task class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_ext.common.columns import ANSWERS, answer_column
from grpo_ext.tasks.base import (
    CheckedRow,
    Messages,
    Row,
    Task,
    chat,
    columns_named_in,
    template_columns,
    template_fields,
)
from grpo_ext.tasks.sharegpt import chat_messages
from grpo_ext.tasks.templates import fill

TO_DO = "TO DO: say what"  # begins a line of `user_prompt` that a person has to replace


@dataclass
class Prompts(Task):
    """Task for a dataset with a prompt in each row, or with columns to fill into a template.

    All columns are passed to the rewards. Without `system_prompt` and `user_prompt`, the prompt of
    a row stays as it is: chat messages, to which the tokenizer's chat template is applied, or a
    string that the model continues. Messages in ShareGPT's format, with `from` and `value`, become
    chat messages.

    `rename_columns` maps a name that rewards use to a column of the data: {"solution": "answer"}
    passes the column `answer` to rewards as `solution`. A dot selects an entry of a column that
    contains mappings, as in {"solution": "reward_model.ground_truth"}; this also works in
    `prompt_column`.

    `answer_column` is for chat messages that end with the assistant's answer. It names the column
    to which this answer is moved from the prompt.

    `user_prompt` is a template with columns of the row in braces, as in "{question} Answer
    briefly."; it replaces the prompt in `prompt_column`. `{choices:letters}` writes a list of
    options as `A) ...`, `B) ...`, one per line, and `{verses:lines}` writes a list without letters,
    one entry per line. If a column in the template is an empty string, whitespace is removed from
    both ends of the prompt.

    Raises:
        ValueError: if `user_prompt` is not a valid format string. When rows are read: if a column,
            an entry of a column (such as {choices[4]}) or the assistant's answer is missing, or if
            a prompt cannot be converted or formatted.
    """

    name: ClassVar[str] = "prompts"

    prompt_column: str = "prompt"  # the column with the prompt: a string or a list of messages
    # the system message; if it is set, a prompt that is a string becomes the user's message
    system_prompt: str | None = None
    user_prompt: str | None = None  # a template, which replaces the prompt in `prompt_column`
    # maps the name that rewards use to the column of the data
    rename_columns: dict[str, str] | None = None
    answer_column: str | None = None  # the new column for the assistant's last message

    def __post_init__(self) -> None:
        template_fields(self.user_prompt or "")  # raises if its braces do not match

    def columns(self, row: Row) -> Row:
        columns = {}
        for name, column in (self.rename_columns or {}).items():
            with columns_named_in("rename_columns"):
                columns[name] = value_at(row, column)
        if self.answer_column is not None:
            _, columns[self.answer_column] = self._messages_and_answer(row)
        return columns

    def held_out_key(self, row: Row) -> Any:
        """Return the key that identifies a row's question.

        If `user_prompt` is set, the key is the list of values of the columns in the template (a
        single value if there is one column, the whole row if there is none). Otherwise, it is the
        row's prompt, without the answer if `answer_column` is set.
        """
        row = CheckedRow(row)
        if self.user_prompt is not None:
            row = CheckedRow(row, self.columns(row))
            columns = template_columns(self.user_prompt)
            if not columns:
                return dict(row)
            with columns_named_in("user_prompt"):
                values = [row[column] for column in columns]
            return values[0] if len(values) == 1 else values
        if self.answer_column is not None:
            messages, _ = self._messages_and_answer(row)
            return messages
        with columns_named_in("prompt_column"):
            return value_at(row, self.prompt_column)

    def reference_answer(self, row: Row) -> str:
        """Return a row's reference answer.

        The answer is read from `answer_column` if it is set. Otherwise, it is read from a column
        with a usual name (`grpo_ext.common.columns.ANSWERS`), first among those that
        `rename_columns` creates, then among those in the data. If there is none, a usual entry of a
        mapping is used, such as `reward_model.ground_truth`.

        Raises:
            ValueError: if there is no such column, or its value is not a string.
        """
        column = self.answer_column
        if column is None:
            renamed = [name for name in ANSWERS if name in (self.rename_columns or {})]
            present = [name for name in ANSWERS if name in row]
            column = next(iter(renamed + present), None) or answer_column(row)
        if column is None:
            raise ValueError(
                "max_answer_tokens: no column with a usual name, such as answer or solution, has a "
                "reference answer. Name the column of the answers, as in "
                "`rename_columns: {solution: my_column}`, or remove max_answer_tokens."
            )
        answer = value_at(row, column)
        if not isinstance(answer, str):
            raise ValueError(
                "max_answer_tokens counts the tokens of strings, but the reference answer in "
                f"{column!r} is not a string: {str(answer)[:80]}. Store the answers as strings, or "
                "remove max_answer_tokens."
            )
        return answer

    def prompt(self, row: Row) -> Messages | str:
        prompt: Messages | str
        if self.user_prompt is not None:
            with columns_named_in("user_prompt"):
                prompt = fill(self.user_prompt, row)
            if any(row.get(column) == "" for column in template_columns(self.user_prompt)):
                prompt = prompt.strip()
        elif self.answer_column is not None:
            prompt, _ = self._messages_and_answer(row)
        else:
            with columns_named_in("prompt_column"):
                prompt = chat_messages(value_at(row, self.prompt_column))
        if isinstance(prompt, str) and self.user_prompt is None and not self.system_prompt:
            return prompt  # a string that the model continues
        return chat(self.system_prompt, prompt)

    def _messages_and_answer(self, row: Row) -> tuple[Messages, str]:
        """Return the messages before the assistant's last message, and that message's content.

        Raises:
            ValueError: if the prompt is not a list of chat messages, or the last message is not the
                assistant's.
        """
        with columns_named_in("prompt_column"):
            messages = chat_messages(value_at(row, self.prompt_column))
        last = messages[-1] if isinstance(messages, list) and messages else None
        if not isinstance(last, dict) or last.get("role") != "assistant":
            raise ValueError(
                f"answer_column needs chat messages in {self.prompt_column!r} that end with an "
                "assistant message. Remove answer_column, or correct this row: "
                f"{str(messages)[:200]}"
            )
        return messages[:-1], last["content"]


def value_at(row: Row, path: str) -> Any:
    """Return the value of a column or, for a path such as `column.key`, of an entry in its mapping.

    A column whose name is the whole path takes precedence over an entry. For a missing column, the
    error is that of `row[column]`: `MissingColumn` for a `CheckedRow`, otherwise `KeyError`.

    Raises:
        ValueError: if the entry is missing or null.
    """
    if path in row or "." not in path:
        return row[path]
    column, *keys = path.split(".")
    value = row[column]
    for key in keys:
        if not isinstance(value, Mapping) or value.get(key) is None:
            raise ValueError(
                f"{path}: in a row, {key!r} is missing or null in {str(value)[:200]}. Set "
                "prompt_column or rename_columns to an entry that every row has, or drop the row."
            )
        value = value[key]
    return value
