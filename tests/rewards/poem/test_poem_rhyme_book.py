"""The rhyme books, against what every table of 平水韵 says."""

import pytest

from grpo_ext.rewards.poem.characters import entries, level_groups, pingshui

# Characters that poets rhyme on, by group: from memory of the tables, not from the data.
LEVEL = {
    "一东": "东同中虫终宫穷风空公功红鸿翁通",
    "二冬": "冬农宗钟龙松冲容封胸浓重从峰逢",
    "三江": "江窗邦双降",
    "四支": "支枝移为垂吹奇宜仪皮儿离知池规危姿迟眉悲之时诗旗辞期",
    "五微": "微晖挥围飞非衣归稀依机",
    "六鱼": "鱼渔初书舒居车渠余疏梳虚徐庐除如",
    "七虞": "虞愚无儒须株珠夫胡湖乎壶途图呼吾乌枯都苏孤",
    "八齐": "齐妻堤低题啼鸡西栖溪泥迷",
    "九佳": "佳街鞋牌柴怀淮",
    "十灰": "灰回梅催杯台才来哀开哉栽",
    "十一真": "真新薪晨臣人神亲身尘陈春津贫巾民",
    "十二文": "文闻云分纷君军勤",
    "十三元": "元原园喧言门尊村魂昏痕恩",
    "十四寒": "寒丹单安难餐残干看栏端官欢",
    "十五删": "删关弯还环颜山闲间攀",
    "一先": "先前千天坚贤年烟怜田眠渊边泉仙传船然连",
    "二萧": "萧箫桥遥消朝潮骄霄",
    "三肴": "肴巢交郊茅",
    "四豪": "豪毫高刀劳桃袍涛",
    "五歌": "歌多罗河波荷何过",
    "六麻": "麻花霞家茶华沙车牙斜涯",
    "七阳": "阳杨扬香乡光昌堂章长凉霜床裳",
    "八庚": "庚明生兵行情晴声名城轻",
    "九青": "青经形亭庭听星灵屏",
    "十蒸": "蒸冰升灯僧曾",
    "十一尤": "尤忧流留秋州舟愁楼头洲",
    "十二侵": "侵林深心琴今金音阴",
    "十三覃": "覃南谈甘",
    "十四盐": "盐帘嫌檐尖",
    "十五咸": "咸岩帆衫",
}
OBLIQUE = {"上": "董纸语雨马好晓草老水", "去": "送梦味路世夜泪岸断", "入": "木竹玉月雪白客笛国立叶"}


@pytest.mark.parametrize("group", LEVEL)
def test_level_tone_groups(group):
    assert not [character for character in LEVEL[group] if group not in level_groups(character)]


@pytest.mark.parametrize("tone", OBLIQUE)
def test_oblique_tones(tone):
    assert not [
        character
        for character in OBLIQUE[tone]
        if tone not in {entry.tone for entry in entries(character)}
    ]


def test_oblique_characters_rhyme_with_nothing():
    assert not [character for character in "雪月白石笛国竹" if level_groups(character)]


def test_a_hundred_and_six_groups():
    groups = {entry for found in pingshui().values() for entry in found}
    count = {tone: len({group for t, group in groups if t == tone}) for tone in "平上去入"}
    assert count == {"平": 30, "上": 29, "去": 30, "入": 17}
    assert len({group for _, group in groups}) == 106


@pytest.mark.parametrize(
    ("simplified", "traditional"),
    ["东東", "归歸", "龙龍", "鱼魚", "云雲", "里裏", "台臺", "窗窻", "闲閑"],
)
def test_simplified_and_traditional(simplified, traditional):
    assert set(entries(traditional)) <= set(entries(simplified))
    assert entries(traditional)


def test_a_simplified_character_has_its_own_readings_only_where_it_is_one_of_those_it_stands_for():
    assert "去" not in {entry.tone for entry in entries("云")}
    assert {entry.group for entry in entries("后")} >= {"二十五有", "二十六宥"}
    assert {entry.group for entry in entries("样")} == {
        "二十三漾"
    }  # 様 in the 廣韻 is another word
    assert {entry.group for entry in entries("体")} == {"八荠"}  # 體; the old 体 is in 十三阮


def test_xinyun():
    assert level_groups("花", "xinyun") == ("一麻",)
    assert level_groups("东", "xinyun") == level_groups("生", "xinyun") == ("十一庚",)
    assert level_groups("白", "xinyun")[0] == "四开"  # level in Mandarin
    assert level_groups("雪", "xinyun") == ()
    assert level_groups("歸", "xinyun") == level_groups("归", "xinyun") == ("五微",)


def test_an_unknown_book():
    with pytest.raises(ValueError, match="unknown rhyme_book 'guangyun'"):
        level_groups("东", "guangyun")
