"""Where the rewards differ from the rules that the experiments of docs/experiments.md published,
and where they agree.

Each published rule is written here again, after its description. The tables are those of
docs/rewards.md.
"""

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.rewards import build
from grpo_ext.rewards.answers import TAGS
from grpo_ext.rewards.poem import judge
from grpo_ext.rewards.poem.forms import forms
from grpo_ext.rewards.poem.judge import places_at_fault

# ---- countdown


def published_countdown(completion, nums, target):
    """Tags on one line.

    The text before the first equals sign; whole numbers in it as a multiset; then Python computes
    it.
    """
    match = re.search("<answer>(.*?)</answer>", completion)
    if match is None:
        return 0.0
    expression = match[1].strip().split("=")[0]
    if Counter(map(int, re.findall("[0-9]+", expression))) != Counter(nums):
        return 0.0
    if set(expression) - set("0123456789+-*/(). \t\n"):
        return 0.0
    try:
        return float(abs(eval(expression, {"__builtins__": {}}) - target) < 1e-5)
    except Exception:
        return 0.0


COUNTDOWN = [
    # answer, nums, target, published, here
    ("1 + 3", [1, 3], 4, 1, 1),
    ("1+3", [3, 1], 4, 1, 1),
    (" (1 + 3) * 2 ", [1, 2, 3], 8, 1, 1),
    ("1 + 3 = 4", [1, 3], 4, 1, 1),
    ("1 + 3 = 5", [1, 3], 4, 1, 1),
    ("1 / 3 * 3", [1, 3, 3], 1, 1, 1),
    ("3 - 1", [1, 3], 4, 0, 0),
    ("1 + 3 + 0", [1, 3], 4, 0, 0),
    ("4", [1, 3], 4, 0, 0),
    ("1 + 3 * 1", [1, 3], 4, 0, 0),
    ("13", [1, 3], 13, 0, 0),
    ("1 + x", [1, 3], 4, 0, 0),
    ("3 × 1", [1, 3], 3, 0, 0),
    ("1 + 3)", [1, 3], 4, 0, 0),
    ("1 / (3 - 3)", [1, 3, 3], 1, 0, 0),
    ("", [1, 3], 4, 0, 0),
    # an answer over several lines
    ("\n1 + 3\n", [1, 3], 4, 0, 1),
    ("1 +\n3", [1, 3], 4, 0, 1),
    # signs and other operators
    ("-1 + 3", [1, 3], 2, 1, 0),
    ("3 - (-1)", [1, 3], 4, 1, 0),
    ("+1 + 3", [1, 3], 4, 1, 0),
    ("3 ** 2", [2, 3], 9, 1, 0),
    ("7 // 2", [2, 7], 3, 1, 0),
    # a decimal made of two numbers
    ("1.5 + 0", [1, 5, 0], 1.5, 1, 0),
]


@pytest.mark.parametrize(("answer", "nums", "target", "published", "here"), COUNTDOWN)
def test_countdown(answer, nums, target, published, here):
    completion = f"<think>so</think>\n<answer>{answer}</answer>"
    assert published_countdown(completion, nums, target) == published
    reward = build("countdown")
    assert reward(completions=[completion], nums=[nums], target=[target]) == [here]


@settings(max_examples=300)
@given(
    st.lists(st.integers(1, 20), min_size=2, max_size=4),
    st.lists(st.sampled_from("+-*/"), min_size=3, max_size=3),
    st.booleans(),
    st.integers(-20, 60),
)
def test_countdown_agrees_on_plain_answers(nums, operators, bracketed, target):
    """On one line, with binary operators and integers, both rules give the same score."""
    joined = "".join(
        f" {operator} {number}" for operator, number in zip(operators, nums[1:], strict=False)
    )
    expression = f"{nums[0]}{joined}"
    if bracketed and len(nums) > 2:
        expression = f"({nums[0]} {operators[0]} {nums[1]}){joined.split(str(nums[1]), 1)[1]}"
    completion = f"<answer>{expression}</answer>"
    for goal in (target, nums[0] + nums[1]):
        expected = published_countdown(completion, nums, goal)
        reward = build("countdown")
        assert reward(completions=[completion], nums=[nums], target=[goal]) == [expected]


# ---- format


def published_format_of_swift(completion):
    """From the first character `<think>`, `</think>`, whitespace, `<answer>`, and nothing after
    `</answer>`.
    """
    pattern = "<think>.*?</think>[ \t\r\n\f\v]*<answer>.*?</answer>"
    return float(re.fullmatch(pattern, completion, re.DOTALL) is not None)


