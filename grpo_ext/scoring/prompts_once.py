"""Run the prompt of a group once instead of once per completion.

The model runs each distinct prompt and caches its keys and values; the completions then continue
from the cache. Positions are passed explicitly, because some models (Qwen2.5-VL) would otherwise
reuse the positions of their last generation.
"""

from copy import copy

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from grpo_ext.batching.cuts import equal_prompts
from grpo_ext.common.cache_input import CACHE_INPUT
from grpo_ext.scoring.head import Head, RunModel, labels_of, positions_of
from grpo_ext.step.records import Scores


class ReadPrompts:
    """The KV cache of each distinct prompt in a batch, filled by `read`.

    The last token of each prompt is not cached. That token runs together with the completion,
    because it predicts the completion's first token.

    Args:
        prompt_ids: (B, P), the tokens of the prompts, padded on the left.
        prompt_mask: (B, P), 1 for tokens and 0 for padding.
    """

    def __init__(self, prompt_ids: Tensor, prompt_mask: Tensor):
        first, prompt_of = equal_prompts(prompt_ids, prompt_mask)
        self.prompt_of = prompt_of  # (B,), the index of each row's prompt
        self.end = prompt_ids.size(1) - 1
        self.ids = prompt_ids[first][:, : self.end]  # (N, P - 1)
        self.mask = prompt_mask[first][:, : self.end]  # (N, P - 1)
        self.cache = DynamicCache()

    @property
    def saved(self) -> int:
        """The number of prompt tokens, including padding, that sharing the prompts saves."""
        num_copies = len(self.prompt_of) - len(self.ids)
        return num_copies * self.end

    def read(self, run: RunModel, model: torch.nn.Module, head: Head) -> bool:
        """Run the prompts, and return whether the model cached their keys and values.

        Args:
            run: the function that calls the model.
            model: the model to run.
            head: a scoring head, which is not used because nothing is scored.
        """
        no_labels = torch.full_like(self.ids, -100)
        run(
            model,
            head,
            no_labels,
            input_ids=self.ids,
            attention_mask=self.mask,
            position_ids=positions_of(self.mask),
            **{CACHE_INPUT: self.cache},
        )
        return bool(self.cache.get_seq_length() == self.end)

    def run(
        self,
        run: RunModel,
        model: torch.nn.Module,
        head: Head,
        ids: Tensor,
        mask: Tensor,
        width: int,
        chunk: Tensor,
    ) -> Scores:
        """Score a chunk of completions that continue from the cached prompts.

        Args:
            run: the function that calls the model.
            model: the model that ran the prompts.
            head: the scoring head.
            ids: (b, P + T), the tokens of the chunk's prompts and completions.
            mask: (b, P + T), 1 for tokens and 0 for padding.
            width: T, the number of completion columns.
            chunk: (b,), the indices of the completions among the B rows.

        Returns:
            The scores (b, T) of the completions.
        """
        prompts = self.prompt_of[chunk.to(self.prompt_of.device)]  # (b,)
        cache = DynamicCache()
        for prompt_layer in self.cache.layers:
            assert isinstance(prompt_layer, DynamicLayer), "a layer does not keep every token"
            assert prompt_layer.keys is not None and prompt_layer.values is not None
            layer = copy(prompt_layer)
            layer.keys = of_rows(prompt_layer.keys, prompts)
            layer.values = of_rows(prompt_layer.values, prompts)
            cache.layers.append(layer)
        num_columns = width + 1  # includes the last token of the prompt
        ids = ids[:, -num_columns:]  # (b, T + 1)
        mask = mask[:, -num_columns:]  # (b, T + 1)
        seen = torch.cat([self.mask[prompts], mask], dim=1)  # (b, P + T)
        positions = positions_of(seen)[:, -num_columns:]  # (b, T + 1)
        return run(
            model,
            head,
            labels_of(ids, mask, width),
            input_ids=ids,
            attention_mask=seen,
            position_ids=positions,
            **{CACHE_INPUT: cache},
        )


def of_rows(states: Tensor, rows: Tensor) -> Tensor:
    """Return the rows (b, ...) of `states` (N, ...) at the indices `rows` (b,).

    If N is 1, the result is an expanded view of `states`; otherwise it is a copy.
    """
    row_shape = states.shape[1:]
    if len(states) == 1:
        return states.expand(len(rows), *row_shape)
    # flat, because torch adds gradients of slices slowly, and in float32, because some devices
    # round after each addition
    wide = torch.promote_types(states.dtype, torch.float32)
    flat = states.flatten(1).to(wide)  # (N, elements of a row)
    selected = flat.index_select(0, rows).to(states.dtype)
    return selected.unflatten(1, row_shape)
