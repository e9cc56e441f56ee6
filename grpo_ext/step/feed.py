"""The micro-batches of each optimizer step, from generations that are made when they are needed.

A generation is cut into `steps_per_generation` slices and used `num_iterations` times. All micro-batches of a step are made at
its start: the policy does not change within a step, so that what is sampled is the same, and the step's counts are known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo_ext.step.records import MicroBatch, Scored


class Feed:
    """Hands out micro-batches in order.

    Args:
        generate: makes scored completions of what the data loader gave.
        split: cuts a generation into so many slices.
        cut: from the slices of a step to its micro-batches.
        steps_per_generation: slices of a generation.
        num_iterations: how often a generation is used.
    """

    def __init__(
        self,
        generate: Callable[[Any], Scored],
        split: Callable[[Scored, int], list[Scored]],
        cut: Callable[[list[Scored]], list[MicroBatch]],
        steps_per_generation: int,
        num_iterations: int,
    ):
        self.generate, self.split, self.cut = generate, split, cut
        self.slices, self.uses = steps_per_generation, steps_per_generation * num_iterations
        self.position = 0  # slices that were asked for since the start
        self.generation: list[Scored] | None = None  # in slices
        self._asked: list[Any] = []  # what the data loader gave for the coming step
        self._ready: list[MicroBatch] = []
        self._to_come = 0  # micro-batches that the trainer will still ask for in this step

    def begin_step(self, batches: list[Any]) -> None:
        """The data loader gave these for the coming optimizer step."""
        self._asked, self._ready, self._to_come = list(batches), [], len(batches)

    def next(self, batch: Any) -> MicroBatch:
        """The next micro-batch of the running step."""
        self._make_ready(batch)
        return self._ready.pop(0)

    def surplus(self, batch: Any) -> int:
        """How many micro-batches run now beside the one that the trainer asks for."""
        self._make_ready(batch)
        surplus = -(-len(self._ready) // max(1, self._to_come)) - 1
        self._to_come -= 1
        return surplus

    def _make_ready(self, batch: Any) -> None:
        if not self._ready:
            self._ready = self.cut([self._slice(given) for given in self._asked or [batch]])

    def _slice(self, batch: Any) -> Scored:
        if self.generation is None or self.position % self.uses == 0:
            self.generation = self.split(self.generate(batch), self.slices)
        found = self.generation[self.position % self.slices]
        self.position += 1
        return found


def random_order(rows: int) -> Tensor:
    """(B,), drawn from torch's own random state, as TRL draws it."""
    return torch.randperm(rows)


def shuffled_slices(table: Scored, number: int, trim: bool = True) -> list[Scored]:
    """A generation in random order, in so many slices of equal size."""
    order = random_order(len(table))
    if number == 1:
        return [table]
    return [table.take(rows, trim=trim) for rows in order.split(len(table) // number)[:number]]
