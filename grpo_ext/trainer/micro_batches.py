"""The micro-batches of an optimizer step, dealt anew over all ranks, and cut where they hold too many tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from trl import GRPOTrainer

from grpo_ext.batching.cuts import deal_rows
from grpo_ext.batching.rows import Batch, equal_prompts, join_rows, moved, take_rows


class CutMicroBatches:
    """Mixin before `GRPOTrainer`: a micro-batch may run as several, which add up to its gradient.

    Takes the micro-batches of a step from `_prepared`, which `_prepare_inputs` hands out one by one.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self._step_batches: list[Any] = []  # what the data loader gave for the coming optimizer step
        self._prepared: list[dict[str, Any]] = []  # micro-batches of the running step that are still to come
        self._to_come = 0  # training steps of the running step that are still to come
        super().__init__(*args, **kwargs)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        batches, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._step_batches, self._prepared, self._to_come = list(batches), [], len(batches)
        return batches, num_items

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = 0.0
        if self.max_tokens:
            self.model.train()
            self._make_ready(inputs)
            extra = -(-len(self._prepared) // max(1, self._to_come)) - 1  # beside the one that TRL asks for
            for _ in range(extra):
                with self.accelerator.no_sync(model):
                    # past TRL's own method, which counts micro-batches
                    loss = loss + super(GRPOTrainer, self).training_step(model, inputs, num_items_in_batch)
            self._to_come -= 1
        return loss + super().training_step(model, inputs, num_items_in_batch)


def arrange(
    slices: list[Batch],
    can_matter: Callable[[Batch], torch.Tensor],
    accelerator: Accelerator,
    max_tokens: int | None = None,
) -> list[Batch]:
    """Deal the rows of a step to as many micro-batches as before, of equal tokens, over all ranks.

    The loss is divided by counts of the whole step, so that it does not matter which rows run together, nor where.

    Args:
        slices: this rank's micro-batches, as TRL cut them.
        can_matter: which rows of a table can change the gradient, (B,) bool.
        accelerator: of the run.
        max_tokens: of a micro-batch of several rows; there are then more of them, equally many on each rank.

    Returns:
        This rank's micro-batches, each cut to its own longest prompt and completion. At the same time all ranks run pieces of
        about the same size.
    """
    table = join_rows(slices)
    if accelerator.num_processes > 1:
        table = join_rows(gather_object([moved(table, "cpu")]))
    prompts = equal_prompts(table["prompt_ids"], table["prompt_mask"])[1]
    lengths = table["prompt_mask"].sum(1), table["completion_mask"].sum(1)
    live, ranks = can_matter(table), accelerator.num_processes
    least = len(slices) * ranks
    pieces = deal_rows(prompts, *lengths, live, least)
    tokens = sum(lengths).cpu()
    while max_tokens and len(pieces) + ranks <= len(live) and too_large(pieces, tokens, max_tokens):
        pieces = deal_rows(prompts, *lengths, live, len(pieces) + ranks)
    batches = [cut(table, rows, live) for rows in dealt_to(accelerator, pieces, tokens)]
    return [moved(batch, accelerator.device) for batch in batches]


def check_cuts(trainer: Any) -> None:
    """Refuse `max_tokens_per_micro_batch` where a micro-batch cannot be cut.

    Raises:
        ValueError: saying why.
    """
    reasons = {
        "a model whose positions count padding, loss_normalization: micro_batch or length_batching: false": not trainer.may_cut,
        "top_entropy_quantile below 1 or the balance of experts, which are taken over a micro-batch": trainer.by_batch,
        "DeepSpeed, which counts backward passes": trainer.is_deepspeed_enabled,
    }
    for reason in (reason for reason, holds in reasons.items() if holds and trainer.max_tokens):
        raise ValueError(f"max_tokens_per_micro_batch does not go with {reason}. Take it out.")


def too_large(pieces: list[torch.Tensor], tokens: torch.Tensor, most: int) -> bool:
    """Whether a piece of several rows has more tokens than that."""
    return any(len(rows) > 1 and int(tokens[rows].sum()) > most for rows in pieces)


def dealt_to(accelerator: Accelerator, pieces: list[torch.Tensor], tokens: torch.Tensor) -> list[torch.Tensor]:
    """This rank's pieces, largest first; back and forth over the ranks, so that their sums are about equal."""
    ranks, rank = accelerator.num_processes, accelerator.process_index
    pieces = sorted(pieces, key=lambda rows: -int(tokens[rows].sum()))
    return [pieces[i + (rank if (i // ranks) % 2 == 0 else ranks - 1 - rank)] for i in range(0, len(pieces), ranks)]


def cut(table: Batch, rows: torch.Tensor, live: torch.Tensor) -> Batch:
    """A micro-batch; a row that only stands in, so that the micro-batch is not empty, is cut to one token."""
    return take_rows(table, rows, None if bool(live[rows].any()) else 1)
