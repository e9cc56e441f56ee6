"""The published verdicts: given lines, last line, and what the experiment reported for them."""

import pytest

from grpo_ext.rewards import build
from grpo_ext.rewards.poem import judge

WATER = "水作青龙盘石堤 桃花夹岸鲁门西 若教月下乘舟去"
MAHJONG = "四人摸打一副牌 东西南北中发白 吃岔杠听清一色"
FEAST = "礼乐飞花迎典庆 青枫白果待秋迟 十一归去逢重九"
FLAT = "七言绝句(仄起平收式)"
SLANTED = "七言绝句(仄起仄收式)"

PUBLISHED = [
    (WATER, "梦回故里花如雪", 3 / 7, 0, FLAT, "八齐"),
    (WATER, "应是仙人放鹤归", 1, 0, FLAT, "八齐"),
    (WATER, "应有仙人吹笛啼", 6 / 7, 1, FLAT, "八齐"),
    (WATER, "一棹烟波去未迷", 1, 1, FLAT, "八齐"),
    (MAHJONG, "胜负分明各归家", 6 / 7, 1, FLAT, "六麻"),
    (MAHJONG, "不与人争先得", 6 / 7, 0, FLAT, "九佳"),
    (MAHJONG, "胜负高低皆入画", 6 / 7, 0, FLAT, "九佳"),
    (FEAST, "醉卧松风", 4 / 7, 0, SLANTED, "四支"),
    (FEAST, "九节秋风送客时", 6 / 7, 1, SLANTED, "四支"),
    (FEAST, "心事如诗共醉时", 1, 1, SLANTED, "四支"),
]
TRADITIONAL = [
    ("水作青龍盤石堤 桃花夾岸魯門西 若教月下乘舟去", "應有仙人吹笛啼", 6 / 7, 1),
    ("水作青龍盤石堤 桃花夾岸魯門西 若教月下乘舟去", "夢回故里花如雪", 3 / 7, 0),
    ("四人摸打一副牌 東西南北中發白 吃岔槓聽清一色", "勝負分明各歸家", 6 / 7, 1),
    ("禮樂飛花迎典慶 青楓白果待秋遲 十一歸去逢重九", "九節秋風送客時", 6 / 7, 1),
]


@pytest.mark.parametrize(("given", "last", "tone_score", "rhyme_score", "form", "group"), PUBLISHED)
def test_published_verdicts(given, last, tone_score, rhyme_score, form, group):
    verdict = judge([*given.split(), last], tones="modern")
    assert verdict.last_line_score == tone_score
    assert verdict.rhyme_score == rhyme_score
    assert (verdict.form, verdict.rhyme_group) == (form, group)


@pytest.mark.parametrize(("given", "last", "tone_score", "rhyme_score", "form", "group"), PUBLISHED)
def test_the_rewards_give_the_published_scores(given, last, tone_score, rhyme_score, form, group):
    completions = [
        last,
        f"<think>\n{given}\n</think>\n<answer>\n{last}。\n</answer>",
        f"{given}\n{last}",
    ]
    rows = {"completions": completions, "lines": [given.split()] * 3}
    assert build("poem_format")(**rows) == [tone_score] * 3
    assert build("poem_yun")(**rows) == [rhyme_score] * 3


@pytest.mark.parametrize(("given", "last", "tone_score", "rhyme_score"), TRADITIONAL)
def test_traditional_characters_get_the_same_scores(given, last, tone_score, rhyme_score):
    verdict = judge([*given.split(), last])
    assert (verdict.last_line_score, verdict.rhyme_score) == (tone_score, rhyme_score)


def test_the_faults_of_a_verdict():
    exact = [(22, "回", "仄"), (24, "里", "平")]
    assert [*judge([*WATER.split(), "梦回故里去未迷"]).faults] == exact
    assert [*judge([*WATER.split(), "梦回故里花如雪"]).faults] == [
        *exact,
        (26, "如", "仄"),
        (27, "雪", "平韵"),
    ]
    assert not judge([*WATER.split(), "一棹烟波去未迷"]).faults
    assert judge([*FEAST.split(), "心事如诗共醉"]).faults[-1] == (27, None, "平韵")
