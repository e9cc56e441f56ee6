"""Groups of unequal size: adjacent slots with the same prompt form one group.

A slot is `num_generations` completions of a prompt. Functions that compare the completions of a
group expect groups of equal size. Smaller groups are therefore padded to the size of the largest
one with NaN, which means "not scored" everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor


@dataclass(frozen=True)
class GroupShape:
    """The sizes of N groups with B completions in all; a group's completions are adjacent."""

    sizes: tuple[int, ...]  #: the number of completions in each group

    @classmethod
    def equal(cls, completions: int, size: int) -> GroupShape:
        """Return the shape of `completions // size` groups of `size` completions."""
        return cls((size,) * (completions // size))

    @classmethod
    def of_slots(cls, prompts: Sequence[Hashable], size: int) -> GroupShape:
        """Return the shape in which adjacent slots with the same prompt form one group.

        Args:
            prompts: the prompt of each slot.
            size: the number of completions in a slot.
        """
        return cls(tuple(size * len(list(slots)) for _, slots in groupby(prompts)))

    @property
    def largest(self) -> int:
        """The number of completions in the largest group."""
        return max(self.sizes)

    @property
    def starts(self) -> list[int]:
        """The index of each group's first completion: N integers."""
        starts = [0]
        for size in self.sizes[:-1]:
            starts.append(starts[-1] + size)
        return starts

    @property
    def numbers(self) -> list[int]:
        """The index of each completion's group: B integers."""
        numbers: list[int] = []
        for number, size in enumerate(self.sizes):
            numbers += [number] * size
        return numbers

    def spread(self, values: Tensor, fill: float = math.nan) -> Tensor:
        """Return (N * largest, ...) from `values` (B, ...); places without a member hold `fill`.

        In bool tensors they hold `False`.
        """
        if self._are_equal:
            return values
        if values.dtype == torch.bool:
            fill = False
        num_places = len(self.sizes) * self.largest
        spread = values.new_full((num_places, *values.shape[1:]), fill)
        spread[self._places(values)] = values
        return spread

    def gather(self, spread: Tensor) -> Tensor:
        """Undo `spread`: return (B, ...) from (N * largest, ...)."""
        if self._are_equal:
            return spread
        return spread[self._places(spread)]

    def repeat(self, by_group: Tensor) -> Tensor:
        """Return (B,): for each completion, the value of its group in `by_group` (N,)."""
        return by_group[torch.tensor(self.numbers, device=by_group.device)]

    @property
    def _are_equal(self) -> bool:
        return len(set(self.sizes)) == 1

    def _places(self, values: Tensor) -> Tensor:
        """Return the index (B,) of each completion in a tensor from `spread`."""
        places: list[int] = []
        for number, size in enumerate(self.sizes):
            start = number * self.largest
            places += range(start, start + size)
        return torch.tensor(places, device=values.device)
