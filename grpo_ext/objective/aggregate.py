"""From per-token losses to one number, with the counts of the whole optimizer step.

An optimizer step is cut into micro-batches and shared out over ranks. Its loss is

    loss = sum over the step's tokens of w(token) loss(token),    w as below,

so each piece contributes its own sum, and the pieces add up to the same loss however the step is cut.

=============  =======================================  ==================================================
aggregation    w(token)                                 one token of a completion of length n
=============  =======================================  ==================================================
sequence_mean  1 / (sequences n)                        weighs less the longer its completion is
token_mean     1 / tokens                               weighs the same in all
sequence_sum   1 / sequences                            weighs the same in all, more in shorter steps
constant       1 / (sequences max_completion_length)    weighs the same in all, whatever was sampled
=============  =======================================  ==================================================
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

AGGREGATIONS = ("sequence_mean", "token_mean", "sequence_sum", "constant")


@dataclass(frozen=True)
class StepCounts:
    """What an optimizer step holds, over all its micro-batches and ranks.

    Args:
        sequences: completions that count: not those that were masked for being truncated; empty ones count.
        tokens: completion tokens that take part in the loss.
    """

    sequences: float
    tokens: float


@dataclass(frozen=True)
class Stat:
    """A figure of a micro-batch, to be brought together over micro-batches and ranks.

    Args:
        value: a part of a sum where `kind` is "mean" or "sum", else a smallest or largest value.
        weight: what a mean's sum is divided by; 0 leaves the figure out.
        kind: "mean", "sum", "min" or "max".
    """

    value: torch.Tensor | float
    weight: torch.Tensor | float = 1.0
    kind: str = "mean"


def denominator(aggregation: str, counts: StepCounts, max_completion_length: int) -> float:
    """What the sum over the step is divided by; at least 1, so that a step without tokens has loss 0.

    Raises:
        ValueError: for an aggregation that is none of `AGGREGATIONS`.
    """
    if aggregation in ("sequence_mean", "sequence_sum"):
        return max(counts.sequences, 1.0)
    if aggregation == "token_mean":
        return max(counts.tokens, 1.0)
    if aggregation == "constant":
        return max(counts.sequences, 1.0) * max_completion_length
    raise ValueError(f"aggregation is {aggregation!r}: write one of {', '.join(AGGREGATIONS)}.")


def aggregate(
    per_token: torch.Tensor, mask: torch.Tensor, aggregation: str, counts: StepCounts, max_completion_length: int
) -> torch.Tensor:
    """One micro-batch's share of the step's loss.

    Args:
        per_token: (B, T), or (B, 1) for one value a sequence.
        mask: (B, T), 1 for tokens that count.
        aggregation: one of `AGGREGATIONS`.
        counts: of the whole optimizer step.
        max_completion_length: in tokens; only "constant" reads it.

    Returns:
        A scalar; summed over the micro-batches and ranks of the step it is the step's loss.
    """
    sums = (per_token * mask).sum(-1)  # (B,)
    if aggregation == "sequence_mean":
        sums = sums / mask.sum(-1).clamp(min=1.0)
    return sums.sum() / denominator(aggregation, counts, max_completion_length)
