"""Policy terms, aggregation, KL and advantages against formulas written with loops.

Sampling parameters and presets.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.objective.advantage import equal_in_group, group_advantages
from grpo_ext.objective.kl import kl_per_token
from grpo_ext.objective.policy import (
    LossInputs,
    LossOptions,
    StepCounts,
    aggregate,
    get_loss,
    importance_ratio,
    loss_names,
    register_loss,
)
from grpo_ext.objective.presets import PRESETS
from grpo_ext.objective.sampling import (
    FIELD_DEFAULTS,
    SamplingError,
    SamplingParams,
    resolve_sampling,
)
from tests.support.oracle import loss_of_step, token_term

BUILT_IN = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo", "dppo")


def batch(seed: int = 0, rows: int = 6, length: int = 7):
    """Log-probs that have moved far enough for clipping on both sides, lengths from 0 to all."""
    g = torch.Generator().manual_seed(seed)
    old = -3 * torch.rand(rows, length, generator=g)
    logps = (old + 0.4 * torch.randn(rows, length, generator=g)).requires_grad_()
    lengths = torch.tensor(
        [0, length, *torch.randint(1, length, (rows - 2,), generator=g).tolist()]
    )
    mask = (torch.arange(length) < lengths.unsqueeze(1)).float()
    return logps, old, torch.randn(rows, generator=g), mask


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("delta", [None, 1.1])
def test_a_loss_cut_in_two_is_the_formula(name, level, delta):
    logps, old, advantages, mask = batch()
    options = LossOptions(0.1, 0.3, delta)
    counts = StepCounts(sequences=len(mask), tokens=float(mask.sum()))
    loss = torch.zeros(())
    for part in (slice(0, 2), slice(2, 6)):
        ratio = importance_ratio(logps[part], old[part], mask[part], level)
        x = LossInputs(
            logps[part], old[part], ratio, advantages[part].unsqueeze(1), mask[part], options
        )
        loss = loss + aggregate(
            get_loss(name).term(x), mask[part], get_loss(name).aggregation, counts, 11
        )
    rows = [
        {
            "logps": [logps[i, t] for t in range(int(mask[i].sum()))],
            "old": [old[i, t] for t in range(int(mask[i].sum()))],
            "advantage": float(advantages[i]),
            "masked": False,
            "useful": True,
        }
        for i in range(len(mask))
    ]
    wanted = loss_of_step(name, rows, max_length=11, level=level, low=0.1, high=0.3, delta=delta)
    torch.testing.assert_close(loss, wanted, rtol=1e-5, atol=1e-6)
    got, expected = (
        torch.autograd.grad(value, logps, retain_graph=True)[0] for value in (loss, wanted)
    )
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
    assert got.abs().sum() > 0


def test_clipping_at_its_corners():
    o = {"low": 0.2, "high": 0.2, "delta": 3.0}
    for ratio, advantage, wanted in (
        (5.0, 1.0, -1.2),
        (5.0, -1.0, 3.0),
        (0.5, 1.0, -0.5),
        (0.5, -1.0, 0.8),
    ):
        w = torch.tensor([[ratio]])
        x = LossInputs(
            w.log(), w.log() * 0, w, torch.tensor([[advantage]]), w * 0 + 1, LossOptions(delta=3.0)
        )
        assert get_loss("grpo").term(x).item() == pytest.approx(wanted)
        assert float(token_term("grpo", w[0, 0], advantage, w, [], o)) == pytest.approx(wanted)


def test_losses_are_registered_once_and_found_by_name():
    assert set(BUILT_IN) <= set(loss_names())
    assert all("arXiv" in get_loss(n).term.__doc__ or n == "bnpo" for n in BUILT_IN)
    with pytest.raises(ValueError, match="already registered"):
        register_loss("dapo", aggregation="token_mean")
    with pytest.raises(ValueError, match="unknown aggregation 'mean'"):
        register_loss("mine", aggregation="mean")
    with pytest.raises(ValueError, match="loss_type: unknown loss 'drgrpo'"):
        get_loss("drgrpo")


def test_nothing_that_counts_is_a_loss_of_zero():
    per_token = torch.ones(2, 3, requires_grad=True)
    for aggregation in ("sequence_mean", "token_mean", "sequence_sum", "constant"):
        loss = aggregate(per_token, torch.zeros(2, 3), aggregation, StepCounts(0, 0), 5)
        assert loss.item() == 0.0
        assert torch.autograd.grad(loss, per_token)[0].abs().sum() == 0


def test_kl_estimators_agree_in_the_mean():
    g = torch.Generator().manual_seed(0)
    p, q = (torch.randn(12, generator=g).mul(0.5).log_softmax(-1) for _ in range(2))
    exact = (p.exp() * (p - q)).sum()
    for name in ("k1", "k3"):  # unbiased: their mean over the policy is the KL
        assert (p.exp() * kl_per_token(p, q, name)).sum().item() == pytest.approx(
            exact.item(), rel=1e-4
        )
    assert (kl_per_token(p, q, "k2") >= 0).all() and (kl_per_token(p, q, "k3") >= 0).all()
    torch.testing.assert_close(
        kl_per_token(p, q, "k3", torch.tensor(2.0)), 2 * kl_per_token(p, q, "k3")
    )


@pytest.mark.parametrize("log_r", [0.5, 20.0, 60.0])
def test_the_gradient_of_corrected_k3_is_exact_far_from_the_reference(log_r):
    logps = torch.tensor([-log_r - 1.0, -2.0], requires_grad=True)
    ratio = torch.exp(logps - torch.tensor([-log_r - 1.5, -2.1]))
    kl_per_token(logps, torch.tensor([-1.0, -2.5]), "k3", ratio).sum().backward()
    wanted = [-math.exp(0.5) * log_r, math.exp(0.1) * 0.5]  # -p / p_old * log r
    assert logps.grad.tolist() == pytest.approx(wanted, rel=1e-5)


def plain_advantages(rewards: list[float], size: int, scale: str, estimator: str) -> list[float]:
    groups = [rewards[i : i + size] for i in range(0, len(rewards), size)]
    std = statistics.stdev if estimator == "sample" else statistics.pstdev
    out = []
    for group in groups:
        known = [r for r in group if not math.isnan(r)]
        flat = len(known) == 0 or max(known) == min(known)
        for r in group:
            if math.isnan(r) or flat:
                out.append(0.0)
                continue
            by = {"none": None, "group": known, "batch": [x for x in rewards if not math.isnan(x)]}[
                scale
            ]
            out.append((r - statistics.mean(known)) / (1.0 if by is None else std(by) + 1e-4))
    return out


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.3, 1.0, 1.25, math.nan]), min_size=12, max_size=12),
    st.sampled_from(["group", "batch", "none"]),
    st.sampled_from(["sample", "population"]),
)
def test_advantages_are_the_formula(rewards, scale, estimator):
    got = group_advantages(torch.tensor(rewards), 4, scale, estimator)
    assert got.tolist() == pytest.approx(plain_advantages(rewards, 4, scale, estimator), abs=2e-4)


def test_equal_rewards_give_exactly_zero():
    value = next(
        x / 100
        for x in range(1, 100)
        if (torch.full((7,), x / 100).mean() - torch.tensor(x / 100)).abs() > 0
    )
    rewards = torch.tensor(
        [value] * 7 + [0.2, 0.3, 0.2, 0.2, 0.2, 0.2, math.nan]
    )  # a mean that rounds off its values
    advantages = group_advantages(rewards, 7)
    assert advantages[:7].tolist() == [0.0] * 7 and advantages[13] == 0 and advantages[7] != 0
    assert equal_in_group(rewards, 7).tolist() == [True] * 7 + [False] * 7


def test_two_completions_are_one_apart_with_the_population_std():
    assert group_advantages(
        torch.tensor([0.0, 1.0]), 2, std_estimator="population"
    ).tolist() == pytest.approx([-1, 1], abs=1e-3)
    assert group_advantages(torch.tensor([0.0, 1.0]), 2).tolist() == pytest.approx(
        [-0.7071, 0.7071], abs=1e-3
    )


@pytest.mark.parametrize(
    "changed, given, model, expected",
    [
        ({}, {}, {}, SamplingParams()),
        ({"temperature": 0.7, "top_k": 5}, {"top_p": 0.9}, {}, SamplingParams(0.7, 5, 0.9)),
        ({}, {"temperature": 0.5}, {"temperature": 0.2}, SamplingParams(0.5)),
        (
            {},
            {},
            {"min_p": 0.05, "top_k": 20, "temperature": 0.6},
            SamplingParams(min_p=0.05),
        ),  # fields win, None does not
        ({}, {"top_k": None}, {}, SamplingParams(top_k=50)),  # transformers' own default
        ({}, {"top_k": None}, {"top_k": 20}, SamplingParams(top_k=20)),
        ({"top_k": 5}, {"top_k": 5}, {}, SamplingParams(top_k=5)),
        ({}, {"min_new_tokens": 1}, {}, SamplingParams(masked=True)),
        ({}, {"suppress_tokens": [0]}, {"typical_p": 1.0}, SamplingParams(suppressed=(0,))),
    ],
)
def test_effective_sampling(changed, given, model, expected):
    assert resolve_sampling({**FIELD_DEFAULTS, **changed}, given, model) == expected


@pytest.mark.parametrize(
    "changed, given, watched, option, words",
    [
        (
            {"top_k": 5},
            {"top_k": 8},
            True,
            "top_k",
            "top_k is 5, but generation_kwargs sets `top_k: 8`",
        ),
        ({}, {"num_beams": 4}, True, "num_beams", "beam search does not sample"),
        ({}, {"penalty_alpha": 0.6}, True, "penalty_alpha", "contrastive search"),
        ({"repetition_penalty": 1.1}, {}, True, "repetition_penalty", "logprob_policy: model"),
        ({}, {"do_sample": False}, True, "do_sample", "greedy"),
        ({}, {"bad_words_ids": [[3]]}, False, "bad_words_ids", "does not report which tokens"),
        ({"temperature": 0.0}, {}, True, "temperature", "Set temperature above 0"),
        ({"top_p": 0.0}, {}, True, "top_p", "must lie in"),
        ({"min_p": 1.5}, {}, True, "min_p", "must lie in"),
        ({}, {"top_p": "0. 9"}, True, "top_p", "top_p is '0. 9', but must be a number"),
        ({"top_k": math.inf}, {}, True, "top_k", "top_k is inf, but must be a finite number"),
        ({"top_k": math.nan}, {}, True, "top_k", "top_k is nan, but must be a finite number"),
        ({}, {"min_p": 2}, True, "min_p", r"min_p is 2, but must lie in \[0, 1\]"),
        ({}, {"suppress_tokens": 5}, True, "suppress_tokens", "must be a list of token ids"),
    ],
)
def test_what_cannot_be_scored_is_refused(changed, given, watched, option, words):
    with pytest.raises(SamplingError, match=words) as refusal:
        resolve_sampling({**FIELD_DEFAULTS, **changed}, given, {}, watched=watched)
    assert refusal.value.option == option
    assert str(refusal.value).startswith(f"{refusal.value.problem}.")


def test_vllm_takes_nothing_from_the_model():
    fields_ = {**FIELD_DEFAULTS, "min_p": None}
    assert resolve_sampling(fields_, {}, None, sampler="vllm") == SamplingParams(order="vllm")


def test_presets_set_fields_that_exist_and_name_their_source():
    from grpo_ext import GRPOExtConfig

    known = {f.name for f in fields(GRPOExtConfig)}
    assert list(PRESETS) == ["grpo_paper", "dr_grpo_paper", "dapo_paper", "trl"]
    for values in PRESETS.values():
        assert set(values) <= known
        assert all(source for _, source in values.values())
