"""Verifiable instructions.

What each check takes for followed, hostile texts, and when a text counts.
"""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.rewards import build
from grpo_ext.rewards.instruction_checks import (
    MAX_LENGTH,
    count_sentences,
    follows,
    instruction_names,
)
from grpo_ext.rewards.registry import lookup

# (instruction, parameters, a text that follows it, one that does not)
PAIRS = [
    ("keywords:existence", {"keywords": ["bee", "Honey"]}, "Bees make honey.", "Bees make wax."),
    (
        "keywords:frequency",
        {"keyword": "bee", "frequency": 2, "relation": "at least"},
        "A bee and a Bee.",
        "A bee.",
    ),
    (
        "keywords:frequency",
        {"keyword": "bee", "frequency": 2, "relation": "less than"},
        "A bee.",
        "A bee and a Bee.",
    ),
    ("keywords:forbidden_words", {"forbidden_words": ["bee", "a+b"]}, "Beeswax", "the BEE!"),
    (
        "keywords:letter_frequency",
        {"letter": "E", "let_frequency": 3, "let_relation": "at least"},
        "Bees eat",
        "Bees",
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "less than"},
        "two words",
        "now three words",
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3.0, "relation": "at least"},
        "now three words",
        "two words",
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        'He said "No." Then he left',
        "It costs 3.50 now",
    ),
    ("length_constraints:number_lines", {"num_lines": 2}, "one\n\n two\n", "one"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a ***\nb ***", "a\n\nb"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"},
        "One.\n\n“So,” he said",
        "So one.\n\nThen two",
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        "Dear [name], see [place].",
        "Dear [name\n], see [place].",
    ),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP. S. One more", "Bye"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "p.p.s. yes", "P.S. no"),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        "* one\n  - two",
        "* one\n**two**\n1. three",
    ),
    ("detectable_format:constrained_response", {}, "Well. My answer is no.", "No."),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        "*one* and **two**",
        "**one** and ** **",
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Part", "num_sections": 2},
        "Part 1\na\nPart 2\nb",
        "Part 1\na\nPart two",
    ),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{'a': 1}"),
    (
        "detectable_format:json_keys",
        {"keys": ["a", "b"]},
        '{"b": "x", "a": 0}',
        '{"a": 1, "b": ""}',
    ),
    ("detectable_format:json_keys", {"keys": ["a"]}, '{"a": [1]}', '["a"]'),
    ("detectable_format:title", {}, "<<The bee>>\nA text", "<< >> <The bee>"),
    ("combination:two_responses", {}, "One ****** two", "One ****** One"),
    ("combination:two_responses", {}, "****** One ****** two ******", "One ****** ****** two"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Who?"}, " who? I", "I. Who?"),
    ("startend:start_checker", {"start_phrase": "Today"}, "Today, bees", "Bees today"),
    ("startend:end_checker", {"end_phrase": "the end."}, 'So. "The end."', "The end. So"),
    ("startend:quotation", {}, ' "So" ', '"'),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "NO, I mean it",
        "No way",
    ),
    ("change_case:english_capital", {}, "BEES 3!", "BEEs"),
    ("change_case:english_lowercase", {}, "bees 3!", "123"),
    ("punctuation:no_comma", {}, "no; no", "no, no"),
]


@pytest.mark.parametrize(("name", "parameters", "right", "wrong"), PAIRS)
def test_a_text_that_follows_and_one_that_does_not(name, parameters, right, wrong):
    assert follows(right, name, parameters)
    assert not follows(wrong, name, parameters)
    # a table has the parameters of all its rows
    assert follows(right, name, {**parameters, "of_another_row": None, "another": 3})


def test_each_instruction_is_tried():
    assert {name for name, *_ in PAIRS} == set(instruction_names())


@given(st.lists(st.text(string.ascii_letters + string.digits, min_size=1), max_size=30))
def test_words_are_counted(words):
    text = "; ".join(words)
    for number in range(max(0, len(words) - 1), len(words) + 2):
        parameters = {"num_words": number, "relation": "less than"}
        is_less = follows(text, "length_constraints:number_words", parameters)
        assert is_less == (len(words) < number)
        parameters["relation"] = "at least"
        assert follows(text, "length_constraints:number_words", parameters) != is_less


@given(st.lists(st.sampled_from(["One two", "3.5 of it", "e.g"]), max_size=6), st.data())
def test_sentences_are_counted(sentences, data):
    marks = [data.draw(st.sampled_from([".", "!", "?!", '."', "..."])) for _ in sentences]
    text = " ".join(sentence + mark for sentence, mark in zip(sentences, marks, strict=True))
    assert count_sentences(text) == len(sentences)
    assert count_sentences(f"{text} and so on") == len(sentences) + 1


