"""Run the prompt of a group once instead of once per completion.

A model reads each distinct prompt and keeps its keys and values; then the completions run after them. Positions are passed
explicitly, because some models (Qwen2.5-VL) would take them from their last generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from grpo_ext.batching.cuts import equal_prompts
from grpo_ext.scoring.head import Head, PassOutput, RunModel


@dataclass(frozen=True)
class Sequences:
    """Prompts and completions to score."""

    input_ids: Tensor  # (B, P + T), prompts padded on the left, completions on the right
    attention_mask: Tensor  # (B, P + T)
    width: int  # T

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def prompt_mask(self) -> Tensor:
        return self.attention_mask[:, : -self.width]  # (B, P)

    @property
    def completion_lengths(self) -> Tensor:
        return self.attention_mask[:, -self.width :].sum(1)  # (B,)

    def take(self, rows: Tensor, trim: bool = True) -> Sequences:
        """Return some rows; with `trim`, cut to their longest prompt and completion."""
        rows = rows.to(self.input_ids.device)
        mask = self.attention_mask[rows]
        if not trim:
            return Sequences(self.input_ids[rows], mask, self.width)
        prompt = max(1, int(self.prompt_mask[rows].sum(1).max()))
        completion = max(1, int(self.completion_lengths[rows].max()))
        start = mask.size(1) - self.width
        columns = slice(start - prompt, start + completion)
        return Sequences(self.input_ids[rows][:, columns], mask[:, columns], completion)


class ReadPrompts:
    """The distinct prompts of rows that a model has read, without their last token, which runs with the completions."""

    def __init__(self, rows: Sequences):
        end = rows.input_ids.size(1) - rows.width - 1
        first, self.prompt_of = equal_prompts(rows.input_ids[:, : end + 1], rows.prompt_mask)
        self.ids, self.mask = rows.input_ids[first][:, :end], rows.attention_mask[first][:, :end]  # (N, P - 1)
        self.end = end
        self.cache = DynamicCache()

    @property
    def saved(self) -> int:
        """The number of tokens that need not run again."""
        return (len(self.prompt_of) - len(self.ids)) * self.end

    def read(self, run: RunModel, model: Any, head: Head) -> bool:
        """Run the prompts; return whether the model kept their keys and values."""
        nothing = torch.full_like(self.ids, -100)
        given = {"input_ids": self.ids, "attention_mask": self.mask, "position_ids": positions_of(self.mask)}
        run(model, head, nothing, **given, past_key_values=self.cache)
        return bool(self.cache.get_seq_length() == self.end)

    def run(self, run: RunModel, model: Any, head: Head, rows: Sequences, chunk: Tensor) -> PassOutput:
        """Run completions after their prompts, starting with the last token of the prompt.

        `rows` are the completions of this chunk, `chunk` their indices among the rows whose prompts were read.
        """
        number = self.prompt_of[chunk.to(self.prompt_of.device)]
        kept: list[Any] = self.cache.layers
        layers = [(layer.keys[number], layer.values[number]) for layer in kept]
        ids, mask = (x[:, -(rows.width + 1) :] for x in (rows.input_ids, rows.attention_mask))
        seen = torch.cat([self.mask[number], mask], dim=1)
        given = {"input_ids": ids, "attention_mask": seen, "position_ids": positions_of(seen)[:, -ids.size(1) :]}
        return run(model, head, labels_of(ids, mask, rows.width), **given, past_key_values=DynamicCache(layers))


def positions_of(mask: Tensor) -> Tensor:
    """Return the position (B, L) of each token in its sequence; 0 for padding on the left."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def labels_of(ids: Tensor, mask: Tensor, width: int) -> Tensor:
    """Return the labels (B, L): the completion tokens, -100 for tokens that are not scored."""
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-width] = -100
    return labels


def keeps_all(model: Any) -> bool:
    """Whether a model's cache holds the keys and values of every token, in every layer."""
    layers = DynamicCache(config=model.config.get_text_config()).layers
    learned = getattr(model, "active_peft_config", None)  # prompt learning adds tokens before the prompt
    return all(type(layer) is DynamicLayer for layer in layers) and not getattr(learned, "is_prompt_learning", False)
