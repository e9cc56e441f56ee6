"""Hold out a share of a dataset for evaluation, using a hash of each row's question."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from grpo_ext.common.hashes import NUM_HASHES, number_of, share_between

if TYPE_CHECKING:
    from grpo_ext.tasks.base import Row, Task

# Makes the choice independent of other choices that hash the same string, such as
# `Countdown.test_fraction`.
PURPOSE = "held_out_share"
# The summary explains differences of more than this share of the expected number of held-out rows.
NOTABLE_DIFFERENCE = 0.25


@dataclass
class HeldOutFilter:
    """A `RowFilter` that keeps either the held-out rows of a dataset or all others.

    Whether a row is held out depends only on `Task.held_out_key` and `share`, not on its position,
    the other rows, or a seed. Rows with the same key are treated alike, and a larger share holds
    out every row that a smaller one does.
    """

    share: float  # expected share of held-out keys, between 0 and 1
    held_out: bool  # `True` keeps the held-out rows, `False` the others
    read: int = field(default=0, init=False)  # number of rows passed to `keeps`
    kept: int = field(default=0, init=False)  # number of rows that were kept
    lowest: int = field(default=NUM_HASHES, init=False)  # the lowest hash of a row so far
    highest: int = field(default=0, init=False)  # the highest hash of a row so far

    @property
    def title(self) -> str:
        return "hold out rows"

    def keeps(self, task: Task, rows: Sequence[Row]) -> list[bool]:
        """Return whether to keep each row, and update the counts and the range of the hashes."""
        stays = []
        for row in rows:
            hashed = number_of(f"{PURPOSE} {canonical(task.held_out_key(row))}")
            self.lowest = min(self.lowest, hashed)
            self.highest = max(self.highest, hashed)
            is_held_out = hashed < self.share * NUM_HASHES
            stays.append(is_held_out == self.held_out)
        self.read += len(rows)
        self.kept += sum(stays)
        return stays

    def summary(self, part: str = "") -> str:
        """Return a message that says how many rows were kept.

        Args:
            part: words to put before the total, such as "the first ".
        """
        use = "held out" if self.held_out else "for training"
        counts = f"{self.kept:,} of {part}{self.read:,}"
        text = f"held_out_share {self.share:g}: {counts} rows are {use}"
        held_out = self.kept if self.held_out else self.read - self.kept
        expected = self.share * self.read
        if abs(held_out - expected) > NOTABLE_DIFFERENCE * expected:
            text += (
                f"; {held_out / self.read:.0%} are held out, because a hash of each question "
                "decides, which is inexact if there are few different questions"
            )
        return text

    def nothing_left(self, count: int) -> str:
        """Return the error message to raise if none of `count` rows is kept."""
        share = f"held_out_share {self.share:g}"
        if count == 1:
            return f"{share} cannot divide a single row. Use more rows, or remove held_out_share."
        if self.held_out:
            return f"{share} holds out none of the {count:,} rows{self._reason(count, 'larger')}"
        return f"{share} holds out all {count:,} rows{self._reason(count, 'smaller')}"

    def _reason(self, count: int, other: str) -> str:
        """Return the end of the message from `nothing_left`: the cause and the remedy.

        Args:
            count: the number of rows, at least 2.
            other: whether a "larger" or a "smaller" share would divide the rows.
        """
        if self.lowest == self.highest:
            return (
                ", because all have the same question, and rows with the same question are kept "
                "together. Use data with different questions, or remove held_out_share and set "
                "eval_dataset_name to other rows."
            )
        return (
            f". A hash of each row's question decides, so {self.share * count:.3g} of {count:,} "
            f"rows are held out on average. Set a {other} share, such as "
            f"{share_between(self.lowest, self.highest)}, or use data with more different "
            "questions."
        )


def canonical(key: object) -> str:
    """Convert a key to a string that does not depend on the other rows of its dataset.

    In a dataset, a column of numbers becomes floats if any row has a float, and a mapping gets the
    keys that it has in any row, with null for those that it lacks. Whole floats are therefore
    written as integers, and null entries of mappings are left out.
    """
    return json.dumps(normalized(key), ensure_ascii=True, sort_keys=True, default=str)


def normalized(key: object) -> object:
    """Copy a key, leaving out null entries of mappings and converting whole floats to integers."""
    if isinstance(key, Mapping):
        return {str(name): normalized(part) for name, part in key.items() if part is not None}
    if isinstance(key, list | tuple):
        return [normalized(part) for part in key]
    if isinstance(key, float) and key.is_integer():
        return int(key)
    return key
