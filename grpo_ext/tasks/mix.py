"""Mix the rows of several tasks, with the name of each row's task in the column "task"."""

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
    """Return the rows of all tasks, evenly interleaved, with the name of each row's task.

    The name is in the column "task", which replaces any column of this name in the data. Columns
    that a task lacks are `None` in its rows.

    Args:
        parts: the rows of each task, by the task's name.
        shares: the relative share of each task in the result, by name. No row is left out: if a
            task has too few rows for its share, its rows are repeated. If `None`, each row occurs
            once.

    Raises:
        ValueError: if a task has no rows, or a column has different types in two tasks.
    """
    from datasets import concatenate_datasets

    for name, rows in parts.items():
        if not len(rows):
            raise ValueError(
                f"tasks: the task {name} has no rows, or none within its max_prompt_tokens and "
                "max_answer_tokens. Raise these limits, set another dataset_name for the task, or "
                "remove the task."
            )
    labeled = {}
    for name, rows in parts.items():
        if TASK in rows.column_names:
            rows = rows.remove_columns(TASK)
        labeled[name] = rows.add_column(TASK, [name] * len(rows))
    check_types(labeled)
    sizes = np.array(list(map(len, labeled.values())))
    counts = sizes
    if shares is not None:
        counts = repeated_counts(sizes, np.array([shares[name] for name in parts]))
    indices = []
    positions = []
    start = 0
    for size, count in zip(sizes, counts, strict=True):
        j = np.arange(count)
        indices.append(start + j % size)
        positions.append((j + 0.5) / count)  # spreads each task's rows evenly
        start += size
    order = np.argsort(np.concatenate(positions), kind="stable")
    all_rows = concatenate_datasets(list(labeled.values()))
    return all_rows.select(np.concatenate(indices)[order])


def repeated_counts(sizes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return how many rows each task has in a mix with the given shares; the shape is (tasks,).

    The counts are the smallest ones in proportion to `shares` (rounded) that include every row of
    every task.

    Args:
        sizes: (tasks,), the number of rows of each task.
        shares: (tasks,), the relative shares of the tasks.
    """
    total = (sizes / shares).max()
    return np.maximum(np.rint(total * shares).astype(int), sizes)


def mixed_streams(
    parts: Mapping[str, IterableDataset], shares: Mapping[str, float] | None, seed: int
) -> IterableDataset:
    """Interleave the streams of all tasks at random, until each has ended at least once.

    A stream that ends earlier starts again. The column "task" contains the name of each row's task,
    and every row has the columns of all tasks, with `None` for those that its task lacks. The first
    row of each stream is read immediately, to find its columns.

    Args:
        parts: the rows of each task, by the task's name.
        shares: the relative probability of each task, by name; `None` means equal probabilities.
        seed: the seed for drawing the task of each row.

    Raises:
        ValueError: if a task has no rows.
    """
    from datasets import interleave_datasets

    columns: dict[str, None] = {}
    for name, rows in parts.items():
        first = next(iter(rows), None)
        if first is None:
            raise ValueError(
                f"tasks: the task {name} has no rows, or none within its max_prompt_tokens and "
                "max_answer_tokens. Raise these limits, set another dataset_name for the task, or "
                "remove the task."
            )
        columns |= dict.fromkeys(first)
    empty = dict.fromkeys([*columns, TASK])
    labeled = []
    weights = []
    for name, rows in parts.items():
        labeled.append(rows.map(partial(_with_task, name=name, empty=empty)))
        weights.append(1.0 if shares is None else shares[name])
    chances = np.array(weights) / sum(weights)
    return interleave_datasets(
        labeled,
        chances.tolist(),
        seed=seed,
        stopping_strategy="all_exhausted",
    )


def _with_task(row: Row, name: str, empty: Row) -> Row:
    return {**empty, **row, TASK: name}


def check_types(parts: Mapping[str, Dataset]) -> None:
    """Raise `ValueError` if a column has different types in two tasks."""
    first: dict[str, tuple[str, Any]] = {}
    for name, rows in parts.items():
        for column, kind in rows.features.items():
            other, other_kind = first.setdefault(column, (name, kind))
            if kind == other_kind:
                continue
            if column == "prompt":
                raise ValueError(
                    f"tasks: the prompts of {other!r} and {name!r} have different types: "
                    f"{other_kind} and {kind}. Store both as chat messages with `role` and "
                    "`content`, or both as strings."
                )
            raise ValueError(
                f"tasks: the column {column!r} has different types in the tasks {other!r} and "
                f"{name!r}: {other_kind} and {kind}. Rename it in one of the datasets."
            )
