"""Score a table of completions: lay it out, run it chunk by chunk, and restore the order of the
table.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_ext.batching.cuts import call_tokens, deal_rows, equal_prompts, length_chunks, packs
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.scoring.head import Head, RunModel, outermost
from grpo_ext.scoring.layout import Layout
from grpo_ext.scoring.packed import run_packed
from grpo_ext.scoring.prompts_once import ReadPrompts, labels_of
from grpo_ext.step.records import Scored, Scores


@dataclass
class Scorer:
    """Scores completions under a model, with the distribution they were sampled from."""

    run: RunModel
    params: SamplingParams
    layout: Layout
    # scores tables with model inputs; takes the model, table, head, rows at a time, whether to
    # compute the balance of experts
    images: Callable[..., Scores]
    check_packed: Callable[[Any], None] | None = (
        None  # called once, with the model, before the first packed pass
    )

    def score(
        self, model: Any, table: Scored, block: int | None = None, aux_loss: bool = False
    ) -> Scores:
        """Return log-probs and entropies (B, T) of the completions in `table`, over its `kept`
        tokens if it has them.

        `model` is the wrapped model in training, or the reference. At most `block` rows run at a
        time; `None`: no limit. With `aux_loss` the balance of experts is also computed, which needs
        one rectangle.
        """
        if table.model_inputs:
            head, lengths = self._head(table)
            scores = self.images(model, table, head, block, aux_loss)
            return replace(scores, kept=_by_row(head, lengths))
        # `block` rows at a time: in the given order and as wide as the widest, or in chunks of
        # similar length
        block = block or len(table)
        plain = aux_loss or self.layout.kind == "padded"
        order: list[Tensor] = []
        parts: list[tuple[Tensor, Tensor | None]] = []  # log-probs and entropies (b, t)
        aux: list[Any] = []
        kept_rows: list[KeptSet] = []
        for members in torch.arange(len(table)).split(block) if plain else blocks_of(table, block):
            inside = table.take(members, trim=not plain)
            packed = not plain and self._packs(inside)
            prompts = None if plain or packed else self._read_prompts(model, inside)
            chunks = [torch.arange(len(members))]
            if not plain:
                chunks = self._chunks(model, inside, packed, prompts)
            for chunk in chunks:
                part = inside.take(chunk, trim=not plain)
                head, lengths = self._head(part)
                called = outermost(model, first=not parts)
                output = self._run(called, head, part, packed, prompts, chunk, aux_loss)
                entropies = None
                if output.entropies is not None:
                    entropies = output.entropies[:, -part.width :]  # (b, t)
                parts.append((output.logps[:, -part.width :], entropies))
                aux.append(output.aux_loss)
                order.append(members[chunk])
                kept_rows += _by_row(head, lengths) or []
        back = torch.cat(order).argsort()  # (B,)
        return Scores(
            logps=_joined([logps for logps, _ in parts], table.width, back),
            entropies=_joined([entropies for _, entropies in parts], table.width, back),
            aux_loss=torch.stack(aux).mean() if aux_loss else None,
            kept=[kept_rows[i] for i in back.tolist()] if kept_rows else None,
        )

    def _head(self, table: Scored) -> tuple[Head, list[int]]:
        """Return the head for a pass of these completions, and their lengths if sampling was
        truncated.
        """
        if not self.params.truncated:
            return Head(self.params, None, self.layout.compact_head), []
        lengths = table.completion_mask.sum(1).tolist()
        kept = None
        if table.kept is not None and lengths:
            # a row that was cut has fewer positions than kept sets
            cut_rows = [
                row.select(torch.arange(length))
                for row, length in zip(table.kept, lengths, strict=True)
            ]
            kept = KeptSet.cat(cut_rows)
        return Head(self.params, kept, self.layout.compact_head), lengths

    def _run(
        self,
        model: Any,
        head: Head,
        part: Scored,
        packed: bool,
        prompts: ReadPrompts | None,
        chunk: Tensor,
        aux_loss: bool,
    ) -> Scores:
        """Call the model once."""
        ids = part.input_ids
        mask = part.attention_mask
        if prompts is not None:
            return prompts.run(self.run, model, head, ids, mask, part.width, chunk)
        if packed:
            return run_packed(self.run, model, head, ids, mask, part.width, self.layout.in_row)
        more = {"output_router_logits": True} if aux_loss else {}
        return self.run(
            model,
            head,
            labels_of(ids, mask, part.width),
            input_ids=ids,
            attention_mask=mask,
            **more,
        )

    def _packs(self, table: Scored) -> bool:
        """Whether the completions run in packed rows rather than in chunks."""
        if self.layout.kind != "packed":
            return False
        if not self.layout.by_cost:
            return True
        first, _ = equal_prompts(table.prompt_ids, table.prompt_mask)
        shares = not (torch.is_grad_enabled() and self.layout.recomputes)
        lengths = table.completion_mask.sum(1)  # (B,)
        longest_prompt = table.prompt_ids.size(1)
        per_row = 1 if shares else longest_prompt
        call = call_tokens(lengths.device)
        chunks_cost = 0
        for rows in length_chunks(lengths, per_row, max_tokens=self.layout.max_tokens):
            chunks_cost += len(rows) * (int(lengths[rows].max()) + per_row) + call
        if shares:
            chunks_cost += len(first) * longest_prompt + call
        return int(table.attention_mask.sum()) + call <= chunks_cost

    def _chunks(
        self, model: Any, table: Scored, packed: bool, prompts: ReadPrompts | None
    ) -> list[Tensor]:
        """Return the rows of each chunk."""
        lengths = table.completion_mask.sum(1)  # (B,)
        if not packed:
            per_row = 1 if prompts else table.prompt_ids.size(1)
            return length_chunks(lengths, per_row, max_tokens=self.layout.max_tokens)
        if self.check_packed is not None:
            self.check_packed(model)
            self.check_packed = None
        prompt_of_row = None
        if self.layout.in_row:
            _, prompt_of_row = equal_prompts(table.prompt_ids, table.prompt_mask)  # (B,)
        return packs(table.prompt_mask.sum(1), lengths, self.layout.row_tokens, prompt_of_row)

    def _read_prompts(self, model: Any, table: Scored) -> ReadPrompts | None:
        """Read the prompts if that saves more than another call costs; else return `None`."""
        if not self.layout.shares or (torch.is_grad_enabled() and self.layout.recomputes):
            return None
        prompts = ReadPrompts(table.prompt_ids, table.prompt_mask)
        if prompts.saved <= call_tokens(prompts.ids.device):
            return None
        head = Head(SamplingParams(self.params.temperature))  # nothing is scored
        if prompts.read(self.run, outermost(model, first=False), head):
            return prompts
        # the model recomputes, or does not use the cache
        self.layout = replace(self.layout, shares=False)
        return None


def blocks_of(table: Scored, block: int) -> list[Tensor]:
    """Split the rows into blocks that take no more memory than `block` rows."""
    num = len(table)
    if num <= block:
        return [torch.arange(num)]
    _, prompts = equal_prompts(table.prompt_ids, table.prompt_mask)
    everything = torch.ones(num, dtype=torch.bool)
    return deal_rows(
        prompts,
        table.prompt_mask.sum(1),
        table.completion_mask.sum(1),
        everything,
        -(-num // block),
    )


def _joined(parts: list[Tensor | None], width: int, order: Tensor) -> Any:
    """Join parts (b, t) into one tensor (B, T), with its rows in this order."""
    widened = [pad(part, (0, width - part.size(1))) for part in parts if part is not None]
    return torch.cat(widened)[order] if widened else None


def _by_row(head: Head, lengths: list[int]) -> list[KeptSet] | None:
    if not head.params.truncated or not head.used:
        return None
    kept = KeptSet.cat(head.used)
    if len(kept) != sum(lengths):
        raise ValueError(
            f"{len(kept)} positions were scored, but the completions have {sum(lengths)}. "
            "Adapters that lengthen the prompt cannot be scored exactly; set logprob_policy: trl."
        )
    return kept.split(lengths)
