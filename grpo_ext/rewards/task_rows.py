"""The rows of a batch that belong to a reward's tasks, by the column "task"."""

from collections.abc import Sequence
from typing import Any

from grpo_ext.common.columns import TASK


def own_rows(
    arguments: dict[str, Any], tasks: Sequence[str] | None
) -> tuple[list[int], dict[str, Any]]:
    """Return the positions of the rows of these tasks, and the arguments of a reward for them;
    `None`: all tasks.
    """
    count = len(arguments["completions"])
    if tasks is None:
        return list(range(count)), arguments
    rows = [row for row, task in enumerate(arguments.get(TASK, ())) if task in tasks]
    task_arguments = rows_of(arguments, rows, count)
    log_extra = arguments.get("log_extra")
    if log_extra is not None:

        def log_own(column: str, values: list[Any]) -> None:
            log_extra(column, spread(values, rows, count))

        task_arguments["log_extra"] = log_own
    return rows, task_arguments


def rows_of(arguments: dict[str, Any], rows: Sequence[int], count: int) -> dict[str, Any]:
    """Return the arguments for some of `count` completions; what is not a list of that length stays
    as it is.
    """
    return {
        name: [value[row] for row in rows]
        if isinstance(value, list | tuple) and len(value) == count
        else value
        for name, value in arguments.items()
    }


def spread(values: Sequence[Any], rows: Sequence[int], count: int) -> list[Any]:
    """Return a list of length `count` with `values` at the positions `rows`, and None elsewhere."""
    everywhere: list[Any] = [None] * count
    for row, value in zip(rows, values, strict=True):
        everywhere[row] = value
    return everywhere
