"""The order of `curriculum: easy_to_hard`, and the column that it sorts by."""

import math
import numbers
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from grpo_ext.common.suggestions import did_you_mean

_TIES = 4  # keeps this draw apart from those of `sampler`, which have the same seed


def from_easy_to_hard(difficulty: Sequence[float], seed: int) -> list[int]:
    """Return the indices of rows from easy to hard; `seed` draws the order of equal ones."""
    ties = np.random.default_rng((seed, _TIES)).permutation(len(difficulty))
    return np.lexsort((ties, np.asarray(difficulty))).tolist()


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
