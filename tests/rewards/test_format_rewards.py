"""The shape rewards, against the regular expressions that define their forms."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.rewards import build
from tests.support.runaway import no_runaway

STRICT = re.compile(r"<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>", re.DOTALL)
LOOSE = re.compile(r"\s*<think>.*?</think>\s*<answer>.*?</answer>\s*", re.DOTALL)
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]

pieces = st.lists(
    st.sampled_from([*TAGS, "\n", "\n", " ", "x", "<", "think>", "1 + 2"]), max_size=14
).map("".join)
near = st.permutations(["<think>\n", "a\n", "</think>\n", "<answer>\n", "b\n", "</answer>"]).map(
    "".join
)
right = st.builds(
    "<think>{0}a{1}</think>{2}<answer>{3}b{4}</answer>{5}".format,
    *[st.sampled_from(["\n", "", " "])] * 6,
)


def reference(text: str, pattern: re.Pattern) -> float:
    return float(pattern.fullmatch(text) is not None and all(text.count(tag) == 1 for tag in TAGS))


@settings(max_examples=600, deadline=None)
@given(st.one_of(pieces, near, right))
def test_format_agrees_with_its_pattern(text):
    assert build("format", mode="strict")(completions=[text]) == [reference(text, STRICT)]
    assert build("format", mode="loose")(completions=[text]) == [reference(text, LOOSE)]


@pytest.mark.parametrize(
    ("text", "strict", "loose"),
    [
        ("<think>\nwork\n</think>\n<answer>\n1\n</answer>", 1.0, 1.0),
        ("<think>\n\n</think>\n<answer>\n\n</answer>", 1.0, 1.0),
        ("<think>\n</think>\n<answer>\n</answer>", 0.0, 1.0),  # one line break cannot serve twice
        ("<think>\nwork\n</think>\n\n<answer>\n1\n</answer>", 0.0, 1.0),
        ("<think> work </think>\n<answer> 1 </answer>", 0.0, 1.0),
        ("<think>\nwork\n</think>\n<answer>\n1\n</answer>\n", 0.0, 1.0),
        ("I think: <think>\nwork\n</think>\n<answer>\n1\n</answer>", 0.0, 0.0),
        ("<think>\nwork\n</think>\nso\n<answer>\n1\n</answer>", 0.0, 0.0),
        ("<think>\n<think>\n</think>\n<answer>\n1\n</answer>", 0.0, 0.0),
        ("<THINK>\nwork\n</THINK>\n<ANSWER>\n1\n</ANSWER>", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_format_forms(text, strict, loose):
    assert build("format", mode="strict")(completions=[text]) == [strict]
    assert build("format")(completions=[text]) == [loose]


def test_prefix_stands_for_what_the_prompt_has_opened():
    rest = "\nwork\n</think>\n<answer>\n1\n</answer>"
    for mode in ("loose", "strict"):
        assert build("format", mode=mode)(completions=[rest]) == [0.0]
        assert build("format", mode=mode, prefix="<think>")(completions=[rest]) == [1.0]
    assert build("tag_count", prefix="<think>")(completions=[rest]) == [1.0]


@settings(max_examples=300, deadline=None)
@given(pieces)
def test_tag_count_is_a_quarter_a_tag(text):
    assert (
        build("tag_count")(completions=[text])[0]
        == sum(len(re.findall(tag, text)) == 1 for tag in TAGS) / 4
    )


def test_tag_count_strict_wants_line_breaks():
    loose = "<think>a</think><answer>b</answer>"
    strict = "<think>\na\n</think>\n<answer>\nb\n</answer>"
    assert build("tag_count", mode="strict")(completions=[loose, strict]) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("Step 1: a\nstep 2: b", 2),
        ("1. a\n2) b\n  3. c", 3),
        ("- a\n* b\n• c", 3),
        ("First, a. Second, b. Finally, c.", 3),
        ("The first of them, then another", 0),
        ("3.14 is pi\n2.5 more\nfirst", 0),
        ("a - b * c", 0),
    ],
)
def test_reasoning_steps_counts_marks(text, marks):
    assert build("reasoning_steps", target=10)(completions=[text]) == [marks / 10]


def test_reasoning_steps_stops_at_the_target():
    assert build("reasoning_steps")(completions=["- a\n" * 50]) == [1.0]


@pytest.mark.parametrize(
    "bait",
    ["\n" * 10**6, " " * 10**6, "step " * 10**5, "1" * 10**6, "<think>" * 10**5, "<" * 10**6],
)
def test_no_text_takes_long(bait):
    with no_runaway():
        for name in ("format", "tag_count", "reasoning_steps"):
            build(name)(completions=[bait])
