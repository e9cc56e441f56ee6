"""Where a step is cut.

Every row that matters runs once, and the largest piece is as small as it can be.
"""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.batching.cuts import deal_rows, even_cuts, length_chunks

ROWS = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.lists(st.integers(0, 3), min_size=n, max_size=n),  # prompt
        st.lists(st.integers(0, 20), min_size=n, max_size=n),  # tokens of the completion
        st.lists(st.booleans(), min_size=n, max_size=n),  # live
        st.integers(1, n),  # pieces
    )
)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 5))
def test_no_other_cut_has_a_smaller_largest_piece(costs, pieces):
    cuts = even_cuts(np.array(costs), pieces)
    assert len(cuts) == pieces - 1 and cuts == sorted(cuts)

    def largest(where: list[int]) -> int:
        return max(map(sum, np.split(np.array(costs), where)))

    ways = itertools.combinations_with_replacement(range(len(costs) + 1), pieces - 1)
    assert largest(cuts) == min(largest(list(way)) for way in ways)
    if len(costs) >= pieces:
        assert all(map(len, np.split(np.array(costs), cuts)))


@given(ROWS)
def test_every_live_row_is_dealt_once_and_no_other_but_to_fill_an_empty_piece(case):
    prompts, lengths, live, pieces = case
    prompt_lengths = [5 + p for p in prompts]
    dealt = deal_rows(*map(torch.tensor, (prompts, prompt_lengths, lengths, live)), pieces)
    assert len(dealt) == pieces and all(map(len, dealt))
    rows = [i for part in dealt for i in part.tolist()]
    assert len(set(rows)) == len(rows)
    assert {i for i in rows if live[i]} == {i for i, x in enumerate(live) if x}
    assert all(all(live[i] for i in part.tolist()) or len(part) == 1 for part in dealt)


@given(ROWS)
def test_no_piece_is_larger_than_with_equal_numbers_of_rows(case):
    prompts, lengths, _, pieces = case
    tokens = torch.tensor(lengths) + 5
    dealt = deal_rows(
        torch.tensor(prompts),
        torch.full_like(tokens, 5),
        torch.tensor(lengths),
        torch.ones(len(tokens), dtype=bool),
        pieces,
    )
    line = torch.cat(dealt)
    equal = np.array_split(tokens[line].numpy(), pieces)
    assert max(int(tokens[part].sum()) for part in dealt) <= max(int(part.sum()) for part in equal)


def test_the_rows_of_a_prompt_stay_together():
    prompts = torch.tensor([0, 1, 0, 1, 0, 1])
    dealt = deal_rows(
        prompts, torch.full((6,), 4), torch.full((6,), 3), torch.ones(6, dtype=bool), 2
    )
    assert [set(prompts[part].tolist()) for part in dealt] in ([{0}, {1}], [{1}, {0}])


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(0, 9), st.integers(0, 80))
def test_chunks_cost_least(lengths, per_row, call):
    chunks = length_chunks(torch.tensor(lengths), per_row, call)
    assert sorted(i for chunk in chunks for i in chunk.tolist()) == list(range(len(lengths)))

    def cost(parts):
        return sum(len(part) * (per_row + max(part)) + call for part in parts)

    line = sorted(lengths)
    ways = [[]] + [
        c for k in range(1, len(line)) for c in itertools.combinations(range(1, len(line)), k)
    ]
    best = min(
        cost([line[a:b] for a, b in itertools.pairwise([0, *way, len(line)])]) for way in ways
    )
    assert cost([[lengths[i] for i in chunk.tolist()] for chunk in chunks]) == best


def test_there_are_at_most_eight_chunks():
    assert len(length_chunks(torch.arange(100) * 50, call=1)) == 8
