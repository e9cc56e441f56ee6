"""Attention whose result for a query depends only on the keys that it sees.

The sampler and the scorer store the keys of a sequence at different positions, with different
padding, and sums of floats depend on the positions of the summands. Here, the factors of the
summands are first rounded to multiples of a power of two, coarse enough for float64 to hold all
products and their sums without rounding. Such sums do not depend on the order of the summands, and
keys with weight 0 change nothing.

With s = scale q k^T, w = exp(s - max s) and k, q, v and w rounded:

    output = sum_i w_i v_i / sum_i w_i

The values that a query does not see must not matter, so each value v_i = 2^e_i u_i is rounded
relative to its own largest entry. Its power of two moves to the weight, 2^e_i w_i, which is rounded
relative to the largest weight of the query.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

EXACT_BITS = 53  # integers of this many bits are exact in float64
MOST_KEYS = 2**15
WEIGHT_BITS = 22  # bits of the weights in their own sum, which has no products
# bits of the weights and of the values in the sum of their products
VALUE_BITS = (EXACT_BITS - int(math.log2(MOST_KEYS))) // 2
# maximum number of elements of an intermediate result, so that it fits into a CPU's cache
BLOCK_NUMBERS = 2**18


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Compute `torch.nn.functional.scaled_dot_product_attention` with exact sums.

    Args:
        query: (B, H, Q, D), the queries.
        key: (B, H', K, D), the keys; H' is H or, with grouped queries, a divisor of H.
        value: (B, H', K, D), the values.
        attn_mask: a mask that can be broadcast to (B, H, Q, K): either bool, true for the keys that
            a query sees, or float, which is added to the scores. If `None`, all keys are seen.
        dropout_p: the dropout probability, which must be 0.
        is_causal: whether query i sees only the keys up to i; `attn_mask` is then ignored.
        scale: the factor for the scores; if `None`, 1 / sqrt(D).
        enable_gqa: whether `key` and `value` may have fewer heads than `query`.

    Returns:
        The output, (B, H, Q, D).

    Raises:
        ValueError: if `dropout_p` is not 0, if there are more than `MOST_KEYS` keys, or if `key`
            has another number of heads than `query` and `enable_gqa` is false.
    """
    if dropout_p:
        raise ValueError(
            "`deterministic: true` does not support attention dropout. Load the model with "
            "attention_dropout=0.0 (in a recipe, `model_init_kwargs: {attention_dropout: 0.0}`)."
        )
    if key.size(1) != query.size(1) and not enable_gqa:
        raise ValueError(
            f"The keys have {key.size(1)} heads, and the queries {query.size(1)}. Pass "
            "enable_gqa=True."
        )
    if key.size(2) > MOST_KEYS:
        raise ValueError(
            f"`deterministic: true` supports sequences of at most {MOST_KEYS} tokens, prompt and "
            "completion together. Lower max_completion_length, or drop long prompts with "
            "max_prompt_tokens."
        )
    if is_causal:
        shape = (query.size(2), key.size(2))
        attn_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
    if scale is None:
        scale = query.size(-1) ** -0.5
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
    with torch.autocast(device, enabled=False):
        output: Tensor = _Attention.apply(query, key, value, attn_mask, scale, enable_gqa)
    return output


