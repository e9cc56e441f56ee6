"""FlashAttention without its package: torch's own kernels for sequences of different lengths.

torch has the kernels of FlashAttention 2 as `varlen_attn` (since 2.10), so nothing needs to be
installed or built. transformers calls them as it calls those of the package: padding is removed,
and the sequences of a packed row are kept apart. On a CPU and in float32, for which there is no
such kernel, the same function computes each sequence separately.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers.modeling_flash_attention_utils as flash
from torch import Tensor

NAME = "flash_attention_2"


def kernel_is_there() -> bool:
    """Return whether torch has kernels for packed sequences with windows on this machine."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return torch.cuda.is_available() and "window_size" in inspect.signature(varlen_attn).parameters


def use_torch_flash(model: Any) -> Any:
    """Make a model use torch's kernels under the name of FlashAttention 2, and return it."""
    loaded: dict[str, Any] = {
        "_loaded_implementation": NAME,
        "_flash_fn": attend,
        "_flash_varlen_fn": attend_varlen,
        "_flash_with_kvcache_fn": None,
        "_pad_fn": flash._pad_input,
        "_unpad_fn": flash._unpad_input,
        "_process_flash_kwargs_fn": flash._lazy_define_process_function(attend_varlen),
        "_process_with_kvcache_kwargs_fn": dict,
    }
    for name, value in loaded.items():
        setattr(flash, name, value)
    model.config._attn_implementation_internal = NAME
    return model


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **_: Any,
) -> Tensor:
    """Return the attention (B, L, H, D) of queries (B, L, H, D) to keys and values (B, S, K, D).

    No position is padding.
    """
    rows, length = q.shape[:2]
    ends_q, ends_k = (
        torch.arange(rows + 1, dtype=torch.int32, device=q.device) * x.size(1) for x in (q, k)
    )
    q_, k_, v_ = (x.flatten(0, 1) for x in (q, k, v))
    out = attend_varlen(
        q_, k_, v_, ends_q, ends_k, length, k.size(1), softmax_scale, causal, window_size
    )
    return out.view(q.shape)


def attend_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    **_: Any,
) -> Tensor:
    """Return attention (tokens, H, D) of sequences that follow one another.

    Args:
        q: (tokens, H, D).
        k, v: (tokens of keys, K, D); H is a multiple of K.
        cu_seqlens_q, cu_seqlens_k: (N + 1,), where each of the N sequences begins, and where the
            last one ends.
        max_seqlen_q, max_seqlen_k: the length of the longest sequence.
        softmax_scale: the factor of the scores; `None`: 1 / sqrt(D).
        causal: whether queries see no later keys; the last query is aligned with the last key.
        window_size: how many keys before and after its own position a query sees; -1: all.
    """
    window = (window_size[0], 0) if causal else window_size
    if kernel_is_there() and q.is_cuda and q.dtype != torch.float32:
        from torch.nn.attention.varlen import varlen_attn

        more: dict[str, Any] = {"scale": softmax_scale, "window_size": window}
        if "enable_gqa" in inspect.signature(varlen_attn).parameters:
            more["enable_gqa"] = q.size(1) != k.size(1)
        ends = cu_seqlens_q.int(), cu_seqlens_k.int()
        out: Any = varlen_attn(q, k, v, *ends, int(max_seqlen_q), int(max_seqlen_k), **more)
        return out
    parts = []
    starts = zip(
        cu_seqlens_q.tolist(),
        cu_seqlens_q[1:].tolist(),
        cu_seqlens_k.tolist(),
        cu_seqlens_k[1:].tolist(),
        strict=False,
    )
    for first_q, end_q, first_k, end_k in starts:
        seen = visible(end_q - first_q, end_k - first_k, window, q.device)
        a, b, c = (
            x[start:end].transpose(0, 1)[None]
            for x, start, end in _ranges(q, k, v, first_q, end_q, first_k, end_k)
        )
        out = torch.nn.functional.scaled_dot_product_attention(
            a, b, c, seen, scale=softmax_scale, enable_gqa=True
        )
        parts.append(out[0].transpose(0, 1))
    return torch.cat(parts)


def _ranges(q: Tensor, k: Tensor, v: Tensor, *ends: int) -> list[tuple[Tensor, int, int]]:
    first_q, end_q, first_k, end_k = ends
    return [(q, first_q, end_q), (k, first_k, end_k), (v, first_k, end_k)]


def visible(queries: int, keys: int, window: tuple[int, int], device: torch.device) -> Tensor:
    """Return which keys each query sees, (queries, keys), bool.

    They are aligned such that the last query is at the position of the last key.
    """
    place = torch.arange(queries, device=device)[:, None] + keys - queries
    key = torch.arange(keys, device=device)[None]
    left, right = window
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    seen = seen if left < 0 else seen & (key >= place - left)
    return seen if right < 0 else seen & (key <= place + right)
