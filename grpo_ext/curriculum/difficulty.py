"""The column that `curriculum: easy_to_hard` sorts by."""

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from grpo_ext.common.suggestions import did_you_mean


def difficulty_fault(
    column: str, there: Sequence[str], values: Callable[[], Iterable[Any]]
) -> str | None:
    """Return why rows cannot be sorted by a column, or `None`.

    Args:
        column: its name, `difficulty_column`.
        there: the columns of the rows.
        values: returns the values of the column.
    """
    if column not in there:
        hint = did_you_mean(column, there)
        return (
            f"difficulty_column: the data has no column {column!r}.{hint} Its columns: "
            f"{', '.join(there)}."
        )
    for row, difficulty in enumerate(values()):
        if not isinstance(difficulty, numbers.Real) or math.isnan(difficulty):
            return (
                f"difficulty_column: {column!r} must have a number in each row, the lowest for the "
                f"easiest; row {row} has {difficulty!r}."
            )
    return None