def published_format_of_gsm8k(completion):
    """Tags with line breaks from the first character.

    After the last tag the line must end, and more lines may follow.
    """
    pattern = "<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$"
    return float(re.match(pattern, completion, re.DOTALL | re.MULTILINE) is not None)


LINES = "<think>\na\n</think>\n<answer>\nb\n</answer>"
FORMATS = [
    # text, swift's, loose here, the article's, strict here
    (LINES, 1, 1, 1, 1),
    ("<think>a</think><answer>b</answer>", 1, 1, 0, 0),
    ("<think>a</think> \n <answer>b</answer>", 1, 1, 0, 0),
    ("<think></think><answer></answer>", 1, 1, 0, 0),
    ("<think>a</think>so<answer>b</answer>", 0, 0, 0, 0),
    ("a<think>a</think><answer>b</answer>", 0, 0, 0, 0),
    ("<think>a</think><answer>b", 0, 0, 0, 0),
    ("<answer>b</answer>", 0, 0, 0, 0),
    ("", 0, 0, 0, 0),
    # whitespace around
    (f" {LINES}", 0, 1, 0, 0),
    (f"{LINES}\n", 0, 1, 1, 0),
    # text after the last tag
    (f"{LINES}\nmore", 0, 0, 1, 0),
    (f"{LINES} more", 0, 0, 0, 0),
    # a tag that is repeated
    ("<think><think>a</think><answer>b</answer>", 1, 0, 0, 0),
    ("<think>\na\n</think>\nb\n</think>\n<answer>\nc\n</answer>", 1, 0, 1, 0),
    (f"{LINES}{LINES}", 1, 0, 1, 0),
]


@pytest.mark.parametrize(("text", "swift", "loose", "article", "strict"), FORMATS)
def test_format(text, swift, loose, article, strict):
    assert published_format_of_swift(text) == swift
    assert published_format_of_gsm8k(text) == article
    assert build("format")(completions=[text]) == [loose]
    assert build("format", mode="strict")(completions=[text]) == [strict]


PIECES = [*TAGS, "\n", " ", "a"]


@settings(max_examples=500)
@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join))
def test_format_differs_only_as_the_page_says(text):
    once = all(text.count(tag) == 1 for tag in TAGS)
    loose = build("format")(completions=[text])[0]
    strict = build("format", mode="strict")(completions=[text])[0]
    assert loose == float(once and published_format_of_swift(text.strip(" \n")) == 1)
    assert strict == float(
        once and published_format_of_gsm8k(text) == 1 and text.endswith("</answer>")
    )


# ---- tags and steps


def published_tag_count(completion):
    """A quarter for each tag that occurs once with its line breaks."""
    tags = ["<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>"]
    return sum(completion.count(tag) == 1 for tag in tags) / 4


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_tag_count_strict_is_the_published_rule(text):
    assert build("tag_count", mode="strict")(completions=[text]) == [published_tag_count(text)]


@pytest.mark.parametrize(
    ("text", "published", "here"),
    [
        (LINES, 1.0, 1.0),
        ("<think>a</think><answer>b</answer>", 0.0, 1.0),
        ("<think>\na</think>\n<answer>b\n</answer>", 0.5, 1.0),
        ("<think>\n<think>\n", 0.0, 0.0),
        ("<think>\n<think>a", 0.25, 0.0),
    ],
)
def test_tag_count_loose(text, published, here):
    assert published_tag_count(text) == published
    assert build("tag_count")(completions=[text]) == [here]


def published_reasoning_steps(completion):
    """Three marks earn 1.

    Numbered lines count in the first line only, bullets after a line break.
    """
    marks = len(re.findall("Step [0-9]+:", completion))
    marks += re.match("[0-9]+[.]", completion) is not None
    marks += sum(completion.count(bullet) for bullet in ("\n-", "\n*"))
    marks += sum(completion.count(word) for word in ("First,", "Second,", "Next,", "Finally,"))
    return min(1.0, marks / 3)