class _Attention(torch.autograd.Function):
    """Exact attention with the backward pass of torch's attention."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float,
        grouped: bool,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.options = (scale, grouped)
        output = torch.empty_like(query)
        block = _rows_of_block(query, key)
        for start in range(0, len(query), block):
            rows = slice(start, start + block)
            row_mask = mask
            if mask is not None and mask.dim() == 4 and len(mask) > 1:
                row_mask = mask[rows]
            output[rows] = _attend(query[rows], key[rows], value[rows], row_mask, scale)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, mask = ctx.saved_tensors
        scale, grouped = ctx.options
        with torch.enable_grad():
            query, key, value = (tensor.detach().requires_grad_() for tensor in tensors)
            output = scaled_dot_product_attention(
                query, key, value, attn_mask=mask, scale=scale, enable_gqa=grouped
            )
            grads = torch.autograd.grad(output, (query, key, value), grad)
        return *grads, None, None, None


def _rows_of_block(query: Tensor, key: Tensor) -> int:
    """Return how many rows of the batch to compute at once, at least 1."""
    num_scores = query.size(1) * query.size(2) * key.size(2)
    num_states = key.size(1) * key.size(2) * key.size(3)
    return max(1, BLOCK_NUMBERS // max(num_scores, num_states))


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Return the attention output (b, H, Q, D) for b rows of the batch.

    The arguments are those of `attention`, restricted to these rows.
    """
    rows, heads, num_queries, dim = query.shape
    key_heads, num_keys = key.shape[1:3]
    groups = heads // key_heads
    scores = _scores(query, key).view(rows, heads, num_queries, num_keys).mul_(scale)
    if mask is not None and mask.dtype == torch.bool:
        scores.masked_fill_(~mask, -torch.inf)
    elif mask is not None:
        scores.add_(mask)
    largest = scores.amax(-1, keepdim=True)
    largest.masked_fill_(largest == -torch.inf, 0.0)  # for padding, which sees no key
    weights = scores.sub_(largest).exp_()  # (b, H, Q, K), at most 1
    total = to_multiples(weights, weights.new_ones(()), WEIGHT_BITS).sum(-1, dtype=torch.float64)
    total.masked_fill_(total == 0, 1.0)
    unit = power_below(value.float().abs().amax(-1, keepdim=True))  # (b, H', K, 1)
    unit.masked_fill_(unit == 0, 1.0)
    values = to_multiples(value.float() / unit, unit.new_ones(()), VALUE_BITS).double()
    weights = weights.view(rows, key_heads, groups * num_queries, num_keys)
    weights = weights.mul_(unit.transpose(-1, -2))
    weights = to_multiples(weights, power_below(weights.amax(-1, keepdim=True)), VALUE_BITS)
    output = weights.double() @ values  # (b, H', H / H' * Q, D)
    output = output.view(rows, heads, num_queries, dim).div_(total.unsqueeze(-1))
    return output.to(query.dtype)


def _scores(query: Tensor, key: Tensor) -> Tensor:
    """Return the unscaled scores q k^T of rounded queries and keys, (b, H', H / H' * Q, K).

    The sums are exact in float64, and are then converted to float32.
    """
    rows, heads, num_queries, dim = query.shape
    key_heads = key.size(1)
    bits = min(WEIGHT_BITS, (EXACT_BITS - math.ceil(math.log2(dim))) // 2)
    exact_query = rounded(query, bits).double()
    exact_query = exact_query.reshape(rows, key_heads, heads // key_heads * num_queries, dim)
    exact_key = rounded(key, bits).double()
    return (exact_query @ exact_key.transpose(-1, -2)).float()


def rounded(x: Tensor, bits: int) -> Tensor:
    """Return `x` (..., D) in float32, rounded to `bits` bits relative to each row's largest |x|."""
    x = x.float()
    return to_multiples(x, power_below(x.abs().amax(-1, keepdim=True)), bits)


def power_below(x: Tensor) -> Tensor:
    """Return the largest power of two that is at most `x`, or 0 if `x` is 0 or subnormal.

    `x` is a float32 tensor without negative numbers; the function applies to each element.
    """
    exponent = x.view(torch.int32) & 0x7F800000
    return exponent.view(torch.float32)


def to_multiples(x: Tensor, unit: Tensor, bits: int) -> Tensor:
    """Round the float32 tensor `x` to multiples of 2^(1 - bits) `unit`.

    `unit` must be 0 or a power of two; where it is a power of two, abs(x) must be below 2 `unit`.
    Otherwise, `x` may be rounded to multiples of another number. Where `unit` is 0, `x` is returned
    unchanged. The function adds a number whose last bit is worth 2^(1 - bits) `unit`, and subtracts
    it again.
    """
    shift = unit * (3 * 2.0 ** (23 - bits))
    return (x + shift).sub_(shift)
