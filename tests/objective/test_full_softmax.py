"""Tiled log-probs over the whole vocabulary equal log_softmax, with gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

import grpo_ext.objective.full_softmax as room
from grpo_ext.objective.logprob import Projection


def plain(hidden, weight, bias, targets, temperature, projection):
    logits = linear(hidden, weight, bias).double() * projection.scale
    if projection.softcap is not None:
        logits = projection.softcap * torch.tanh(logits / projection.softcap)
    log_p = (logits / temperature).log_softmax(-1)
    return log_p.gather(-1, targets.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("tile", [1, 64, 2**21])
@pytest.mark.parametrize("projection", [Projection(), Projection(0.5, 3.0)])
@pytest.mark.parametrize("wanted", ["logps", "entropy", "both"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients(monkeypatch, tile, projection, wanted, with_bias):
    monkeypatch.setattr(room, "TILE_LOGITS", tile)
    g = torch.Generator().manual_seed(0)
    tensors = [torch.randn(*shape, generator=g, requires_grad=True) for shape in ((7, 5), (11, 5), (11,))]
    hidden, weight, bias = tensors if with_bias else (*tensors[:2], None)
    used = [t for t in (hidden, weight, bias) if t is not None]
    targets, weights = torch.randint(11, (7,), generator=g), torch.randn(2, 7, generator=g)
    found, wanted_values = (f(hidden, weight, bias, targets, 0.7, projection) for f in (room.full_log_probs, plain))
    for a, b in zip(found, wanted_values, strict=True):
        assert torch.allclose(a.double(), b, atol=1e-5)
    parts = {"logps": (1, 0), "entropy": (0, 1), "both": (1, 1)}[wanted]

    def loss(values):
        return sum((v * w).sum() for v, w, on in zip(values, weights, parts, strict=True) if on)

    for a, b in zip(*(torch.autograd.grad(loss(v), used) for v in (found, wanted_values)), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_no_position_is_allowed():
    hidden = torch.zeros(0, 5, requires_grad=True)
    logps, entropy = room.full_log_probs(hidden, torch.randn(11, 5), None, torch.zeros(0, dtype=torch.long))
    assert logps.shape == entropy.shape == (0,)
    logps.sum().backward()
    assert hidden.grad.shape == (0, 5)


def test_half_precision_rounds_logits_as_the_model_does():
    hidden, weight = torch.randn(6, 8).bfloat16(), torch.randn(9, 8).bfloat16()
    targets = torch.arange(6)
    logps, _ = room.full_log_probs(hidden, weight, None, targets)
    assert torch.allclose(logps, (hidden @ weight.t()).float().log_softmax(-1)[torch.arange(6), targets], atol=1e-6)
