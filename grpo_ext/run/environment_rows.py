"""Add columns that name each row's environment and task, if the environment depends on the row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from datasets import Dataset, IterableDataset

from grpo_ext.common.columns import ENVIRONMENT, SINGLE_TURN, TASK
from grpo_ext.environments.start_episodes import NO_COLUMN, check_environment_names
from grpo_ext.recipe.episode_options import environments_of, environments_of_tasks
from grpo_ext.recipe.load import Recipe

Rows: TypeAlias = Dataset | IterableDataset


def with_environments(recipe: Recipe, rows: Rows) -> Rows:
    """Return rows with the columns `environment` and `task`, if the environment depends on the row.

    If the recipe has no environment, or one for all rows, the rows are returned unchanged.
    Otherwise there are two cases:

    - Tasks in `tasks` have environments. The column `environment` is set to the name of the row's
      task if this task has an environment, otherwise to `None`.
    - The recipe has the key `environments`, and the rows already have a column `environment`. If
      they have no column `task`, one is added that holds the name of the row's environment, or
      `single_turn` if the row names none. Rewards can then be chosen per environment, and metrics
      are logged per environment.

    Raises:
        ValueError: in the second case, if the column `environment` is missing, or a row names an
            unknown environment. In a stream, the names are not checked here, and a missing column
            may be found only when the stream is read.
    """
    environments = environments_of(recipe.flat)
    if not environments or "" in environments:
        return rows
    columns = rows.column_names
    if environments_of_tasks(recipe.flat.tasks):
        return with_column(rows, ENVIRONMENT, TASK, {name: name for name in environments}, None)
    if columns is not None and ENVIRONMENT not in columns:
        raise ValueError(NO_COLUMN)
    if isinstance(rows, Dataset):
        check_environment_names(rows.unique(ENVIRONMENT), environments)
    if columns is not None and TASK in columns:
        return rows
    names = {name: name for name in environments}
    return with_column(rows, TASK, ENVIRONMENT, names, SINGLE_TURN, replaces=False)


def with_column(
    rows: Rows,
    name: str,
    source: str,
    values: Mapping[str, str],
    other: str | None,
    replaces: bool = True,
) -> Rows:
    """Return the rows with a new column, filled by looking up each entry of the column `source`.

    Args:
        rows: the rows to extend.
        name: the name of the new column.
        source: the column whose entries are looked up.
        values: maps entries of `source` to values of the new column.
        other: the value for entries of `source` that are not in `values`.
        replaces: whether an existing column called `name` is replaced; if not, a stream that turns
            out to have one keeps it.

    Raises:
        ValueError: if `rows` is a stream without the column `source`; raised when the stream is
            read.
    """

    def looked_up(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if source not in batch:  # only in a stream whose columns were unknown before
            raise ValueError(NO_COLUMN)
        if name in batch and not replaces:
            return {name: batch[name]}
        return {name: [values.get(value, other) for value in batch[source]]}

    if isinstance(rows, IterableDataset):
        return rows.map(looked_up, batched=True)
    column = looked_up({source: list(rows[source])})[name]
    if name in rows.column_names:
        rows = rows.remove_columns(name)
    return rows.add_column(name, column)
