"""Tiled log-probs over the whole vocabulary equal log_softmax, with gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from grpo_ext.objective import logit_blocks, logprob
from grpo_ext.objective.logprob import LogitTransform, sampling_log_probs
from grpo_ext.objective.sampling import SamplingParams


def plain(hidden, weight, bias, targets, temperature, logit_transform, suppressed=()):
    logits = linear(hidden, weight, bias).double() * logit_transform.scale
    if logit_transform.softcap is not None:
        logits = logit_transform.softcap * torch.tanh(logits / logit_transform.softcap)
    logits[:, list(suppressed)] = -torch.inf
    log_p = (logits / temperature).log_softmax(-1)
    drawn = log_p[:, [v for v in range(len(weight)) if v not in suppressed]]
    return log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1), -(drawn.exp() * drawn).sum(-1)


@pytest.mark.parametrize("block, tile", [(1, 1), (40, 12), (64, 64), (2**21, 33)])
@pytest.mark.parametrize("logit_transform", [LogitTransform(), LogitTransform(0.5, 3.0)])
@pytest.mark.parametrize("wanted", ["logps", "entropy", "both"])
@pytest.mark.parametrize("with_bias, suppressed", [(False, ()), (True, ()), (True, (3, 7, 4_000))])
@pytest.mark.parametrize("keeps", [True, False])
def test_values_and_gradients(
    monkeypatch, block, tile, logit_transform, wanted, with_bias, suppressed, keeps
):
    monkeypatch.setattr(logit_blocks, "BLOCK_LOGITS", block)
    monkeypatch.setattr(logit_blocks, "TILE_LOGITS", tile)
    monkeypatch.setattr(logprob, "MAX_SAVED_LOGITS", logprob.MAX_SAVED_LOGITS if keeps else 0)
    g = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(*shape, generator=g, requires_grad=True) for shape in ((7, 5), (11, 5), (11,))
    ]
    hidden, weight, bias = tensors if with_bias else (*tensors[:2], None)
    used = [t for t in (hidden, weight, bias) if t is not None]
    targets = torch.randint(11, (7,), generator=g)
    weights = torch.randn(2, 7, generator=g)
    targets[torch.isin(targets, torch.tensor([3, 7]))] = 0  # what is suppressed is not drawn
    params = SamplingParams(0.7, suppressed=suppressed)
    *found, kept = sampling_log_probs(
        hidden, weight, bias, targets, params, logit_transform=logit_transform
    )
    assert kept is None
    wanted_values = plain(
        hidden, weight, bias, targets, 0.7, logit_transform, [v for v in suppressed if v < 11]
    )
    for a, b in zip(found, wanted_values, strict=True):
        assert torch.allclose(a.double(), b, atol=1e-5)
    parts = {"logps": (1, 0), "entropy": (0, 1), "both": (1, 1)}[wanted]

    def loss(values):
        return sum((v * w).sum() for v, w, on in zip(values, weights, parts, strict=True) if on)

    for a, b in zip(
        *(torch.autograd.grad(loss(v), used) for v in (found, wanted_values)), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-5)


def test_no_position_is_allowed():
    hidden = torch.zeros(0, 5, requires_grad=True)
    targets = torch.zeros(0, dtype=torch.long)
    logps, entropy, _ = sampling_log_probs(
        hidden, torch.randn(11, 5), None, targets, SamplingParams()
    )
    assert logps.shape == entropy.shape == (0,)
    logps.sum().backward()
    assert hidden.grad.shape == (0, 5)


HALF_TYPES = [torch.bfloat16, torch.float16]
HALF_PARAMS = [SamplingParams(), SamplingParams(0.7, top_k=20)]


def half_oracle(hidden, weight, bias, targets, params, kept):
    """Log-probs and entropies in float64, of numbers in a half type."""
    z = linear(hidden.double(), weight.double(), bias.double()) / params.temperature
    removed = torch.zeros_like(z, dtype=torch.bool) if kept is None else ~kept.mask()
    log_p = z.masked_fill(removed, -torch.inf).log_softmax(-1)
    p = log_p.exp()
    entropy = -(p * log_p.masked_fill(removed, 0.0)).sum(-1)
    return log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
@pytest.mark.parametrize("params", HALF_PARAMS, ids=["plain", "top_k"])
@pytest.mark.parametrize("autocast", [False, True], ids=["weights", "autocast"])
def test_logits_of_a_half_type_are_not_rounded(dtype, params, autocast):
    """Only the numbers that are multiplied are in the half type; the gradient is rounded to it."""
    g = torch.Generator().manual_seed(0)
    shapes = ((40, 32), (500, 32), (500,))
    given = [3 * torch.randn(*shape, generator=g) for shape in shapes]
    if not autocast:
        given = [tensor.to(dtype) for tensor in given]
    given = [tensor.requires_grad_() for tensor in given]
    targets = torch.randint(500, (40,), generator=g)
    up = torch.randn(40, generator=g)
    with torch.autocast("cpu", dtype, enabled=autocast):
        logps, entropy, kept = sampling_log_probs(*given, targets, params)
    found = torch.autograd.grad((logps * up).sum(), given)

    exact = [tensor.detach().to(dtype).double().requires_grad_() for tensor in given]
    wanted_logps, wanted_entropy = half_oracle(*exact, targets, params, kept)
    wanted = torch.autograd.grad((wanted_logps * up).sum(), exact)
    assert wanted_logps.abs().max() > 30  # where bfloat16 rounds by up to 0.06
    torch.testing.assert_close(logps.double(), wanted_logps, rtol=1e-6, atol=5e-5)
    torch.testing.assert_close(entropy.double(), wanted_entropy, rtol=1e-5, atol=5e-5)
    rounding = 2 * torch.finfo(dtype).eps
    for a, b in zip(found, wanted, strict=True):
        assert (a.double() - b).norm() < rounding * b.norm()


def test_a_suppressed_target_keeps_its_score():
    """It came from elsewhere, such as an image in a tool's answer, and is masked.

    It must only be finite.
    """
    hidden = torch.ones(2, 8)
    weight = torch.randn(9, 8)
    weight[5] = 50.0  # would be all of the mass
    weight.requires_grad_()
    logps, _, _ = sampling_log_probs(
        hidden, weight, None, torch.tensor([4, 4]), SamplingParams(suppressed=(4, 5))
    )
    logits = (hidden @ weight.t()).index_fill(-1, torch.tensor([5]), -torch.inf)
    torch.testing.assert_close(logps, logits.log_softmax(-1)[:, 4])
    logps.sum().backward()
    assert weight.grad.isfinite().all() and not weight.grad[5].any()
