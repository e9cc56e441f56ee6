"""Tones of characters, in Mandarin and in the rhyme book."""

import pytest

from grpo_ext.rewards.poem.characters import Syllable, entries, syllables, tones_of


@pytest.mark.parametrize(
    ("characters", "tones"),
    [("天来人花归东时", "平"), ("水月地雪绿入庆", "仄"), ("看教为应发中重", "平仄")],
)
def test_mandarin(characters, tones):
    assert {c: tones_of(c) for c in characters} == dict.fromkeys(characters, tones)


def test_entering_tones_are_oblique_in_the_rhyme_book_and_often_level_in_mandarin():
    entering = "白石笛竹菊国德发八十一七"
    assert all("平" in tones_of(c, "modern") for c in entering)
    assert all(tones_of(c, "pingshui") == "仄" for c in entering)


@pytest.mark.parametrize(
    ("characters", "tones"),
    [
        ("冬支鱼灰真寒萧歌麻阳侵花来时人天", "平"),
        ("水月夜下雪绿国百老好马", "仄"),
        ("看教长重思", "平仄"),
    ],
)
def test_rhyme_book(characters, tones):
    assert {c: tones_of(c, "pingshui") for c in characters} == dict.fromkeys(characters, tones)


def test_a_simplified_character_has_the_readings_of_all_it_stands_for():
    assert tones_of("發", "pingshui") == tones_of("髮", "pingshui") == "仄"
    assert (tones_of("乾", "pingshui"), tones_of("幹", "pingshui"), tones_of("干", "pingshui")) == (
        "平",
        "仄",
        "平仄",
    )
    assert set(tones_of("发", "modern")) >= set(tones_of("髮", "modern")) | set(
        tones_of("發", "modern")
    )


@pytest.mark.parametrize(
    ("simplified", "traditional"), ["归歸", "风風", "来來", "声聲", "龙龍", "别別", "听聽", "还還"]
)
def test_simplified_and_traditional_agree(simplified, traditional):
    assert tones_of(simplified, "pingshui") == tones_of(traditional, "pingshui")
    if simplified != "别":  # 彆 too
        assert tones_of(simplified, "modern") == tones_of(traditional, "modern")


def test_neutral_tones_are_neither():
    assert Syllable(0, "二波") in syllables("的")
    assert set(tones_of("们")) == {"平"}


def test_characters_younger_than_the_rhyme_book_have_modern_tones():
    assert not entries("你") and not entries("怎")
    assert tones_of("你", "pingshui") == tones_of("怎", "pingshui") == "仄"


@pytest.mark.parametrize("oddity", ["a", "1", "，", "\x00", "\ud800", "🙂", "", "\U0003134f", "ａ"])
def test_what_has_no_tone(oddity):
    assert tones_of(oddity, "modern") in ("", "平", "仄", "平仄")
    assert tones_of(oddity, "pingshui") in ("", "平", "仄", "平仄")
    if not oddity or ord(oddity[0]) < 128:
        assert tones_of(oddity) == ""


@pytest.mark.parametrize(
    ("character", "syllable"),
    [
        ("知", (1, "十三支")),
        ("诗", (1, "十三支")),
        ("低", (1, "十二齐")),
        ("鱼", (2, "十二齐")),
        ("儿", (2, "十二齐")),
        ("月", (4, "三皆")),
        ("雄", (2, "十一庚")),
        ("归", (1, "五微")),
        ("流", (2, "七尤")),
        ("云", (2, "九文")),
        ("园", (2, "八寒")),
        ("歌", (1, "二波")),
        ("窗", (1, "十唐")),
        ("姑", (1, "十四姑")),
        ("家", (1, "一麻")),
    ],
)
def test_rhymes_of_mandarin(character, syllable):
    assert syllables(character)[0] == syllable
