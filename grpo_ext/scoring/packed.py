"""Padding-free scoring: the sequences of a micro-batch are concatenated into a single row.

Each sequence has its own positions and attends only to itself. If the attention implementation
accepts a mask, all completions of a prompt can share one copy of the prompt.
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

# `(batch, head, query, key)`: whether each query (L, ...) attends to each key (..., L), like a
# `mask_mod` of flex attention
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
    """Score a padded batch as one packed row, without its padding.

    Args:
        run: the function that calls the model.
        model: the model to call.
        head: the scoring head.
        ids: (B, P + T), the tokens of prompts and completions.
        mask: (B, P + T), 1 for tokens and 0 for padding.
        width: T, the number of completion columns.
        shares: whether the row contains each distinct prompt, except its last token, only once;
            this requires an attention implementation that accepts a mask. If `False`, each
            completion has its own copy, and transformers starts a new sequence wherever positions
            restart at 0.

    Returns:
        The completions' log-probs and entropies, (B, T); the entropies are `None` if `run` returns
        none.
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
        """Pack the values of a padded batch (B, P + T) into one row (tokens,), without padding.

        The row begins with one copy of the shared part of each distinct prompt. The rest of each
        sequence follows.
        """
        shared_values = values[first, :end][head_mask]
        tail_values = values[:, end:][tail_mask]
        return torch.cat([shared_values, tail_values])

    positions = row(positions_of(mask))
    labels = row(labels_of(ids, mask, width))
    # the last token of a sequence must not predict the first token of the next
    labels = labels.masked_fill(positions == 0, -100)
    inputs: dict[str, Tensor | BlockMask] = {
        "input_ids": row(ids)[None],
        "position_ids": positions[None],
    }
    if shares:
        no_owner = torch.full_like(first, -1)  # (N,)
        rows = torch.arange(len(tail_mask), device=ids.device)  # (B,)
        prompts = torch.arange(len(head_mask), device=ids.device)  # (N,)
        # the row of each token's completion; -1 for shared prompts
        owner = torch.cat([_of_tokens(no_owner, head_mask), _of_tokens(rows, tail_mask)])
        # the index of each token's prompt
        prompt = torch.cat([_of_tokens(prompts, head_mask), _of_tokens(prompt_of, tail_mask)])

        def sees(batch: Tensor, attention_head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            is_shared = owner[key] == -1
            same_sequence = (owner[key] == owner[query]) | is_shared
            same_prompt = prompt[key] == prompt[query]
            return (key <= query) & same_prompt & same_sequence

        inputs["attention_mask"] = attention_mask(model, sees, len(positions), ids.device)
    output = run(model, head, labels[None], **inputs)

    def of_completions(values: Tensor) -> Tensor:
        """Unpack the values of the packed row, (1, tokens - 1), into one row per completion.

        The result is (B, T), with 0 at padding.
        """
        by_token = pad(values[0], (1, 0))  # (tokens,); the first token is not predicted
        num_shared = int(head_mask.sum())
        tail_values = by_token[num_shared:]
        table = tail_values.new_zeros(tail_mask.shape)  # (B, P + T - end)
        table = table.masked_scatter(tail_mask, tail_values)
        return table[:, -width:]

    scores = Scores(of_completions(output.logps))
    if output.entropies is not None:
        scores = replace(scores, entropies=of_completions(output.entropies))
    return scores


def _of_tokens(values: Tensor, mask: Tensor) -> Tensor:
    """Repeat each entry of `values` (B,) once per token in the same row of `mask` (B, L).

    The result has shape (tokens,).
    """
    return values[:, None].expand_as(mask)[mask]


def attention_mask(
    model: torch.nn.Module,
    sees: MaskFunction,
    length: int,
    device: torch.device,
) -> BlockMask | Tensor:
    """Build the attention mask in the form that the model's attention implementation expects.

    Args:
        model: the model to call.
        sees: the function that returns whether each query attends to each key.
        length: L, the number of tokens in the row.
        device: the device of the mask.

    Returns:
        A `BlockMask` for flex attention; otherwise a tensor (1, 1, L, L), which is boolean for SDPA
        and additive for other implementations.
    """
    # the DDP wrapper has no config
    unwrapped = cast(PreTrainedModel, outermost(model, first=False))
    attention = attention_of(unwrapped)
    if attention == "flex_attention":
        return create_block_mask(sees, None, None, length, length, device)
    places = torch.arange(length, device=device)
    zero = places[:1]  # there is one row, and heads do not differ
    seen = sees(zero, zero, places[:, None], places[None])  # (L, L)
    seen = seen[None, None]
    if attention == "sdpa":
        return seen
    dtype = unwrapped.dtype
    added = torch.zeros(seen.shape, dtype=dtype, device=device)
    return added.masked_fill(~seen, torch.finfo(dtype).min)
