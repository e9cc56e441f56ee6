"""Padding-free scoring: the sequences of a micro-batch are concatenated into a single row.

The positions of each sequence start at 0, from which transformers makes the attention block-diagonal: FlashAttention gets the
bounds of the sequences, other kinds of attention get a mask.
"""

from types import SimpleNamespace
from typing import Any

from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

from grpo_ext.scoring.head import Head, PassOutput, RunModel

# With a mask, attention costs the square of the row length: on a CPU rows of 2,048 take 1.5 times as long as rows of 512.
MASKED_ROW_TOKENS = 512


def run_packed(run: RunModel, model: Any, head: Head, input_ids: Tensor, mask: Tensor, labels: Tensor) -> PassOutput:
    """Run the tokens of a padded batch (B, L) as one row, and return the same result as the padded batch."""
    real = mask.bool()  # (B, L)
    positions = (mask.cumsum(1) - 1)[real]  # (tokens,)
    targets = labels[real].masked_fill(positions == 0, -100)  # no sequence predicts the first token of the next one
    packed = run(model, head, targets[None], input_ids=input_ids[real][None], position_ids=positions[None])

    def unpacked(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        values = pad(values[0], (1, 0))  # (tokens,), of each token; the first token has no prediction
        return values.new_zeros(real.shape).masked_scatter(real, values)[:, 1:]  # (B, L - 1)

    return SimpleNamespace(log_probs=unpacked(packed.log_probs), entropy=unpacked(packed.entropy), aux_loss=None)


def takes_mask(model: Any) -> bool:
    """Whether a model's attention gets a mask of the squared row length."""
    return "flash" not in str(model.config.get_text_config()._attn_implementation)


def why_not_packed(model: Any) -> str | None:
    """Return why a model cannot take packed rows, as far as its config shows; `None` if it can."""
    if getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False):
        return "the adapter adds tokens before each prompt"
    layers = DynamicCache(config=model.config.get_text_config()).layers
    recurrent = any(isinstance(x, LinearAttentionCacheLayerMixin) or not isinstance(x, DynamicLayer) for x in layers)
    if recurrent or getattr(model, "_is_stateful", False):
        return "the model's recurrent layers would pass the state of one sequence to the next"
    return None


def refuse_packing(reason: str) -> None:
    """Raise a `ValueError` with the reason and the value to write instead."""
    raise ValueError(f"packing: packed cannot be used here: {reason}. Write packing: none.")
