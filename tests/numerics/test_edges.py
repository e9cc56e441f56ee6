"""Kept sets of sampler and trainer, against sets written out by hand."""

from __future__ import annotations

import pytest
import torch

from grpo_ext.common.mismatch_bars import BEYOND_EDGE
from grpo_ext.numerics.edges import Edges, OtherTargets, compare_sets
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.logprob import LogitTransform
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.warpers import kept_tokens
from grpo_ext.scoring.head import Head

VOCAB = 40


def kept_set(sets):
    mask = torch.zeros(len(sets), VOCAB, dtype=torch.bool)
    for row, tokens in enumerate(sets):
        mask[row, list(tokens)] = True
    return KeptSet.from_mask(mask)


def with_token(sets, tokens):
    return kept_set([kept | {token} for kept, token in zip(sets, tokens, strict=True)])


def test_sets_are_compared_position_by_position():
    trainer = [{1, 2, 3}, {4}, {5, 6}, {7}]
    sampler = [{1, 2}, {4}, {5, 6, 9}, {8}]
    drawn = [2, 4, 9, 8]  # the last two are beyond the trainer's edge
    others = [token + 1 for token in drawn]
    found = compare_sets(
        [kept_set(sampler)],
        [with_token(trainer, drawn)],
        [with_token(trainer, others)],
        [torch.tensor(drawn)],
        [torch.arange(4)],
    )
    # alone the sampler: 9, 8; alone the trainer: 3, 7
    assert found == Edges(4, differ=0.75, only_sampler=0.5, only_trainer=0.5, beyond=0.5)


def test_tokens_of_an_environment_are_left_out_and_a_sampler_may_not_return_its_sets():
    trainer = [{1}, {2}, {3}]
    drawn = [9, 2, 9]
    others = [10, 3, 10]
    found = compare_sets(
        None,
        [with_token(trainer, drawn)],
        [with_token(trainer, others)],
        [torch.tensor(drawn)],
        [torch.tensor([1, 2])],
    )
    assert found == Edges(2, None, None, None, beyond=0.5)


def test_many_positions_are_compared_like_few():
    generator = torch.Generator().manual_seed(0)
    masks = torch.rand(2, 200, VOCAB, generator=generator) < 0.3
    masks[:, :, 0] = True
    drawn = torch.randint(VOCAB, (200,), generator=generator)
    others = (drawn + 1) % VOCAB
    at = torch.arange(200)
    with_drawn = masks[1].clone()
    with_drawn[at, drawn] = True
    with_other = masks[1].clone()
    with_other[at, others] = True
    found = compare_sets(
        [KeptSet.from_mask(masks[0])],
        [KeptSet.from_mask(with_drawn)],
        [KeptSet.from_mask(with_other)],
        [drawn],
        [at],
    )
    sampler, trainer = masks
    assert found.beyond == pytest.approx((~trainer[at, drawn]).double().mean().item())
    assert found.only_sampler == pytest.approx((sampler & ~trainer).sum().item() / 200)
    assert found.only_trainer == pytest.approx((trainer & ~sampler).sum().item() / 200)
    assert found.differ == pytest.approx((sampler != trainer).any(1).double().mean().item())


@pytest.mark.parametrize(
    "truncation", [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 7, "top_p": 0.8}]
)
def test_two_heads_find_the_sets_that_truncation_alone_keeps(truncation):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(30, 8, generator=generator)
    weight = torch.randn(VOCAB, 8, generator=generator)
    drawn = torch.randint(VOCAB, (30,), generator=generator)
    params = SamplingParams(temperature=0.8, **truncation)
    used = []
    for head in (Head(params), OtherTargets(params)):
        head(hidden, weight, None, drawn, LogitTransform())
        used += head.used
    own = kept_tokens(hidden @ weight.t() / 0.8, params)
    beyond = (~own[torch.arange(30), drawn]).double().mean().item()
    found = compare_sets(
        [KeptSet.from_mask(own)], [used[0]], [used[1]], [drawn], [torch.arange(30)]
    )
    assert found == Edges(30, 0.0, 0.0, 0.0, beyond=pytest.approx(beyond))
    assert beyond > 0.1 and found.exceeded


def test_the_limit_is_on_drawn_tokens_alone():
    assert not Edges(100, 1.0, 5.0, 5.0, beyond=0.0).exceeded
    assert Edges(100, 0.0, 0.0, 0.0, beyond=1.1 * BEYOND_EDGE.limit).exceeded
