"""A prompt read once for several completions, with padding on both sides, against each completion
by itself.

The yardstick is float64: sharing may be no further from it than plain rows in the same number type
are.
"""

from __future__ import annotations

import copy

import pytest
import torch

from benchmarks.gpu.attention import attend_varlen, kernel_is_there, visible
from grpo_ext.common.cache_input import CACHE_INPUT
from grpo_ext.scoring.head import Head
from grpo_ext.scoring.packed import run_packed
from grpo_ext.scoring.probe import Probe
from grpo_ext.scoring.prompts_once import ReadPrompts
from tests.support.gpu_parts import DEVICES, PARAMS, VOCAB, alone, attend_by, model_of, noted, run

ATTENTION = ["sdpa", "torch flash", "flash_attention_2"]
WIDTH = 40
PROMPT = 30


def rows(device):
    """Two prompts with three completions each.

    Short prompts on the left, completions of 0 to 40 tokens on the right.
    """
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(2, VOCAB, (2, PROMPT), generator=generator).repeat_interleave(3, 0)
    ids = torch.cat([prompts, torch.randint(2, VOCAB, (6, WIDTH), generator=generator)], 1)
    mask = torch.ones_like(ids)
    mask[:3, :11] = 0
    for row, length in enumerate([40, 7, 23, 1, 40, 0]):
        mask[row, PROMPT + length :] = 0
    return ids.to(device), mask.to(device)


def in_layout(model, layout, ids, mask):
    if layout == "packed":
        return run_packed(
            run,
            model,
            Head(PARAMS),
            ids,
            mask,
            WIDTH,
            shares="flash" not in model.config._attn_implementation,
        )
    prompts = ReadPrompts(ids[:, :PROMPT], mask[:, :PROMPT])
    assert prompts.read(run, model, Head(PARAMS)) and prompts.saved > 0
    return prompts.run(run, model, Head(PARAMS), ids, mask, WIDTH, torch.arange(len(ids)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("layout", ["chunks", "packed"])
@torch.no_grad()
def test_a_shared_prompt_costs_no_accuracy_in_bfloat16(layout, attention, device):
    model = model_of(device=device)
    ids, mask = rows(device)
    exact = alone(copy.deepcopy(model).double(), ids, mask, WIDTH).float()
    attend_by(model, attention)
    plain = (alone(model, ids, mask, WIDTH) - exact).abs()
    shared = (in_layout(model, layout, ids, mask).logps[:, -WIDTH:] - exact).abs()
    scored = mask[:, -WIDTH:].bool()
    assert not shared[~scored].any()
    noted(
        f"{layout}, {attention}, bfloat16: mean difference",
        shared=float(shared[scored].mean()),
        plain=float(plain[scored].mean()),
    )
    assert shared[scored].mean() <= 1.5 * plain[scored].mean() + 1e-3
    assert shared[scored].max() <= 2 * plain[scored].max() + 1e-2


@pytest.mark.parametrize("layout", ["chunks", "packed"])
@pytest.mark.parametrize("attention", ["sdpa", "torch flash"])
@torch.no_grad()
def test_a_shared_prompt_is_exact_in_float32(layout, attention):
    model = attend_by(model_of(dtype=torch.float32), attention)
    ids, mask = rows("cpu")
    torch.testing.assert_close(
        in_layout(model, layout, ids, mask).logps[:, -WIDTH:], alone(model, ids, mask, WIDTH)
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("window", [(-1, -1), (9, 9)], ids=["whole", "window"])
def test_kernels_align_at_the_bottom_right(window, device):
    """Fewer queries than keys, as after a shared prompt: the last query sees the last key.

    Also its gradient.
    """
    if device == "cuda" and not kernel_is_there():
        pytest.skip("this torch has no varlen_attn with windows")
    generator = torch.Generator().manual_seed(2)
    lengths_q = [5, 40, 1]
    lengths_k = [35, 40, 64]
    ends_q, ends_k = (
        torch.tensor([0, *lengths]).cumsum(0).int().to(device) for lengths in (lengths_q, lengths_k)
    )
    q, k, v = (torch.randn(n, h, 32, generator=generator) for n, h in ((46, 4), (139, 2), (139, 2)))
    given = [x.to(device=device, dtype=torch.bfloat16).requires_grad_() for x in (q, k, v)]
    out = attend_varlen(*given, ends_q, ends_k, 40, 64, None, True, window)
    out.float().square().sum().backward()
    wanted = [x.detach().double().cpu().requires_grad_() for x in given]
    parts = []
    for n, (a, b) in enumerate(zip(lengths_q, lengths_k, strict=True)):
        at_q = sum(lengths_q[:n])
        at_k = sum(lengths_k[:n])
        keys, values = (x[at_k : at_k + b].repeat_interleave(2, 1) for x in wanted[1:])
        scores = torch.einsum("qhd,khd->hqk", wanted[0][at_q : at_q + a], keys) / 32**0.5
        seen = visible(a, b, (window[0], 0), torch.device("cpu"))
        assert seen[-1, -1] and seen.sum(1).max() <= (b if window[0] < 0 else window[0] + 1)
        parts.append(
            torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), values)
        )
    exact = torch.cat(parts)
    exact.square().sum().backward()
    assert (out.cpu() - exact).norm() <= 1e-2 * exact.norm()
    for mine, other in zip(given, wanted, strict=True):
        assert (mine.grad.cpu() - other.grad).norm() <= 2e-2 * other.grad.norm()


@pytest.mark.parametrize("attention", ["sdpa", "torch flash"])
def test_a_run_that_shares_prompts_tries_it_first(attention):
    """The check at the start of a run finds attention that is aligned at the top left."""
    model = attend_by(model_of(dtype=torch.float32), attention)
    probe = Probe(run, VOCAB, torch.device("cpu"), 1e-4)
    assert probe.shares_prompts(model)
    backbone = type(model.model)

    class TopLeft(backbone):
        def forward(self, *args, attention_mask=None, **kwargs):
            cache = kwargs.get(CACHE_INPUT)
            if cache is not None and cache.get_seq_length():
                attention_mask = attention_mask.roll(1, 1)  # each query sees one place less
            return super().forward(*args, attention_mask=attention_mask, **kwargs)

    model.model.__class__ = TopLeft
    assert not probe.shares_prompts(model)
