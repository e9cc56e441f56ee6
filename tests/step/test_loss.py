"""The loss of a micro-batch.

Its share does not depend on how the step is cut, nor on the number of ranks.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from grpo_ext.objective.policy import StepCounts, get_loss
from grpo_ext.step.loss import LossSettings, step_loss
from grpo_ext.step.metrics import StepStats
from grpo_ext.step.records import MicroBatch, Ranks, Scored, Scores

G = torch.Generator().manual_seed(0)
ROWS = 6
WIDTH = 5
MASK = (torch.arange(WIDTH) < torch.tensor([5, 3, 4, 1, 5, 2]).unsqueeze(1)).long()
LOGPS = -torch.rand(ROWS, WIDTH, generator=G) - 0.1
ENTROPIES = torch.rand(ROWS, WIDTH, generator=G)
ADVANTAGES = torch.randn(ROWS, generator=G)


def piece(rows: slice, last: bool) -> tuple[Scores, MicroBatch]:
    """Some of the step's completions, with the counts of all."""
    n = len(range(*rows.indices(ROWS)))
    ones = torch.ones(n)
    table = Scored(
        prompt_ids=torch.ones(n, 2, dtype=torch.long),
        prompt_mask=torch.ones(n, 2, dtype=torch.long),
        completion_ids=torch.ones(n, WIDTH, dtype=torch.long),
        completion_mask=MASK[rows],
        advantages=ADVANTAGES[rows],
        counted=ones,
        signal=ones,
        policy_step=torch.zeros(n),
    )
    counts = StepCounts(ROWS, float(MASK.sum()))
    return Scores(LOGPS[rows], ENTROPIES[rows]), MicroBatch(table, counts, counts, last)


def total(cuts, ranks, entropy_mask=None):
    """The loss of the step and its `policy_loss`, over pieces that so many ranks share out.

    Ranks average their gradients.
    """
    settings = LossSettings(loss=get_loss("dapo"), ranks=ranks)
    stats = StepStats()
    loss = 0.0
    for rows in cuts:
        scores, batch = piece(rows, rows is cuts[-1])
        mask = None if entropy_mask is None else entropy_mask[rows]
        output = step_loss(scores, batch, settings, 0.3, mask, accumulation=len(cuts) // ranks)
        stats.add(output.stats)
        loss += float(output.loss) / ranks
    return loss, stats.merge(Ranks())["policy_loss"]


def test_loss_and_policy_loss_are_the_same_for_every_cut_and_number_of_ranks():
    whole = total([slice(0, 6)], 1)
    wanted = -(LOGPS.exp() / LOGPS.exp() * ADVANTAGES.unsqueeze(1) * MASK).sum() / MASK.sum()
    assert whole[1] == pytest.approx(float(wanted), abs=1e-6)
    assert whole[0] == pytest.approx(
        float(wanted - 0.3 * (ENTROPIES * MASK).sum() / MASK.sum()), abs=1e-6
    )
    for cuts, ranks in (([slice(0, 2), slice(2, 6)], 1), ([slice(0, 3), slice(3, 6)], 2)):
        assert total(cuts, ranks) == pytest.approx(whole, abs=1e-6)


def test_a_bonus_on_tokens_of_high_entropy_is_not_multiplied_by_the_ranks():
    """It is a mean over each micro-batch.

    With the same completions on each of two ranks it is that of one rank.
    """
    high = (ENTROPIES > 0.5).long()
    (scores, batch), settings = piece(slice(0, 6), True), LossSettings(loss=get_loss("dapo"))
    found = []
    for ranks in (1, 2):
        with_bonus, without = (
            step_loss(scores, batch, replace(settings, ranks=ranks), coef, high).loss
            for coef in (0.3, None)
        )
        found.append(float(without - with_bonus))
    wanted = 0.3 * float((ENTROPIES * MASK * high).sum() / (MASK * high).sum())
    assert found == pytest.approx([wanted, wanted])
