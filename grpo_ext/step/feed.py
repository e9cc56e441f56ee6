"""Feed micro-batches to each optimizer step, and generate completions when they are needed.

A generation is split into `steps_per_generation` slices and used `num_iterations` times. All
micro-batches of a step are made at its start: the policy does not change within a step, so the
samples are the same, and the counts of the step are known.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
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
        """Switch to `source` if it is a new iterator (a new epoch), and forget peeked batches."""
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
        """Return the batch `distance` places after the next one; `None` beyond the epoch's end."""
        missing = distance + 1 - len(self._seen)
        self._seen.extend(islice(self._source, max(0, missing)))
        return self._seen[distance] if distance < len(self._seen) else None


@dataclass(eq=False)
class Feed:
    """Hands out the micro-batches of each optimizer step in order."""

    generate: Callable[[Batch], Scored]  # makes scored completions from a batch of the data loader
    split: Callable[[Scored, int], list[Scored]]  # splits a generation into a number of slices
    # makes the micro-batches of a step from its slices
    cut: Callable[[list[Scored]], list[MicroBatch]]
    slices: int  # the number of slices in a generation
    uses: int  # the number of slices handed out before the next generation
    device: torch.device  # the device that a generation is restored to
    position: int = 0  # slices handed out since the start
    generation: list[Scored] | None = None  # the current generation, in slices
    batches: BatchesAhead = field(default_factory=BatchesAhead)
    _batches: list[Batch] = field(default_factory=list)  # the data loader's, for this step
    _ready: list[MicroBatch] = field(default_factory=list)
    _to_come: int = 0  # micro-batches that the trainer will still request in this step

    def begin_step(self, batches: list[Batch]) -> None:
        """Begin an optimizer step with these batches from the data loader."""
        self._batches = list(batches)
        self._ready = []
        self._to_come = len(batches)

    def following(self, after: int = 0) -> Batch | None:
        """Return the batch that starts the generation `after` places past the next one.

        `None` beyond the end of the epoch.
        """
        return self.batches.peek((1 + after) * self.uses - len(self._batches))

    def next(self, batch: Batch) -> MicroBatch:
        """Return the next micro-batch of the current step."""
        self._make_ready(batch)
        return self._ready.pop(0)

    def surplus(self, batch: Batch) -> int:
        """Return how many extra micro-batches to run before the one that the trainer requests.

        Call it once for each micro-batch that the trainer requests.
        """
        self._make_ready(batch)
        for_this_call = math.ceil(len(self._ready) / max(1, self._to_come))
        self._to_come -= 1
        return for_this_call - 1

    def _make_ready(self, batch: Batch) -> None:
        if not self._ready:
            batches = self._batches or [batch]
            self._ready = self.cut([self._next_slice(step_batch) for step_batch in batches])

    def _next_slice(self, batch: Batch) -> Scored:
        """Return the next slice; if the generation is used up, make a new one from `batch`."""
        if self.generation is None or self.position % self.uses == 0:
            self.generation = self.split(self.generate(batch), self.slices)
        index = self.position % self.slices
        self.position += 1
        return self.generation[index]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "generation": self.generation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        self.generation = state["generation"]
        if self.generation is not None:
            self.generation = [table.on(self.device) for table in self.generation]


def random_order(rows: int) -> Tensor:
    """Return a random permutation (B,), drawn from torch's global random state as TRL draws it."""
    return torch.randperm(rows)


def shuffled_slices(table: Scored, number: int, trim: bool) -> list[Scored]:
    """Shuffle a generation and split it into equal slices; a single slice keeps its order.

    The permutation is drawn in either case, so that the random state advances as in TRL. With
    `trim`, each slice is cut to its longest prompt and completion.
    """
    order = random_order(len(table))
    if number == 1:
        return [table]
    slices = order.split(len(table) // number)[:number]
    return [table.take(rows, trim=trim) for rows in slices]
