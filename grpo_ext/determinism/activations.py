"""Activation functions whose result for an element does not depend on its position in the tensor.

On a CPU, torch computes most elements of a tensor with vector instructions, and the remaining ones
one by one. In torch's `silu`, `sigmoid` and tanh form of `gelu`, the two methods round differently;
in `exp` and `tanh`, they do not.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def silu(x: Tensor, inplace: bool = False) -> Tensor:
    """Return `x * sigmoid(x)` as a new tensor; `inplace` is ignored."""
    wide = x.float()
    return (wide * sigmoid(wide)).to(x.dtype)


def sigmoid(x: Tensor) -> Tensor:
    """Return `1 / (1 + exp(-x))`, computed in float32 and converted to the dtype of `x`."""
    output: Tensor = _Sigmoid.apply(x)
    return output


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Compute `gelu` in its exact form if `approximate` is "none", otherwise in its tanh form."""
    if approximate == "none":
        return functional.gelu(x)
    wide = x.float()
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    return (0.5 * wide * (1 + torch.tanh(inner))).to(x.dtype)


class _Sigmoid(torch.autograd.Function):
    """`sigmoid` with its own backward pass, since autograd's is NaN where exp(-x) is infinite."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        odds = torch.exp(-x.float())
        output = (1 / (1 + odds)).to(x.dtype)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        [output] = ctx.saved_tensors
        return grad * output * (1 - output)
