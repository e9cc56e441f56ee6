"""The micro-batches of an optimizer step, dealt anew over all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from grpo_ext.batching.cuts import deal_rows
from grpo_ext.batching.rows import Batch, equal_prompts, join_rows, moved, take_rows


def arrange(slices: list[Batch], can_matter: Callable[[Batch], torch.Tensor], accelerator: Accelerator) -> list[Batch]:
    """Deal the rows of a step to as many micro-batches as before, of equal tokens, over all ranks.

    The loss is divided by counts of the whole step, so that it does not matter which rows run together, nor where.

    Args:
        slices: this rank's micro-batches, as TRL cut them.
        can_matter: which rows of a table can change the gradient, (B,) bool.
        accelerator: of the run.

    Returns:
        This rank's micro-batches, each cut to its own longest prompt and completion. At the same time all ranks run pieces of
        about the same size.
    """
    table = join_rows(slices)
    if accelerator.num_processes > 1:
        table = join_rows(gather_object([moved(table, "cpu")]))
    prompts = equal_prompts(table["prompt_ids"], table["prompt_mask"])[1]
    lengths = table["prompt_mask"].sum(1), table["completion_mask"].sum(1)
    live = can_matter(table)
    pieces = deal_rows(prompts, *lengths, live, len(slices) * accelerator.num_processes)
    batches = [cut(table, rows, live) for rows in dealt_to(accelerator, pieces, sum(lengths))]
    return [moved(batch, accelerator.device) for batch in batches]


def dealt_to(accelerator: Accelerator, pieces: list[torch.Tensor], tokens: torch.Tensor) -> list[torch.Tensor]:
    """This rank's pieces, largest first; back and forth over the ranks, so that their sums are about equal."""
    ranks, rank = accelerator.num_processes, accelerator.process_index
    tokens = tokens.cpu()
    pieces = sorted(pieces, key=lambda rows: -int(tokens[rows].sum()))
    return [pieces[i + (rank if (i // ranks) % 2 == 0 else ranks - 1 - rank)] for i in range(0, len(pieces), ranks)]


def cut(table: Batch, rows: torch.Tensor, live: torch.Tensor) -> Batch:
    """A micro-batch; a row that only stands in, so that the micro-batch is not empty, is cut to one token."""
    return take_rows(table, rows, None if bool(live[rows].any()) else 1)
