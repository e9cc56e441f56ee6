"""Compare the tokens that top-k, top-p and min-p keep in the sampler and in the trainer.

The scorer treats every token that it scores as kept. The completions are therefore scored twice,
once with the drawn tokens and once with other tokens. The tokens that are kept in both passes are
those that top-k, top-p and min-p keep with the trainer's logits.
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

POSITIONS_AT_ONCE = 64  # number of positions whose masks over the vocabulary are in memory at once


@dataclass(frozen=True)
class Edges:
    """The differences between the tokens that the sampler and the trainer keep.

    Attributes:
        positions: the number of positions that were compared.
        differ: the share of positions at which the kept sets differ; `None` if the sampler does not
            return its sets.
        only_sampler: the mean number of tokens, per position, that only the sampler keeps; `None`
            if the sampler does not return its sets.
        only_trainer: the mean number of tokens, per position, that only the trainer keeps; `None`
            if the sampler does not return its sets.
        beyond: the share of drawn tokens that the trainer would not have kept.
    """

    positions: int
    differ: float | None
    only_sampler: float | None
    only_trainer: float | None
    beyond: float

    @property
    def exceeded(self) -> bool:
        """Whether `beyond` is above its limit, `BEYOND_EDGE`."""
        return self.beyond > BEYOND_EDGE.limit


@dataclass
class OtherTargets(Head):
    """A head that scores, in place of each drawn token, the token with the next id.

    The id after the last one of the vocabulary is 0.
    """

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
    """Return a copy of `scorer` that scores the tokens of `OtherTargets`, not the drawn ones."""

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
    """Compare the tokens that the sampler kept with those that the trainer would keep.

    If there are no positions to compare, all figures are 0, except those that are `None` because
    the sampler does not return its sets.

    Args:
        sampler: the sampler's kept set of each completion; `None` if it does not return them.
        with_drawn: the trainer's kept set of each completion, with the drawn tokens added.
        with_other: the trainer's kept set of each completion, with other tokens added instead.
        drawn: the token ids of each completion, (t,).
        places: the positions in each completion that the policy wrote; only these are compared.
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
