"""The scoring head, which turns last hidden states into log-probs, and helpers for its inputs."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from grpo_ext.objective.edge_tokens import edge_tokens
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.logprob import LogitTransform, sampling_log_probs
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.step.records import Scores


@dataclass
class Head:
    """The scoring head of one forward pass, called once per block of rows, in order."""

    params: SamplingParams  # the sampling parameters of the completions
    # the kept tokens at each scored position of the pass; `None`: computed from the logits
    kept_set: KeptSet | None = None
    # compute logits only at the scored positions; with `False`, a CPU computes all logits, as TRL
    # does
    compact: bool = True
    used: list[KeptSet] = field(default_factory=list)  # the kept tokens that each block used
    _scored: int = 0  # number of positions scored so far

    def __call__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        logit_transform: LogitTransform,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs (N,) and entropies (N,) of the next N positions of the pass.

        See `sampling_log_probs` for the arguments. With truncation, the kept tokens are appended to
        `used`.
        """
        end = self._scored + len(hidden)
        kept_set = self.kept_set
        if kept_set is not None and len(kept_set) != len(hidden):
            positions = torch.arange(self._scored, end)
            kept_set = kept_set.select(positions)
        logps, entropies, used = sampling_log_probs(
            hidden,
            weight,
            bias,
            targets,
            self.params,
            kept_set,
            logit_transform,
        )
        self._scored = end
        if used is not None:
            self.used.append(used)
        return logps, entropies


@dataclass
class EdgeHead(Head):
    """A head that returns 1 for `edge_tokens` and 0 for others as log-probs; entropies are 0."""

    def __call__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        logit_transform: LogitTransform,
    ) -> tuple[Tensor, Tensor]:
        edges = edge_tokens(hidden, weight, bias, targets, self.params, logit_transform)
        return edges, torch.zeros_like(edges)


# Calls a model with a `Head` instead of its own: `(model, head, labels, **inputs)`. Scores are 0
# where there is no label, and have one column fewer than the input, since the first token is not
# predicted. The reference returns no entropies.
RunModel = Callable[..., Scores]


def outermost(model: torch.nn.Module, first: bool) -> torch.nn.Module:
    """Return the model to call: a DDP wrapper for the first call of a batch, then its module.

    A model without a DDP wrapper is returned as it is.
    """
    if isinstance(model, DistributedDataParallel) and not first:
        return model.module
    return model


def positions_of(mask: Tensor) -> Tensor:
    """Return the position (B, L) of each token in its sequence; 0 for padding on the left."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def labels_of(ids: Tensor, mask: Tensor, width: int) -> Tensor:
    """Return the labels (B, L): tokens of completions, and -100 for tokens that are not scored.

    The completions are the last `width` columns; `mask` (B, L) is 1 for their tokens.
    """
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-width] = -100
    return labels
