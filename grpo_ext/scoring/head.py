"""The scoring head: from a model's last hidden states to log-probs."""

from collections.abc import Callable
from dataclasses import dataclass, field

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
    # the kept tokens at each scored position of the pass; `None`: found from the logits
    kept_set: KeptSet | None = None
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
        """Return log-probs (N,) and entropies (N,) by `sampling_log_probs`."""
        end = self._scored + len(hidden)
        kept_set = self.kept_set
        if kept_set is not None and len(kept_set) != len(hidden):
            kept_set = kept_set.select(torch.arange(self._scored, end))
        logps, entropies, used = sampling_log_probs(
            hidden, weight, bias, targets, self.params, kept_set, projection
        )
        self._scored = end
        if used is not None:
            self.used.append(used)
        return logps, entropies


# Calls a model with a head instead of its own: `(model, head, labels, **inputs)`. Its scores are 0
# without a label, and have one column less than the input, since the first token has no prediction.
# The reference returns no entropies.
RunModel = Callable[..., Scores]


def outermost(model: torch.nn.Module, first: bool) -> torch.nn.Module:
    """Return the model to call: data parallel ranks call the wrapper once per batch only."""
    if isinstance(model, DistributedDataParallel) and not first:
        return model.module
    return model
