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
    """A scoring head, which replaces the model's own head in one forward pass.

    The scoring head is called once for each block of rows, in order. Because it counts the
    positions that it has scored, each pass needs a new one.
    """

    params: SamplingParams  # the sampling parameters of the completions
    # the kept tokens at each scored position of the pass; if `None`, they are computed from logits
    kept_set: KeptSet | None = None
    # whether logits are computed only at scored positions; if `False`, a CPU computes all logits,
    # as in TRL
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
        """Return the log-probs (N,) and entropies (N,) at the next N positions of the pass.

        If sampling removes tokens (with top-k, top-p or min-p, for example), the kept tokens of
        these positions are appended to `used`.

        Args:
            hidden: (N, H), the last hidden states at these positions.
            weight: (V, H), the weight of the language model head.
            bias: (V,), its bias, or `None`.
            targets: (N,), the tokens to score.
            logit_transform: the logit scale and soft cap.
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
    """A head that reports edge tokens in place of log-probs.

    Instead of a log-prob, it returns 1 for a token that the sampling options (top-k, for example)
    would remove if they were applied to the model's own logits (see `edge_tokens`), and 0 for any
    other token. The entropies are 0.
    """

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
# predicted.
RunModel = Callable[..., Scores]


def outermost(model: torch.nn.Module, first: bool) -> torch.nn.Module:
    """Return the model to call: the DDP wrapper if `first`, otherwise the module that it wraps.

    Only the first call in a batch goes through the wrapper. A model without a DDP wrapper is
    returned unchanged.
    """
    if isinstance(model, DistributedDataParallel) and not first:
        return model.module
    return model


def positions_of(mask: Tensor) -> Tensor:
    """Return each token's position in its sequence, (B, L), given an attention mask (B, L).

    Left padding has position 0, and right padding has that of the last token before it.
    """
    return (mask.cumsum(1) - 1).clamp(min=0)


def labels_of(ids: Tensor, mask: Tensor, width: int) -> Tensor:
    """Return the labels (B, L): the completion tokens, and -100 for tokens that are not scored.

    Args:
        ids: (B, L), the tokens of prompts and completions.
        mask: (B, L), 1 for tokens and 0 for padding; completion tokens with 0 are not scored.
        width: the number of completion columns, which are the last ones.
    """
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-width] = -100
    return labels
