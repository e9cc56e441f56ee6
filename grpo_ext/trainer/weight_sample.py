"""How far training has moved the weights, from a few elements of each tensor."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

ELEMENTS = 1024  # of each tensor, or all of a smaller one


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor; any other tensor unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def checksum(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's elements read as integers: a scalar on its device."""
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integers[tensor.element_size()]).sum(dtype=torch.int64)


class WeightSample:
    """Evenly spaced elements of each tensor, as they were when the sample was taken."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._before = {name: elements_of(tensor) for name, tensor in tensors.items()}

    def shift(self, tensors: Mapping[str, Tensor]) -> float | None:
        """Return the norm of the change since then, divided by the norm of the elements.

        Tensors without elements on this rank, or of another shape than then, are left out; `None`
        if none is left.
        """
        change = 0.0
        size = 0.0
        for name, tensor in tensors.items():
            before = self._before.get(name)
            now = elements_of(tensor)
            if before is None or before.shape != now.shape or not len(now):
                continue
            change += float((now.double() - before.double()).square().sum())
            size += float(now.double().square().sum())
        return (change / size) ** 0.5 if size else None


def elements_of(tensor: Tensor) -> Tensor:
    """Return a copy of at most `ELEMENTS` evenly spaced elements, on the CPU: (N,)."""
    flat = local(tensor.detach()).reshape(-1)
    stride = max(1, -(-flat.numel() // ELEMENTS))
    return flat[::stride].cpu().clone()
