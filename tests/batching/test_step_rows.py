"""Rows of a step go into one table and out again with nothing lost but padding."""

from __future__ import annotations

import torch
from grpo_ext.batching.rows import equal_prompts, is_table, join_rows, take_rows
from hypothesis import given
from hypothesis import strategies as st

# each row: its prompt's and its completion's tokens
ROW = st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.lists(st.integers(1, 5), max_size=5))
PARTS = st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=3)


def batch_of(rows, start, extra=2):
    """As TRL pads, wider than needed by `extra`."""
    wide, long = max(len(p) for p, _ in rows) + extra, max(len(c) for _, c in rows) + extra
    ids = torch.tensor([[0] * (wide - len(p)) + p for p, _ in rows])
    tokens = torch.tensor([c + [0] * (long - len(c)) for _, c in rows])
    return {
        "prompt_ids": ids,
        "prompt_mask": (ids > 0).long(),
        "completion_ids": tokens,
        "completion_mask": (tokens > 0).long(),
        "old_per_token_logps": -tokens.float(),
        "importance_sampling_ratio": torch.arange(len(rows)).float().unsqueeze(1) + start,  # one a sequence
        "advantages": torch.arange(len(rows)).float() + start,
        "kept_tokens": [f"row {start + i}" for i in range(len(rows))],
        "num_items_in_batch": torch.tensor(7),
    }


@given(PARTS, st.randoms(use_true_random=False))
def test_each_row_keeps_what_is_its_own(parts, rng):
    starts = [sum(map(len, parts[:i])) for i in range(len(parts))]
    table = join_rows([batch_of(part, start) for part, start in zip(parts, starts, strict=True)])
    rows = [row for part in parts for row in part]
    chosen = rng.sample(range(len(rows)), rng.randint(1, len(rows)))
    taken = take_rows(table, torch.tensor(chosen))
    assert taken["prompt_ids"].size(1) == max(len(rows[i][0]) for i in chosen)
    assert taken["completion_ids"].size(1) == max(1, max(len(rows[i][1]) for i in chosen))
    for place, i in enumerate(chosen):
        prompt, completion = rows[i]
        mask = taken["completion_mask"][place].bool()
        assert taken["prompt_ids"][place][taken["prompt_mask"][place].bool()].tolist() == prompt
        assert taken["completion_ids"][place][mask].tolist() == completion
        assert taken["old_per_token_logps"][place][mask].tolist() == [-float(t) for t in completion]
        assert taken["importance_sampling_ratio"][place].tolist() == [float(i)]
        assert taken["advantages"][place] == i and taken["kept_tokens"][place] == f"row {i}"
    assert taken["num_items_in_batch"] == 7


def test_a_ratio_a_token_is_padded_with_one():
    parts = [batch_of([([1], [2] * n)], 0, extra=0) for n in (1, 3)]
    for part in parts:
        part["importance_sampling_ratio"] = torch.full(part["completion_ids"].shape, 0.5)
    assert join_rows(parts)["importance_sampling_ratio"].tolist() == [[0.5, 1.0, 1.0], [0.5, 0.5, 0.5]]


def test_a_row_can_be_cut_to_one_token():
    taken = take_rows(batch_of([([1, 2], [3, 4, 5])], 0), torch.tensor([0]), 1)
    assert taken["completion_ids"].tolist() == [[3]] and taken["old_per_token_logps"].tolist() == [[-3.0]]


def test_images_are_not_cut():
    assert is_table(batch_of([([1], [2])], 0)) and not is_table({"prompt_ids": 0, "pixel_values": 0})


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=8))
def test_prompts_are_told_apart_by_their_tokens_alone(prompts):
    widest = max(map(len, prompts))
    mask = torch.tensor([[0] * (widest - len(p)) + [1] * len(p) for p in prompts])
    noise = torch.arange(mask.numel()).view_as(mask)  # padding may hold anything
    ids = torch.where(mask.bool(), torch.tensor([[0] * (widest - len(p)) + p for p in prompts]), noise)
    first, number = equal_prompts(ids, mask)
    distinct = list(dict.fromkeys(map(tuple, prompts)))
    assert [tuple(prompts[i]) for i in first.tolist()] == distinct
    assert [distinct[n] for n in number.tolist()] == [tuple(p) for p in prompts]
