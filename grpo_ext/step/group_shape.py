"""Groups of unequal size: a prompt's slots of `num_generations` completions are one group.

What compares the completions of a group takes tables of equal groups. So the tables of unequal
groups are spread to groups as large as the largest, whose other places hold NaN, which counts as
"not scored" everywhere.
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
    """The sizes of N groups, whose completions are adjacent: B in all."""

    sizes: tuple[int, ...]  #: completions of each group

    @classmethod
    def equal(cls, completions: int, size: int) -> GroupShape:
        """Return the shape of groups of `size` completions."""
        return cls((size,) * (completions // size))

    @classmethod
    def of_slots(cls, prompts: Sequence[Hashable], size: int) -> GroupShape:
        """Return the shape where neighbouring slots of the same prompt are one group.

        Args:
            prompts: the prompt of each slot.
            size: completions of a slot.
        """
        return cls(tuple(size * len(list(slots)) for _, slots in groupby(prompts)))

    @property
    def largest(self) -> int:
        """Completions of the largest group."""
        return max(self.sizes)

    @property
    def starts(self) -> list[int]:
        """The first completion of each group."""
        starts = [0]
        for size in self.sizes[:-1]:
            starts.append(starts[-1] + size)
        return starts

    @property
    def numbers(self) -> list[int]:
        """The number of the group of each completion: B."""
        numbers: list[int] = []
        for number, size in enumerate(self.sizes):
            numbers += [number] * size
        return numbers

    def spread(self, values: Tensor, fill: float = math.nan) -> Tensor:
        """Return (N largest, ...) from `values` (B, ...); `fill` where a group has no member.

        Bool tables have `False` there.
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
        """Return (B, ...) from what `spread` returns."""
        if self._are_equal:
            return spread
        return spread[self._places(spread)]

    def repeat(self, by_group: Tensor) -> Tensor:
        """Return (B,), the value of each completion's group; `by_group` is (N,)."""
        return by_group[torch.tensor(self.numbers, device=by_group.device)]

    @property
    def _are_equal(self) -> bool:
        return len(set(self.sizes)) == 1

    def _places(self, values: Tensor) -> Tensor:
        """Return where each completion is in a spread table: (B,)."""
        places: list[int] = []
        for number, size in enumerate(self.sizes):
            start = number * self.largest
            places += range(start, start + size)
        return torch.tensor(places, device=values.device)
