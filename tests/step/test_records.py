"""Rows of a step go into one table and out again with nothing lost but padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.objective.kept import KeptSet
from grpo_ext.step.records import Generation, Scored, join, table_of

# each row: its prompt's and its completion's tokens
ROW = st.tuples(
    st.lists(st.integers(1, 5), min_size=1, max_size=4), st.lists(st.integers(1, 5), max_size=5)
)
PARTS = st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=3)
NAN = float("nan")


def kept_set(row, positions):
    """One kept token at each position, whose number is the row's."""
    one = torch.ones(positions, dtype=torch.long)
    return KeptSet(99, one, torch.full((positions,), row), None)


def table_with(rows, start=0, spare=2, **more):
    """Prompts and completions as a table, wider than needed by `spare`.

    What is a row's own says its number.
    """
    wide = max(len(p) for p, _ in rows) + spare
    long = max(len(c) for _, c in rows) + spare
    ids = torch.tensor([[0] * (wide - len(p)) + p for p, _ in rows])
    tokens = torch.tensor([c + [0] * (long - len(c)) for _, c in rows])
    numbers = torch.arange(len(rows)).float() + start
    given = {
        "prompt_ids": ids,
        "prompt_mask": (ids > 0).long(),
        "completion_ids": tokens,
        "completion_mask": (tokens > 0).long(),
        "advantages": numbers,
        "counted": torch.ones(len(rows)),
        "signal": torch.ones(len(rows)),
        "policy_step": numbers.long(),
    }
    return Scored(**{**given, **more})


def full_table(rows, start=0):
    table = table_with(rows, start)
    tokens = table.completion_ids
    numbers = table.advantages
    return replace(
        table,
        old_per_token_logps=-tokens.float(),
        ref_per_token_logps=-2 * tokens.float(),
        importance_sampling_ratio=numbers.unsqueeze(1),  # one a sequence
        kept=[kept_set(start + i, len(c)) for i, (_, c) in enumerate(rows)],
    )


@given(PARTS, st.randoms(use_true_random=False))
def test_each_row_keeps_what_is_its_own(parts, rng):
    starts = [sum(map(len, parts[:i])) for i in range(len(parts))]
    table = join([full_table(part, start) for part, start in zip(parts, starts, strict=True)])
    rows = [row for part in parts for row in part]
    assert len(table) == len(rows)
    chosen = rng.sample(range(len(rows)), rng.randint(1, len(rows)))
    taken = table.take(torch.tensor(chosen))
    assert taken.prompt_ids.size(1) == max(len(rows[i][0]) for i in chosen)
    assert taken.width == max(1, max(len(rows[i][1]) for i in chosen))
    for place, i in enumerate(chosen):
        prompt, completion = rows[i]
        mask = taken.completion_mask[place].bool()
        assert taken.prompt_ids[place][taken.prompt_mask[place].bool()].tolist() == prompt
        assert taken.completion_ids[place][mask].tolist() == completion
        assert taken.old_per_token_logps[place][mask].tolist() == [-float(t) for t in completion]
        assert taken.ref_per_token_logps[place][mask].tolist() == [-2.0 * t for t in completion]
        assert taken.importance_sampling_ratio[place].tolist() == [float(i)]
        assert (taken.advantages[place], taken.policy_step[place]) == (i, i)
        assert taken.kept[place].ids.tolist() == [i] * len(completion)


def test_a_ratio_a_sequence_stays_one_beside_completions_of_one_token():
    parts = [table_with([([1], [2] * n)], spare=0) for n in (1, 3)]
    parts = [replace(part, importance_sampling_ratio=torch.tensor([[0.5]])) for part in parts]
    assert join(parts).importance_sampling_ratio.tolist() == [[0.5], [0.5]]


@pytest.mark.parametrize(
    "name, value, fill",
    [
        ("importance_sampling_ratio", 0.5, 1.0),
        ("old_per_token_logps", 0.5, 0.0),
        ("ref_per_token_logps", 0.5, 0.0),
    ],
)
def test_what_stands_where_there_is_no_token(name, value, fill):
    parts = [table_with([([1], [2] * n)], spare=0) for n in (1, 3)]
    parts = [
        replace(part, **{name: torch.full(part.completion_ids.shape, value)}) for part in parts
    ]
    assert getattr(join(parts), name).tolist() == [[value, fill, fill], [value] * 3]


