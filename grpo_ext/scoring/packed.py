"""Padding-free scoring: the sequences of a micro-batch are concatenated into a single row.

Each sequence has its own positions and sees only itself. If the attention takes a mask, the
completions of a prompt can share one copy of it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.nn.functional import pad
from transformers import PreTrainedModel

from grpo_ext.batching.cuts import equal_prompts
from grpo_ext.scoring.head import Head, RunModel, labels_of, outermost, positions_of
from grpo_ext.scoring.layout import attention_of
from grpo_ext.step.records import Scores

# `(batch, head, query, key)`: which keys (..., L) each query (L, ...) sees, as in flex attention
MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def run_packed(
    run: RunModel,
    model: torch.nn.Module,
    head: Head,
    ids: Tensor,
    mask: Tensor,
    width: int,
    shares: bool,
) -> Scores:
    """Run the tokens of a padded batch as one row.

    Args:
        run: calls the model.
        model: the model to call.
        head: the scoring head.
        ids: (B, P + T), prompts and completions.
        mask: (B, P + T), 1 for their tokens, 0 for padding.
        width: T.
        shares: whether the row contains each distinct prompt only once. Otherwise each completion
            has its own copy, and transformers starts a new attention block wherever positions
            restart at 0.

    Returns:
        Log-probs and entropies (B, T) of the completions.
    """
    if shares:
        # the last token of a prompt is not shared: it predicts the completion
        end = ids.size(1) - width - 1
        first, prompt_of = equal_prompts(ids[:, : end + 1], mask[:, : end + 1])  # (N,), (B,)
    else:
        end = 0
        first = ids.new_empty(0)
        prompt_of = ids.new_empty(0)
    head_mask = mask[first, :end].bool()  # (N, end)
    tail_mask = mask[:, end:].bool()  # (B, P + T - end)

    def row(values: Tensor) -> Tensor:
        return torch.cat([values[first, :end][head_mask], values[:, end:][tail_mask]])  # (tokens,)

    positions = row(positions_of(mask))
    labels = row(labels_of(ids, mask, width))
    # no sequence predicts the next one's start
    labels = labels.masked_fill(positions == 0, -100)
    inputs: dict[str, Tensor | BlockMask] = {
        "input_ids": row(ids)[None],
        "position_ids": positions[None],
    }
    if shares:
        shared = torch.full_like(first, -1)[:, None].expand_as(head_mask)[head_mask]
        owner = torch.cat([shared, _number(tail_mask)])  # (tokens,), -1 for shared prompts
        tail_group = prompt_of[:, None].expand_as(tail_mask)[tail_mask]
        group = torch.cat([_number(head_mask), tail_group])  # (tokens,), the number of the prompt

        def sees(batch: Tensor, attention_head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            same_sequence = (owner[key] == owner[query]) | (owner[key] == -1)
            return (key <= query) & (group[key] == group[query]) & same_sequence

        inputs["attention_mask"] = attention_mask(model, sees, len(positions), ids.device)
    output = run(model, head, labels[None], **inputs)

    def of_completions(values: Tensor) -> Tensor:
        by_token = pad(values[0], (1, 0))  # (tokens,); the first token is not predicted
        by_token = by_token[int(head_mask.sum()) :]
        table = by_token.new_zeros(tail_mask.shape).masked_scatter(tail_mask, by_token)
        return table[:, -width:]  # (B, T)

    scores = Scores(of_completions(output.logps))
    if output.entropies is not None:
        scores = replace(scores, entropies=of_completions(output.entropies))
    return scores


def _number(mask: Tensor) -> Tensor:
    """Return the row index of each token of a mask (B, L)."""
    return torch.arange(len(mask), device=mask.device)[:, None].expand_as(mask)[mask]


def attention_mask(
    model: torch.nn.Module, sees: MaskFunction, length: int, device: torch.device
) -> BlockMask | Tensor:
    """Build the mask for a model's attention.

    Args:
        model: the model to call.
        sees: the function that says which keys each query sees.
        length: L, the number of tokens in the row.
        device: the device of the mask.

    Returns:
        A `BlockMask` for flex attention; otherwise (1, 1, L, L), boolean for SDPA and additive for
        other implementations.
    """
    # the DDP wrapper has no config
    unwrapped = cast(PreTrainedModel, outermost(model, first=False))
    attention = attention_of(unwrapped)
    if attention == "flex_attention":
        return create_block_mask(sees, None, None, length, length, device)
    places = torch.arange(length, device=device)
    one = places[:1]  # there is one row, and heads do not differ
    seen = sees(one, one, places[:, None], places[None])[None, None]
    if attention == "sdpa":
        return seen
    added = torch.zeros(seen.shape, dtype=unwrapped.dtype, device=device)
    return added.masked_fill(~seen, torch.finfo(unwrapped.dtype).min)
