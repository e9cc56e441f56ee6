"""The base class of tasks, which supply the rows, their prompts and the default rewards.

A task is a dataclass whose fields are recipe keys: `max_number: 12` in a recipe sets
`Countdown.max_number`. Every task implements `prompt`, which builds the chat messages for a row. It
may also override `keep`, which selects rows, and `columns`, which adds the columns that rewards
need. Rows come from the task's own generator, or from the dataset in `dataset_name`.
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
    """Raised if the data lacks a column that the task reads."""

    key: str | None = None  # the recipe key that names the column, if there is one


@contextmanager
def columns_named_in(key: str) -> Iterator[None]:
    """Context manager that sets the `key` of any `MissingColumn` raised within it."""
    try:
        yield
    except MissingColumn as error:
        error.key = key
        raise


class CheckedRow(dict):
    """A row that raises `ValueError` when a missing or null column is read with `row[column]`.

    Without the error, a template would write "None" for a null column. For a missing column, the
    error is the subclass `MissingColumn`. `get` does not raise an error.

    Args:
        row: the row as read from the data.
        derived: columns that the task derives from the row; they replace columns of the same name.
    """

    def __init__(self, row: Row, derived: Row | None = None):
        super().__init__({**row, **(derived or {})})
        self.data_columns = sorted(row)

    def __missing__(self, column: str) -> Any:
        raise MissingColumn(
            f"the task reads the column {column!r}, which the data lacks."
            f"{did_you_mean(column, self)} The data has the columns "
            f"{', '.join(self.data_columns)}. Rename one of them in the data or, with "
            "`task: prompts`, name one of them in prompt_column, user_prompt or rename_columns."
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
    """Base class of all tasks; a subclass is a dataclass whose fields are recipe keys.

    A subclass must implement `prompt`, and `generate` if it can do without a dataset.
    """

    name: ClassVar[str]  # the value of `task:` in a recipe
    # the weight of each default reward, used if the recipe does not set `reward_funcs`
    default_rewards: ClassVar[dict[str, float]] = {}

    def use_environment(self, environment: str | Mapping[str, Any] | None) -> None:
        """Receive the recipe's `environment`, for a task whose rows come from it.

        `environment` is `None` if the recipe sets none. The default does nothing. An override may
        raise `ValueError` if it cannot use the environment.
        """

    def generate(self, split: str) -> Iterator[Row] | None:
        """Return an iterator over the rows that the task generates; `None` if it needs a dataset.

        Args:
            split: "train" or "test".
        """
        return None

    def keep(self, row: Row) -> bool:
        """Return whether to keep a row for this task. By default, all rows are kept."""
        return True

    def columns(self, row: Row) -> Row:
        """Return the columns to add to a row, such as those that rewards need.

        They replace columns of the same name. By default, there are none.
        """
        return {}

    def prompt(self, row: Row) -> Messages | str:
        """Return the chat messages for a row, or a string for a model without a chat template.

        `row` includes the columns from `columns`. Every task must implement this method.
        """
        raise NotImplementedError

    def held_out_key(self, row: Row) -> Any:
        """Return the key that `held_out_share` hashes, which identifies a row's question.

        The key is a number, a string, or a list or mapping of keys. Rows with the same key are
        either all held out or all kept for training. The key should depend only on the data, so
        that rewording the prompt does not change which rows are held out. By default, it is the
        prompt without its system message.
        """
        prompt = self.prompt(CheckedRow(row, self.columns(CheckedRow(row))))
        if isinstance(prompt, str):
            return prompt
        return [message for message in prompt if message["role"] != "system"]

    def reference_answer(self, row: Row) -> str:
        """Return the reference answer of an example as a string, for `max_answer_tokens`.

        By default, this raises an error; a task with reference answers overrides it.

        Raises:
            ValueError: if the task or the example has no reference answer.
        """
        raise ValueError(
            f"max_answer_tokens: rows of the task {self.name!r} have no reference answer. "
            "Remove max_answer_tokens."
        )

    def example(self, row: Row) -> Row:
        """Return the example for a row: its columns, those from `columns`, and the key "prompt"."""
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
            split: "train" or "test" for the task's own rows; for a dataset, a split in the syntax
                of `datasets`, such as `train[:1000]`.
            dataset_name: a jsonl, json, csv or parquet file, a folder of such files, a folder saved
                by `datasets`, or a hub id. If `None`, the task generates the rows.
            dataset_config: the name of the configuration, for hub datasets that have several.
            streaming: whether to read examples as they are needed, without holding them in memory.
            filters: additional filters that rows must pass, applied in order after `keep`.
            limit: the maximum number of examples, applied after all filters; `None` means no limit.
            draw_seed: the seed for drawing `limit` rows at random; the drawn rows keep their order.
                If `None`, or for a stream, the first rows are used.
            prompts: whether to turn rows into examples; if false, the rows stay as they are.

        Raises:
            ValueError: if the task needs a dataset and `dataset_name` is `None`, the dataset cannot
                be opened, `split` does not exist, or no row is left (a stream is not checked for
                rows).
            FileNotFoundError: if there is no such dataset.
            ConnectionError: if the hub cannot be reached or responds with an error.
            OSError: if a folder cannot be read.
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
                    f"The task {self.name!r} has no rows for the split {split!r}. Check its "
                    "options: num_problems or num_test_problems may be 0, or the limits may "
                    "exclude every row."
                )
            raise ValueError(
                f"The dataset {dataset_name!r} (split {split!r}) has no rows that the task "
                f"{self.name!r} accepts. Set dataset_name to another dataset, or loosen the task's "
                "options."
            )
        for row_filter in filters:
            rows = filter_rows(rows, self, row_filter)
        if limit is not None and draw_seed is not None and isinstance(rows, Dataset):
            rows = draw_rows(rows, limit, draw_seed)
        elif limit is not None:
            rows = rows.take(limit)
        return rows.map(self.example) if prompts else rows


def held_out(split: str) -> bool:
    """Return whether `split`, a split of generated rows, is the held-out one ("test").

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
    """Return chat messages: the system message, if there is one, followed by the user's.

    Args:
        system: the content of the system message; `None` or an empty string omits the message.
        user: the content of a user message, or a list of messages.
    """
    if isinstance(user, str):
        user = [{"role": "user", "content": user}]
    messages = [*user]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return messages


def template_fields(template: str) -> set[str]:
    """Return the names of the fields in braces in a prompt template.

    Raises:
        ValueError: if the template is not a valid format string, e.g., if its braces do not match.
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
    """Return the sorted names of the columns in a template, such as `choices` for `{choices[0]}`.

    Raises:
        ValueError: if the template is not a valid format string, e.g., if its braces do not match.
    """
    return sorted({re.split(r"[.\[]", field)[0] for field in template_fields(template)})


def check_template(template: str, required: set[str], allowed: set[str]) -> None:
    """Raise `ValueError` unless a template contains all `required` and only `allowed` fields."""
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
            "user_prompt lacks fields that the task requires: "
            f"{', '.join(sorted(required - fields))}. Add each of them in braces."
        )
