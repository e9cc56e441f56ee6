"""The processes of a run, as the stages of a step see them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ranks:
    """This process and its collectives; all processes make the same calls in the same order."""

    index: int = 0  # the rank of this process
    count: int = 1  # the number of processes
    device: torch.device = CPU  # the device of this process's tensors
    # concatenates equally shaped tensors from all ranks along their first dimension
    gather: Callable[[Tensor], Tensor] = lambda tensor: tensor
    # concatenates the lists of all ranks
    gather_objects: Callable[[list[Any]], list[Any]] = lambda items: items

    @property
    def float_type(self) -> torch.dtype:
        """The most precise floating-point type of the device; an Apple GPU has no float64."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks."""
        return values if self.count == 1 else self.gather(values.unsqueeze(0)).sum(0)

    def any(self, here: bool) -> bool:
        """Return whether `here` is true on any rank."""
        return bool(self.total(torch.tensor(float(here), device=self.device)) > 0)

    def mine(self, rows: int) -> slice:
        """Return this rank's slice of `rows` rows, which are divided evenly among the ranks."""
        share = rows // self.count
        return slice(self.index * share, (self.index + 1) * share)
