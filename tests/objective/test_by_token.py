"""At the sequence level, what differs between tokens acts on each token: GSPO-token, against
formulas written with loops.
"""

from __future__ import annotations

import pytest
import torch

from grpo_ext.objective.policy import (
    LossInputs,
    LossOptions,
    StepCounts,
    get_loss,
    importance_ratio,
)
from grpo_ext.step.loss import LossSettings, step_loss
from grpo_ext.step.records import MicroBatch, Scored, Scores
from tests.support.oracle import loss_of_step

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo", "dppo")
LENGTHS = (2, 5, 1)
WIDTH = 5


def micro_batch(old, advantages, sampler_ratio=None, ref=None):
    mask = (torch.arange(WIDTH) < torch.tensor(LENGTHS).unsqueeze(1)).long()
    ones = torch.ones(len(LENGTHS))
    table = Scored(
        prompt_ids=ones.long().unsqueeze(1),
        prompt_mask=ones.long().unsqueeze(1),
        completion_ids=mask,
        completion_mask=mask,
        advantages=advantages,
        counted=ones,
        signal=ones,
        policy_step=mask * 0,
        old_per_token_logps=old,
        importance_sampling_ratio=sampler_ratio,
        ref_per_token_logps=ref,
    )
    counts = StepCounts(len(LENGTHS), sum(LENGTHS))
    return MicroBatch(table, counts, counts)


def random_logps(seed):
    generator = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(3, WIDTH, generator=generator, dtype=torch.float64)
    moved = old + 0.3 * torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)
    return moved.requires_grad_(), old


def oracle_rows(logps, old, advantages, sampler_ratio=None, ref=None):
    rows = []
    for i, length in enumerate(LENGTHS):
        row = {
            "logps": list(logps[i, :length]),
            "old": list(old[i, :length]),
            "advantage": advantages[i, :length].tolist(),
            "masked": False,
            "useful": True,
        }
        if sampler_ratio is not None:
            row["weights"] = list(sampler_ratio[i, :length])
        if ref is not None:
            row["ref"] = list(ref[i, :length])
        rows.append(row)
    return rows


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("name", LOSSES)
def test_advantages_and_weights_of_tokens_act_on_their_tokens(name, level, weighted):
    logps, old = random_logps(1)
    generator = torch.Generator().manual_seed(2)
    advantages = torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)
    weights = None
    if weighted:
        weights = torch.rand(3, WIDTH, generator=generator, dtype=torch.float64) + 0.5
        weights = weights.masked_fill(torch.arange(WIDTH) >= torch.tensor(LENGTHS)[:, None], 1.0)
        weights[0, 1] = 0.0 if name != "vespo" else 0.7  # a token that `token_mask` leaves out
    options = LossOptions(epsilon_high=5.0 if name == "cispo" else 0.2)
    settings = LossSettings(
        get_loss(name), options, importance_sampling_level=level, max_completion_length=11
    )
    loss = step_loss(Scores(logps), micro_batch(old, advantages, weights), settings).loss
    rows = oracle_rows(logps, old, advantages, weights)
    expected = loss_of_step(name, rows, max_length=11, level=level, high=options.epsilon_high)
    gradient, by_formula = (torch.autograd.grad(x, logps)[0] for x in (loss, expected))
    torch.testing.assert_close(gradient, by_formula, rtol=0, atol=1e-12)
    assert gradient.abs().sum() > 0


def test_a_good_turn_is_reinforced_and_a_bad_one_is_not():
    """Two turns, +1 for two tokens and -1 for three, at the policy that sampled: each token gets
    its own advantage.
    """
    logps = torch.full((1, 5), -1.0, dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[1.0, 1.0, -1.0, -1.0, -1.0]])
    mask = torch.ones(1, 5)
    ratio = importance_ratio(logps, logps.detach(), mask, "sequence")
    inputs = LossInputs(logps, logps.detach(), ratio, advantages, mask, LossOptions())
    for name in LOSSES:
        term = get_loss(name).term(inputs)
        gradient = torch.autograd.grad(term.sum(), logps, retain_graph=True)[0]
        assert gradient.sign().tolist() == [[-1.0, -1.0, 1.0, 1.0, 1.0]], name


@pytest.mark.parametrize("masked_token", [0, 3])
def test_a_mask_of_tokens_leaves_out_their_gradient_alone(masked_token):
    """`top_entropy_quantile`, at the sequence level."""
    logps, old = random_logps(3)
    advantages = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    settings = LossSettings(get_loss("grpo"), importance_sampling_level="sequence")
    batch = micro_batch(old, advantages)
    entropy_mask = torch.ones(3, WIDTH)
    entropy_mask[1, masked_token] = 0
    scores = Scores(logps, entropies=torch.ones(3, WIDTH, dtype=torch.float64))
    masked = step_loss(scores, batch, settings, entropy_mask=entropy_mask).loss
    whole = step_loss(scores, batch, settings).loss
    gradient = torch.autograd.grad(masked, logps)[0]
    expected = torch.autograd.grad(whole, logps)[0].masked_fill(entropy_mask == 0, 0.0)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-12)


def test_clip_figures_of_sequences_leave_out_empty_ones():
    logps = torch.tensor([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    mask = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    ratio = importance_ratio(logps, torch.zeros(3, 2), mask, "sequence")
    inputs = LossInputs(
        logps, logps * 0, ratio, torch.ones(3, 1), mask, LossOptions(), level="sequence"
    )
    figures = get_loss("grpo").stats(inputs)
    high = figures["clip_ratio/high_mean"]
    assert float(high.value / high.weight) == pytest.approx(0.5)  # one of two, the first is empty
    weights = get_loss("vespo").stats(inputs)["vespo/phi_seq_mean"]
    assert float(weights.weight) == 2


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_the_kl_of_another_sampler_is_weighted_by_its_ratio(name):
    logps, old = random_logps(4)
    generator = torch.Generator().manual_seed(5)
    ref = old + 0.2 * torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)
    weights = torch.rand(3, WIDTH, generator=generator, dtype=torch.float64) + 0.5
    advantages = torch.zeros(3, WIDTH, dtype=torch.float64)
    for corrected in (True, False):
        settings = LossSettings(get_loss(name), beta=0.3, use_bias_correction_kl=corrected)
        batch = micro_batch(old, advantages, weights, ref)
        loss = step_loss(Scores(logps), batch, settings).loss
        rows = oracle_rows(logps, old, advantages, weights, ref)
        expected = loss_of_step(name, rows, max_length=1, beta=0.3, corrected=corrected)
        torch.testing.assert_close(loss, expected, rtol=0, atol=1e-12)
