"""The base class of tasks: where rows come from, how they become prompts, and their rewards.

A task is a dataclass whose fields are recipe keys: `max_number: 12` in a recipe sets
`Countdown.max_number`. A row passes through three small methods that a task may override: `keep`
drops rows, `columns` derives the columns that rewards read, and `prompt` writes the chat messages.
Rows come from the task's own generator, or from the file or hub id in `dataset_name`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.tasks.open_dataset import open_dataset
from grpo_ext.tasks.row_filters import RowFilter, draw_rows, filter_rows

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

Row = dict[str, Any]
Messages = list[dict[str, str]]


class MissingColumn(ValueError):
    """Raised for a column that the task reads and the data lacks."""

    key: str | None = None  # the recipe key that names the column, if one does


@contextmanager
def columns_named_in(key: str) -> Iterator[None]:
    """Set the `key` of a `MissingColumn` that is raised in this context."""
    try:
        yield
    except MissingColumn as error:
        error.key = key
        raise


class CheckedRow(dict):
    """A row that raises `ValueError` when a missing or null column is read.

    A template would otherwise write "None" for a null column. `get` does not raise.

    Args:
        row: the columns of the data.
        derived: columns that the task derives from the data; they replace columns of the same name.
    """

    def __init__(self, row: Row, derived: Row | None = None):
        super().__init__({**row, **(derived or {})})
        self.data_columns = sorted(row)

    def __missing__(self, column: str) -> Any:
        raise MissingColumn(
            f"the task reads the column {column!r}, which the data lacks."
            f"{did_you_mean(column, self)} The data has the columns "
            f"{', '.join(self.data_columns)}. Rename one in the data or, with `task: prompts`, "
            "name it in prompt_column, user_prompt or rename_columns."
        )

    def __getitem__(self, column: str) -> Any:
        value = super().__getitem__(column)
        if value is None:
            raise ValueError(
                f"the column {column!r} is null in the row {str(dict(self))[:200]}: fill it, or "
                "drop the row."
            )
        return value


@dataclass
class Task:
    """Base class of all tasks; a subclass is a dataclass, and its fields are recipe keys."""

    name: ClassVar[str]  # the value of `task:` in a recipe
    # weights by reward, used if the recipe does not set `reward_funcs`
    default_rewards: ClassVar[dict[str, float]] = {}

    def use_environment(self, environment: str | Mapping[str, Any] | None) -> None:
        """Receive the recipe's `environment`, for a task that takes its rows from it.

        The default does nothing. An override may raise `ValueError`.
        """

    def generate(self, split: str) -> Iterator[Row] | None:
        """Return the rows that the task generates, or `None` if it needs a dataset.

        Args:
            split: "train" or "test".
        """
        return None

    def keep(self, row: Row) -> bool:
        """Return whether to use a row."""
        return True

    def columns(self, row: Row) -> Row:
        """Return the columns to add to a row, such as those that rewards read."""
        return {}

    def prompt(self, row: Row) -> Messages | str:
        """Return the chat messages of one row, or a string for a model without a chat template."""
        raise NotImplementedError

    def held_out_key(self, row: Row) -> Any:
        """Return the key that `held_out_share` hashes, which identifies a row's question.

        The key is a number, a string, or a list or mapping of keys. Rows with the same key are held
        out together. The key should depend only on the data, so that rewording the prompt does not
        change which rows are held out. By default it is the prompt without its system message.
        """
        prompt = self.prompt(CheckedRow(row, self.columns(CheckedRow(row))))
        if isinstance(prompt, str):
            return prompt
        return [message for message in prompt if message["role"] != "system"]

    def reference_answer(self, row: Row) -> str:
        """Return an example's reference answer as a string, for `max_answer_tokens`.

        Raises:
            ValueError: if the task or the example has none.
        """
        raise ValueError(
            f"max_answer_tokens: rows of the task {self.name!r} have no reference answer. "
            "Remove max_answer_tokens."
        )

    def example(self, row: Row) -> Row:
        """Turn a row into an example: the row, the columns derived from it, and its prompt."""
        complete = CheckedRow(row, self.columns(CheckedRow(row)))
        return {**complete, "prompt": self.prompt(complete)}

    def dataset(
        self,
        split: str = "train",
        *,
        dataset_name: str | None = None,
        dataset_config: str | None = None,
        streaming: bool = False,
        filters: Sequence[RowFilter] = (),
        limit: int | None = None,
        draw_seed: int | None = None,
        prompts: bool = True,
    ) -> Dataset | IterableDataset:
        """Return the examples of `split`, ready for the trainer.

        Args:
            split: "train" or "test" for the task's own rows; otherwise as for `open_dataset`.
            dataset_name: a jsonl, json, csv or parquet file, a folder saved by `datasets`, or a hub
                id. `None`: the task's own rows.
            dataset_config: the name of the configuration, for hub datasets that have several.
            streaming: whether to read examples as they are needed, without holding them in memory.
            filters: additional filters that rows must pass, applied in order after `keep`.
            limit: the maximum number of examples, applied after all filters. `None`: no limit.
            draw_seed: the seed for drawing `limit` rows at random, without replacement and keeping
                their order. `None`: take the first rows, as is always done for a stream.
            prompts: whether to turn rows into examples; if not, the rows stay as they are.

        Raises:
            ValueError: if the task does not generate such rows, the dataset cannot be opened, or
                no row is left. A stream is not checked for rows.
            FileNotFoundError: if there is no such dataset.
            ConnectionError: if the hub does not answer.
            Exception: for the other reasons of `open_dataset`, or from a method of the task.
        """
        from datasets import Dataset, IterableDataset

        if dataset_name is not None:
            rows = open_dataset(dataset_name, split, dataset_config, streaming)
        else:
            generated = self.generate(split)
            if generated is None:
                raise ValueError(
                    f"The task {self.name!r} needs a dataset. Set `dataset_name` to a jsonl, "
                    "json, csv or parquet file, a folder that `datasets` saved, or a hub id."
                )
            if streaming:
                rows = IterableDataset.from_generator(self.generate, gen_kwargs={"split": split})
            else:
                rows = Dataset.from_list(list(generated))
        if type(self).keep is not Task.keep:
            rows = rows.filter(lambda row: self.keep(CheckedRow(row)))
        if isinstance(rows, Dataset) and len(rows) == 0:
            if dataset_name is None:
                raise ValueError(
                    f"The task {self.name!r} generates no rows for the split {split!r}. Change its "
                    "options: a number such as num_problems may be 0, or a limit may exclude all "
                    "rows."
                )
            raise ValueError(
                f"The dataset {dataset_name!r} (split {split!r}) has no rows that the task "
                f"{self.name!r} accepts. Name another dataset, or loosen the options of the task."
            )
        for row_filter in filters:
            rows = filter_rows(rows, self, row_filter)
        if limit is not None and draw_seed is not None and isinstance(rows, Dataset):
            rows = draw_rows(rows, limit, draw_seed)
        elif limit is not None:
            rows = rows.take(limit)
        return rows.map(self.example) if prompts else rows


def held_out(split: str) -> bool:
    """Return whether a split of generated rows is the held-out one.

    Raises:
        ValueError: if `split` is neither "train" nor "test".
    """
    if split not in ("train", "test"):
        raise ValueError(
            f"Generated rows have the splits 'train' and 'test', but not {split!r}. Set "
            "`dataset_train_split: train` and `dataset_test_split: test`, or set dataset_name."
        )
    return split == "test"


def chat(system: str | None, user: str | Messages) -> Messages:
    """Return chat messages: the system message, if any, and the user's text or messages."""
    if isinstance(user, str):
        user = [{"role": "user", "content": user}]
    messages = [*user]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return messages


