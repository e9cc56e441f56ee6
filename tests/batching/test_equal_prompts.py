"""Rows of one prompt are found whatever lies in their padding."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.batching.cuts import equal_prompts


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=8))
def test_prompts_are_told_apart_by_their_tokens_alone(prompts):
    widest = max(map(len, prompts))
    mask = torch.tensor([[0] * (widest - len(p)) + [1] * len(p) for p in prompts])
    noise = torch.arange(mask.numel()).view_as(mask)  # padding may hold anything
    ids = torch.where(
        mask.bool(), torch.tensor([[0] * (widest - len(p)) + p for p in prompts]), noise
    )
    first, number = equal_prompts(ids, mask)
    distinct = list(dict.fromkeys(map(tuple, prompts)))
    assert [tuple(prompts[i]) for i in first.tolist()] == distinct
    assert [distinct[n] for n in number.tolist()] == list(map(tuple, prompts))
