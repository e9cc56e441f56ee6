"""What a step's micro-batches log, averaged over ranks once a step.

TRL makes six to eight calls to the other ranks in each micro-batch, only to log, and some of them need the same number of rows
on every rank. Here each rank notes its own values, and the step's end brings them together in one call: means weighed by
tokens, and extremes for names that end in `min` or `max`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator

from grpo_ext.trainer.logprobs import loss_mask


class LocalAccelerator:
    """An accelerator whose ranks keep what they log to themselves.

    Args:
        accelerator: everything else is passed on to it.
        reduces: whether `reduce` still sums over ranks.
    """

    def __init__(self, accelerator: Accelerator, reduces: bool):
        self._accelerator, self._reduces = accelerator, reduces

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    gather_for_metrics = gather

    def reduce(self, tensor: torch.Tensor, reduction: str = "mean", scale: float = 1.0) -> torch.Tensor:
        return self._accelerator.reduce(tensor, reduction, scale) if self._reduces else tensor


class StepMetrics:
    """The values that the micro-batches of one step have logged so far on this rank."""

    def __init__(self):
        self._noted: dict[str, list[tuple[float, float]]] = {}  # (value, tokens)

    @contextmanager
    def noting(self, trainer: Any, inputs: dict[str, Any]) -> Iterator[None]:
        """Take what is logged in between out of the trainer's metrics."""
        metrics = trainer._metrics["train"]
        before = {name: len(values) for name, values in metrics.items()}
        accelerator = trainer.accelerator
        # adaptive entropy bonus reads a sum over ranks, entropy quantiles are taken over all of their tokens
        if trainer.top_entropy_quantile == 1.0:
            trainer.accelerator = LocalAccelerator(accelerator, reduces=trainer.use_adaptive_entropy)
        try:
            yield
        finally:
            trainer.accelerator = accelerator
        tokens = float(loss_mask(inputs).sum())
        # where no row of a micro-batch is live one stands in for them: what the loss says of it means nothing
        stands_in = trainer.skips_dead_rows and not inputs["advantages"].any()
        for name in list(metrics):
            logged = metrics[name][before.get(name, 0) :]
            del metrics[name][before.get(name, 0) :]
            if not metrics[name]:
                del metrics[name]  # TRL would log it as None
            weight = 0.0 if stands_in and not name.startswith("sampling/") else tokens
            self._noted.setdefault(name, []).extend((value, weight) for value in logged)

    def settle(self, trainer: Any) -> None:
        """Give the trainer one value a name, of all ranks."""
        noted, self._noted = {name: values for name, values in self._noted.items() if values}, {}
        names = sorted(noted)
        if not names:
            return
        mine = torch.tensor([_summary(noted[name]) for name in names], dtype=torch.float64)  # (names, 4)
        device = trainer.accelerator.device
        mine = mine.to(device, torch.float32 if device.type == "mps" else torch.float64)
        ranks = trainer.accelerator.gather(mine).view(-1, len(names), 4)
        sums, lowest, highest = ranks[..., :2].sum(0), ranks[..., 2].amin(0), ranks[..., 3].amax(0)
        for i, name in enumerate(names):
            value = (
                lowest[i] if name.endswith("min") else highest[i] if name.endswith("max") else sums[i, 0] / sums[i, 1]
            )
            if sums[i, 1] and value.isfinite():  # not of a step without a token that counts
                trainer._metrics["train"][name].append(float(value))


def _summary(values: list[tuple[float, float]]) -> tuple[float, float, float, float]:
    """Sum weighed by tokens, sum of tokens, smallest and largest; what is not a number is left out."""
    real = [(value, tokens) for value, tokens in values if tokens and not math.isnan(value)]
    numbers = [value for value, _ in real]
    return (
        sum(value * tokens for value, tokens in real),
        sum(tokens for _, tokens in real),
        min(numbers, default=math.inf),
        max(numbers, default=-math.inf),
    )