@pytest.mark.parametrize(
    "text",
    [
        "." * MAX_LENGTH,
        "." * (MAX_LENGTH - 1) + "a",
        "[" * MAX_LENGTH,
        "<" * MAX_LENGTH,
        "*" * MAX_LENGTH,
        "*a" * (MAX_LENGTH // 2),
        "* " * (MAX_LENGTH // 2),
        "Part" * (MAX_LENGTH // 4),
        "Part 1" + "1" * (MAX_LENGTH - 6),
        "p. " * (MAX_LENGTH // 3),
        "{" * MAX_LENGTH,
        "[" * (MAX_LENGTH // 2) + "]" * (MAX_LENGTH // 2),
        '{"a":' * (MAX_LENGTH // 5),
        "9" * MAX_LENGTH,
        '"' * MAX_LENGTH,
        "\n" * MAX_LENGTH,
        "\ud800\x00\u202e" * 1000,
        "",
    ],
    ids=lambda text: repr(text[:6]),
)
def test_no_text_takes_long_or_raises(text):
    """Each check is linear.

    All of them together read these in far less than the test's patience.
    """
    for name, parameters, _, _ in PAIRS:
        assert follows(text, name, parameters) in (True, False)


def test_a_text_beyond_the_limit_follows_nothing():
    assert not follows("a" * (MAX_LENGTH + 1), "punctuation:no_comma", {})


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("punctuation:no_coma", {}, "Did you mean 'punctuation:no_comma'"),
        ("length_constraints:number_words", {"num_words": 3}, "relation .* invalid .Missing"),
        (
            "length_constraints:number_words",
            {"num_words": None, "relation": "at least"},
            "num_words",
        ),
        ("length_constraints:number_words", {"num_words": -1, "relation": "at least"}, "num_words"),
        ("length_constraints:number_words", {"num_words": 1, "relation": "exactly"}, "relation"),
        ("keywords:existence", {"keywords": []}, "keywords"),
        ("keywords:existence", {"keywords": "bee"}, "keywords"),
        (
            "keywords:letter_frequency",
            {"letter": "ab", "let_frequency": 1, "let_relation": "at least"},
            "letter",
        ),
    ],
)
def test_a_row_that_is_no_instruction_is_named(name, parameters, message):
    with pytest.raises(ValueError, match=message):
        follows("a text", name, parameters)


ROW = {
    "instruction_id_list": ["change_case:english_lowercase", "length_constraints:number_words"],
    "kwargs": [None, {"num_words": 6, "relation": "less than"}],
    "topic": "honey",
}


def score(text, prompt="Write about honey.", **options):
    columns = {name: [value] for name, value in ROW.items()}
    return build("instructions", **options)(completions=[text], prompts=[prompt], **columns)[0]


def test_credit_for_each_instruction_or_for_all():
    assert score("honey is sweet") == 1
    assert score("Honey is sweet") == 0.5
    assert score("Honey is sweet", credit="all") == 0
    assert score("<think>It IS</think> honey", credit="all") == 1
    assert score("<think>It IS</think> honey", part="all") == 0.5
    assert score("sweet") == 0, "it does not name its topic"


def test_a_missing_parameter_of_a_text_that_is_too_long_to_check_is_no_limit():
    columns = {
        "instruction_id_list": [["length_constraints:number_words"]],
        "kwargs": [[{"relation": "less than"}]],
    }
    [verdict] = build("instructions", min_words=1)(completions=["word " * 30_000], **columns)
    assert verdict == 0


def test_what_a_person_would_not_accept_earns_nothing():
    assert score("honey is", min_words=3) == 0
    assert score("honey is a sweet thing", min_words=10) == 1, "fewer than six words are asked for"
    assert score("honey is sweet or", min_words=10) == 0
    assert score("honey honey honey is", min_distinct=0.6) == 0
    assert score("honey honey is sweet", min_distinct=0.6) == 1


def test_a_text_that_was_cut_off_earns_nothing():
    for num_tokens, expected in ((4, 1), (5, 0), (6, 0)):
        columns = {name: [value] * 2 for name, value in ROW.items()}
        scores = build("instructions", max_tokens=5)(
            completions=["honey is sweet"] * 2,
            completion_ids=[list(range(num_tokens)), [1]],
            **columns,
        )
        assert scores == [expected, 1]


def test_a_copy_of_the_prompt_earns_nothing():
    prompt = [
        {"role": "system", "content": "one two three four five six seven eight honey"},
        {"role": "user", "content": "Write about honey in less than six words, all of them small."},
    ]
    copied = "write about honey in less than six words"
    assert score(copied, prompt) == 0.5
    assert score(copied, prompt, allow_copies=False) == 0
    assert score(copied[:-1], prompt, allow_copies=False) == 0.5
    assert score("one two three four five six seven eight honey", prompt, allow_copies=False) == 0.5


def test_parameters_for_each_instruction():
    with pytest.raises(ValueError, match="2 instructions in `instruction_id_list`, but 1 set of"):
        build("instructions")(
            completions=["a"], instruction_id_list=[ROW["instruction_id_list"]], kwargs=[[{}]]
        )


def test_the_report_says_which_were_followed():
    told = lookup("instructions").explain("Honey", min_words=3, **ROW).text
    assert told.splitlines() == [
        "not followed: change_case:english_lowercase",
        "followed: length_constraints:number_words num_words 6, relation less than",
        "The text earns 0: it has 1 word, fewer than 3.",
    ]
