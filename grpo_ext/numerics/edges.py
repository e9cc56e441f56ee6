"""Compare the tokens that a sampler's truncation kept with the tokens that the trainer would keep.

The scorer treats every token that it scores as kept. The completions are therefore scored twice,
once with the drawn tokens and once with other tokens. The trainer's own truncation keeps the tokens
that are kept in both passes.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from grpo_ext.common.mismatch_bars import BEYOND_EDGE
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.logprob import LogitTransform
from grpo_ext.scoring.head import Head, RunModel
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.step.records import Scores

POSITIONS_AT_ONCE = 64  # positions whose masks over the vocabulary are in memory together


@dataclass(frozen=True)
class Edges:
    """The differences between the kept sets of sampler and trainer."""

    positions: int  # number of positions that were compared
    # share of positions with different sets, and mean number of tokens that only one side kept;
    # `None` if the sampler does not return its sets
    differ: float | None
    only_sampler: float | None
    only_trainer: float | None
    beyond: float  # share of drawn tokens that the trainer's truncation would not have kept

    @property
    def exceeded(self) -> bool:
        """Whether the share of drawn tokens beyond the trainer's edge is above `BEYOND_EDGE`."""
        return self.beyond > BEYOND_EDGE.limit


@dataclass
class OtherTargets(Head):
    """A head that scores the token with the next id, modulo V, instead of each drawn token."""

    def __call__(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        logit_transform: LogitTransform,
    ) -> tuple[Tensor, Tensor]:
        other_targets = (targets + 1) % weight.size(0)
        return super().__call__(hidden, weight, bias, other_targets, logit_transform)


def with_other_targets(scorer: Scorer) -> Scorer:
    """Return a scorer that scores tokens other than those drawn, in the same contexts."""

    def run(model: torch.nn.Module, head: Head, labels: Tensor, **inputs: Tensor | bool) -> Scores:
        other = OtherTargets(head.params, head.kept_set, head.compact, head.used)
        return scorer.run(model, other, labels, **inputs)

    replaced: RunModel = run
    return replace(scorer, run=replaced)


def compare_sets(
    sampler: list[KeptSet] | None,
    with_drawn: list[KeptSet],
    with_other: list[KeptSet],
    drawn: list[Tensor],
    places: list[Tensor],
) -> Edges:
    """Compare the kept sets of sampler and trainer over the completions.

    If there are no positions to compare, the figures are 0, except for the `None` figures of a
    sampler that does not return its sets.

    Args:
        sampler: for each completion, the sampler's sets; `None` if it does not return them.
        with_drawn: the trainer's sets, to which the drawn tokens were added.
        with_other: the trainer's sets, to which other tokens were added.
        drawn: the tokens of each completion, (t,).
        places: the positions of each completion that the policy wrote; only these are compared.
    """
    positions = 0
    differing = 0
    only_sampler = 0
    only_trainer = 0
    beyond = 0
    for row, tokens in enumerate(drawn):
        for part in places[row].cpu().split(POSITIONS_AT_ONCE):
            both = with_drawn[row].select(part).mask()
            trainer_kept = both & with_other[row].select(part).mask()  # (n, V)
            drawn_tokens = tokens.cpu()[part].unsqueeze(1)  # (n, 1)
            is_kept = trainer_kept.gather(1, drawn_tokens)  # (n, 1)
            positions += len(part)
            beyond += int((~is_kept).sum())
            if sampler is None:
                continue
            sampler_kept = sampler[row].select(part).mask()  # (n, V)
            only_sampler += int((sampler_kept & ~trainer_kept).sum())
            only_trainer += int((trainer_kept & ~sampler_kept).sum())
            differing += int((sampler_kept != trainer_kept).any(1).sum())
    count = max(positions, 1)
    if sampler is None:
        return Edges(positions, None, None, None, beyond / count)
    return Edges(
        positions,
        differing / count,
        only_sampler / count,
        only_trainer / count,
        beyond / count,
    )
