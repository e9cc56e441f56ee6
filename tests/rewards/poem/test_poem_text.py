"""Which line is read from a completion."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.rewards.poem import last_line
from grpo_ext.rewards.poem.text import LONGEST, han, verse_lines
from tests.support.runaway import no_runaway

LINE = "一棹烟波去未迷"


@pytest.mark.parametrize(
    "completion",
    [
        LINE,
        f"{LINE}。",
        f"<answer>{LINE}</answer>",
        f"<think>仄仄平平仄仄平</think>\n<answer>\n{LINE}\n</answer> 祝好",
        f"<think>先想想韵脚</think>\n{LINE}",
        f"水作青龙盘石堤，桃花夹岸鲁门西。若教月下乘舟去，{LINE}。",
        f"水作青龙盘石堤 桃花夹岸鲁门西 若教月下乘舟去 {LINE}",
        f"最后一句：“{LINE}”",
        f"the line is {LINE}!",
        "一 棹 烟 波 去 未 迷",
        "一　棹　烟　波　去　未　迷",
        f"想好了</think><answer>{LINE}",  # the block never closed
    ],
)
def test_the_line_is_found(completion):
    assert last_line(completion) == LINE


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "no verse",
        "<answer></answer>",
        f"{LINE}<answer>none</answer>",
        f"<think>{LINE}",
        "\x00\ud800\udfff",
        "１２３",
    ],
)
def test_no_line(completion):
    assert last_line(completion) == ""


def test_a_copied_line_is_no_new_line():
    given = ["水作青龙盘石堤", "桃花夹岸鲁门西"]
    assert last_line("水作青龙盘石堤，桃花夹岸鲁门西", given) == ""
    assert last_line(f"水作青龙盘石堤，桃花夹岸鲁门西，{LINE}", given) == LINE


def test_lines_of_a_text():
    assert verse_lines("床前明月光，疑是地上霜。\n举头望明月 低头思故乡") == [
        "床前明月光",
        "疑是地上霜",
        "举头望明月",
        "低头思故乡",
    ]
    assert verse_lines("㐀𠀀〇龍") == ["㐀𠀀〇龍"]
    assert verse_lines("abc 123") == []


@given(st.text())
def test_any_text(completion):
    line = last_line(completion)
    assert han(line) == line
    assert len(line) <= LONGEST


@pytest.mark.parametrize(
    "piece", ["迷", "迷 ", "<answer>", "</think>", "<answer>迷", "\ud800", "\x00", "，", "<think>"]
)
def test_ten_million_characters_are_read_in_no_time(piece):
    text = piece * (10_000_000 // len(piece))
    with no_runaway():
        assert len(last_line(text)) <= LONGEST
