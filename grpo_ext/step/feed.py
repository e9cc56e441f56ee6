"""The micro-batches of each optimizer step, from generations that are made when they are needed.

A generation is split into `steps_per_generation` slices and used `num_iterations` times. All
micro-batches of a step are made at its start: the policy does not change within a step, so the
samples are the same, and the counts of the step are known.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from grpo_ext.step.records import MicroBatch, Scored


class BatchesAhead:
    """The batches of the data loader in their order; some can be seen before their turn."""

    def __init__(self) -> None:
        self._source: Iterator[Any] = iter(())
        self._seen: deque[Any] = deque()

    def of(self, source: Iterator[Any]) -> "BatchesAhead":
        """Continue with this iterator, which is another one in each epoch."""
        if source is not self._source:
            self._source = source
            self._seen = deque()
        return self

    def __iter__(self) -> "BatchesAhead":
        return self

    def __next__(self) -> Any:
        return self._seen.popleft() if self._seen else next(self._source)

    def peek(self, distance: int) -> Any:
        """Return the batch that `next` returns after `distance` others; `None` if the epoch ends
        before.
        """
        self._seen.extend(islice(self._source, max(0, distance + 1 - len(self._seen))))
        return self._seen[distance] if distance < len(self._seen) else None


@dataclass(eq=False)
class Feed:
    """Hands out micro-batches in order."""

    generate: Callable[[Any], Scored]  # makes scored completions from a batch of the data loader
    split: Callable[[Scored, int], list[Scored]]  # splits a generation into a number of slices
    # makes the micro-batches of a step from its slices
    cut: Callable[[list[Scored]], list[MicroBatch]]
    slices: int  # of a generation
    uses: int  # slices that are handed out before the next generation
    device: torch.device  # to which a generation is restored
    position: int = 0  # slices handed out since the start
    generation: list[Scored] | None = None  # in slices
    batches: BatchesAhead = field(default_factory=BatchesAhead)
    _asked: list[Any] = field(default_factory=list)  # batches of the data loader for this step
    _ready: list[MicroBatch] = field(default_factory=list)
    _to_come: int = 0  # micro-batches that the trainer will still ask for in this step

    def begin_step(self, batches: list[Any]) -> None:
        """Begin an optimizer step with these batches of the data loader."""
        self._asked = list(batches)
        self._ready = []
        self._to_come = len(batches)

    def following(self, after: int = 0) -> Any:
        """Return the batch of the next generation, or of the one that is `after` later; `None` if
        the epoch ends before.
        """
        return self.batches.peek((1 + after) * self.uses - len(self._asked))

    def next(self, batch: Any) -> MicroBatch:
        """Return the next micro-batch of the current step."""
        self._make_ready(batch)
        return self._ready.pop(0)

    def surplus(self, batch: Any) -> int:
        """Return how many micro-batches must run now in addition to the one that the trainer asks
        for.
        """
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

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "generation": self.generation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
        generation = state["generation"]
        self.generation = generation and [part.on(self.device) for part in generation]


def random_order(rows: int) -> Tensor:
    """Return a random permutation (B,), drawn from torch's global random state as TRL draws it."""
    return torch.randperm(rows)


def shuffled_slices(table: Scored, number: int, trim: bool) -> list[Scored]:
    """Shuffle a generation and split it into slices of equal size."""
    order = random_order(len(table))
    if number == 1:
        return [table]
    return [table.take(rows, trim=trim) for rows in order.split(len(table) // number)[:number]]
