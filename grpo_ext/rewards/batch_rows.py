"""Select the arguments of a reward for some rows of a batch."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from grpo_ext.common.columns import TASK


def copy_containers(argument: Any) -> Any:
    """Copy nested lists and dicts, so that a reward cannot change the originals.

    Objects of other types are not copied.
    """
    if isinstance(argument, list):
        return [
            copy_containers(entry) if isinstance(entry, list | dict) else entry
            for entry in argument
        ]
    if isinstance(argument, dict):
        return {key: copy_containers(entry) for key, entry in argument.items()}
    return argument


def one_row(arguments: dict[str, Any], row: int, count: int) -> dict[str, Any]:
    """Return the arguments for the completion at index `row` of a batch of `count` completions.

    `log_extra` and `log_metric` become no-ops, because the call for the whole batch may have logged
    before it failed.
    """
    row_arguments = rows_of(arguments, [row], count)
    for name in ("log_extra", "log_metric"):
        if name in row_arguments:
            row_arguments[name] = lambda *_: None
    return row_arguments


def rows_to_score(
    arguments: dict[str, Any],
    tasks: Sequence[str] | None,
    left_out: AbstractSet[int] = frozenset(),
) -> tuple[list[int], dict[str, Any]]:
    """Return the indices of the rows to score, and the reward's arguments for these rows alone.

    In the returned arguments, `log_extra` accepts values for these rows and logs `None` for all
    others.

    Args:
        arguments: the reward's arguments for the whole batch.
        tasks: the names of the tasks whose rows the reward scores; the column `task` says which
            task a row belongs to. `None` means all rows.
        left_out: the indices of rows that no reward scores.
    """
    count = len(arguments["completions"])
    if tasks is None:
        rows = list(range(count))
    else:
        rows = [row for row, task in enumerate(arguments.get(TASK, ())) if task in tasks]
    rows = [row for row in rows if row not in left_out]
    if tasks is None and len(rows) == count:
        return rows, arguments
    selected = rows_of(arguments, rows, count)
    log_extra = arguments.get("log_extra")
    if log_extra is not None:

        def log_selected_rows(column: str, values: list[Any]) -> None:
            log_extra(column, scatter(values, rows, count))

        selected["log_extra"] = log_selected_rows
    return rows, selected


def rows_of(arguments: dict[str, Any], rows: Sequence[int], count: int) -> dict[str, Any]:
    """Return the arguments for some rows of a batch of `count` completions.

    An argument is left unchanged if it is not a list or tuple of length `count`.
    """
    selected = {}
    for name, argument in arguments.items():
        if isinstance(argument, list | tuple) and len(argument) == count:
            selected[name] = [argument[row] for row in rows]
        else:
            selected[name] = argument
    return selected


def scatter(values: Sequence[Any], rows: Sequence[int], count: int) -> list[Any]:
    """Return a list of length `count` with `values` at the indices `rows` and `None` elsewhere."""
    scattered: list[Any] = [None] * count
    for row, value in zip(rows, values, strict=True):
        scattered[row] = value
    return scattered
