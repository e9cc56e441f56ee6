"""Compute the log-probs of a table of completions.

The rows are laid out, the model runs chunk by chunk, and the order of the rows is restored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_ext.batching.cuts import call_tokens, deal_rows, equal_prompts, length_chunks, packs
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.scoring.head import EdgeHead, Head, RunModel, labels_of, outermost, positions_of
from grpo_ext.scoring.layout import Layout
from grpo_ext.scoring.packed import run_packed
from grpo_ext.scoring.prompts_once import ReadPrompts
from grpo_ext.step.records import Scored, Scores


@dataclass
class Scorer:
    """Computes the log-probs of completions under a model, given their sampling parameters."""

    run: RunModel
    params: SamplingParams
    layout: Layout
    # scores tables that have `model_inputs` (images), given the model, the table, the head, the
    # number of rows at a time, and whether to compute the MoE load-balancing loss
    images: Callable[..., Scores]
    # called once, with the model, before the first packed pass
    check_packed: Callable[[torch.nn.Module], None] | None = None
    head_class: type[Head] = Head

    def edge_tokens(self, model: torch.nn.Module, table: Scored) -> Tensor:
        """Return a float mask (B, T), 1 for tokens that sampling from this model would remove.

        These are the tokens that the sampling options (top-k, for example) would remove if they
        were applied to the model's own logits. The mask is 0 for other tokens and for padding. The
        kept tokens in `table` are ignored.
        """
        edge_scorer = replace(self, head_class=EdgeHead)
        return edge_scorer.score(model, replace(table, kept=None)).logps

    def score(
        self,
        model: torch.nn.Module,
        table: Scored,
        block: int | None = None,
        aux_loss: bool = False,
    ) -> Scores:
        """Compute the log-probs and entropies of completions.

        Args:
            model: the wrapped model being trained, or the reference.
            table: the B completions. If sampling was truncated (by top-k, top-p or min-p, for
                example), log-probs are normalized over `table.kept` or, if it is `None`, over the
                tokens that the model itself would keep.
            block: the number of rows that run at a time; `None` puts all rows in one block. In
                layouts other than "padded", blocks have similar numbers of tokens, so some may have
                more than `block` rows.
            aux_loss: whether to compute the MoE load-balancing loss; rows then run padded.

        Returns:
            The scores (B, T), in the order of the table. The MoE loss is the mean over the passes.

        Raises:
            ValueError: if sampling was truncated and a pass scored more or fewer positions than its
                completions have tokens, or if the model cannot score packed rows (`check_packed`).
        """
        if table.model_inputs:
            head = self._head(table)
            scores = self.images(model, table, head, block, aux_loss)
            return replace(scores, kept=_by_row(head, table))
        block = block or len(table)
        passes = _Passes()
        if aux_loss or self.layout.kind == "padded":
            for rows in torch.arange(len(table)).split(block):
                part = table.take(rows, trim=False)
                head = self._head(part)
                output = self._run_rows(passes.outermost(model), head, part, aux_loss)
                passes.add(rows, part, head, output)
        else:
            for rows in blocks_of(table, block):
                part = table.take(rows)
                self._score_block(model, rows, part, passes)
        return passes.joined(table.width)

    def _score_block(
        self,
        model: torch.nn.Module,
        rows: Tensor,
        block: Scored,
        passes: _Passes,
    ) -> None:
        """Score a block and add its passes to `passes`.

        Args:
            model: the model to call.
            rows: (b,), the row indices of the block in the table.
            block: the completions of these rows.
            passes: the passes so far; extended in place.
        """
        packed_rows = self._packed_rows(block)
        prompts = None
        if packed_rows is None:
            prompts = self._read_prompts(model, block)
        for chunk in self._chunks(model, block, packed_rows, prompts):
            part = block.take(chunk)
            ids = part.input_ids
            mask = part.attention_mask
            head = self._head(part)
            called = passes.outermost(model)
            if prompts is not None:
                output = prompts.run(self.run, called, head, ids, mask, part.width, chunk)
            elif packed_rows is not None:
                in_row = self.layout.in_row
                output = run_packed(self.run, called, head, ids, mask, part.width, in_row)
            else:
                output = self._run_rows(called, head, part)
            passes.add(rows[chunk], part, head, output)

    def _head(self, table: Scored) -> Head:
        """Return the head for a pass over these completions.

        If sampling was truncated and the kept tokens are known, the head gets them.
        """
        kept_set = None
        if self.params.truncated and table.kept:
            lengths = table.completion_mask.sum(1).tolist()
            cut_rows = []
            for row, length in zip(table.kept, lengths, strict=True):
                # a completion that was cut short has fewer tokens than its kept set has positions
                positions = torch.arange(length)
                cut_rows.append(row.select(positions))
            kept_set = KeptSet.cat(cut_rows)
        return self.head_class(self.params, kept_set, self.layout.compact_head)

    def _run_rows(
        self,
        model: torch.nn.Module,
        head: Head,
        part: Scored,
        aux_loss: bool = False,
    ) -> Scores:
        """Score prompts and completions as one padded rectangle, in one model call."""
        ids = part.input_ids
        mask = part.attention_mask
        labels = labels_of(ids, mask, part.width)
        inputs: dict[str, Tensor | bool] = {"input_ids": ids, "attention_mask": mask}
        if self.layout.positions:
            inputs["position_ids"] = positions_of(mask)
        if aux_loss:
            inputs["output_router_logits"] = True
        return self.run(model, head, labels, **inputs)

    @property
    def _recomputes(self) -> bool:
        """Whether the pass uses gradient checkpointing, which rules out caching the prompts."""
        return torch.is_grad_enabled() and self.layout.recomputes

    def _packed_rows(self, table: Scored) -> list[Tensor] | None:
        """Return the indices of the completions in each packed row; `None` if they run in chunks.

        If the layout is `by_cost`, packed rows are used only if they cost no more than chunks.
        """
        if self.layout.kind != "packed":
            return None
        prompt_of_row = None
        if self.layout.in_row:
            _, prompt_of_row = equal_prompts(table.prompt_ids, table.prompt_mask)  # (B,)
        packed_rows = packs(
            prompt_lengths=table.prompt_mask.sum(1),
            lengths=table.completion_mask.sum(1),
            max_tokens=self.layout.row_tokens,
            prompts=prompt_of_row,
        )
        if self.layout.by_cost and not self._cost_less(packed_rows, table):
            return None
        return packed_rows

    def _cost_less(self, packed_rows: list[Tensor], table: Scored) -> bool:
        """Return whether packed rows process no more tokens than chunks would.

        The overhead of each model call counts as `call_tokens` tokens.
        """
        first, _ = equal_prompts(table.prompt_ids, table.prompt_mask)
        lengths = table.completion_mask.sum(1)  # (B,)
        prompt_width = table.prompt_ids.size(1)
        call = call_tokens(lengths.device)
        if self._recomputes:
            per_row = prompt_width
            chunks_cost = 0
        else:
            per_row = 1
            chunks_cost = len(first) * prompt_width + call
        for rows in length_chunks(lengths, per_row, max_tokens=self.layout.max_tokens):
            row_tokens = int(lengths[rows].max()) + per_row
            chunks_cost += len(rows) * row_tokens + call
        packed_cost = 0
        for rows in packed_rows:
            packed_cost += int(lengths[rows].sum()) + call
            distinct, _ = equal_prompts(table.prompt_ids[rows], table.prompt_mask[rows])
            copies = distinct if self.layout.in_row else torch.arange(len(rows))
            packed_cost += int(table.prompt_mask[rows][copies].sum())
        return packed_cost <= chunks_cost

    def _chunks(
        self,
        model: torch.nn.Module,
        table: Scored,
        packed_rows: list[Tensor] | None,
        prompts: ReadPrompts | None,
    ) -> list[Tensor]:
        """Return the indices of the completions in each chunk or packed row.

        Packed rows are returned as they are; before the first packed pass of the run,
        `check_packed` is called if it is set. Without packed rows, the completions are grouped
        into chunks by length, to save padding.
        """
        lengths = table.completion_mask.sum(1)  # (B,)
        if packed_rows is None:
            per_row = 1 if prompts else table.prompt_ids.size(1)
            return length_chunks(lengths, per_row, max_tokens=self.layout.max_tokens)
        if self.check_packed is not None:
            self.check_packed(model)
            self.check_packed = None
        return packed_rows

    def _read_prompts(self, model: torch.nn.Module, table: Scored) -> ReadPrompts | None:
        """Run each distinct prompt once and return the cache; `None` if no cache is used.

        No cache is used if the layout does not share prompts, if the pass uses gradient
        checkpointing, or if sharing would save too few tokens. If the model does not fill the
        cache, this and all later calls return `None`.
        """
        if not self.layout.shares or self._recomputes:
            return None
        prompts = ReadPrompts(table.prompt_ids, table.prompt_mask)
        if prompts.saved <= call_tokens(prompts.ids.device):
            return None
        head = Head(SamplingParams(self.params.temperature))  # nothing is scored
        if prompts.read(self.run, outermost(model, first=False), head):
            return prompts
        # the model checkpoints activations, or does not use the cache
        self.layout = replace(self.layout, shares=False)
        return None


@dataclass
class _Passes:
    """Collects the scores of the passes over a table, in the order in which they run."""

    rows: list[Tensor] = field(default_factory=list)  # (b,), the table's rows in each pass
    logps: list[Tensor] = field(default_factory=list)  # (b, t) of each pass
    entropies: list[Tensor] = field(default_factory=list)  # (b, t) of each pass, if it has them
    aux_losses: list[Tensor] = field(default_factory=list)
    kept_rows: list[KeptSet] = field(default_factory=list)

    def outermost(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model to call for the next pass: the DDP wrapper only for the first pass."""
        return outermost(model, first=not self.rows)

    def add(self, rows: Tensor, part: Scored, head: Head, output: Scores) -> None:
        """Add the scores of a pass.

        Args:
            rows: (b,), the rows of the table that were scored.
            part: the completions of these rows.
            head: the head that the pass used.
            output: the scores; the completions are the last `part.width` columns.
        """
        width = part.width
        self.rows.append(rows)
        self.logps.append(output.logps[:, -width:])
        if output.entropies is not None:
            self.entropies.append(output.entropies[:, -width:])
        if output.aux_loss is not None:
            self.aux_losses.append(output.aux_loss)
        self.kept_rows += _by_row(head, part) or []

    def joined(self, width: int) -> Scores:
        """Combine the passes into scores (B, T), in the order of the table; `width` is T."""
        order = torch.cat(self.rows).argsort()  # (B,)
        logps = _joined(self.logps, width)[order]  # (B, T)
        entropies = None
        if self.entropies:
            entropies = _joined(self.entropies, width)[order]  # (B, T)
        aux_loss = None
        if self.aux_losses:
            aux_loss = torch.stack(self.aux_losses).mean()
        kept_rows = None
        if self.kept_rows:
            kept_rows = [self.kept_rows[i] for i in order.tolist()]
        return Scores(logps, entropies, aux_loss, kept_rows)


