"""Split the completions of a step into micro-batches, over all ranks.

Each micro-batch carries the counts of the whole step. The loss is divided by these counts, so it
does not depend on which completions run together, or on which rank.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_ext.batching.cuts import deal_rows, equal_prompts
from grpo_ext.objective.policy import StepCounts
from grpo_ext.step.records import MicroBatch, Ranks, Scored, join


@dataclass(frozen=True)
class CutRule:
    """Rules for cutting an optimizer step into micro-batches."""

    #: Whether rows may move between micro-batches. They may not if positions count padding, or if
    #: the loss depends on which rows a micro-batch holds (entropy quantiles and the MoE
    #: load-balancing loss).
    deals: bool = True
    #: whether rows with advantage 0 are skipped; only allowed if nothing else gives them a gradient
    skips: bool = True
    #: The token limit of a micro-batch with several rows; `None` for no limit. With a limit, ranks
    #: may run more micro-batches than the trainer requests, the same number on every rank.
    max_tokens: int | None = None
    #: whether correct completions have a gradient even if their advantage is 0
    #: (`positive_nll_coef`)
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


def cut(slices: list[Scored], rule: CutRule, ranks: Ranks) -> list[MicroBatch]:
    """Cut an optimizer step into micro-batches.

    With `rule.deals`, rows that can change the gradient are redistributed over micro-batches and
    ranks, and all other rows are left out. If there are too few rows that can change the gradient,
    some micro-batches are fillers, which only make up the number of micro-batches. Each micro-batch
    is trimmed to its longest prompt and completion, and all ranks run micro-batches of similar size
    at the same time. Without `rule.deals`, or if a table on any rank has model inputs, such as
    images, each table becomes a micro-batch, unchanged.

    Args:
        slices: this rank's completions, one table for each micro-batch that the trainer requests.
        rule: the rules for cutting.
        ranks: the ranks of the run, which must all call this function together.

    Returns:
        This rank's micro-batches, at least as many as `slices`, and the same number on every rank.

    Raises:
        ValueError: if `rule.max_tokens` is set and a table on any rank has model inputs.
    """
    counts, useful, has_model_inputs = step_counts(slices, ranks)
    if has_model_inputs and rule.max_tokens:
        raise ValueError(
            "max_tokens_per_micro_batch does not work with prompts that have images. Remove "
            "max_tokens_per_micro_batch."
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
    """Count the sequences and tokens of a step over all ranks, which must all call this function.

    Args:
        slices: this rank's tables for the step.
        ranks: the ranks to sum over.

    Returns:
        The counts of the step, the counts of its groups with signal, and whether any table on any
        rank has model inputs.
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

    Rows that cannot change the gradient are left out, except in fillers: a filler contains a single
    such row, cut to one completion token. If no row of the step can change the gradient, each table
    contains a single whole row, and none counts as a filler, so that entropy is still logged.

    Args:
        slices: this rank's completions, one table for each micro-batch that the trainer requests.
        rule: the rules for cutting.
        ranks: the ranks of the run, which must all call this function together.
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
        most = 1 if filler else None  # one token is enough for a filler
        tables.append((table.take(rows, most).on(ranks.device), filler))
    return tables


def _all_fit(batches: list[Tensor], tokens: Tensor, max_tokens: int) -> bool:
    """Return whether every batch with more than one row has at most `max_tokens` tokens.

    A batch of one row may have more, because it cannot be split. `tokens` (B,) is the number of
    tokens of each row.
    """
    several = [rows for rows in batches if len(rows) > 1]
    return all(int(tokens[rows].sum()) <= max_tokens for rows in several)


def dealt_to(ranks: Ranks, batches: list[Tensor], tokens: Tensor) -> list[Tensor]:
    """Return this rank's batches, largest first.

    Batches are dealt in snake order (ranks 0, 1, 1, 0, ...), so that all ranks get about the same
    number of tokens.

    Args:
        ranks: the ranks that the batches are dealt to.
        batches: the row indices of each batch. Their number must be a multiple of the number of
            ranks.
        tokens: (B,), the number of tokens of each row.
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