def template_fields(template: str) -> set[str]:
    """Return the names of the fields in braces in a template.

    Raises:
        ValueError: if the braces do not match.
    """
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ValueError(
            f"user_prompt is not a valid format string ({error}). Write {{{{ and }}}} for braces "
            "that do not enclose a field."
        ) from error
    return {field for _, field, _, _ in parts if field is not None}


def template_columns(template: str) -> list[str]:
    """Return the columns that a template reads, sorted, such as `choices` for `{choices[0]}`.

    Raises:
        ValueError: if the braces do not match.
    """
    return sorted({re.split(r"[.\[]", field)[0] for field in template_fields(template)})


def check_template(template: str, required: set[str], allowed: set[str]) -> None:
    """Raise `ValueError` unless a template has all `required` and only `allowed` fields."""
    fields = template_fields(template)
    unknown = [f"{{{field}}}" for field in sorted(fields - allowed)]
    if unknown:
        raise ValueError(
            f"user_prompt has unknown fields: {', '.join(unknown)}. The known fields are "
            f"{', '.join(sorted(allowed))}. Write {{{{ and }}}} for braces that do not enclose a "
            "field."
        )
    if required - fields:
        raise ValueError(
            f"user_prompt lacks fields of the task: {', '.join(sorted(required - fields))}. Add "
            "each of them in braces."
        )
