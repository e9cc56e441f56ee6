"""The judge, against a slow one written from the rules, and at the edges."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.rewards.poem import judge
from grpo_ext.rewards.poem.characters import level_groups, pingshui, tones_of
from grpo_ext.rewards.poem.forms import forms

COMMON = "山水风云雨雪月日星花草木春夏秋冬白红青一不天地人来去归飞流落深浅高低长短中里发看听教为重应思堤石夹节笛"
LINES = {n: st.text(alphabet=COMMON, min_size=n, max_size=n) for n in (5, 7)}
LAST = st.text(alphabet=COMMON, max_size=10)


def slow_faults(lines, pattern, tones, strict):
    """Faults by the rules, character by character: (position, character, wanted)."""
    length = len(pattern[0])
    out = []
    for number, line in enumerate(lines):
        for place in range(max(len(line), length)):
            wanted = pattern[number][place] if place < length else "无字"
            if place == length - 1 and wanted == "平":
                wanted = "平韵"
            character = line[place] if place < len(line) else None
            free = not strict and place in (0, 2, 4)[: (length - 1) // 2] and character is not None
            if not free and (character is None or wanted[0] not in tones_of(character, tones)):
                out.append((number * length + place, character, wanted))
    return out


def slow_rhyme(lines, pattern, book):
    """The group that most rhyming lines share and whether the last line is in it, by counting."""
    length = len(pattern[0])
    order = [n for n in range(1, len(lines), 2)] + ([0] if pattern[0][-1] == "平" else [])
    groups = [level_groups(lines[n][-1], book) if len(lines[n]) == length else () for n in order]
    every = {group for line in groups for group in line}
    if not every:
        return set(), 0.0
    most = max(sum(group in line for line in groups) for group in every)
    best = {group for group in every if sum(group in line for line in groups) == most}
    for line in groups:  # ties go to the line that comes first
        best = best & set(line) or best
    last = groups[order.index(len(lines) - 1)]
    return best, float(bool(best & set(last)))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_against_a_slow_judge(data):
    length = data.draw(st.sampled_from([5, 7]))
    count = data.draw(st.sampled_from([4, 8]))
    lines = [data.draw(LINES[length]) for _ in range(count - 1)] + [data.draw(LAST)]
    tones = data.draw(st.sampled_from(["modern", "pingshui"]))
    book = data.draw(st.sampled_from(["pingshui", "xinyun"]))
    strict = data.draw(st.booleans())
    verdict = judge(lines, tones=tones, rhyme_book=book, strict=strict)
    candidates = {form.name: form for form in forms(length, count)}
    counts = {
        name: len(slow_faults(lines, form.lines, tones, strict))
        for name, form in candidates.items()
    }
    assert counts[verdict.form] == min(counts.values())
    assert list(verdict.faults) == slow_faults(lines, verdict.pattern, tones, strict)
    last = [fault for fault in verdict.faults if fault.position >= length * (count - 1)]
    wide = max(length, len(lines[-1]))
    assert verdict.last_line_score == (wide - len(last)) / wide
    groups, score = slow_rhyme(lines, verdict.pattern, book)
    assert verdict.rhyme_score == score
    assert verdict.rhyme_group in groups or (verdict.rhyme_group is None and not groups)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(), min_size=4, max_size=4), st.booleans())
def test_any_text_gets_a_verdict(lines, strict):
    verdict = judge(lines, strict=strict)
    assert 0 <= verdict.last_line_score <= 1
    assert verdict.rhyme_score in (0, 1)


def test_ties_of_the_rhyme_go_to_line_two_then_four_then_one():
    assert (
        judge(["四人摸打一副牌", "东西南北中发白", "吃岔杠听清一色", "胜负分明各归家"]).rhyme_group
        == "六麻"
    )  # 4 before 1
    lines = ["水作青龙盘石堤", "桃花夹岸鲁门东", "若教月下乘舟去", "一棹烟波去未还"]
    assert judge(lines).rhyme_group == "一东"  # 2 before 4 and 1
    assert judge([*lines[:3], "一棹烟波去未迷"]).rhyme_group == "八齐"  # two of three


def test_a_tie_between_forms_is_one_whose_first_line_rhymes():
    assert set("平仄") == set(tones_of("堤"))
    assert (
        judge(["水作青龙盘石堤", "桃花夹岸鲁门西", "若教月下乘舟去", "一棹烟波去未迷"]).form
        == "七言绝句(仄起平收式)"
    )


def test_strict_counts_the_free_places():
    lines = ["白日依山尽", "黄河入海流", "欲穷千里目", "更上一层楼"]
    assert not judge(lines, tones="pingshui").faults
    assert judge(lines, tones="pingshui", strict=True).faults == ((10, "欲", "平"),)


def test_too_many_characters_are_faults():
    given_lines = ["水作青龙盘石堤", "桃花夹岸鲁门西", "若教月下乘舟去"]
    verdict = judge([*given_lines, "一棹烟波去未迷迷"])
    assert verdict.faults == ((28, "迷", "无字"),)
    assert verdict.last_line_score == 7 / 8
    assert verdict.rhyme_score == 0
    endless = judge([*given_lines, "迷" * 1_000_000])
    assert endless.last_line_score < 0.2
    assert len(endless.faults) < 100


def test_five_or_seven_is_settled_by_the_given_lines():
    assert judge(["白日依山尽", "黄河入海流", "欲穷千里目", "一棹烟波去未迷"]).form.startswith(
        "五言"
    )
    assert judge(["", "", "", "白日依山尽"]).form.startswith("七言")


def test_eight_lines():
    lines = [
        "国破山河在",
        "城春草木深",
        "感时花溅泪",
        "恨别鸟惊心",
        "烽火连三月",
        "家书抵万金",
        "白头搔更短",
        "浑欲不胜簪",
    ]
    verdict = judge(lines, tones="pingshui")
    assert verdict.form == "五言律诗(仄起仄收式)"
    assert (verdict.rhyme_group, verdict.rhyme_score, verdict.faults) == ("十二侵", 1, ())
    assert len(verdict.line_faults) == 8


def test_what_is_no_poem_is_refused():
    with pytest.raises(ValueError, match="4 or 8 lines, but `lines` has 3"):
        judge(["水作青龙盘石堤"] * 3)
    with pytest.raises(ValueError, match="one string"):
        judge("水作青龙")
    with pytest.raises(ValueError, match=r"'modern'.*'pingshui'"):
        judge(["水作青龙盘石堤"] * 4, tones="mandarin")
    with pytest.raises(ValueError, match=r"'pingshui'.*'xinyun'"):
        judge(["水作青龙盘石堤"] * 4, rhyme_book="kangxi")


def test_twenty_thousand_characters_of_the_book_have_a_tone():
    assert len(pingshui()) > 19_000
    sample = random.Random(0).sample(sorted(pingshui()), 500)
    assert all(tones_of(character, "pingshui") for character in sample)
