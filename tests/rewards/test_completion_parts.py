"""Thoughts and answer of a completion."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.rewards.answers import TAGS, without_thoughts
from grpo_ext.rewards.completion_parts import part_of
from tests.support.runaway import no_runaway

PIECES = st.lists(st.sampled_from([*TAGS, "a", "b ", "\n", "<", "think>"]), max_size=12).map(
    "".join
)


@pytest.mark.parametrize(
    ("completion", "thoughts", "answer"),
    [
        ("<think>why</think><answer>4</answer>", "why", "4"),
        ("<think>why</think> It is 4.", "why", "It is 4."),
        ("why</think>\n4", "why", "4"),  # the prompt has opened the first tag
        ("<think>why", "why", ""),
        ("It is 4.", "", "It is 4."),
        ("<think>a</think>b<think>c</think>d", "a c", "b d"),
        ("<think><answer>3</answer></think><answer>4</answer>", "<answer>3</answer>", "4"),
        ("<answer>3</answer><answer>4</answer>", "", "4"),
        ("<think>why</think><answer>4", "why", "<answer>4"),
        ("<think>why</think><answer></answer>", "why", ""),
        ("", "", ""),
    ],
)
def test_parts(completion, thoughts, answer):
    assert part_of(completion, "all") == completion
    assert " ".join(part_of(completion, "thoughts").split()) == thoughts
    assert " ".join(part_of(completion, "answer").split()) == answer


@settings(max_examples=500)
@given(st.one_of(PIECES, st.text()))
def test_each_character_is_of_one_part(completion):
    thoughts = part_of(completion, "thoughts")
    assert len(thoughts) == len(completion)
    for whole, thought, outside in zip(
        completion, thoughts, without_thoughts(completion), strict=True
    ):
        if thought.isspace():
            assert outside == whole or whole.isspace() or whole in "</think>"
        else:
            assert thought == whole
            assert outside == " "


@pytest.mark.parametrize("bait", ["<think>", "</think>", "<think></think>", "<answer>", "<"])
def test_no_text_takes_long(bait):
    with no_runaway():
        for part in ("thoughts", "answer"):
            part_of(bait * 100_000, part)
