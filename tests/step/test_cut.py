"""A step's completions are dealt to micro-batches over all ranks.

All that matter run once, and the counts are the step's.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.objective.policy import StepCounts
from grpo_ext.step.cut import CutRule, cut, step_counts
from grpo_ext.step.records import Ranks, Scored


def slice_of(lengths, advantages, first=0, counted=None, signal=None):
    """Completions of so many tokens.

    A row's number is its policy step, and its prompt one of three.
    """
    rows = len(lengths)
    width = max(1, *lengths)
    numbers = torch.arange(first, first + rows)
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    ones = torch.ones(rows)
    return Scored(
        prompt_ids=(1 + numbers % 3).unsqueeze(1).expand(-1, 2).clone(),
        prompt_mask=torch.ones(rows, 2).long(),
        completion_ids=mask * 5,
        completion_mask=mask,
        advantages=torch.tensor(advantages).float(),
        counted=ones if counted is None else torch.tensor(counted).float(),
        signal=ones if signal is None else torch.tensor(signal).float(),
        policy_step=numbers,
    )


def on_ranks(slices, call):
    """What `call(slices of a rank, its Ranks)` gives on each rank.

    Each rank is gone through until it asks for something that not all have told yet; then the
    others are.
    """
    told: list[list] = [[] for _ in slices]

    class NotYet(Exception):
        pass

    def run(index):
        asked = iter(range(100))

        def gather(mine, join):
            number = next(asked)
            if len(told[index]) <= number:
                told[index].append(mine)
            if any(len(others) <= number for others in told):
                raise NotYet
            return join([others[number] for others in told])

        ranks = Ranks(
            index,
            len(slices),
            gather=lambda tensor: gather(tensor, torch.cat),
            gather_objects=lambda items: gather(
                items, lambda lists: [x for items in lists for x in items]
            ),
        )
        return call(slices[index], ranks)

    for _ in range(10):
        found = []
        for index in range(len(slices)):
            try:
                found.append(run(index))
            except NotYet:
                continue
        if len(found) == len(slices):
            assert len(set(map(len, told))) == 1  # all asked equally often
            return found
    raise AssertionError("the ranks wait for each other")


def numbers(batches):
    return [row for batch in batches for row in batch.rows.policy_step.tolist()]


def test_counts_are_those_of_the_whole_step():
    first = [
        slice_of([3, 0], [1, 1], counted=[1, 1], signal=[1, 0]),
        slice_of([2, 4], [1, 1], counted=[0, 1]),
    ]
    second = [slice_of([5, 5], [1, 1], signal=[0, 0]), slice_of([1, 1], [1, 1])]
    for counts, useful, whole in on_ranks([first, second], step_counts):
        assert (counts, useful, whole) == (StepCounts(7, 21), StepCounts(4, 11), False)
    masked = replace(first[0], tool_mask=torch.tensor([[1, 0, 1], [1, 1, 1]]))
    assert step_counts([masked], Ranks())[0] == StepCounts(2, 2)


def test_one_rank_with_images_is_known_to_all():
    images = replace(slice_of([1], [1]), model_inputs={"pixel_values": torch.zeros(1)})
    found = on_ranks([[images], [slice_of([2], [1])]], step_counts)
    assert [whole for *_, whole in found] == [True, True]
    batches = on_ranks(
        [[images], [slice_of([2], [1])]], lambda slices, ranks: cut(slices, CutRule(), ranks)
    )
    assert list(map(len, batches)) == [1, 1] and batches[0][0].rows is images
    with pytest.raises(
        ValueError, match="max_tokens_per_micro_batch does not work with prompts that have images"
    ):
        cut([images], CutRule(max_tokens=9), Ranks())


ROW = st.tuples(st.integers(0, 12), st.sampled_from([0.0, 0.0, 1.0, -0.5]))
STEPS = st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([None, 9, 20])).flatmap(
    lambda s: st.tuples(
        st.just(s), st.lists(ROW, min_size=2 * s[0] * s[1], max_size=2 * s[0] * s[1])
    )  # two ranks, s[0] slices of s[1] rows
)


@settings(deadline=None)
@given(STEPS)
def test_two_ranks_run_every_row_that_matters_once(case):
    (pieces, rows, most), all_rows = case
    slices = []
    first = 0
    for _ in range(2):
        mine = []
        for _ in range(pieces):
            part = all_rows[first : first + rows]
            mine.append(slice_of([n for n, _ in part], [a for _, a in part], first))
            first += rows
        slices.append(mine)
    dealt = on_ranks(slices, lambda part, ranks: cut(part, CutRule(max_tokens=most), ranks))
    live = [i for i, (length, advantage) in enumerate(all_rows) if length and advantage]
    ran = [i for batches in dealt for i in numbers(batch for batch in batches if not batch.filler)]
    assert sorted(ran) == live if live else len(ran) == len(set(ran)) == 2 * len(dealt[0])
    assert len(dealt[0]) == len(dealt[1]) >= pieces  # ranks call the model equally often
    for batches in dealt:
        assert [batch.last for batch in batches] == [False] * (len(batches) - 1) + [True]
        for batch in batches:
            assert batch.counts == StepCounts(len(all_rows), sum(n for n, _ in all_rows))
            assert not batch.filler or (len(batch.rows) == 1 and batch.rows.width == 1)
            assert batch.rows.completion_mask.sum(1).tolist() == [
                min(all_rows[i][0], batch.rows.width) for i in batch.rows.policy_step.tolist()
            ]
    if most and len(dealt[0]) * 2 + 2 <= len(all_rows):  # there could have been a piece more a rank
        pieces_of_several = [b for batches in dealt for b in batches if len(b.rows) > 1]
        assert all(int(b.rows.attention_mask.sum()) <= most for b in pieces_of_several)


def test_rows_are_cut_to_the_longest_of_their_own_piece():
    parts = [slice_of([1, 9], [1, 1]), slice_of([9, 1], [1, 1], first=2)]
    widths = [batch.rows.width for batch in cut(parts, CutRule(), Ranks())]
    assert (
        max(widths) == 9 and sum(len(batch.rows) for batch in cut(parts, CutRule(), Ranks())) == 4
    )


def test_ranks_have_about_the_same_work():
    """One rank holds all the long completions; afterwards each runs half of the tokens."""
    slices = [[slice_of([40] * 4, [1] * 4)], [slice_of([2] * 4, [1] * 4, first=4)]]
    dealt = on_ranks([part * 1 for part in slices], lambda part, ranks: cut(part, CutRule(), ranks))
    tokens = [sum(int(batch.rows.attention_mask.sum()) for batch in batches) for batches in dealt]
    assert sum(tokens) == 4 * 42 + 4 * 4 and abs(tokens[0] - tokens[1]) <= 42


@pytest.mark.parametrize(
    "rule, live",
    [(CutRule(skips=False), [0, 1, 2]), (CutRule(), [0, 2]), (CutRule(deals=False), None)],
)
def test_what_matters(rule, live):
    part = slice_of([3, 2, 4, 0], [1, 0, -1, 1])
    [batch] = cut([part], rule, Ranks())
    assert batch.rows is part if live is None else sorted(batch.rows.policy_step.tolist()) == live


def test_a_row_with_an_advantage_at_one_token_matters():
    part = replace(slice_of([2, 2], [0, 0]), advantages=torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    assert CutRule().matters(part).tolist() == [True, False]
    left_out = part.without(torch.tensor([True, False]))
    assert CutRule(skips=False).matters(left_out).tolist() == [False, True]


def test_a_step_without_any_row_that_matters_still_runs_one_a_rank_whole():
    """So that its entropy is known."""
    parts = [[slice_of([3, 5], [0, 0])], [slice_of([4, 1], [0, 0], first=2)]]
    dealt = on_ranks(parts, lambda part, ranks: cut(part, CutRule(), ranks))
    found = [
        [
            (b.filler, len(b.rows), b.rows.width == int(b.rows.completion_mask.sum()))
            for b in batches
        ]
        for batches in dealt
    ]
    assert found == [[(False, 1, True)]] * 2