def _joined(parts: list[Tensor], width: int) -> Tensor:
    """Concatenate parts (b, t) along the batch dimension, right-padding each with 0 to `width`."""
    widened = []
    for part in parts:
        padding = (0, width - part.size(1))
        widened.append(pad(part, padding))
    return torch.cat(widened)


def blocks_of(table: Scored, block: int) -> list[Tensor]:
    """Return the row indices of `ceil(B / block)` blocks with about equal numbers of tokens."""
    num_rows = len(table)
    if num_rows <= block:
        return [torch.arange(num_rows)]
    _, prompts = equal_prompts(table.prompt_ids, table.prompt_mask)
    return deal_rows(
        prompts,
        prompt_lengths=table.prompt_mask.sum(1),
        completion_lengths=table.completion_mask.sum(1),
        live=torch.ones(num_rows, dtype=torch.bool),
        num_pieces=-(-num_rows // block),  # rounded up
    )


def _by_row(head: Head, table: Scored) -> list[KeptSet] | None:
    """Return the kept tokens that a pass used for each completion.

    The result is `None` if sampling was not truncated or the head reports no kept tokens.

    Raises:
        ValueError: if the pass scored more or fewer positions than the completions have tokens.
    """
    if not head.params.truncated or not head.used:
        return None
    lengths = table.completion_mask.sum(1).tolist()
    used = KeptSet.cat(head.used)
    if len(used) != sum(lengths):
        raise ValueError(
            f"{len(used)} positions were scored, but the completions have {sum(lengths)} tokens. "
            "The usual cause is an adapter that adds tokens to the prompt, such as prompt tuning. "
            "Set `logprob_policy: trl`, which ignores truncation."
        )
    return used.split(lengths)
