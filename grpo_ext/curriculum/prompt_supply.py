"""The supply of prompts beyond those of the data loader."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any

import numpy as np
from datasets import Dataset, IterableDataset

Row = dict[str, Any]
Draw = Callable[[int], list[int]]  # how many -> which rows of the data set
_STREAM = 1  # keeps this order apart from others that are drawn with the same seed


@dataclass(eq=False, repr=False)
class PromptSupply:
    """An endless supply of rows, determined by the seed and the number of rows taken.

    It gives rows that were put back first, then those of the data set, shuffled again in each pass.
    """

    dataset: Dataset | IterableDataset  # the training rows; a stream is read again when it ends
    seed: int  # of the order
    shuffle: bool = True  # `False`: in the order of the data set
    draw: Draw | None = None  # another choice of rows, such as a curriculum; not for streams
    waiting: list[Row] = field(default_factory=list)
    position: int = 0  # rows taken from the data set
    _stream: Iterator[Row] | None = None
    _order: tuple[int, list[int]] = (-1, [])  # the present pass and its order

    def put(self, rows: list[Row]) -> None:
        """Put rows back, to be given out before any others."""
        self.waiting += rows

    def take(self, num: int) -> list[Row]:
        """Return the next rows."""
        rows, self.waiting = self.waiting[:num], self.waiting[num:]
        more = num - len(rows)
        if isinstance(self.dataset, IterableDataset):
            self._stream = self._stream or islice(self._endless(), self.position, None)
            rows += [next(self._stream) for _ in range(more)]
        elif more:
            indices = self.draw(more) if self.draw else [self._index(self.position + i) for i in range(more)]
            rows += [self.dataset[i] for i in indices]
        self.position += more
        return rows

    def _index(self, position: int) -> int:
        around, at = divmod(position, len(self.dataset))
        if not self.shuffle:
            return at
        if self._order[0] != around:
            order = np.random.default_rng((self.seed, _STREAM, around)).permutation(len(self.dataset))
            self._order = around, order.tolist()
        return self._order[1][at]

    def _endless(self) -> Iterator[Row]:
        """Yield the rows of a stream again and again."""
        for around in count():
            rows = self.dataset
            if self.shuffle:
                rows = rows.shuffle(seed=int(np.random.default_rng((self.seed, _STREAM, around)).integers(2**31)))
            row = None
            for row in rows:
                yield row
            if row is None:
                raise ValueError("The data set has no rows to draw further prompts from.")

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`, after which the same rows follow."""
        return {"position": self.position, "waiting": list(self.waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.waiting, self._stream = state["position"], list(state["waiting"]), None
