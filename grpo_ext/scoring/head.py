"""The scoring head: from a model's last hidden states to log-probs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.logprob import Projection, sampling_log_probs
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.step.records import Scores


@dataclass
class Head:
    """The scoring head of one forward pass, which may consist of several blocks of rows."""

    params: SamplingParams  # of the completions
    kept: KeptSet | None = (
        None  # the kept tokens at each scored position of the pass; `None`: found from the logits
    )
    # compute logits at the scored positions only; with `False` a CPU computes all of them, as TRL
    # does
    compact: bool = True
    used: list[KeptSet] = field(default_factory=list)  # the kept tokens that each block used
    _scored: int = 0  # positions of the blocks so far

    def __call__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        projection: Projection,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs (N,) and entropies (N,) of N positions; the arguments are those of
        `sampling_log_probs`.
        """
        kept = self.kept
        end = self._scored + len(hidden)
        if kept is not None and len(kept) != len(hidden):
            kept = kept.select(torch.arange(self._scored, end))
        logps, entropies, used = sampling_log_probs(
            hidden, weight, bias, targets, self.params, kept, projection
        )
        self._scored = end
        self.used += [used] if used is not None else []
        return logps, entropies


# Calls a model with a head instead of its own: `(model, head, labels, **inputs)`. Its scores are 0
# without a label, and have one column less than the input, since the first token has no prediction.
# The reference returns no entropies.
RunModel = Callable[..., Scores]


def outermost(model: Any, first: bool) -> Any:
    """Return the model to call: data parallel ranks must call the wrapper once per batch, however
    many chunks each has.
    """
    return model.module if isinstance(model, DistributedDataParallel) and not first else model