@pytest.mark.parametrize(
    ("text", "published", "here"),
    [
        ("Step 1: a\nStep 2: b\nStep 3: c", 3, 3),
        ("First, a. Second, b. Finally, c.", 3, 3),
        ("so\n- a\n- b", 2, 2),
        ("It is 4.", 0, 0),
        # numbered lines
        ("1. a\n2. b\n3. c", 1, 3),
        ("so\n1) a\n2) b", 0, 2),
        # other words, small letters
        ("first, a, then, b", 0, 2),
        ("step 1 a\nstep 2 b", 0, 2),
        # marks that are none here
        ("so Step 1: a, Step 2: b", 2, 0),
        ("so\n-a\n-b", 2, 0),
        ("so\n**bold**\n---", 2, 0),
    ],
)
def test_reasoning_steps(text, published, here):
    assert published_reasoning_steps(text) == pytest.approx(published / 3)
    assert build("reasoning_steps")(completions=[text]) == [pytest.approx(here / 3)]


# ---- answers


def published_answer(completion):
    """The first `<answer>` block with line breaks, wherever it stands."""
    match = re.search("<answer>\n(.*?)\n</answer>", completion, re.DOTALL)
    return None if match is None else match[1].strip()


@pytest.mark.parametrize(
    ("text", "published", "here"),
    [
        ("<think>\n70 + 2\n</think>\n<answer>\n72\n</answer>", 1, 1),
        ("<answer>\n72\n</answer>", 1, 1),
        ("<think>\n72\n</think>\n<answer>\n70\n</answer>", 0, 0),
        ("<think>\n72", 0, 0),
        ("", 0, 0),
        # where an answer may stand
        ("72", 0, 1),
        ("The answer is 72.", 0, 1),
        (r"It is \boxed{72}.", 0, 1),
        ("<answer>72</answer>", 0, 1),
        # which answer counts
        ("<answer>\n72\n</answer><answer>\n70\n</answer>", 1, 0),
        ("<answer>\n70\n</answer><answer>\n72\n</answer>", 0, 1),
        ("<think>\n<answer>\n72\n</answer>", 1, 0),
        ("<think>\n<answer>\n72\n</answer>\n</think>\n<answer>\n70\n</answer>", 1, 0),
    ],
)
def test_answers(text, published, here):
    assert float(published_answer(text) == "72") == published
    assert build("accuracy")(completions=[text], solution=["#### 72"]) == [here]


def published_accuracy(completion, gold):
    """math-verify compares the two texts.

    An error, or a gold answer that it cannot read, scores 0.
    """
    from math_verify import parse, verify

    try:
        return float(verify(parse(gold), parse(completion)))
    except Exception:
        return 0.0


@pytest.mark.parametrize(
    ("text", "gold", "published", "here"),
    [
        ("72", "72", 1, 1),
        ("$72$", "$72$", 1, 1),
        ("70", "72", 0, 0),
        (r"$\frac{2}{4}$", r"$\frac{1}{2}$", 1, 1),
        (r"\boxed{\sqrt{8}}", r"$2\sqrt{2}$", 1, 1),
        # only the answer after the thoughts counts
        ("<think>It is 72", "72", 1, 0),
        # numbers and units are exact
        ("0.4999999", "1/2", 1, 0),
        ("72 m", "72 cm", 1, 0),
        # an answer commits itself
        ("70 or 72", "72", 1, 0),
        ("not 72", "72", 1, 0),
        ("71 = 72", "72", 1, 0),
        # a gold answer that cannot be read gives no score
        ("72", "", 0, None),
    ],
)
def test_accuracy(text, gold, published, here):
    assert published_accuracy(text, gold) == published
    assert build("accuracy")(completions=[text], solution=[gold]) == [here]


# ---- verse

WATER = "水作青龙盘石堤 桃花夹岸鲁门西 若教月下乘舟去"


def faults_of(lines, form, strict=False):
    from grpo_ext.rewards.poem.characters import tones_of

    return sum(
        len(places_at_fault([tones_of(character, "modern") for character in line], tones, strict))
        for line, tones in zip(lines, form.lines, strict=True)
    )


@pytest.mark.parametrize("last", ["应是仙人放鹤归", "应有仙人吹笛啼", "梦回故里花如雪"])
def test_a_tie_between_forms(last):
    """Two forms fit these poems equally.

    The one whose first line rhymes is named, and the score is that of both.
    """
    lines = [*WATER.split(), last]
    candidates = forms(7, 4)
    fewest = min(faults_of(lines, form) for form in candidates)
    equal = [form for form in candidates if faults_of(lines, form) == fewest]
    assert len(equal) == 2
    [rhyming] = [form for form in equal if 0 in form.rhyming]
    assert judge(lines).form == rhyming.name
    assert len({form.lines[3] for form in equal}) == 1
