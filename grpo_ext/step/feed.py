"""Feed micro-batches to each optimizer step, and generate completions when they are needed.

A generation is split into `steps_per_generation` slices and used `num_iterations` times. All
micro-batches of a step are made at its start: the policy does not change within a step, so the
samples are the same, and the counts of the step are known.

`cut` makes the micro-batches from the slices, on all ranks. The loss is divided by counts of the
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
        """Return this iterator, switched to `source` if that is a new iterator (a new epoch).

        When it switches, batches that were peeked at are discarded.
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
        """Return the batch `distance` batches after the next one; `None` past the epoch's end."""
        num_missing = max(0, distance + 1 - len(self._seen))
        self._seen.extend(islice(self._source, num_missing))
        if distance >= len(self._seen):
            return None
        return self._seen[distance]


@dataclass(eq=False)
class Feed:
    """Hands out the micro-batches of each optimizer step in order."""

    generate: Callable[[Batch], Scored]  # makes scored completions from a batch of the data loader
    # makes the micro-batches of a step from its slices
    cut: Callable[[list[Scored]], list[MicroBatch]]
    _: KW_ONLY
    device: torch.device  # the device that a generation is restored to
    num_slices: int  # the number of slices in a generation
    num_handouts: int  # the number of slices handed out before the next generation
    trimmed: bool  # whether each slice is trimmed to its longest prompt and completion
    # shuffles a generation with images and splits it into a number of slices
    split_with_images: Callable[[Scored, int], list[Scored]]
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
        """Return the first batch of the next generation, or of a later one.

        `after` is the number of generations to skip. Return `None` beyond the end of the epoch.
        Call this only while `generate` runs.
        """
        next_start = (1 + after) * self.num_handouts
        return self.batches.peek(next_start - len(self._batches))

    def next(self, batch: Batch) -> MicroBatch:
        """Return the next micro-batch of the current step.

        `batch` is used only if `begin_step` was called without batches, or not at all.
        """
        self._make_ready(batch)
        return self._ready.pop(0)

    def surplus(self, batch: Batch) -> int:
        """Return how many extra micro-batches to run before the next requested micro-batch.

        Call it once for each micro-batch that the trainer requests.
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
        """Return the next slice; if the generation is used up, make a new one from `batch`."""
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
    """Return a random permutation (B,), drawn from torch's global generator as in TRL."""
    return torch.randperm(rows)


def shuffled_slices(table: Scored, number: int, trim: bool) -> list[Scored]:
    """Shuffle a generation and split it into equal slices; a single slice keeps its order.

    The permutation is drawn in either case, so that the random state advances as in TRL.

    Args:
        table: the generation.
        number: the number of slices; remaining rows are left out.
        trim: whether to cut each of several slices to its longest prompt and completion.
    """
    order = random_order(len(table))
    if number == 1:
        return [table]
    size = len(table) // number
    slices = []
    for rows in order.split(size)[:number]:
        slices.append(table.take(rows, trim=trim))
    return slices
