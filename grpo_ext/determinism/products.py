"""Matrix products with weights, computed in tiles of a fixed number of rows.

A library chooses the kernel of a product by its shape, and kernels round differently. For example,
MKL on a CPU rounds the last 1, 2 or 3 rows of a float32 product differently from the same rows
inside a larger matrix. In tiles of one shape, all rows go through the same kernel, whatever the
batch.
"""

from typing import Any

import torch
from torch import Tensor

TILE_ROWS = 32  # a row takes as long in a tile of 32 as among thousands


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear` tile by tile.

    Args:
        x: (..., K), the inputs.
        weight: (M, K).
        bias: (M,) or `None`.
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
    """Compute `torch.mm` tile by tile, without gradients.

    Args:
        x: (N, K), the inputs.
        weight: (K, M).
        out_dtype: the dtype of the computation and of the result; `None`: the dtype of `x`.
        out: (N, M), receives the result; `None`: a new tensor.
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
    """Compute `torch.addmm` tile by tile, without gradients.

    Args:
        added: (M,), or any tensor if `beta` is 0, because it is not read then.
        x: (N, K), the inputs.
        weight: (K, M).
        beta: the factor of `added`.
        alpha: the factor of the product.
        out: (N, M), receives the result; `None`: a new tensor.
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
