"""Prompts beyond those that the data loader brings."""

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
    """An endless supply of rows, deterministic given the seed and how many were taken.

    First come rows that were put back, then those of the data set in an order of its own, shuffled anew each time around.
    """

    dataset: Dataset | IterableDataset  # the training rows; a stream is read from its start again where it ends
    seed: int  # of the order
    shuffle: bool = True  # `False`: in the data set's order
    draw: Draw | None = None  # chooses rows instead, such as a curriculum's; not for streams
    waiting: list[Row] = field(default_factory=list)
    position: int = 0  # rows taken from the data set
    _stream: Iterator[Row] | None = None
    _order: tuple[int, list[int]] = (-1, [])  # of the running time around

    def put(self, rows: list[Row]) -> None:
        """Rows to give out before any other, in their order and after those that wait already."""
        self.waiting += rows

    def take(self, num: int) -> list[Row]:
        """The next rows."""
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
        """A stream again and again."""
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
        """What `load_state_dict` needs to give out the same rows from here on."""
        return {"position": self.position, "waiting": list(self.waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.waiting, self._stream = state["position"], list(state["waiting"]), None
