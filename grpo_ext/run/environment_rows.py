"""Name the environment of each row, in a recipe with several environments."""

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
    """Return rows with the columns `environment` and `task`, if environments depend on the row.

    Without environments, or with one for all rows, the rows are returned unchanged.

    If entries in `tasks` set environments, a row has the environment of its entry, or `None`. If
    the key `environments` sets them, the column `environment` of a row names one. Rows without a
    column `task` then get the name of their environment as task, or `single_turn` for any other
    entry, so that rewards can be chosen and figures are logged by environment.

    Raises:
        ValueError: if `tasks` set no environments, and the rows have no column `environment` or a
            row names an unknown environment. In a stream, the names are not checked here, and a
            missing column may be found only when the stream is read.
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
    return with_column(rows, TASK, ENVIRONMENT, {name: name for name in environments}, SINGLE_TURN)


def with_column(
    rows: Rows, name: str, source: str, values: Mapping[str, str], other: str | None
) -> Rows:
    """Return rows with a column that is looked up from another column.

    Args:
        rows: the rows.
        name: the name of the new column; an existing column of that name is replaced.
        source: the column with the values to look up.
        values: maps values of `source` to values of the new column.
        other: the new column's value for all other values of `source`.

    Raises:
        ValueError: when a stream without the column `source` is read.
    """

    def looked_up(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        if source not in batch:  # only a stream's columns may be unknown before
            raise ValueError(NO_COLUMN)
        return {name: [values.get(value, other) for value in batch[source]]}

    if isinstance(rows, IterableDataset):
        return rows.map(looked_up, batched=True)
    column = looked_up({source: list(rows[source])})[name]
    if name in rows.column_names:
        rows = rows.remove_columns(name)
    return rows.add_column(name, column)
