"""What turns a model's last hidden states into log-probs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.logprob import Projection, sampling_log_probs
from grpo_ext.objective.sampling import SamplingParams


@dataclass
class Head:
    """The scoring head of one forward pass, which may come in several blocks of rows.

    Args:
        params: how the completions were sampled.
        kept: the tokens that were kept at each scored position of the pass; `None` to find them from the logits.
        compact: compute logits at the scored positions alone; with `False` a CPU computes all of them, as TRL does.
    """

    params: SamplingParams
    kept: KeptSet | None = None
    compact: bool = True
    used: list[KeptSet] = field(default_factory=list)  # those that each block used
    _scored: int = 0  # positions of the blocks so far

    def __call__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, projection: Projection
    ) -> tuple[Tensor, Tensor]:
        """Log-probs (N,) and entropies (N,) of N positions; the arguments are those of `sampling_log_probs`."""
        kept, end = self.kept, self._scored + len(hidden)
        if kept is not None and len(kept) != len(hidden):
            kept = kept.select(torch.arange(self._scored, end))
        logps, entropies, used = sampling_log_probs(hidden, weight, bias, targets, self.params, kept, projection)
        self._scored = end
        self.used += [used] if used is not None else []
        return logps, entropies


class PassOutput(Protocol):
    """What a forward pass with labels gives, a column less than its input: each token is predicted by those before it."""

    log_probs: Tensor  # (B, L - 1), 0 where there is no label
    entropy: Tensor | None  # (B, L - 1); the reference gives none
    aux_loss: Tensor | None


class RunModel(Protocol):
    """Calls a model with a head in place of its own."""

    def __call__(self, model: Any, head: Head, labels: Tensor, **inputs: Any) -> PassOutput: ...
