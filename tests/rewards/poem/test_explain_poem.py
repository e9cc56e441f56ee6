"""The words of an explanation say what the scores say."""

import pytest

from grpo_ext.rewards.poem.poem_rewards import explain_format, explain_yun

GIVEN = ["水作青龙盘石堤", "桃花夹岸鲁门西", "若教月下乘舟去"]


def test_a_line_without_fault():
    text = explain_format("<think>想</think><answer>一棹烟波去未迷。</answer>", lines=GIVEN).text
    assert "Last line read: 一棹烟波去未迷" in text
    assert "七言绝句(仄起平收式)" in text
    assert "poem_format 1.000" in text and "expected" not in text
    text = explain_yun("一棹烟波去未迷", lines=GIVEN).text
    assert "poem_yun 1: 八齐 has the most rhyming lines, and the last line is in it" in text


def test_faults_are_named():
    text = explain_format("梦回故里花如雪", lines=GIVEN).text
    assert "Position 22: 回 is level (平); expected an oblique tone (仄)." in text
    assert (
        "Position 27: 雪 is oblique (仄); expected a level tone, since the line rhymes (平韵)."
        in text
    )
    assert text.count("expected") == 4 and "poem_format 0.429" in text
    text = explain_yun("梦回故里花如雪", lines=GIVEN).text
    assert "雪: no level tone in the rhyme book." in text and "poem_yun 0" in text


def test_short_long_and_empty():
    assert explain_format("醉卧松风", lines=GIVEN).text.count("the character is missing") == 3
    long = explain_format("一棹烟波去未迷" * 10, lines=GIVEN)
    assert len(long.text) < 500 and "is one character too many" in long.marks[0][-1]
    assert "No last line was found" in explain_format("no verse", lines=GIVEN).text
    assert "poem_yun 0" in explain_yun("no verse", lines=GIVEN).text


def test_strict_and_the_other_books():
    assert "poem_format 0.857" in explain_format("回棹烟波去未迷", lines=GIVEN, strict=True).text
    assert (
        "十二齐"
        in explain_yun("一棹烟波去未迷", lines=GIVEN, tones="pingshui", rhyme_book="xinyun").text
    )


def test_no_poem():
    with pytest.raises(ValueError, match="4 or 8 lines"):
        explain_format("一棹烟波去未迷", lines=GIVEN[:2])
