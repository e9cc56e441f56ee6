"""The registered rewards: their own examples, odd rows, hostile completions, and their speed."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.rewards import build, list_rewards
from grpo_ext.rewards.poem.poem_rewards import given_lines
from tests.support.runaway import no_runaway

GIVEN = ["水作青龙盘石堤", "桃花夹岸鲁门西", "若教月下乘舟去"]
BOTH = pytest.mark.parametrize("name", ["poem_format", "poem_yun"])


@BOTH
def test_their_own_examples(name):
    reward = build(name)
    scores = {example.score for example in reward.examples}
    assert 1.0 in scores and 0.0 in scores
    for example in reward.examples:
        columns = {column: [value] for column, value in example.columns.items()}
        assert reward(completions=[example.completion], **columns) == [pytest.approx(example.score)]


@BOTH
def test_the_catalogue(name):
    info = {info.name: info for info in list_rewards()}[name]
    assert info.columns == ("lines",)
    assert info.options == {"tones": "modern", "rhyme_book": "pingshui", "strict": False}
    assert len(info.summary) < 119


@BOTH
def test_unknown_options_are_refused_when_it_is_built(name):
    with pytest.raises(ValueError, match="pingshui"):
        build(name, tones="pingshu")
    with pytest.raises(ValueError, match="rhyme_book"):
        build(name, rhymebook="xinyun")


@BOTH
def test_it_survives_pickling(name):
    reward = pickle.loads(pickle.dumps(build(name, tones="pingshui")))
    assert reward.options["tones"] == "pingshui"
    assert reward(completions=["一棹烟波去未迷"], lines=[GIVEN]) == [1.0]


def test_options_reach_the_judge():
    row = {
        "completions": ["一棹烟波白未迷"],
        "lines": [GIVEN],
    }  # 白: level in Mandarin, entering in the book; place 5
    assert build("poem_format", tones="modern", strict=True)(**row)[0] < 1
    assert build("poem_format", tones="pingshui")(**row) == [1.0]
    seven = {
        "completions": ["一棹烟波去未知"],
        "lines": [GIVEN],
    }  # 知: 四支, as 堤 can be; in Mandarin it rhymes with none
    assert build("poem_yun", rhyme_book="xinyun")(**seven) == [0.0]
    assert build("poem_yun", rhyme_book="xinyun")(
        completions=["一棹烟波去未疑"], lines=[GIVEN]
    ) == [1.0]


@BOTH
@pytest.mark.parametrize("row", [None, [], ["水作青龙盘石堤"], 7, "", {"lines": 3}, ["一"] * 5])
def test_a_row_that_is_no_poem_is_not_scored(name, row, caplog):
    given_lines.cache_clear()  # a row is warned about once
    assert build(name)(completions=["一棹烟波去未迷", "一棹烟波去未迷"], lines=[row, GIVEN]) == [
        None,
        1.0,
    ]
    assert "not scored" in caplog.text


@BOTH
def test_lines_without_chinese_characters_are_lines_still(name):
    assert build(name)(completions=["一棹烟波去未迷"], lines=[[None, 3, []]])[0] is not None


@BOTH
def test_given_lines_may_carry_punctuation_or_be_one_text(name):
    lines = [[f" {line}， " for line in GIVEN], "，".join(GIVEN) + "。", tuple(GIVEN)]
    assert build(name)(completions=["一棹烟波去未迷"] * 3, lines=lines) == [1.0] * 3


def test_copying_a_given_line_earns_nothing():
    copies = [
        GIVEN[0],
        GIVEN[1],
        "\n".join(GIVEN),
    ]  # the first line has the last one's pattern, and rhymes
    assert build("poem_format")(completions=copies, lines=[GIVEN] * 3) == [0.0] * 3
    assert build("poem_yun")(completions=copies, lines=[GIVEN] * 3) == [0.0] * 3


def test_a_longer_line_never_earns_more():
    reward = build("poem_format")
    line = "一棹烟波去未迷"
    scores = reward(completions=[line + "迷" * extra for extra in range(40)], lines=[GIVEN] * 40)
    assert scores == sorted(scores, reverse=True)
    assert scores[1] < 1


HOSTILE = [
    "",
    "\x00" * 100_000,
    "\ud800" * 100_000,
    "一" * 3_000_000,
    "一 " * 1_000_000,
    "<answer>" * 300_000,
    "\ufffd\u202e\u200b",
    "<think>" * 300_000,
    "</answer><answer>" * 100_000,
    "<answer>" + "迷\n" * 1_000_000 + "</answer>",
    "𠀀" * 1_000_000,
    "9**9**9",
    "(" * 100_000,
    "__import__('os')",
    "🙂" * 100_000,
    "１２３４５",
    "<answer>\ud800一棹烟波去未迷\udfff</answer>",
]


@BOTH
def test_hostile_completions(name):
    reward = build(name)
    reward(completions=["一"], lines=[GIVEN])
    for text in HOSTILE:
        with no_runaway():
            (score,) = reward(completions=[text], lines=[GIVEN])
        assert 0 <= score <= 1
    assert reward(completions=HOSTILE[-1:], lines=[GIVEN]) == [1.0]


@settings(max_examples=200, deadline=None)
@given(st.text(), st.lists(st.text(), min_size=3, max_size=3))
def test_any_completion_and_any_lines(completion, lines):
    for name in ("poem_format", "poem_yun"):
        assert 0 <= build(name)(completions=[completion], lines=[lines])[0] <= 1
