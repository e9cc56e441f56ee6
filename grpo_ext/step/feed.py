"""Feed micro-batches to each optimizer step, and generate completions when they are needed.

A generation is split into `steps_per_generation` slices and used `num_iterations` times. All
micro-batches of a step are made at its start, so that the counts of the step are known. This does
not change the completions, because the policy does not change within a step.

`cut` makes the micro-batches from the slices of all ranks. The loss is divided by counts of the
whole step, so it does not depend on which completions run together, or on which rank.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from grpo_ext.step.records import MicroBatch, Scored

Batch = list[dict[str, Any]]  # the rows in one batch of the data loader


class BatchesAhead:
    """Iterates over the data loader's batches in order, and can peek at later ones."""

    def __init__(self) -> None:
        self._source: Iterator[Batch] = iter(())
        self._seen: deque[Batch] = deque()

    def of(self, source: Iterator[Batch]) -> "BatchesAhead":
        """Switch to `source` if it is a new iterator (a new epoch), and return this iterator.

        A switch discards the batches that were peeked at.
        """
        if source is not self._source:
            self._source = source
            self._seen = deque()
        return self

    def __iter__(self) -> "BatchesAhead":
        return self

    def __next__(self) -> Batch:
        if self._seen:
            return self._seen.popleft()
        return next(self._source)

    def peek(self, distance: int) -> Batch | None:
        """Return the batch `distance` places after the next one; `None` past the epoch's end."""
        num_missing = max(0, distance + 1 - len(self._seen))
        self._seen.extend(islice(self._source, num_missing))
        if distance >= len(self._seen):
            return None
        return self._seen[distance]


@dataclass(eq=False)
class Feed:
    """Provides the micro-batches of each optimizer step, in order.

    For each step, call `begin_step` once and then `next` for each micro-batch. When the current
    generation is used up, a new one is made.
    """

    generate: Callable[[Batch], Scored]  # generates and scores completions for a batch of rows
    # makes the micro-batches of a step from its slices
    cut: Callable[[list[Scored]], list[MicroBatch]]
    _: KW_ONLY
    device: torch.device  # the device that a generation is restored to
    num_slices: int  # the number of slices in a generation
    num_handouts: int  # the number of slices to train on before the next generation
    trimmed: bool  # whether each slice is trimmed to its longest prompt and completion
    # shuffles a generation with images and splits it into a number of slices
    split_with_images: Callable[[Scored, int], list[Scored]]
    position: int = 0  # the number of slices used since the start
    generation: list[Scored] | None = None  # the current generation, in slices
    batches: BatchesAhead = field(default_factory=BatchesAhead)
    _batches: list[Batch] = field(default_factory=list)  # the data loader's batches for this step
    _ready: list[MicroBatch] = field(default_factory=list)
    _to_come: int = 0  # micro-batches that the trainer will still request in this step

    def begin_step(self, batches: list[Batch]) -> None:
        """Begin an optimizer step with these batches from the data loader."""
        self._batches = list(batches)
        self._ready = []
        self._to_come = len(batches)

    def following(self, after: int = 0) -> Batch | None:
        """Return the first batch of the next generation, or of a later one.

        `after` is the number of generations to skip. The result is `None` beyond the end of the
        epoch. Call this only while `generate` runs.
        """
        next_start = (1 + after) * self.num_handouts
        return self.batches.peek(next_start - len(self._batches))

    def next(self, batch: Batch) -> MicroBatch:
        """Return the next micro-batch of the current step.

        `batch`, from the data loader, is used only if `begin_step` was called without batches, or
        not at all.
        """
        self._make_ready(batch)
        return self._ready.pop(0)

    def surplus(self, batch: Batch) -> int:
        """Return how many extra micro-batches to run before the next requested micro-batch.

        There are extra ones if `cut` made more micro-batches than the trainer requests. Call this
        once before each requested one; `batch` is used as in `next`.
        """
        self._make_ready(batch)
        for_this_call = math.ceil(len(self._ready) / max(1, self._to_come))
        self._to_come -= 1
        return for_this_call - 1

    def _make_ready(self, batch: Batch) -> None:
        if self._ready:
            return
        slices = []
        for step_batch in self._batches or [batch]:
            slices.append(self._next_slice(step_batch))
        self._ready = self.cut(slices)

    def _next_slice(self, batch: Batch) -> Scored:
        """Return the next slice; if the generation is used up, first generate one from `batch`."""
        if self.generation is None or self.position % self.num_handouts == 0:
            table = self.generate(batch)
            if table.model_inputs:
                self.generation = self.split_with_images(table, self.num_slices)
            else:
                self.generation = shuffled_slices(table, self.num_slices, self.trimmed)
        index = self.position % self.num_slices
        self.position += 1
        return self.generation[index]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "generation": self.generation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        self.generation = None
        if state["generation"] is not None:
            self.generation = [table.on(self.device) for table in state["generation"]]


def random_order(rows: int) -> Tensor:
    """Return a random permutation (rows,), drawn from torch's global RNG as in TRL."""
    return torch.randperm(rows)


def shuffled_slices(table: Scored, number: int, trim: bool) -> list[Scored]:
    """Shuffle a generation and split it into equal slices.

    If `number` is 1, the only slice is the table itself, not shuffled. A permutation is drawn even
    then, so that the RNG state advances as in TRL.

    Args:
        table: the completions of the generation.
        number: the number of slices. If the rows do not divide evenly, leftover rows are dropped.
        trim: whether to trim each slice to its longest prompt and completion; ignored if `number`
            is 1.
    """
    order = random_order(len(table))
    if number == 1:
        return [table]
    size = len(table) // number
    slices = []
    for rows in order.split(size)[:number]:
        slices.append(table.take(rows, trim=trim))
    return slices
