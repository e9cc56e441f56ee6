"""The words of an explanation say what the scores say."""

import pytest

from grpo_ext.rewards.poem.explain_poem import explain_format

GIVEN = ["水作青龙盘石堤", "桃花夹岸鲁门西", "若教月下乘舟去"]


def explain_poem(lines, completion, **options):
    return explain_format(completion, lines=lines, **options).words


def test_a_line_without_fault():
    text = explain_poem(GIVEN, "<think>想</think><answer>一棹烟波去未迷。</answer>")
    assert "Last line read: 一棹烟波去未迷" in text
    assert "七言绝句(仄起平收式)" in text
    assert "poem_format 1.000" in text and "poem_yun 1: most rhyming lines share 八齐" in text
    assert "✗" not in text


def test_faults_are_named():
    text = explain_poem(GIVEN, "梦回故里花如雪")
    assert "Position 22: 回 is level (平); wanted is an oblique tone (仄)." in text
    assert "Position 27: 雪 is oblique (仄); wanted is a level tone, since the line rhymes (平韵)." in text
    assert text.count("✗") == 4
    assert "poem_format 0.429" in text and "poem_yun 0" in text
    assert "Line 4 ends on 雪, which has no level tone in the rhyme book." in text


def test_short_long_and_empty():
    short = explain_poem(GIVEN, "醉卧松风")
    assert short.count("the character is missing") == 3
    assert "Line 4 has 4 characters instead of 7" in short
    long = explain_poem(GIVEN, "一棹烟波去未迷" * 10)
    assert "Characters too many: 43." in long
    assert len(long) < 2000
    assert "No last line was found" in explain_poem(GIVEN, "no verse")


def test_strict_and_the_other_books():
    strict = explain_poem(GIVEN, "一棹烟波去未迷", strict=True)
    assert "（" not in strict
    assert "十二齐" in explain_poem(GIVEN, "一棹烟波去未迷", tones="pingshui", rhyme_book="xinyun")


def test_faults_of_the_given_lines_cost_nothing():
    text = explain_poem(["四人摸打一副牌", "东西南北中发白", "吃岔杠听清一色"], "胜负分明各归家")
    assert "poem_format 0.857" in text
    assert "Faults in the given lines, which cost nothing: 2." in text


def test_no_poem():
    with pytest.raises(ValueError, match="4 or 8 lines"):
        explain_poem(GIVEN[:2], "一棹烟波去未迷")
