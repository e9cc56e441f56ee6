"""Measure how far training has moved the weights, from a few elements of each tensor."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

ELEMENTS = 1024  # the number of elements to copy from each tensor; smaller tensors are copied whole


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, or any other tensor unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def checksum(tensor: Tensor) -> Tensor:
    """Return the int64 sum of a tensor's elements, reading the bits of each as an integer.

    Tensors with different bits nearly always have different sums.
    """
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integers[tensor.element_size()]).sum(dtype=torch.int64)


class WeightSample:
    """A copy of evenly spaced elements of each tensor, to measure later how far they have moved."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._before = {name: elements_of(tensor) for name, tensor in tensors.items()}

    def shift(self, tensors: Mapping[str, Tensor]) -> float | None:
        """Return the norm of the change since the sample was taken, relative to the current norm.

        Tensors that are new or resized, or have no elements on this rank, are left out. The result
        is `None` if no tensor is left, or if all elements are now 0.
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
    """Return at most `ELEMENTS` evenly spaced elements of a tensor, as a CPU tensor (N,).

    For a sharded tensor, the elements are from this rank's part.
    """
    flat = local(tensor.detach()).reshape(-1)
    stride = max(1, -(-flat.numel() // ELEMENTS))
    return flat[::stride].cpu().clone()
