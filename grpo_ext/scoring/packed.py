"""Padding-free scoring: the sequences of a micro-batch one after the other in a single row.

Each sequence has positions of its own, from which transformers makes the attention block-diagonal: FlashAttention gets the
sequences' bounds, other kinds of attention a mask.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

from grpo_ext.scoring.head import Head, PassOutput, RunModel

# With a mask, attention costs the square of a row's length: on a CPU rows of 2,048 take half as long again as rows of 512.
MASKED_ROW_TOKENS = 512


def run_packed(run: RunModel, model: Any, head: Head, input_ids: Tensor, mask: Tensor, labels: Tensor) -> PassOutput:
    """Run the tokens of a padded batch (B, L) as one row; gives what the padded batch would."""
    real = mask.bool()  # (B, L)
    positions = (mask.cumsum(1) - 1)[real]  # (tokens,)
    targets = labels[real].masked_fill(positions == 0, -100)  # no sequence is asked for the next one's first token
    packed = run(model, head, targets[None], input_ids=input_ids[real][None], position_ids=positions[None])

    def unpacked(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        values = pad(values[0], (1, 0))  # (tokens,), of each token; nothing comes before the first
        return values.new_zeros(real.shape).masked_scatter(real, values)[:, 1:]  # (B, L - 1)

    return SimpleNamespace(log_probs=unpacked(packed.log_probs), entropy=unpacked(packed.entropy), aux_loss=None)


def takes_mask(model: Any) -> bool:
    """Whether a model's attention gets a mask of the row's length squared."""
    return "flash" not in str(model.config.get_text_config()._attn_implementation)


def why_not_packed(model: Any) -> str | None:
    """What keeps a model from taking packed rows, as far as its config tells."""
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        return "the adapter puts tokens of its own before each prompt"
    layers = DynamicCache(config=model.config.get_text_config()).layers
    recurrent = any(isinstance(x, LinearAttentionCacheLayerMixin) or not isinstance(x, DynamicLayer) for x in layers)
    if recurrent or getattr(model, "_is_stateful", False):
        return "the model's recurrent layers would carry one sequence's state into the next"
    return None


def refuse_packing(reason: str) -> None:
    """Raise a `ValueError` with the reason and what to write instead."""
    raise ValueError(f"packing: packed cannot be used here: {reason}. Write packing: none.")
