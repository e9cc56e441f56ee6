"""The column that `curriculum: easy_to_hard` sorts by."""

import math
import numbers
from collections.abc import Callable, Iterable, Sequence

from grpo_ext.common.suggestions import did_you_mean


def difficulty_fault(
    column: str, column_names: Sequence[str], values: Callable[[], Iterable[object]]
) -> str | None:
    """Return why rows cannot be sorted by a column, or `None`.

    Args:
        column: its name, `difficulty_column`.
        column_names: the columns of the rows.
        values: returns the values of the column.
    """
    if column not in column_names:
        hint = did_you_mean(column, column_names)
        return (
            f"difficulty_column: the data has no column {column!r}.{hint} Its columns: "
            f"{', '.join(column_names)}."
        )
    for row, difficulty in enumerate(values()):
        if not isinstance(difficulty, numbers.Real) or math.isnan(difficulty):
            return (
                f"difficulty_column: {column!r} must have a number in each row, the lowest for the "
                f"easiest; row {row} has {difficulty!r}."
            )
    return None
