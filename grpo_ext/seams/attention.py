"""Attention in float32, or on a CPU in float64, for a model in half precision.

It is registered with transformers as a separate attention implementation. Attention sums its terms
in a different order for a single token with a cache, a whole row and a packed row. In float32, a
few results in 10,000 are therefore rounded to a different bfloat16 number, which changes the inputs
of all later layers. In float64, no result was rounded differently in our measurements.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from grpo_ext.scoring.layout import SDPA_IN_FP32, attention_of

# arguments of transformers' function that torch's function does not have
OTHER_ARGUMENTS = ("position_bias", "softcap", "cache")


def sdpa_in_fp32(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute transformers' `sdpa` attention in float32, or in float64 on a CPU without dropout.

    Args:
        module: the attention layer.
        query: (B, H, Q, D).
        key: (B, H', K, D), where H is a multiple of H'.
        value: (B, H', K, D).
        attention_mask: broadcasts to (B, H, Q, K); bool, or added to the scores. `None` for no
            mask.
        **kwargs: further arguments for transformers' function.

    Returns:
        The attention output (B, Q, H, D), rounded to the dtype of `value`, and `None` in place of
        the attention weights.
    """
    with torch.autocast(query.device.type, enabled=False):
        # On most GPUs, float64 is many times slower. With dropout, `_InFloat64` would be wrong: its
        # backward pass computes the attention again, with other dropped weights.
        if query.device.type == "cpu" and not kwargs.get("dropout"):
            output = _InFloat64.apply(query, key, value, module, attention_mask, kwargs)
        else:
            states = (query.float(), key.float(), value.float())
            output = attend(module, states, attention_mask, kwargs)
    return output.to(value.dtype), None


def attend(
    module: nn.Module,
    states: tuple[Tensor, Tensor, Tensor],
    attention_mask: Tensor | None,
    kwargs: dict[str, Any],
) -> Tensor:
    """Compute transformers' `sdpa` attention (B, Q, H, D) in the dtype of `states`.

    Args:
        module: the attention layer.
        states: query, key and value, all of the same dtype.
        attention_mask: bool, or floating-point of any dtype; `None` for no mask.
        kwargs: further arguments for transformers' function.
    """
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.to(states[0].dtype)
    is_plain = all(kwargs.get(name) is None for name in OTHER_ARGUMENTS)
    if attention_mask is not None and is_plain and states[0].device.type == "cpu":
        # transformers would first copy keys and values for each query head
        output = scaled_dot_product_attention(
            *states,
            attention_mask,
            dropout_p=kwargs.get("dropout", 0.0),
            scale=kwargs.get("scaling"),
            enable_gqa=True,
        )  # (B, H, Q, D)
        return output.transpose(1, 2).contiguous()
    return sdpa_attention_forward(module, *states, attention_mask, **kwargs)[0]


class _InFloat64(torch.autograd.Function):
    """Attention in float64, with a backward pass that computes the attention again in float32.

    A backward pass in float64 would be much slower.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        module: nn.Module,
        attention_mask: Tensor | None,
        kwargs: dict[str, Any],
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, attention_mask)
        ctx.call = (module, kwargs)
        states = (query.double(), key.double(), value.double())
        return attend(module, states, attention_mask, kwargs).to(value.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *halves, attention_mask = ctx.saved_tensors
        module, kwargs = ctx.call
        query, key, value = (half.float().requires_grad_() for half in halves)
        with torch.enable_grad(), torch.autocast(query.device.type, enabled=False):
            output = attend(module, (query, key, value), attention_mask, kwargs)
        gradients = torch.autograd.grad(output, (query, key, value), gradient.float())
        of_states = (each.to(half.dtype) for each, half in zip(gradients, halves, strict=True))
        return (*of_states, None, None, None)


AttentionInterface.register(SDPA_IN_FP32, sdpa_in_fp32)
AttentionMaskInterface.register(SDPA_IN_FP32, sdpa_mask)


def why_not_attention_in_fp32(model: PreTrainedModel) -> str | None:
    """Return why a model cannot compute its attention in float32; `None` if it can.

    The reason is a clause, such as "its attention is eager, but only sdpa can run in float32".

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
    """Set whether a model computes its attention in float32 (float64 on a CPU) from now on.

    Args:
        model: the model, without adapters and wrappers; its config changes in place.
        in_fp32: if false, attention is computed in the dtype of its inputs.
    """
    is_in_fp32 = model.config._attn_implementation == SDPA_IN_FP32
    if in_fp32 != is_in_fp32:
        model.set_attn_implementation(SDPA_IN_FP32 if in_fp32 else "sdpa")
