"""Groups of completions: which of them have signal, and tables of whole groups.

A group is the G completions of one prompt. It is judged by one outcome reward, not by the weighted
sum: with the sum, a group of wrong completions would have signal if a format reward varied (DAPO,
arXiv 2503.14476, section 3.2, filters by accuracy). Groups of different tasks may have different
outcome rewards (`step.judge.group_outcomes`).

Groups may differ in size (`GroupShape`): a slot is `num_generations` completions of a prompt, and
adjacent slots with the same prompt form one group. Functions that compare the completions of a
group expect groups of equal size. Smaller groups are therefore padded to the size of the largest
one. The padding is NaN, which means "not scored" everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from grpo_ext.objective.advantage import equal_in_group
from grpo_ext.step.records import Scored, join


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
        sizes = []
        for _, slots in groupby(prompts):
            num_slots = len(list(slots))
            sizes.append(size * num_slots)
        return cls(tuple(sizes))

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
        """Pad each group of `values` (B, ...) to the size of the largest group: (N * largest, ...).

        The padding is `fill`, or `False` in bool tensors. If all groups have the same size,
        `values` itself is returned.
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
        """Expand a tensor with one value per group (N,) to one value per completion (B,)."""
        numbers = torch.tensor(self.numbers, device=by_group.device)  # (B,)
        return by_group[numbers]

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


@dataclass(frozen=True)
class GroupRule:
    """Decides which groups have signal.

    A group has signal if its outcome reward varies, or if a tie-break reward decides it.
    """

    num_generations: int  #: G, completions per prompt
    pass_threshold: float = 1.0  #: a completion is correct if its outcome reward is at least this

    def judge(self, outcomes: Tensor, ties: Tensor | None = None) -> GroupStats:
        """Return the statistics of N whole groups.

        Args:
            outcomes: the outcome rewards, (N * G,); NaN for a completion that was not scored.
            ties: a bool mask (N * G,) of the completions in groups that a tie-break reward decides;
                `None` if there is no such reward.
        """
        size = self.num_generations  # G
        grouped = outcomes.view(-1, size)  # (N, G)
        scored = (~grouped.isnan()).sum(1)  # (N,)
        right = (grouped >= self.pass_threshold).sum(1)  # (N,)
        varies = ~equal_in_group(outcomes, size)[::size]  # (N,)
        has_signal = varies
        tied = None
        if ties is not None:
            tied = ties[::size]
            has_signal = varies | tied
        return GroupStats(
            kept=has_signal,
            mixed=varies,
            right=right,
            scored=scored,
            all_right=~varies & (right > 0),
            all_wrong=~varies & (right == 0) & (scored > 0),
            tied=tied,
        )


@dataclass(frozen=True)
class GroupStats:
    """The statistics of N groups."""

    kept: Tensor  #: (N,), bool, whether the group has signal
    mixed: Tensor  #: (N,), bool, whether the group's outcome rewards differ
    right: Tensor  #: (N,), the number of correct completions
    scored: Tensor  #: (N,), the number of completions that the outcome reward scored
    all_right: Tensor  #: (N,), bool, whether all outcome rewards are equal and pass
    #: (N,), bool, whether all outcome rewards are equal and fail; `False` if nothing was scored
    all_wrong: Tensor
    #: (N,), bool, whether the tie-break reward decides the group; `None` without such a reward
    tied: Tensor | None = None

    def take(self, groups: Sequence[int]) -> GroupStats:
        """Return the statistics of the groups with these indices."""
        chosen = torch.tensor(groups, device=self.kept.device)
        columns: dict[str, Any] = {}
        for field in fields(self):
            column = getattr(self, field.name)
            if column is not None:
                column = column[chosen]
            columns[field.name] = column
        return GroupStats(**columns)


@dataclass(frozen=True)
class Groups:
    """Whole groups of equal size, from all ranks."""

    table: Scored  #: one row per completion; the rows of a group are adjacent
    rewards: Tensor  #: (rows, R)
    steps: tuple[int, ...]  #: for each group, the optimizer step whose policy sampled it

    def __len__(self) -> int:
        return len(self.steps)

    def on(self, device: torch.device | str) -> Groups:
        """Return the groups with their tensors on `device`."""
        return replace(
            self,
            table=self.table.on(device),
            rewards=self.rewards.to(device),
        )

    def take(self, indices: Sequence[int]) -> Groups | None:
        """Return the groups at `indices`, in that order, or `None` if `indices` is empty."""
        if not len(indices):
            return None
        all_rows = torch.arange(len(self.rewards), device=self.rewards.device)
        rows_by_group = all_rows.view(len(self), -1)  # (N, G)
        rows = rows_by_group[list(indices)].flatten()
        return Groups(
            table=self.table.take(rows),
            rewards=self.rewards[rows],
            steps=tuple(self.steps[i] for i in indices),
        )


def count(groups: Groups | None) -> int:
    """Return the number of groups; 0 for `None`."""
    if groups is None:
        return 0
    return len(groups)


def join_groups(parts: Sequence[Groups | None]) -> Groups | None:
    """Concatenate groups, skipping `None`; return `None` if nothing is left."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    steps: list[int] = []
    for part in present:
        steps += part.steps
    return Groups(
        table=join([part.table for part in present]),
        rewards=torch.cat([part.rewards for part in present]),
        steps=tuple(steps),
    )


def silenced(groups: Groups) -> Groups:
    """Return a copy of `groups` that can fill a batch without affecting the loss.

    Its completions are not counted and have no tokens in the loss. Their advantages are 0, and
    their rewards are NaN.
    """
    rewards = groups.rewards
    every_row = torch.ones(len(rewards), dtype=torch.bool, device=rewards.device)
    return replace(
        groups,
        table=groups.table.without(every_row),
        rewards=torch.full_like(rewards, torch.nan),
    )


def groups_to_draw(missing: int, kept: int, drawn: int, most: int, unit: int) -> int:
    """Return how many groups to generate so that about `missing` of them have signal.

    Args:
        missing: the number of groups to find.
        kept: the number of groups with signal that were generated so far.
        drawn: the number of groups that were generated so far. If it is 0, every group is expected
            to have signal.
        most: the maximum result, a multiple of `unit`.
        unit: the result is a multiple of this, so that all ranks generate the same number of
            completions.
    """
    number = missing
    if drawn > 0:
        number = -(-missing * drawn // max(kept, 1))  # rounded up
    units = -(-number // unit)  # rounded up
    return min(most, units * unit)
