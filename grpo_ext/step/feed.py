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

from grpo_ext.batching.cuts import deal_rows, equal_prompts
from grpo_ext.objective.policy import StepCounts
from grpo_ext.step.records import MicroBatch, Ranks, Scored, join

Batch = list[dict[str, Any]]  # the rows in one batch of the data loader


@dataclass(frozen=True)
class CutRule:
    """Rules for cutting an optimizer step into micro-batches."""

    #: Whether rows may move between micro-batches. They may not if positions count padding, or if
    #: the loss depends on which rows a micro-batch holds (entropy quantiles and the load-balancing
    #: loss of experts).
    deals: bool = True
    #: whether rows with advantage 0 are skipped; set only if nothing else gives them a gradient
    skips: bool = True
    #: The token limit of a micro-batch with several rows; `None` for no limit. Ranks may then run
    #: more micro-batches than the trainer requests, the same number on every rank.
    max_tokens: int | None = None
    #: whether correct completions have a gradient even with advantage 0 (`positive_nll_coef`)
    keeps_right: bool = False

    def matters(self, table: Scored) -> Tensor:
        """Return a bool mask (B,) of the rows that can change the gradient."""
        matter = table.loss_mask.sum(1) > 0
        if not self.skips:
            return matter
        moves = (table.row_advantages != 0).any(1)
        if self.keeps_right and table.right is not None:
            moves = moves | (table.right > 0)
        return matter & moves


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
    slices: int  # the number of slices in a generation
    uses: int  # the number of slices handed out before the next generation
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
        """Return the batch that starts the generation `after` places past the next one.

        `None` beyond the end of the epoch.
        """
        next_start = (1 + after) * self.uses
        return self.batches.peek(next_start - len(self._batches))

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
        if self._ready:
            return
        slices = []
        for step_batch in self._batches or [batch]:
            slices.append(self._next_slice(step_batch))
        self._ready = self.cut(slices)

    def _next_slice(self, batch: Batch) -> Scored:
        """Return the next slice; if the generation is used up, make a new one from `batch`."""
        if self.generation is None or self.position % self.uses == 0:
            table = self.generate(batch)
            if table.model_inputs:
                self.generation = self.split_with_images(table, self.slices)
            else:
                self.generation = shuffled_slices(table, self.slices, self.trimmed)
        index = self.position % self.slices
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
    size = len(table) // number
    slices = []
    for rows in order.split(size)[:number]:
        slices.append(table.take(rows, trim=trim))
    return slices


def cut(slices: list[Scored], rule: CutRule, ranks: Ranks) -> list[MicroBatch]:
    """Cut an optimizer step into micro-batches.

    With `rule.deals`, rows are redistributed over micro-batches and ranks: each micro-batch is
    trimmed to its own longest prompt and completion, and all ranks run micro-batches of similar
    size at the same time. Tables with model inputs, such as images, are never redistributed.

    Args:
        slices: this rank's completions, one table for each micro-batch that the trainer requests.
        rule: the rules for cutting.
        ranks: the ranks of the run, which must all call this function together.

    Returns:
        At least as many micro-batches as `slices`.

    Raises:
        ValueError: if `max_tokens` is set and a table on any rank has model inputs.
    """
    counts, useful, has_model_inputs = step_counts(slices, ranks)
    if has_model_inputs and rule.max_tokens:
        input_names = {name for table in slices for name in table.model_inputs}
        raise ValueError(
            "max_tokens_per_micro_batch does not work with "
            f"{', '.join(sorted(input_names)) or 'images'}. Remove it."
        )
    tables = [(table, False) for table in slices]
    if rule.deals and not has_model_inputs:
        tables = dealt(slices, rule, ranks)
    last = len(tables) - 1
    batches = []
    for i, (table, filler) in enumerate(tables):
        batch = MicroBatch(
            rows=table,
            counts=counts,
            useful=useful,
            last=i == last,
            filler=filler,
        )
        batches.append(batch)
    return batches


def step_counts(slices: list[Scored], ranks: Ranks) -> tuple[StepCounts, StepCounts, bool]:
    """Return the counts of the step and of its groups with signal, summed over all ranks.

    The third element is whether any rank has model inputs.
    """
    sums = torch.zeros(7, dtype=ranks.float_type, device=ranks.device)
    for table in slices:
        tokens = table.loss_mask.sum(1).float()  # (B,)
        right_tokens = table.right_mask.sum(1).float()  # (B,)
        columns = torch.stack([table.counted, tokens, right_tokens])  # (3, B)
        useful_columns = columns * table.signal  # (3, B)
        sums[:3] += columns.sum(1)
        sums[3:6] += useful_columns.sum(1)
        sums[6] += float(bool(table.model_inputs))
    totals = ranks.total(sums).tolist()
    counts = StepCounts(*totals[:3])
    useful = StepCounts(*totals[3:6])
    has_model_inputs = totals[6] > 0
    return counts, useful, has_model_inputs


def dealt(slices: list[Scored], rule: CutRule, ranks: Ranks) -> list[tuple[Scored, bool]]:
    """Redistribute the step's rows, and return this rank's tables and whether each is a filler.

    A filler has no row that can change the gradient, and keeps only one completion token. If no row
    of the step can change the gradient, no table counts as a filler, so that entropy is still
    logged.
    """
    table = join(slices)
    if ranks.count > 1:
        tables_of_ranks = ranks.gather_objects([table.on("cpu")])
        table = join(tables_of_ranks)
    _, prompts = equal_prompts(table.prompt_ids, table.prompt_mask)  # (B,)
    prompt_lengths = table.prompt_mask.sum(1)  # (B,)
    lengths = table.completion_mask.sum(1)  # (B,)
    tokens = (prompt_lengths + lengths).cpu()
    live = rule.matters(table)  # (B,)
    num_batches = len(slices) * ranks.count
    batches = deal_rows(prompts, prompt_lengths, lengths, live, num_batches)
    if rule.max_tokens:
        while not _all_fit(batches, tokens, rule.max_tokens):
            num_batches += ranks.count
            if num_batches > len(live):
                break
            batches = deal_rows(prompts, prompt_lengths, lengths, live, num_batches)
    any_live = bool(live.any())
    tables = []
    for rows in dealt_to(ranks, batches, tokens):
        filler = any_live and not bool(live[rows].any())
        most = 1 if filler else None  # a filler needs only one token
        tables.append((table.take(rows, most).on(ranks.device), filler))
    return tables


def _all_fit(batches: list[Tensor], tokens: Tensor, max_tokens: int) -> bool:
    """Return whether every batch of several rows has at most `max_tokens`; `tokens` is (B,)."""
    several = [rows for rows in batches if len(rows) > 1]
    return all(int(tokens[rows].sum()) <= max_tokens for rows in several)


def dealt_to(ranks: Ranks, batches: list[Tensor], tokens: Tensor) -> list[Tensor]:
    """Return this rank's batches, largest first.

    Batches are dealt in snake order (ranks 0, 1, 1, 0, ...), so that all ranks get about the same
    number of tokens.

    Args:
        ranks: the ranks; the number of batches must be a multiple of their number.
        batches: the row indices of each batch.
        tokens: the number of tokens of each row, (B,).
    """

    def num_tokens(rows: Tensor) -> int:
        return int(tokens[rows].sum())

    largest_first = sorted(batches, key=num_tokens, reverse=True)
    own_batches = []
    place = ranks.index
    for start in range(0, len(batches), ranks.count):
        own_batches.append(largest_first[start + place])
        place = ranks.count - 1 - place  # snake order
    return own_batches
