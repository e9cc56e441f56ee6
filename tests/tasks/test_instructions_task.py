"""Rows of the task `instructions`.

What is held out, what goes together, and that the reward can read each.
"""

from __future__ import annotations

import pytest

from grpo_ext.rewards import build
from grpo_ext.rewards.instruction_checks import follows, instruction_names
from grpo_ext.tasks.instructions import INSTRUCTIONS, KINDS, SPLIT_FROM, Instructions, wording


def rows_of(split, **fields):
    return list(Instructions(**fields).generate(split))


def drawn(rows, instruction):
    """Return the parameters that rows have for an instruction."""
    parameters = set()
    for row in rows:
        for name, values in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            if (
                name == instruction["kind"]
                and instruction.get("fixed", {}).items() <= values.items()
            ):
                parameters.add(str(values))
    return parameters


def test_held_out_rows_have_topics_and_parameters_of_their_own():
    train = rows_of("train", num_problems=4000)
    test = rows_of("test", num_test_problems=1000)
    assert not {row["topic"] for row in train} & {row["topic"] for row in test}
    for instruction in INSTRUCTIONS:
        numbers = instruction.get("numbers", {})
        choices = instruction.get("choices", {})
        sizes = [last - first + 1 for first, last in numbers.values()]
        sizes += list(map(len, choices.values()))
        if not any(size >= SPLIT_FROM for size in sizes):
            continue
        of_train = drawn(train, instruction)
        of_test = drawn(test, instruction)
        assert of_train and of_test and not of_train & of_test, instruction["text"]


def test_rows_are_those_of_their_seed():
    first = rows_of("train", num_problems=50)
    assert first == rows_of("train", num_problems=50)
    assert first != rows_of("train", num_problems=50, task_seed=1)
    assert {row["topic"] for row in rows_of("test", task_seed=1)} == {
        row["topic"] for row in rows_of("test")
    }


def test_each_kind_is_drawn_with_parameters_that_its_check_takes():
    rows = rows_of("train", num_problems=2000, max_instructions=3)
    kinds = set()
    for row in rows:
        assert 1 <= len(row["instruction_id_list"]) <= 3
        for name, parameters in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            assert follows("a text", name, parameters) in (True, False)
            kinds.add(name)
    assert kinds == set(KINDS) <= set(instruction_names())


def test_a_task_may_have_some_of_the_kinds():
    kinds = ["punctuation:no_comma", "detectable_format:title"]
    rows = rows_of("train", num_problems=200, max_instructions=1, instruction_kinds=kinds)
    assert {name for row in rows for name in row["instruction_id_list"]} == set(kinds)
    with pytest.raises(ValueError, match=r"unknown kind .*punctuation:no_comma'"):
        Instructions(instruction_kinds=["punctuation:no_commas"])


def test_instructions_of_a_row_share_no_slot():
    by_text = {instruction["text"]: set(instruction["slots"]) for instruction in INSTRUCTIONS}
    for row in rows_of("train", num_problems=500, min_instructions=3, max_instructions=3):
        slots = []
        for name, parameters in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            texts = [
                instruction["text"]
                for instruction in INSTRUCTIONS
                if instruction["kind"] == name
                and wording(instruction["text"], parameters) in row["request"]
            ]
            slots += by_text[texts[0]]
        assert len(slots) == len(set(slots)), row


TEXTS = {
    "owl": "today owls fly at night. they hunt mice. they sleep by day.",
    "sea": '"The sea is wide."',
}


def test_the_data_set_scores_as_its_rows_do():
    """A table has the parameters of all its rows, most of them None; that must change nothing."""
    task = Instructions(num_test_problems=60)
    rows = rows_of("test", num_test_problems=60)
    table = task.dataset("test")
    reward = build("instructions", topic=None)
    for text in TEXTS.values():
        texts = [text] * len(rows)
        columns = ("instruction_id_list", "kwargs", "topic")
        from_rows = reward(
            completions=texts, **{key: [row[key] for row in rows] for key in columns}
        )
        from_table = reward(completions=texts, **{key: table[key] for key in columns})
        assert from_rows == from_table
    assert table[0]["prompt"] == [{"role": "user", "content": rows[0]["request"]}]


@pytest.mark.parametrize(
    "fields",
    [
        {"min_instructions": 0},
        {"min_instructions": 3, "max_instructions": 2},
        {"max_instructions": 4},
        {"held_out_topics": 0.0},
        {"held_out_topics": 1.0},
    ],
)
def test_fields_out_of_range_are_refused(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        Instructions(**fields)


@pytest.mark.parametrize(("share", "split"), [(0.001, "test"), (0.999, "train")])
def test_a_share_that_leaves_a_split_no_topic_is_told(share, split):
    with pytest.raises(ValueError, match=f"leaves the split {split} without a topic"):
        list(Instructions(held_out_topics=share).generate(split))


def test_lists_are_written_in_quotation_marks():
    assert wording("Use {words}.", {"words": ["a", "b"]}) == 'Use "a", "b".'
