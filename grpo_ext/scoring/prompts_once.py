"""Run the prompt of a group once instead of once per completion.

A model reads each distinct prompt and keeps its keys and values; then the completions run after
them. Positions are passed explicitly, because some models (Qwen2.5-VL) would take them from their
last generation.
"""

from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from grpo_ext.batching.cuts import equal_prompts
from grpo_ext.scoring.head import Head, RunModel
from grpo_ext.step.records import Scores


class ReadPrompts:
    """KV cache of each distinct prompt, excluding its last token.

    The last token of a prompt is scored together with the completion.

    Args:
        prompt_ids: (B, P), padded on the left.
        prompt_mask: (B, P), 1 for tokens of the prompt.
    """

    def __init__(self, prompt_ids: Tensor, prompt_mask: Tensor):
        first, self.prompt_of = equal_prompts(prompt_ids, prompt_mask)
        self.end = prompt_ids.size(1) - 1
        self.ids = prompt_ids[first][:, : self.end]  # (N, P - 1)
        self.mask = prompt_mask[first][:, : self.end]  # (N, P - 1)
        self.cache = DynamicCache()

    @property
    def saved(self) -> int:
        """The number of tokens that need not run again."""
        return (len(self.prompt_of) - len(self.ids)) * self.end

    def read(self, run: RunModel, model: Any, head: Head) -> bool:
        """Run the prompts; return whether the model kept their keys and values."""
        no_labels = torch.full_like(self.ids, -100)
        run(
            model,
            head,
            no_labels,
            input_ids=self.ids,
            attention_mask=self.mask,
            position_ids=positions_of(self.mask),
            past_key_values=self.cache,
        )
        return bool(self.cache.get_seq_length() == self.end)

    def run(
        self,
        run: RunModel,
        model: Any,
        head: Head,
        ids: Tensor,
        mask: Tensor,
        width: int,
        chunk: Tensor,
    ) -> Scores:
        """Run completions after their prompts, starting with the last token of the prompt.

        Args:
            run: calls the model.
            model: the model that read the prompts.
            head: the scoring head.
            ids: (b, P + T), prompts and completions of this chunk.
            mask: (b, P + T).
            width: T.
            chunk: (b,), indices of the completions among the rows whose prompts were read.
        """
        number = self.prompt_of[chunk.to(self.prompt_of.device)]  # (b,)
        cache = DynamicCache()
        for prompt_layer in list[Any](self.cache.layers):
            layer = copy(prompt_layer)
            layer.keys = of_rows(prompt_layer.keys, number)
            layer.values = of_rows(prompt_layer.values, number)
            cache.layers.append(layer)
        ids = ids[:, -(width + 1) :]  # (b, T + 1)
        mask = mask[:, -(width + 1) :]  # (b, T + 1)
        seen = torch.cat([self.mask[number], mask], dim=1)  # (b, P + T)
        return run(
            model,
            head,
            labels_of(ids, mask, width),
            input_ids=ids,
            attention_mask=seen,
            position_ids=positions_of(seen)[:, -ids.size(1) :],
            past_key_values=cache,
        )


def of_rows(x: Tensor, number: Tensor) -> Tensor:
    """Return the rows of x (N, ...) with these numbers (b,); those of a single row share its
    memory.
    """
    if len(x) == 1:
        return x.expand(len(number), *x.shape[1:])
    # flat, because torch adds gradients of slices slowly, and in float32, because some devices
    # round after each addition
    flat = x.flatten(1).to(torch.promote_types(x.dtype, torch.float32))  # (N, ...)
    return flat.index_select(0, number).to(x.dtype).unflatten(1, x.shape[1:])


def positions_of(mask: Tensor) -> Tensor:
    """Return the position (B, L) of each token in its sequence; 0 for padding on the left."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def labels_of(ids: Tensor, mask: Tensor, width: int) -> Tensor:
    """Return the labels (B, L): the completion tokens, -100 for tokens that are not scored."""
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-width] = -100
    return labels
