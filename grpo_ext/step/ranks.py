"""The other processes of a run, as far as a stage needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together. All of them call each function equally often.

    Args:
        index: number of this one.
        count: of all.
        device: of its tensors.
        gather: concatenates tensors of equal shape of all ranks along their first dimension.
        gather_objects: concatenates the lists of all ranks.
    """

    index: int = 0
    count: int = 1
    device: torch.device = CPU
    gather: Callable[[Tensor], Tensor] = lambda tensor: tensor
    gather_objects: Callable[[list[Any]], list[Any]] = lambda items: items

    def total(self, values: Tensor) -> Tensor:
        """The sum of a tensor over all ranks."""
        return values if self.count == 1 else self.gather(values.unsqueeze(0)).sum(0)

    def mine(self, rows: int) -> slice:
        """This rank's of so many rows of all ranks."""
        share = rows // self.count
        return slice(self.index * share, (self.index + 1) * share)
