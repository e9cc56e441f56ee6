"""The order of the training prompts, generation by generation, and a supply of further prompts.

    none          a new permutation in each epoch, as TRL's, also after a resume in a later one
    adaptive      weighted by the chance that a group has right and wrong completions
    easy_to_hard  by a column of the data, from the easiest to the hardest over the whole run

`adaptive` draws each generation by the present pass rates, without passes over the data. It draws
without replacement, one prompt after another in proportion to the weights of those left, so that
expected counts are less uneven than the weights. It changes the objective, in which prompts with
mixed groups weigh more. The random state of each draw is made from seed, epoch and number, so that
no random state has to be saved.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice, repeat
from typing import Any

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from torch.utils.data import Sampler

from grpo_ext.curriculum.pass_rates import PassRates

Row = dict[str, Any]
# These keep draws apart that have the same seed; 4 is that of `difficulty`.
_SUPPLY = 1
_STREAM = 2
_FURTHER = 3


@dataclass(eq=False, repr=False)
class PromptSampler(Sampler):
    """Sampler of prompt indices in the order of TRL's `RepeatSampler`.

    Each prompt of a generation comes `num_generations` times, and all of that `repeat_count`
    times.
    """

    rows: int  # length of the data set
    prompts: int  # of a generation; with `most_slots` above 1 its slots
    num_generations: int  # completions of a prompt
    repeat_count: int  # how often a generation's indices are given
    seed: int  # of the order
    shuffle: bool = True  # `False`: "none" keeps the order of the data set
    rates: PassRates | None = None  # by which "adaptive" draws; `None` for the others
    floor: float = 0.0  # share of the weights of "adaptive" that is uniform over all prompts
    easy_first: list[int] | None = None  # all rows for "easy_to_hard", the easiest first
    # of `num_generations` completions that "adaptive" gives one prompt of a generation
    most_slots: int = 1
    generations: int = 1  # of the whole run, in which "easy_to_hard" reaches the hardest rows
    epoch: int = 0
    # the generations of this epoch, repeated if it starts again
    drawn: list[list[int]] = field(default_factory=list)

    def __len__(self) -> int:
        return self.rows // self.prompts * self.prompts * self.num_generations * self.repeat_count

    def set_epoch(self, epoch: int) -> None:
        """Begin another epoch; the trainer calls this."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.drawn = []

    def __iter__(self) -> Iterator[int]:
        fixed_order = self._fixed_order()
        for number in range(self.rows // self.prompts):
            for _ in range(self.repeat_count):
                for index in self._generation(number, fixed_order):
                    yield from repeat(index, self.num_generations)

    def _fixed_order(self) -> list[int] | None:
        """Return the order of this epoch; `None` with "adaptive" and "easy_to_hard"."""
        if self.rates is not None or self.easy_first is not None:
            return None
        if not self.shuffle:
            return list(range(self.rows))
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.epoch):  # TRL draws all epochs from one generator
            torch.randperm(self.rows, generator=generator)
        return torch.randperm(self.rows, generator=generator).tolist()

    def _generation(self, number: int, fixed_order: list[int] | None) -> list[int]:
        """Return the prompts of the generation `number` of this epoch."""
        if fixed_order is not None:
            start = number * self.prompts
            return fixed_order[start : start + self.prompts]
        if self.easy_first is not None:
            return self._window(self.easy_first, number)
        if number == len(self.drawn):
            rng = np.random.default_rng((self.seed, _STREAM, self.epoch, number))
            self.drawn.append(self._draw(rng, self.prompts))
        return self.drawn[number]

    def _window(self, easy_first: list[int], number: int) -> list[int]:
        """Return a window of the sorted rows that moves from first to last during the run.

        A run of one epoch takes each row once, a longer one several times in successive
        generations, and a shorter one leaves rows out evenly.
        """
        generations_per_epoch = self.rows // self.prompts
        generations_done = self.epoch * generations_per_epoch + number
        share = min(1.0, generations_done / max(1, self.generations - 1))
        start = round(share * (self.rows - self.prompts))
        return easy_first[start : start + self.prompts]

    def _draw(self, rng: np.random.Generator, num: int) -> list[int]:
        """Draw prompts by weight: without replacement, unless `num` is above the number of rows."""
        assert self.rates is not None
        chances = self.rates.chance_of_signal(self.num_generations, self.most_slots)  # (rows,)
        weights = (1 - self.floor) * chances / chances.sum() + self.floor / len(chances)
        indices = rng.choice(self.rows, num, replace=num > self.rows, p=weights)  # (num,)
        if self.most_slots > 1:
            slots = self.rates.slots(self.num_generations, self.most_slots)  # (rows,)
            indices = np.repeat(indices, slots[indices])[:num]
        return indices.tolist()

    def draw_further(self, num: int, position: int) -> list[int]:
        """Return `num` further prompts by the pass rates, after `position` others."""
        rng = np.random.default_rng((self.seed, _FURTHER, position))
        return self._draw(rng, num)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`, after which the same order follows."""
        return {
            "epoch": self.epoch,
            "drawn": [list(generation) for generation in self.drawn],
            "rates": None if self.rates is None else self.rates.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.drawn = [list(generation) for generation in state["drawn"]]
        if self.rates is not None:
            self.rates.load_state_dict(state["rates"])


@dataclass(eq=False, repr=False)
class PromptSupply:
    """An endless supply of rows, determined by the seed and the number of rows taken.

    It gives rows that were put back first, then those of the data set, shuffled again in each pass.
    """

    dataset: Dataset | IterableDataset  # the training rows; a stream is read again when it ends
    seed: int  # of the order
    shuffle: bool = True  # `False`: in the order of the data set
    # another choice of so many rows, such as a curriculum's; not for streams
    draw: Callable[[int], list[int]] | None = None
    waiting: list[Row] = field(default_factory=list)
    position: int = 0  # rows taken from the data set
    _stream: Iterator[Row] | None = None
    _order: tuple[int, list[int]] = (-1, [])  # the present pass and its order

    def put(self, rows: list[Row]) -> None:
        """Put rows back, to be given out before any others."""
        self.waiting += rows

    def peek(self, num: int) -> list[Row]:
        """Return the rows that the next `take` gives out first."""
        rows = self.take(num)
        self.waiting = rows + self.waiting
        return rows

    def take(self, num: int) -> list[Row]:
        """Return the next rows."""
        rows = self.waiting[:num]
        self.waiting = self.waiting[num:]
        num_missing = num - len(rows)
        if num_missing:
            rows += self._from_dataset(num_missing)
            self.position += num_missing
        return rows

    def _from_dataset(self, num: int) -> list[Row]:
        if isinstance(self.dataset, IterableDataset):
            if self._stream is None:
                self._stream = islice(self._endless(), self.position, None)
            return list(islice(self._stream, num))
        if self.draw is not None:
            return [self.dataset[index] for index in self.draw(num)]
        return [self.dataset[self._index(self.position + i)] for i in range(num)]

    def _index(self, position: int) -> int:
        """Return the index of the row at a position of the endless order."""
        current_pass, place = divmod(position, len(self.dataset))
        if not self.shuffle:
            return place
        if self._order[0] != current_pass:
            rng = np.random.default_rng((self.seed, _SUPPLY, current_pass))
            self._order = (current_pass, rng.permutation(len(self.dataset)).tolist())
        return self._order[1][place]

    def _endless(self) -> Iterator[Row]:
        """Yield the rows of a stream again and again."""
        for current_pass in count():
            rows = self.dataset
            if self.shuffle:
                rng = np.random.default_rng((self.seed, _SUPPLY, current_pass))
                rows = rows.shuffle(seed=int(rng.integers(2**31)))
            row = None
            for row in rows:
                yield row
            if row is None:
                raise ValueError("The data set has no rows to draw further prompts from.")

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`, after which the same rows follow."""
        return {"position": self.position, "waiting": list(self.waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        self.waiting = list(state["waiting"])
        self._stream = None
