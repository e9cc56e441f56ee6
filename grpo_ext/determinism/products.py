"""Matrix multiplications by weights, computed in tiles with a fixed number of rows.

Libraries choose the kernel for a matrix multiplication by its shape, and kernels round differently.
For example, MKL on a CPU rounds the last 1, 2 or 3 rows of a float32 result differently from the
same rows inside a larger matrix. In tiles of one shape, all rows are computed by the same kernel,
whatever the batch.
"""

from typing import Any

import torch
from torch import Tensor

TILE_ROWS = 32  # with this many rows, the time per row is about the same as with thousands


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear` in tiles of `TILE_ROWS` rows.

    Gradients are supported; the backward pass is not tiled.

    Args:
        x: (..., K), the inputs.
        weight: (M, K), the weights.
        bias: (M,), or `None` for no bias.

    Returns:
        The outputs, (..., M), in the dtype of autocast if it is enabled, or else that of `x`.
    """
    device = x.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x = x.to(dtype)
        weight = weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    rows = x.reshape(-1, x.size(-1))  # (N, K)
    with torch.autocast(device, enabled=False):
        product: Tensor = _TiledLinear.apply(rows, weight, bias)
    return product.unflatten(0, x.shape[:-1])


def mm(
    x: Tensor,
    weight: Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Compute `torch.mm` in tiles of `TILE_ROWS` rows; gradients are not supported.

    Args:
        x: (N, K), the inputs.
        weight: (K, M), the weights.
        out_dtype: the dtype of the computation and the result; if `None`, the dtype of `x`.
        out: (N, M), the tensor to write the result to; if `None`, a new tensor.

    Returns:
        The tensor with the result, which is `out` if it is given.
    """
    if out_dtype is not None:
        x = x.to(out_dtype)
        weight = weight.to(out_dtype)
    return addmm(x, x, weight, beta=0, out=out)


def addmm(
    added: Tensor,
    x: Tensor,
    weight: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """Compute `torch.addmm` in tiles of `TILE_ROWS` rows; gradients are not supported.

    Args:
        added: (M,), the vector to add to each row; if `beta` is 0, any tensor, which is ignored.
        x: (N, K), the inputs.
        weight: (K, M), the weights.
        beta: the factor for `added`.
        alpha: the factor for the matrix product.
        out: (N, M), the tensor to write the result to; if `None`, a new tensor.

    Returns:
        The tensor with the result, which is `out` if it is given.
    """
    if out is None:
        out = x.new_empty(len(x), weight.size(1))
    for start in range(0, len(x), TILE_ROWS):
        tile = x[start : start + TILE_ROWS]  # (n, K)
        place = out[start : start + TILE_ROWS]  # (n, M)
        if len(tile) == TILE_ROWS:
            summand = place if beta == 0 else added
            torch.addmm(summand, tile, weight, beta=beta, alpha=alpha, out=place)
            continue
        whole_tile = x.new_zeros(TILE_ROWS, x.size(1))
        whole_tile[: len(tile)] = tile
        whole_place = out.new_empty(TILE_ROWS, out.size(1))
        summand = whole_place if beta == 0 else added
        torch.addmm(summand, whole_tile, weight, beta=beta, alpha=alpha, out=whole_place)
        place.copy_(whole_place[: len(tile)])
    return out


class _TiledLinear(torch.autograd.Function):
    """`linear` for rows (N, K), with a backward pass that is not tiled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        if bias is None:
            return addmm(x, x, weight.t(), beta=0)
        return addmm(bias, x, weight.t())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_x = grad @ weight if needs_x else None
        grad_weight = grad.t() @ x if needs_weight else None
        grad_bias = grad.sum(0) if needs_bias else None
        return grad_x, grad_weight, grad_bias
