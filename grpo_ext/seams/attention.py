"""Attention in float32 for queries, keys and values in a half type.

Registered with transformers as a separate attention implementation. Scores, softmax and sums are
float32. Decoding with a cache adds numbers up in a different order than scoring whole rows; in
float32, this changes the result less than rounding to the half type does.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from grpo_ext.scoring.layout import SDPA_IN_FP32, attention_of


def sdpa_in_fp32(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return transformers' `sdpa` attention (B, Q, H, D), computed in float32.

    Args:
        module: the attention layer.
        query: (B, H, Q, D).
        key: (B, H or fewer, K, D).
        value: (B, as for `key`, K, D); the result is rounded to its dtype.
        attention_mask: broadcasts to (B, H, Q, K); bool, or added to the scores.
        **kwargs: further arguments of transformers' function.
    """
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.float()
    with torch.autocast(query.device.type, enabled=False):
        output, _ = sdpa_attention_forward(
            module, query.float(), key.float(), value.float(), attention_mask, **kwargs
        )
    return output.to(value.dtype), None


AttentionInterface.register(SDPA_IN_FP32, sdpa_in_fp32)
AttentionMaskInterface.register(SDPA_IN_FP32, sdpa_mask)


def why_not_attention_in_fp32(model: PreTrainedModel) -> str | None:
    """Return why a model cannot have its attention in float32; `None` if it can.

    Args:
        model: the model, without adapters and wrappers.
    """
    if model.config.get_text_config() is not model.config:
        return "it has several parts, such as one for images"
    attention = attention_of(model)
    if attention != "sdpa":
        return f"its attention is {attention}, but only sdpa can run in float32"
    if not model._can_set_attn_implementation():
        return "its code does not look up its attention in transformers' AttentionInterface"
    return None


def set_attention_in_fp32(model: PreTrainedModel, in_fp32: bool) -> None:
    """Make a model compute its attention in float32 from now on, or in the dtype of its inputs.

    Args:
        model: the model, without adapters and wrappers.
        in_fp32: whether to compute in float32.
    """
    is_in_fp32 = model.config._attn_implementation == SDPA_IN_FP32
    if in_fp32 != is_in_fp32:
        model.set_attn_implementation(SDPA_IN_FP32 if in_fp32 else "sdpa")