def test_prompts_are_padded_on_the_left_and_completions_on_the_right():
    table = join([table_with([([4], [7])], spare=0), table_with([([1, 2], [3, 5])], spare=0)])
    assert table.prompt_ids.tolist() == [[0, 4], [1, 2]] and table.prompt_mask.tolist() == [
        [0, 1],
        [1, 1],
    ]
    assert table.completion_ids.tolist() == [[7, 0], [3, 5]] and table.completion_mask.tolist() == [
        [1, 0],
        [1, 1],
    ]
    assert table.input_ids.tolist() == [[0, 4, 7, 0], [1, 2, 3, 5]]
    assert table.attention_mask.tolist() == [[0, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize(
    "name, fill",
    [("tool_mask", 1.0), ("old_per_token_logps", NAN), ("sampling_per_token_logps", NAN)],
)
def test_a_field_that_one_part_lacks_is_filled_with_what_says_nothing(name, fill):
    first = table_with([([1], [2, 3])], spare=0)
    second = table_with([([1], [4])], spare=0)
    first = replace(first, **{name: torch.tensor([[0.0, 0.5]])})
    found = getattr(join([second, first]), name)
    torch.testing.assert_close(found, torch.tensor([[fill, 0.0], [0.0, 0.5]]), equal_nan=True)
    assert getattr(join([second, second]), name) is None


def test_a_row_can_be_cut_to_one_token():
    taken = full_table([([1, 2], [3, 4, 5])]).take(torch.tensor([0]), 1)
    assert taken.completion_ids.tolist() == [[3]] and taken.old_per_token_logps.tolist() == [[-3.0]]
    assert taken.prompt_ids.tolist() == [[1, 2]]


def test_padding_stays_where_it_must_not_be_trimmed():
    taken = full_table([([1, 2], [3, 4, 5]), ([1], [6])]).take(torch.tensor([1]), trim=False)
    assert taken.prompt_ids.tolist() == [[0, 0, 0, 1]] and taken.completion_ids.tolist() == [
        [6, 0, 0, 0, 0]
    ]


def test_rows_taken_out_of_the_loss_count_nowhere():
    table = table_with([([1], [2, 3]), ([1], [4])], start=5, spare=0)
    less = table.without(torch.tensor([True, False]))
    assert less.completion_mask.tolist() == [[0, 0], [1, 0]] and less.completion_ids.tolist() == [
        [2, 3],
        [4, 0],
    ]
    assert [x.tolist() for x in (less.advantages, less.counted, less.signal)] == [
        [0, 6],
        [0, 1],
        [0, 1],
    ]
    by_token = replace(table, advantages=torch.full((2, 2), 3.0)).without(
        torch.tensor([True, False])
    )
    assert by_token.advantages.tolist() == [[0, 0], [3, 3]]
    assert table.completion_mask.tolist() == [[1, 1], [1, 0]]  # the record itself is as it was


def test_tokens_of_an_environment_take_no_part_in_the_loss():
    table = table_with([([1], [2, 3])], spare=0, tool_mask=torch.tensor([[1, 0]]))
    assert table.loss_mask.tolist() == [[1, 0]] and replace(
        table, tool_mask=None
    ).loss_mask.tolist() == [[1, 1]]


def test_a_table_on_another_device_takes_all_its_tensors_along():
    table = full_table([([1], [2, 3])])
    moved = replace(table, model_inputs={"pixel_values": torch.zeros(2)}).on("meta")
    tensors = [moved.prompt_ids, moved.old_per_token_logps, moved.model_inputs["pixel_values"]]
    assert all(tensor.is_meta for tensor in tensors)
    assert not moved.kept[0].ids.is_meta


def test_model_inputs_are_refused_by_name():
    table = table_with([([1], [2])], model_inputs={"pixel_values": torch.zeros(4)})
    with pytest.raises(ValueError, match=r"cannot select rows .*\(pixel_values\)"):
        table.take(torch.tensor([0]))
    with pytest.raises(ValueError, match=r"cannot join batches .*\(pixel_values\)"):
        join([table, table])
    assert join([table]) is table


def test_fields_that_not_all_parts_have_are_refused_by_name():
    with pytest.raises(ValueError, match="some have the field ref_per_token_logps, others do not"):
        join([full_table([([1], [2])]), table_with([([1], [2])])])


def test_a_generation_becomes_a_table():
    """An empty completion, one that is left out, one with tokens of an environment.

    And one without the sampler's log-probs.
    """
    logps = [torch.tensor([]), torch.tensor([-1.0, -2.0]), torch.tensor([-3.0, NAN, -4.0])]
    kept = [kept_set(i, n) for i, n in enumerate((0, 2, 3))]
    masks = [[], [1, 1], [1, 0, 1]]
    made = Generation([[5], [6, 7], [8]], [[], [1, 2], [3, 4, 9]], 11, logps, kept, masks)
    table = table_of(made, 0, torch.tensor([False, True, False]), "cpu")
    assert table.prompt_ids.tolist() == [[0, 5], [6, 7], [0, 8]] and table.prompt_mask.sum(
        1
    ).tolist() == [1, 2, 1]
    assert table.completion_ids.tolist() == [[0, 0, 0], [1, 2, 0], [3, 4, 9]]
    assert table.completion_mask.sum(1).tolist() == [0, 0, 3] and table.loss_mask[2].tolist() == [
        1,
        0,
        1,
    ]
    assert table.counted.tolist() == [1, 0, 1]  # an empty completion counts
    assert table.policy_step.tolist() == [[11, 0, 0], [11, 11, 0], [11, 11, 11]]
    assert table.sampling_per_token_logps[1].tolist() == [-1, -2, 0] and table.kept is kept
    alone = table_of(Generation([[5]], [[]], 0), 3, torch.tensor([False]), "cpu")
    assert alone.completion_ids.tolist() == [[3]] and alone.completion_mask.tolist() == [[0]]
    assert alone.sampling_per_token_logps is None and alone.tool_mask is None
