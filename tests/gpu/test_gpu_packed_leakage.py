"""Sequences of 600 tokens in one row under FlashAttention for different lengths.

None sees another, with windows neither.
"""

from __future__ import annotations

import pytest
import torch

from grpo_ext.scoring.head import Head
from grpo_ext.scoring.packed import run_packed
from tests.support.gpu_parts import DEVICES, PARAMS, VOCAB, alone, attend_by, model_of, noted, run

WIDTH = 560
PROMPT = 40
WINDOW = 128


def rows(device):
    """Three sequences of 600 tokens, and one of 17."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(2, VOCAB, (4, PROMPT + WIDTH), generator=generator)
    mask = torch.ones_like(ids)
    mask[3, : PROMPT - 10], mask[3, PROMPT + 7 :] = 0, 0
    return ids.to(device), mask.to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attention", ["torch flash", "flash_attention_2"])
@pytest.mark.parametrize("window", [None, WINDOW], ids=["whole", "sliding window"])
@torch.no_grad()
def test_sequences_of_a_row_do_not_see_each_other(window, attention, device):
    more = {"sliding_window": window} if window else {}
    model = attend_by(model_of("mistral" if window else "qwen3", device, **more), attention)
    ids, mask = rows(device)
    found = run_packed(run, model, Head(PARAMS), ids, mask, WIDTH, shares=False).logps
    wanted = alone(model, ids, mask, WIDTH)
    scored = mask[:, -WIDTH:].bool()
    difference = (found - wanted)[scored].abs()
    noted(
        f"packed against alone, {attention}, window {window}",
        mean=float(difference.mean()),
        largest=float(difference.max()),
    )
    assert difference.mean() <= 1e-2 and difference.max() <= 0.2
    # exactly: another text in the second sequence changes no number of the others
    ids[1, 5:] = ids[1, 5:].flip(0)
    changed = run_packed(run, model, Head(PARAMS), ids, mask, WIDTH, shares=False).logps
    assert torch.equal(changed[[0, 2, 3]], found[[0, 2, 3]]) and not torch.equal(
        changed[1], found[1]
    )


@torch.no_grad()
def test_the_test_finds_leakage():
    """The same row without positions that begin again is one long sequence, and the second text
    changes the third.
    """
    model = attend_by(model_of(), "torch flash")
    ids, mask = rows("cpu")

    def one_sequence(model, head, labels, position_ids, **inputs):
        return run(
            model, head, labels, position_ids=torch.arange(position_ids.size(1))[None], **inputs
        )

    found = run_packed(one_sequence, model, Head(PARAMS), ids, mask, WIDTH, shares=False).logps
    ids[1, 5:] = ids[1, 5:].flip(0)
    changed = run_packed(one_sequence, model, Head(PARAMS), ids, mask, WIDTH, shares=False).logps
    assert torch.equal(changed[0], found[0]) and not torch.equal(changed[2], found[2])
