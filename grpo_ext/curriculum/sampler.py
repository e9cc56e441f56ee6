"""The order of the training prompts in each generation, and a supply of additional prompts.

    none          a new permutation in each epoch, the same as TRL's, even after a run is resumed
    adaptive      weighted by the probability that a group has both correct and wrong completions
    easy_to_hard  sorted by a column of the data, from easiest to hardest over the whole run

`adaptive` draws each generation from the current pass rates, so an epoch is not a pass over the
data. It draws without replacement, one prompt after another in proportion to the remaining weights,
so that expected counts are less uneven than the weights. This changes the objective: prompts with
mixed groups get more weight. Each draw has its own random generator, seeded with the run's seed,
the epoch and the number of the generation, so no RNG state has to be saved.
"""

import copy
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
# These make draws with the same seed independent of each other; `difficulty` uses 4.
_SUPPLY = 1
_STREAM = 2
_FURTHER = 3


@dataclass(eq=False, repr=False)
class PromptSampler(Sampler):
    """Yields row indices with the same repetitions as TRL's `RepeatSampler`.

    Each prompt of a generation is yielded `num_generations` times in a row for each slot that it
    occupies (one, unless `most_slots` is above 1). The whole sequence of the generation is yielded
    `repeat_count` times.
    """

    rows: int  # length of the dataset
    prompts: int  # prompts per generation, or slots if `most_slots` is above 1
    num_generations: int  # completions per prompt
    repeat_count: int  # how many times a generation's indices are yielded
    seed: int  # seed of the order
    shuffle: bool = True  # whether "none" shuffles the rows, or keeps the order of the dataset
    rates: PassRates | None = None  # pass rates for "adaptive"; otherwise `None`
    floor: float = 0.0  # fraction of the weights of "adaptive" that is uniform over all rows
    easy_first: list[int] | None = None  # all row indices for "easy_to_hard", the easiest first
    # maximum slots of `num_generations` completions for one prompt of "adaptive"
    most_slots: int = 1
    generations: int = 1  # number of generations of the whole run, for "easy_to_hard"
    epoch: int = 0
    # "adaptive" generations of this epoch so far, repeated if the epoch is iterated again
    drawn: list[list[int]] = field(default_factory=list)

    def __len__(self) -> int:
        num_prompts = self.generations_per_epoch * self.prompts
        return num_prompts * self.num_generations * self.repeat_count

    @property
    def generations_per_epoch(self) -> int:
        """The number of whole generations in an epoch; the remaining rows are left out."""
        return self.rows // self.prompts

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; if it is a new one, discard the generations that were drawn before.

        The trainer calls this method.
        """
        if epoch != self.epoch:
            self.epoch = epoch
            self.drawn = []

    def __iter__(self) -> Iterator[int]:
        fixed_order = self._fixed_order()
        for number in range(self.generations_per_epoch):
            for _ in range(self.repeat_count):
                generation = self._generation(number, fixed_order)
                for index in generation:
                    yield from repeat(index, self.num_generations)

    def _fixed_order(self) -> list[int] | None:
        """Return all row indices in the order of this epoch.

        The result is `None` for "adaptive" and "easy_to_hard".
        """
        if self.rates is not None or self.easy_first is not None:
            return None
        if not self.shuffle:
            return list(range(self.rows))
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(self.epoch):  # TRL draws all epochs from one generator
            torch.randperm(self.rows, generator=generator)
        order = torch.randperm(self.rows, generator=generator)  # (rows,)
        return order.tolist()

    def _generation(self, number: int, fixed_order: list[int] | None) -> list[int]:
        """Return the row indices of generation `number` of this epoch.

        For "adaptive", a generation is drawn when it is first requested, and then stays the same.
        """
        if fixed_order is not None:
            start = number * self.prompts
            end = start + self.prompts
            return fixed_order[start:end]
        if self.easy_first is not None:
            return self._window(self.easy_first, number)
        if number == len(self.drawn):
            rng = np.random.default_rng((self.seed, _STREAM, self.epoch, number))
            indices = self._draw(rng, self.prompts)
            self.drawn.append(indices)
        return self.drawn[number]

    def _window(self, easy_first: list[int], number: int) -> list[int]:
        """Return the row indices of generation `number` of this epoch, for "easy_to_hard".

        They are a window of `easy_first` that slides from the first to the last row over the run.
        Windows of successive generations overlap in a run of more than one epoch, and skip rows
        evenly in a run of less than one.
        """
        generations_done = self.epoch * self.generations_per_epoch + number
        last_generation = max(1, self.generations - 1)
        share = min(1.0, generations_done / last_generation)
        last_start = self.rows - self.prompts
        start = round(share * last_start)
        end = start + self.prompts
        return easy_first[start:end]

    def _draw(self, rng: np.random.Generator, num: int) -> list[int]:
        """Draw `num` row indices by weight, without replacement unless `num` exceeds the row count.

        If `most_slots` is above 1, the index of a hard prompt is repeated, so that the prompt
        occupies several of the `num` slots.
        """
        assert self.rates is not None
        chances = self.rates.chance_of_signal(self.num_generations, self.most_slots)  # (rows,)
        by_chance = (1 - self.floor) * chances / chances.sum()  # (rows,)
        uniform = self.floor / len(chances)
        indices = rng.choice(
            self.rows,
            size=num,
            replace=num > self.rows,
            p=by_chance + uniform,
        )  # (num,)
        if self.most_slots > 1:
            slots = self.rates.slots(self.num_generations, self.most_slots)  # (rows,)
            occupied = slots[indices]  # (num,)
            indices = np.repeat(indices, occupied)[:num]
        return indices.tolist()

    def draw_further(self, num: int, position: int) -> list[int]:
        """Draw `num` additional row indices, with weights that depend on the pass rates.

        This requires the curriculum "adaptive". The draw is seeded with `position`, the number of
        rows that this method has drawn before.
        """
        rng = np.random.default_rng((self.seed, _FURTHER, position))
        return self._draw(rng, num)

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which `load_state_dict` continues in the same order."""
        rates = None
        if self.rates is not None:
            rates = self.rates.state_dict()
        return {
            "epoch": self.epoch,
            "drawn": copy.deepcopy(self.drawn),
            "rates": rates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]
        self.drawn = copy.deepcopy(state["drawn"])
        if self.rates is not None:
            self.rates.load_state_dict(state["rates"])


