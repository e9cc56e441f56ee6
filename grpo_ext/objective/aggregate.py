"""Aggregate per-token losses into one number, using the counts of the whole optimizer step.

An optimizer step is split into micro-batches and across ranks. Its loss is

    loss = sum over the step's tokens of w(token) loss(token),    w as below,

so each micro-batch contributes its own sum, and the sums add up to the same loss regardless of how
the step is split.

=============  =====================================  ==============================================
aggregation    w(token)                               weight of a token in a completion of n tokens
=============  =====================================  ==============================================
sequence_mean  1 / (sequences n)                      lower in longer completions
token_mean     1 / tokens                             equal in all completions
sequence_sum   1 / sequences                          equal, but higher in steps of fewer tokens
constant       1 / (sequences max_completion_length)  equal, and independent of the samples
=============  =====================================  ==============================================
"""

from dataclasses import dataclass

import torch

AGGREGATIONS = ("sequence_mean", "token_mean", "sequence_sum", "constant")


@dataclass(frozen=True)
class StepCounts:
    """The counts of an optimizer step, over all its micro-batches and ranks."""

    sequences: float  #: completions, including empty ones but excluding masked truncated ones
    tokens: float  #: completion tokens in the loss
    right_tokens: float = 0.0  #: of these, tokens of correct completions


@dataclass(frozen=True)
class Stat:
    """A metric of one micro-batch, to be merged over micro-batches and ranks."""

    #: a partial sum if `kind` is "mean" or "sum", else a minimum or maximum
    value: torch.Tensor | float
    weight: torch.Tensor | float = 1.0  #: the divisor of a mean; 0 excludes the value
    kind: str = "mean"  #: "mean", "sum", "min" or "max"


def aggregate(
    per_token: torch.Tensor,
    mask: torch.Tensor,
    aggregation: str,
    counts: StepCounts,
    max_completion_length: int,
) -> torch.Tensor:
    """Compute one micro-batch's share of the step's loss.

    Args:
        per_token: (B, T), or (B, 1) for one value per sequence.
        mask: (B, T), 1 for counted tokens.
        aggregation: one of `AGGREGATIONS`.
        counts: the counts of the whole optimizer step.
        max_completion_length: the limit in tokens; used only by "constant".

    Returns:
        A scalar. Summed over the micro-batches and ranks of a step, it is the loss of the step (0
        for a step without tokens).
    """
    sums = (per_token * mask).sum(-1)  # (B,)
    if aggregation == "sequence_mean":
        sums = sums / mask.sum(-1).clamp(min=1.0)
    divisor = max(counts.tokens if aggregation == "token_mean" else counts.sequences, 1.0)
    if aggregation == "constant":
        divisor = divisor * max_completion_length
    return sums.sum() / divisor
