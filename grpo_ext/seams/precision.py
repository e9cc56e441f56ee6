"""Use the same dtypes in sampling and scoring.

Half precision has 8 (bfloat16) or 11 (float16) significant bits. The forward passes of the sampler
and the scorer are rounded differently, because the sampler processes one token at a time, and the
scorer whole rows. Both therefore use float32 where it costs little: for the logits; with
`residual_in_fp32`, for the residual stream; and with `attention_in_fp32`, for the attention
(float64 on a CPU).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from accelerate import Accelerator
from peft.tuners import lora
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from grpo_ext.common.projection import Projection
from grpo_ext.decoding.checks import base_model, is_sharded
from grpo_ext.seams.attention import set_attention_in_fp32, why_not_attention_in_fp32

# the dtypes of mixed precision, by accelerate's names
MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_dtype(accelerator: Accelerator) -> torch.dtype | None:
    """Return the dtype of accelerate's autocast, bfloat16 or float16.

    The result is `None` if mixed precision is off, is fp8, or is fp16 on a CPU. It is also `None`
    under DeepSpeed, which needs no autocast.
    """
    return MIXED.get(accelerator.mixed_precision) if accelerator.native_amp else None


@dataclass(frozen=True)
class Precision:
    """The dtypes of a forward pass, in the sampler and the scorer."""

    # the dtype of matrix multiplications under autocast; `None` means that of the weights, without
    # autocast
    mixed: torch.dtype | None = None
    # the dtype of the embeddings, to which the layers add their outputs; `None` means that of the
    # weights
    residual: torch.dtype | None = None
    whole_head: bool = False  # the head multiplies in float32 (`cast_lm_head_to_fp32`)
    whole_attention: bool = False  # attention is computed in float32, or on a CPU in float64


def choose_precision(
    model: PreTrainedModel,
    mixed: torch.dtype | None,
    whole_head: bool,
    residual_in_fp32: bool | None,
    attention_in_fp32: bool | None = None,
) -> Precision:
    """Choose the dtypes of a model's forward passes.

    If the layers are in float32, `residual_in_fp32` is ignored. If, in addition, there is no mixed
    precision, `attention_in_fp32` is ignored as well.

    Args:
        model: the model, with or without PEFT adapters.
        mixed: the autocast dtype; `None` if there is no mixed precision.
        whole_head: the value of `cast_lm_head_to_fp32`.
        residual_in_fp32: the value of this option; `None` means true on a CPU if the model supports
            it, otherwise false.
        attention_in_fp32: the value of this option; `None` means true on a CPU if the model
            supports it, otherwise false.

    Raises:
        ValueError: if `residual_in_fp32` or `attention_in_fp32` is true and not ignored, but the
            model does not support it.
    """
    dtype = dtype_of_layers(model)
    is_half = mixed is not None or dtype != torch.float32
    whole_attention = is_half and has_whole_attention(model, attention_in_fp32)
    precision = choose_residual(model, dtype, mixed, whole_head, residual_in_fp32)
    return replace(precision, whole_attention=whole_attention)


def has_whole_attention(model: PreTrainedModel, attention_in_fp32: bool | None) -> bool:
    """Return whether a model in half precision should compute attention in float32 or float64.

    Args:
        model: the model, with or without PEFT adapters.
        attention_in_fp32: the value of this option; `None` means true on a CPU if the model
            supports it, otherwise false.

    Raises:
        ValueError: if `attention_in_fp32` is true, but the model does not support it.
    """
    reason = why_not_attention_in_fp32(base_model(model))
    if attention_in_fp32 is None:
        return model.device.type == "cpu" and reason is None
    if attention_in_fp32 and reason is not None:
        raise ValueError(
            f"`attention_in_fp32: true` cannot be used with this model: {reason}. Remove "
            "attention_in_fp32."
        )
    return attention_in_fp32


def choose_residual(
    model: PreTrainedModel,
    dtype: torch.dtype,
    mixed: torch.dtype | None,
    whole_head: bool,
    residual_in_fp32: bool | None,
) -> Precision:
    """Choose the dtype of the residual stream, and return it as part of a `Precision`.

    The field `whole_attention` of the result is false. If the layers are in float32,
    `residual_in_fp32` is ignored.

    Args:
        model: the model, with or without PEFT adapters.
        dtype: the dtype of the model's layers.
        mixed: the autocast dtype; `None` if there is no mixed precision.
        whole_head: the value of `cast_lm_head_to_fp32`.
        residual_in_fp32: the value of this option; `None` means true on a CPU if the model supports
            it, otherwise false.

    Raises:
        ValueError: if `residual_in_fp32` is true, but the model does not support it.
    """
    if dtype == torch.float32:
        return Precision(mixed, None, whole_head)
    if residual_in_fp32 is None:
        residual_in_fp32 = model.device.type == "cpu" and why_not_float32(model) is None
    if not residual_in_fp32:
        # TRL's `cast_lm_head_to_fp32` also changes tied embeddings
        return Precision(mixed, dtype if whole_head else None, whole_head)
    reason = why_not_float32(model)
    if reason is not None:
        raise ValueError(
            f"`residual_in_fp32: true` cannot be used with this model: {reason}. Remove "
            "residual_in_fp32."
        )
    return Precision(mixed or dtype, torch.float32, whole_head)


def dtype_of_layers(model: nn.Module) -> torch.dtype:
    """Return the dtype of a model's first matrix outside its embeddings and head.

    If there is no such matrix, the result is float32.
    """
    inner: Any = base_model(model)
    ends = [inner.get_input_embeddings(), inner.get_output_embeddings()]
    other = {id(parameter) for end in ends if end is not None for parameter in end.parameters()}
    for parameter in inner.parameters():
        if parameter.dim() >= 2 and id(parameter) not in other:
            return parameter.dtype
    return torch.float32


def why_not_float32(model: PreTrainedModel) -> str | None:
    """Return why a model's residual stream cannot be in float32; `None` if it can be.

    The reason is a clause, such as "its weights are sharded". The model must be text-only and
    unsharded, and may have weights only in linear layers, embeddings and RMS norms. Autocast
    converts the inputs of linear layers, and RMS norms keep the dtype of their input, so both
    accept a float32 residual stream.
    """
    inner = base_model(model)
    if inner.config.get_text_config() is not inner.config:
        return "it has several parts, such as one for images"
    if is_sharded(inner):
        return "its weights are sharded"
    for module in inner.modules():
        name = type(module).__name__
        has_weights = any(True for _ in module.parameters(recurse=False))
        is_known = isinstance(module, nn.Linear | nn.Embedding) or name.endswith("RMSNorm")
        if has_weights and not is_known:
            return f"it has weights in a {name}"
    return None


@contextmanager
def computing_in(precision: Precision, model: nn.Module) -> Iterator[None]:
    """Context manager that makes a model compute in the given dtypes.

    The dtype of the attention remains set after the context ends.

    Args:
        precision: the dtypes to compute in.
        model: a transformers model, with or without PEFT adapters and wrappers.
    """
    inner: Any = base_model(getattr(model, "module", model))  # `module` unwraps DDP
    mixed = precision.mixed
    # not undone on exit, because gradient checkpointing runs the layers again later
    set_attention_in_fp32(inner, precision.whole_attention)
    hooks: list[RemovableHandle] = []
    if precision.residual is not None:
        hooks.append(
            inner.get_input_embeddings().register_forward_hook(returns(precision.residual))
        )
    adapted: list[lora.Linear] = []
    if mixed is not None:
        for name, module in inner.named_modules():
            is_rotary = name.rpartition(".")[2] == "rotary_emb"
            if is_rotary and precision.residual == torch.float32:
                # otherwise, keys would be cached in float32
                hooks.append(module.register_forward_hook(returns(mixed)))
            if widens_input(module):
                module.cast_input_dtype_enabled = False
                adapted.append(module)
    try:
        with nullcontext() if mixed is None else torch.autocast(inner.device.type, dtype=mixed):
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for module in adapted:
            module.cast_input_dtype_enabled = True


def widens_input(module: nn.Module) -> TypeGuard[lora.Linear]:
    """Return whether a module is a LoRA layer that needlessly converts its input to float32.

    Under autocast, the conversion is undone. Layers with dropout, or with a variant of LoRA such as
    DoRA, do not count, because they compute with the converted input.
    """
    return (
        type(module) is lora.Linear
        and module.cast_input_dtype_enabled
        and not module.lora_variant
        and all(isinstance(dropout, nn.Identity) for dropout in module.lora_dropout.values())
    )


def returns(dtype: torch.dtype) -> Any:
    """Return a forward hook that converts a module's output to `dtype`.

    The output may be a tensor or a tuple of tensors.
    """

    def convert(_: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...]) -> object:
        if isinstance(output, Tensor):
            return output.to(dtype)
        return tuple(tensor.to(dtype) for tensor in output)

    return convert


@contextmanager
def sampling_in(precision: Precision, model: nn.Module) -> Iterator[None]:
    """Context manager that makes `generate` compute in the given dtypes, with logits in float32.

    If the weights are sharded, or if the head is not a plain `nn.Linear`, for example because it is
    quantized or has an adapter, the logits keep the dtype in which the head computes them.

    Args:
        precision: the dtypes to compute in.
        model: a transformers model, with or without PEFT adapters.
    """
    inner: Any = base_model(model)
    head = inner.get_output_embeddings()
    with computing_in(precision, model):
        if type(head) is not nn.Linear or is_sharded(inner):
            yield
            return
        dtype = torch.float32 if precision.whole_head else precision.mixed or head.weight.dtype
        if dtype == torch.float32 and not precision.whole_head:
            yield
            return
        inner.set_output_embeddings(UnroundedHead(head, dtype))
        try:
            yield
        finally:
            inner.set_output_embeddings(head)


class UnroundedHead(nn.Module):
    """Replacement for a model's head during sampling; keeps logits in float32, as the scorer does.

    Args:
        head: the head to replace, whose weights are shared.
        dtype: the dtype that hidden states and weights are rounded to.
    """

    def __init__(self, head: nn.Linear, dtype: torch.dtype):
        super().__init__()
        self.weight = head.weight
        self.bias = head.bias
        self.projection = Projection(head.weight, head.bias, dtype)

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute float32 logits (..., V) from hidden states (..., H)."""
        rows = hidden.flatten(0, -2)  # (n, H)
        return self.projection(rows).unflatten(0, hidden.shape[:-1])