@dataclass(eq=False, repr=False)
class PromptSupply:
    """An endless supply of rows: first those that were put back, then new ones.

    New rows are chosen by `draw`. If `draw` is `None`, they come from repeated passes over the
    dataset, with a new order for each pass if `shuffle` is true; the seed and the number of rows
    taken from the dataset so far then determine which rows come next.
    """

    dataset: Dataset | IterableDataset  # the training rows; a stream starts again when it ends
    seed: int  # seed of the order
    shuffle: bool = True  # whether to shuffle the rows, or to keep the order of the dataset
    # returns the given number of row indices to use next, in place of the passes; not for streams
    draw: Callable[[int], list[int]] | None = None
    waiting: list[Row] = field(default_factory=list)  # rows that were put back
    position: int = 0  # number of rows taken from the dataset
    _stream: Iterator[Row] | None = None
    _order: tuple[int, list[int]] = (-1, [])  # the current pass and its order

    def put(self, rows: list[Row]) -> None:
        """Put rows back, to be taken before any new rows but after those put back earlier."""
        self.waiting += rows

    def peek(self, num: int) -> list[Row]:
        """Return the next `num` rows; the next `take` returns them again."""
        rows = self.take(num)
        self.waiting = rows + self.waiting
        return rows

    def take(self, num: int) -> list[Row]:
        """Return the next `num` rows: first those that were put back, then new ones.

        Raises:
            ValueError: if the dataset is a stream, and a whole pass over it yields no row.
        """
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
            indices = self.draw(num)
        else:
            positions = range(self.position, self.position + num)
            indices = [self._index(position) for position in positions]
        return [self.dataset[index] for index in indices]

    def _index(self, position: int) -> int:
        """Return the index of the row at `position` in the endless sequence of passes."""
        num_rows = len(self.dataset)
        current_pass, place = divmod(position, num_rows)
        if not self.shuffle:
            return place
        ordered_pass, order = self._order
        if ordered_pass != current_pass:
            rng = np.random.default_rng((self.seed, _SUPPLY, current_pass))
            order = rng.permutation(num_rows).tolist()
            self._order = (current_pass, order)
        return order[place]

    def _endless(self) -> Iterator[Row]:
        """Yield the stream's rows in endless passes; raise `ValueError` if a pass has no row."""
        for current_pass in count():
            rows = self.dataset
            if self.shuffle:
                rng = np.random.default_rng((self.seed, _SUPPLY, current_pass))
                seed = int(rng.integers(2**31))
                rows = rows.shuffle(seed=seed)
            row = None
            for row in rows:
                yield row
            if row is None:
                raise ValueError(
                    "dataset_name: a full pass over the training stream yielded no rows, so "
                    "`group_filter: refill` has no more prompts to draw from. Check dataset_name, "
                    "dataset_train_split and the row filters, such as max_prompt_tokens."
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which `load_state_dict` continues with the same rows."""
        return {
            "position": self.position,
            "waiting": list(self.waiting),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        self.waiting = list(state["waiting"])
        self._stream = None
