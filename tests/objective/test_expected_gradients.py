"""What the KL and the entropy bonus train, by enumeration.

Every completion of two tokens, weighed by its probability.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from grpo_ext.objective.correction import sampler_correction
from grpo_ext.objective.kl import REFUSED
from grpo_ext.objective.policy import StepCounts, get_loss
from grpo_ext.step.loss import EntropyControl, LossSettings, step_loss
from grpo_ext.step.records import MicroBatch, Scored, Scores

V = 8
G = torch.Generator().manual_seed(0)
# logits of the first token (V,) and, for each first token, of the second (V, V)
POLICY, REFERENCE, OLDER = (
    [
        torch.randn(V, dtype=torch.float64, generator=G),
        torch.randn(V, V, dtype=torch.float64, generator=G),
    ]
    for _ in range(3)
)
ACCEPTED = [
    pair for pair in itertools.product(("k1", "k2", "k3"), (False, True)) if pair not in REFUSED
]


def parameters():
    return [x.clone().requires_grad_() for x in POLICY]


def log_probs(logits, a, b):
    """(1, 2), of the completion of tokens a and b."""
    return torch.stack([logits[0].log_softmax(-1)[a], logits[1][a].log_softmax(-1)[b]]).unsqueeze(0)


def probability(logits, a, b):
    return log_probs(logits, a, b).sum().exp()


def entropies(logits, a):
    """(1, 2), of the two positions after a first token a."""
    rows = torch.stack([logits[0], logits[1][a]]).log_softmax(-1)
    return -(rows.exp() * rows).sum(-1).unsqueeze(0)


def micro_batch(old, ref=None):
    """One completion of advantage 0, so that its policy term has no gradient."""
    ones = torch.ones(1, 2, dtype=torch.long)
    table = Scored(ones, ones, ones, ones, torch.zeros(1), *(torch.ones(1) for _ in range(4)))
    table = Scored(**{**vars(table), "old_per_token_logps": old, "ref_per_token_logps": ref})
    return MicroBatch(table, StepCounts(1, 2), StepCounts(1, 2))


def expected_kl_gradient(
    estimator,
    corrected,
    level="token",
    sampler=POLICY,
    engine=None,
    highest=None,
    mode="sequence_truncate",
):
    """`engine`: the logits of another engine, which samples with them in place of `sampler`.

    `highest` bounds its ratio.
    """
    theta = parameters()
    settings = LossSettings(
        get_loss("dapo"),
        importance_sampling_level=level,
        beta=1.0,
        kl_estimator=estimator,
        use_bias_correction_kl=corrected,
    )
    loss = 0.0
    for a, b in itertools.product(range(V), repeat=2):
        old = log_probs(sampler, a, b)
        batch = micro_batch(old, log_probs(REFERENCE, a, b))
        sampled = engine or sampler
        if engine is not None:
            ratio = sampler_correction(
                old, log_probs(engine, a, b), torch.ones(1, 2), mode, None, highest
            )
            batch = replace(batch, rows=replace(batch.rows, importance_sampling_ratio=ratio))
        loss += (
            probability(sampled, a, b)
            * step_loss(Scores(log_probs(theta, a, b)), batch, settings).loss
        )
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, theta)])


def kl_gradient(kind, sampler=POLICY):
    """Of the mean over both positions of KL(p, q) or KL(q, p).

    The first token is the sampler's and has no gradient.
    """
    theta = parameters()
    first = sampler[0].softmax(-1)

    def kl(p, q):
        p, q = (p, q) if kind == "reverse" else (q, p)
        return (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1)

    loss = (kl(theta[0], REFERENCE[0]) + (first * kl(theta[1], REFERENCE[1])).sum()) / 2
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, theta)])


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("estimator", "corrected"), ACCEPTED)
def test_what_is_accepted_has_the_gradient_of_a_kl(estimator, corrected, level):
    kind = "forward" if (estimator, corrected) == ("k3", False) else "reverse"
    torch.testing.assert_close(
        expected_kl_gradient(estimator, corrected, level), kl_gradient(kind), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_corrected_it_is_exact_for_completions_of_an_older_policy(estimator, level):
    found = expected_kl_gradient(estimator, True, level, OLDER)
    wanted = kl_gradient("reverse", OLDER)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def noisy(logits, noise):
    """The logits of an engine that computes with errors of this size."""
    generator = torch.Generator().manual_seed(7)
    errors = [torch.randn(x.shape, dtype=x.dtype, generator=generator) for x in logits]
    return [x + noise * error for x, error in zip(logits, errors, strict=True)]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
@pytest.mark.parametrize("sampler", [POLICY, OLDER])
def test_corrected_it_is_exact_for_completions_of_another_engine(estimator, level, sampler):
    engine = noisy(sampler, 0.1)
    gradient = expected_kl_gradient(estimator, True, level, sampler, engine)
    torch.testing.assert_close(gradient, kl_gradient("reverse", sampler), rtol=0, atol=1e-10)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_corrected_by_token_it_is_exact_after_what_the_engine_wrote(estimator):
    engine = noisy(POLICY, 0.1)
    gradient = expected_kl_gradient(estimator, True, engine=engine, mode="token_truncate")
    torch.testing.assert_close(gradient, kl_gradient("reverse", engine), rtol=0, atol=1e-10)


def test_a_bound_on_the_ratio_of_the_engine_biases_the_kl():
    engine = noisy(POLICY, 0.3)
    exact = kl_gradient("reverse")
    errors = []
    for highest in (1.1, 2.0, None):
        gradient = expected_kl_gradient("k3", True, engine=engine, highest=highest)
        errors.append(((gradient - exact).norm() / exact.norm()).item())
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-12
    print("relative error of the KL's gradient, ratio bounded by 1.1, 2, not:", errors)


def test_what_is_refused_does_not():
    assert set(REFUSED) == {("k1", False), ("k2", True)}
    assert expected_kl_gradient("k1", False).abs().max() < 1e-12
    wanted = kl_gradient("reverse")
    assert (expected_kl_gradient("k2", True) - wanted).norm() > 0.5 * wanted.norm()


@pytest.mark.parametrize("quantile", [False, True])
@pytest.mark.parametrize("adaptive", [False, True])
def test_the_bonus_has_the_gradient_of_the_entropy(quantile, adaptive):
    """Of both positions, or of the one of higher entropy.

    At the coefficient that the controller has moved to.
    """
    control = EntropyControl(True, adaptive, target=1.0, delta=0.05, lowest=0.0, highest=1.0)
    coef = control.weight(control.coef_after(0.3, 0.9), 0.9)
    assert coef == pytest.approx(0.35 if adaptive else 0.3)
    theta = parameters()
    exact = parameters()
    loss = wanted = 0.0
    for a, b in itertools.product(range(V), repeat=2):
        h = entropies(theta, a)
        mask = (h >= h.max()).long() if quantile else None
        scores = Scores(log_probs(theta, a, b), h)
        batch = micro_batch(log_probs(POLICY, a, b))
        p = probability(POLICY, a, b)
        loss += p * step_loss(scores, batch, LossSettings(get_loss("dapo")), coef, mask).loss
        wanted -= p * coef * (entropies(exact, a).max() if quantile else entropies(exact, a).mean())
    found, wanted = (torch.autograd.grad(x, y) for x, y in ((loss, theta), (wanted, exact)))
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-10)
