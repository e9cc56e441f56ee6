"""The scoring head: from a model's last hidden states to log-probs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.logprob import Projection, sampling_log_probs
from grpo_ext.objective.sampling import SamplingParams


@dataclass
class Head:
    """The scoring head of one forward pass, which may consist of several blocks of rows."""

    params: SamplingParams  # of the completions
    kept: KeptSet | None = None  # the kept tokens at each scored position of the pass; `None`: found from the logits
    compact: bool = True  # compute logits at the scored positions only; with `False` a CPU computes all of them, as TRL does
    used: list[KeptSet] = field(default_factory=list)  # the kept tokens that each block used
    _scored: int = 0  # positions of the blocks so far

    def __call__(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, projection: Projection
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs (N,) and entropies (N,) of N positions; the arguments are those of `sampling_log_probs`."""
        kept, end = self.kept, self._scored + len(hidden)
        if kept is not None and len(kept) != len(hidden):
            kept = kept.select(torch.arange(self._scored, end))
        logps, entropies, used = sampling_log_probs(hidden, weight, bias, targets, self.params, kept, projection)
        self._scored = end
        self.used += [used] if used is not None else []
        return logps, entropies


class PassOutput(Protocol):
    """The result of a forward pass with labels, with one column less than its input: the first token has no prediction."""

    log_probs: Tensor  # (B, L - 1), 0 without a label
    entropy: Tensor | None  # (B, L - 1); the reference returns none
    aux_loss: Tensor | None


RunModel = Callable[..., PassOutput]  # calls a model with a head instead of its own: `(model, head, labels, **inputs)`


def outermost(model: Any, first: bool) -> Any:
    """Return the model to call: data parallel ranks must call the wrapper once per batch, however many chunks each has."""
    return model.module if isinstance(model, DistributedDataParallel) and not first else model
