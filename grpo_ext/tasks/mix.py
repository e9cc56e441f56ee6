"""Mix the rows of several tasks into one data set, whose column "task" has the name of each row's
task.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from grpo_ext.common.columns import TASK

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

    from grpo_ext.tasks.base import Row


def mixed(parts: Mapping[str, Dataset], shares: Mapping[str, float] | None = None) -> Dataset:
    """Return the rows of all tasks, evenly interleaved; a column that a task lacks is None in its
    rows.

    Args:
        parts: the rows of each task, by its name.
        shares: relative shares of the rows; rows of a task that has too few are repeated, so that
            no row is left out. `None`: each row once.

    Raises:
        ValueError: if a task has no rows, or a column has different types in two tasks.
    """
    from datasets import concatenate_datasets

    for name, rows in parts.items():
        if not len(rows):
            raise ValueError(f"tasks: {name} has no rows.")
    named = []
    for name, rows in parts.items():
        unnamed = rows.remove_columns(TASK) if TASK in rows.column_names else rows
        named.append(unnamed.add_column(TASK, [name] * len(unnamed)))
    check_types(dict(zip(parts, named, strict=True)))
    sizes = np.array([len(rows) for rows in named])
    counts = (
        sizes if shares is None else repeated(sizes, np.array([shares[name] for name in parts]))
    )
    starts = np.cumsum(sizes) - sizes
    indices = [
        start + np.arange(count) % size
        for start, count, size in zip(starts, counts, sizes, strict=True)
    ]
    # the j-th of n rows stands at (j + 1/2) / n of the whole
    places = [(np.arange(count) + 0.5) / count for count in counts]
    order = np.argsort(np.concatenate(places), kind="stable")
    return concatenate_datasets(named).select(np.concatenate(indices)[order])


def repeated(sizes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the numbers of rows by the shares, none of them smaller than its size."""
    total = (sizes / shares).max()
    return np.maximum(np.rint(total * shares).astype(int), sizes)


def mixed_streams(
    parts: Mapping[str, IterableDataset], shares: Mapping[str, float] | None, seed: int
) -> IterableDataset:
    """Return the rows of all tasks, each next task drawn by its share (`None`: equal shares), until
    all have ended.

    The streams of tasks that have ended begin again. Every row has the columns of all tasks.
    `ValueError` if a task has no rows.
    """
    from datasets import interleave_datasets

    columns: dict[str, None] = {}
    for name, rows in parts.items():
        first = next(iter(rows), None)
        if first is None:
            raise ValueError(f"tasks: {name} has no rows.")
        columns |= dict.fromkeys(first)
    empty = dict.fromkeys([*columns, TASK])
    named = [rows.map(partial(_with_task, name=name, empty=empty)) for name, rows in parts.items()]
    weights = np.array([1.0 if shares is None else shares[name] for name in parts])
    chances = (weights / weights.sum()).tolist()
    return interleave_datasets(named, chances, seed=seed, stopping_strategy="all_exhausted")


def _with_task(row: Row, name: str, empty: Row) -> Row:
    return {**empty, **row, TASK: name}


def check_types(parts: Mapping[str, Dataset]) -> None:
    """Raise `ValueError` if a column has different types in two tasks."""
    first: dict[str, tuple[str, Any]] = {}
    for name, rows in parts.items():
        for column, kind in rows.features.items():
            other, other_kind = first.setdefault(column, (name, kind))
            if kind != other_kind:
                raise ValueError(
                    f"The column {column!r} has different types in the tasks {other!r} and "
                    f"{name!r}: {other_kind} and {kind}. Rename it in one of the data sets."
                )
