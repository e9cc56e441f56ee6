"""Sort rows for `curriculum: easy_to_hard`, and check the column to sort by."""

import math
import numbers
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from grpo_ext.common.suggestions import did_you_mean

_TIES = 4  # makes the order of ties independent of the draws in `sampler`, which use the same seed


def from_easy_to_hard(difficulty: Sequence[float], seed: int) -> list[int]:
    """Return the row indices in ascending order of difficulty; `seed` breaks ties."""
    rng = np.random.default_rng((seed, _TIES))
    ties = rng.permutation(len(difficulty))  # (rows,)
    order = np.lexsort((ties, np.asarray(difficulty)))  # (rows,)
    return order.tolist()


def difficulty_fault(
    column: str,
    column_names: Sequence[str],
    values: Callable[[], Iterable[object]],
) -> str | None:
    """Return an error message if rows cannot be sorted by a column, or `None` if they can.

    Args:
        column: the value of `difficulty_column`.
        column_names: the names of all columns in the data.
        values: a function that returns the column's values; called only if the column exists.
    """
    if column not in column_names:
        hint = did_you_mean(column, column_names)
        return (
            f"difficulty_column: the data has no column {column!r}.{hint} Its columns: "
            f"{', '.join(column_names)}."
        )
    for row, difficulty in enumerate(values(), 1):
        if not isinstance(difficulty, numbers.Real) or math.isnan(difficulty):
            return (
                f"difficulty_column: {column!r} must have a number in each row, the lowest for the "
                f"easiest; row {row} has {difficulty!r}."
            )
    return None
