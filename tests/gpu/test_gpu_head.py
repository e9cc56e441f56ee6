"""The scoring head in 16 bits: sums in float32, and kept sets found again from bfloat16 logits."""

from __future__ import annotations

import pytest
import torch

from grpo_ext.common.cache_input import CACHE_INPUT
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.logit_blocks import add_product
from grpo_ext.objective.logprob import sampling_log_probs
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.warpers import kept_tokens
from tests.support.gpu_parts import DEVICES, model_of, noted


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_add_product_sums_in_float32(dtype, device):
    generator = torch.Generator().manual_seed(4)
    a, b = (
        torch.randn(*shape, generator=generator).to(device=device, dtype=dtype)
        for shape in ((300, 512), (512, 96))
    )
    total = torch.randn(300, 96, generator=generator).to(device)
    exact = total.double()
    for _ in range(50):  # as over 50 tiles: sums in 16 bits would stop growing
        add_product(total, a, b)
        exact += a.double() @ b.double()
    difference = float((total - exact).norm() / exact.norm())
    noted(f"add_product in {dtype} against float64", difference=difference)
    assert total.dtype == torch.float32 and difference <= 1e-6


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@torch.no_grad()
def test_kept_sets_found_again_from_the_scorers_logits(dtype, device):
    """Sampled token by token with a cache, as an engine does, at top_p 0.9 and top_k 50.

    Scored in one pass.
    """
    params = SamplingParams(0.7, top_k=50, top_p=0.9)
    vocab, rows, tokens = (151_936, 64, 64) if device == "cuda" else (4_000, 16, 48)
    model = model_of("qwen2", device, dtype, 128, vocab_size=vocab, initializer_range=0.1)
    torch.manual_seed(5)
    ids = torch.randint(2, vocab, (rows, 8), device=device)
    given = ids
    cache = None
    sampled = []
    for _ in range(tokens):
        output = model(given, use_cache=True, **{CACHE_INPUT: cache})
        cache = output[CACHE_INPUT]
        scores = output.logits[:, -1].float() / params.temperature
        kept = kept_tokens(scores, params)
        logps = scores.masked_fill(~kept, -torch.inf).log_softmax(-1)
        given = logps.exp().multinomial(1)
        ids = torch.cat([ids, given], 1)
        sampled.append((logps.gather(1, given), kept))
    hidden = model.model(ids[:, :-1]).last_hidden_state[:, 7:].flatten(0, 1)
    targets = ids[:, 8:].flatten()
    weight = model.lm_head.weight
    theirs = torch.cat([logps for logps, _ in sampled], 1).flatten()
    theirs_kept = torch.stack([kept for _, kept in sampled], 1).flatten(0, 1)
    scores = torch.nn.functional.linear(hidden, weight).float() / params.temperature
    outside = 1 - kept_tokens(scores, params).gather(1, targets[:, None]).float().mean()
    found = sampling_log_probs(hidden, weight, None, targets, params)[0]
    told = sampling_log_probs(
        hidden, weight, None, targets, params, KeptSet.from_mask(theirs_kept)
    )[0]
    apart = (found - theirs).abs()
    apart_told = (told - theirs).abs()
    ratio = float((found - theirs).exp().mean())
    noted(
        f"kept sets rebuilt from {dtype} logits",
        outside=float(outside),
        mean=float(apart.mean()),
        largest=float(apart.max()),
        ratio=ratio,
        mean_when_told=float(apart_told.mean()),
        largest_when_told=float(apart_told.max()),
    )
    assert theirs_kept.sum(1).float().mean() > 3  # there is something to find
    if dtype == torch.float32:
        assert outside <= 1e-3 and apart.mean() <= 1e-3 and apart_told.max() <= 1e-3
    else:
        # a logit of 8 is rounded by up to 0.016; a token on the edge changes the others' mass
        assert (
            outside <= 0.02
            and apart.mean() <= 0.05
            and apart_told.max() <= 0.3
            and abs(ratio - 1) <= 0.02
        )
