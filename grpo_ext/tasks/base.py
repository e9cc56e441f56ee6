"""What a task is: how rows become prompts, which rewards judge them, and where the rows come from.

A task is a dataclass. Its fields are recipe keys, so `max_number: 12` in a recipe sets `Countdown.max_number`. A row passes
through three small methods, each easy to override: `keep` drops rows that the task does not want, `columns` derives what the
rewards read, `prompt` writes the chat messages. Rows come from the task's own generator, or from a file or the hub through
`datasets` when the recipe names a `dataset_name`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from grpo_ext.common.hub import find_repo, neighbours
from grpo_ext.common.near import did_you_mean

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

Row = dict[str, Any]
Messages = list[dict[str, str]]

# How `datasets` calls the builder of each kind of file that we read.
FILE_BUILDERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


class Filled(dict):
    """A row of which no column that is read may be null, which templates would write out as "None"; `get` asks freely."""

    def __getitem__(self, column: str) -> Any:
        value = super().__getitem__(column)
        if value is None:
            words = f"is null in the row {str(dict(self))[:200]}: fill it, or drop the row."
            raise ValueError(f"the column {column!r} {words}")
        return value


@dataclass
class Task:
    """Base of all tasks; subclasses are dataclasses whose fields are recipe keys.

    Class attributes:
        name (`str`): what a recipe writes after `task:`.
        default_rewards (`dict[str, float]`): reward name to weight, used when the recipe names no `reward_funcs`.
        outcome_reward (`str`, *optional*): the reward that says whether a completion solved its problem. Accuracy and
            pass@k are about this one. `None`: the reward of the largest weight.
    """

    name: ClassVar[str]
    default_rewards: ClassVar[dict[str, float]] = {}
    outcome_reward: ClassVar[str | None] = None

    def generate(self, split: str) -> Iterator[Row] | None:
        """Rows of the task's own making for `split` ("train" or "test"), or None if it needs a data set."""
        return None

    def keep(self, row: Row) -> bool:
        """Whether a row is used at all."""
        return True

    def columns(self, row: Row) -> Row:
        """The columns that the rewards read, derived from a row of the data set."""
        return {}

    def prompt(self, row: Row) -> Messages | str:
        """The chat messages of one row; or a text, for a model without a chat template."""
        raise NotImplementedError

    def example(self, row: Row) -> Row:
        """One training example: the row, the columns derived from it, and its prompt."""
        row = {**row, **self.columns(Filled(row))}
        return {**row, "prompt": self.prompt(Filled(row))}

    def rows(
        self,
        split: str = "train",
        dataset_name: str | None = None,
        dataset_config: str | None = None,
        streaming: bool = False,
        limit: int | None = None,
    ) -> Dataset | IterableDataset:
        """The rows of `dataset` before they become prompts: kept ones, at most `limit`."""
        from datasets import Dataset, IterableDataset

        if dataset_name is not None:
            rows = open_dataset(dataset_name, split, dataset_config, streaming)
        elif (own := self.generate(split)) is None:
            words = "makes no rows of its own. Set `dataset_name` to a jsonl, json, csv or parquet file, or to a hub id."
            raise ValueError(f"Task {self.name!r} {words}")
        elif streaming:
            rows = IterableDataset.from_generator(self.generate, gen_kwargs={"split": split})
        else:
            rows = Dataset.from_list(list(own))
        if type(self).keep is not Task.keep:
            rows = rows.filter(lambda row: self.keep(Filled(row)))
        return rows if limit is None else rows.take(limit)

    def dataset(
        self,
        split: str = "train",
        *,
        dataset_name: str | None = None,
        dataset_config: str | None = None,
        streaming: bool = False,
        limit: int | None = None,
    ) -> Dataset | IterableDataset:
        """Examples of `split`, ready for the trainer.

        Args:
            split: "train" or "test"; for a data set from the hub, any split it has.
            dataset_name: a jsonl, json, csv or parquet file, a folder saved by `datasets`, or a hub id. `None`: the
                task's own rows.
            dataset_config: the configuration's name, for hub data sets that have several.
            streaming: yield examples as they are read, without holding them in memory.
            limit: at most so many examples, counted after `keep`. `None`: all.

        Raises:
            ValueError: if the task has no rows of its own and `dataset_name` is `None`, or if no row is kept.
        """
        from datasets import Dataset

        rows = self.rows(split, dataset_name, dataset_config, streaming, limit).map(self.example)
        if isinstance(rows, Dataset) and len(rows) == 0:
            words = f" after filtering {dataset_name!r}" if dataset_name else ""
            words += ". Loosen the task's limits (see its fields), or name another data set."
            raise ValueError(f"The {split} split of task {self.name!r} has no rows left{words}")
        return rows


def open_dataset(
    name: str, split: str = "train", config: str | None = None, streaming: bool = False
) -> Dataset | IterableDataset:
    """A data set by its file (jsonl, json, csv, parquet), by a folder that `datasets` saved, or by its hub id.

    Args:
        split: of a hub data set; a file or folder is one split and is taken whole.

    Raises:
        FileNotFoundError: if there is no such file, or neither a folder nor a data set of the hub.
        ConnectionError: if the hub cannot be asked.
        ValueError: if the file is empty.
    """
    from datasets import load_dataset, load_from_disk

    path = Path(name).expanduser()
    if path.suffix in FILE_BUILDERS:
        if not path.is_file():
            raise FileNotFoundError(f"dataset_name: no file at {path}.{did_you_mean(name, neighbours(name), 0.7)}")
        try:
            return load_dataset(FILE_BUILDERS[path.suffix], data_files=str(path), split="train", streaming=streaming)
        except StopIteration:  # how `datasets` says that a file is empty
            raise ValueError(f"dataset_name: {path} has no row.") from None
    if (path / "state.json").exists():
        rows = load_from_disk(str(path))
        return rows.to_iterable_dataset() if streaming else rows
    if not path.exists() and "://" not in name:
        find_repo(name, "dataset")
    return load_dataset(name, config, split=split, streaming=streaming)


def chat(system: str | None, user: str | Messages) -> Messages:
    """The system message, if there is one, and what the user says: a text, or messages."""
    said = [{"role": "user", "content": user}] if isinstance(user, str) else user
    return [{"role": "system", "content": system}, *said] if system else [*said]
