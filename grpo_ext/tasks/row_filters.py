"""Select rows of a dataset: the interface of row filters, and functions to filter or draw rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

    from grpo_ext.tasks.base import Row, Task

BATCH = 256  # maximum number of rows that are passed to a filter at once
PATIENCE = 2.0  # seconds before a progress bar appears


class RowFilter(Protocol):
    """Protocol for a filter that decides which of a task's rows to keep, and counts the rows."""

    read: int  # number of rows passed to `keeps`
    kept: int  # number of rows that were kept

    @property
    def title(self) -> str:
        """The title of the progress bar."""

    def keeps(self, task: Task, rows: Sequence[Row]) -> list[bool]:
        """Return whether to keep each row, and add to the counts `read` and `kept`.

        The rows are as they were read from the data, before `Task.example`.
        """

    def summary(self, part: str = "") -> str:
        """Return a message that says how many rows were kept.

        Args:
            part: words to put before the total, such as "the first ".
        """

    def nothing_left(self, count: int) -> str:
        """Return the error message to raise if none of `count` rows is kept."""


def filter_rows(
    rows: Dataset | IterableDataset, task: Task, row_filter: RowFilter
) -> Dataset | IterableDataset:
    """Return the rows that a filter keeps, in their original order.

    A progress bar is shown on the first rank if this takes long.

    Args:
        rows: the rows; a stream is filtered only as it is read.
        task: the task that the rows belong to.
        row_filter: the filter to apply. Errors from its `keeps` are passed on.

    Raises:
        ValueError: if there are rows but the filter keeps none; this is not checked for a stream.
    """
    from datasets import Dataset
    from tqdm.auto import tqdm

    def keeps(columns: dict[str, list[Any]]) -> list[bool]:
        return row_filter.keeps(task, as_rows(columns))

    if not isinstance(rows, Dataset):
        return rows.filter(keeps, batched=True, batch_size=BATCH)
    indices: list[int] = []
    first_rank = os.environ.get("RANK", "0") == "0"
    with tqdm(
        total=len(rows),
        desc=row_filter.title,
        delay=PATIENCE,
        leave=False,
        disable=not first_rank,
    ) as bar:
        for start in range(0, len(rows), BATCH):
            stays = keeps(rows[start : start + BATCH])
            indices += (start + np.flatnonzero(stays)).tolist()
            bar.update(len(stays))
    if len(rows) and not indices:
        raise ValueError(row_filter.nothing_left(len(rows)))
    return rows.select(indices)


def draw_rows(rows: Dataset, count: int, seed: int) -> Dataset:
    """Draw `count` rows at random without replacement, and return them in their original order.

    `seed` determines the draw. If there are fewer than `count` rows, all of them are returned.
    """
    order = np.random.default_rng(seed).permutation(len(rows))
    return rows.select(np.sort(order[:count]))


def as_rows(columns: dict[str, list[Any]]) -> list[Row]:
    """Convert a batch from a dict of columns to a list of rows."""
    rows = []
    for cells in zip(*columns.values(), strict=True):
        rows.append(dict(zip(columns, cells, strict=True)))
    return rows
