"""The script that builds the package data, on small tables, and on the real ones where they are at
hand.
"""

import os
import zipfile
from collections import Counter
from pathlib import Path

import build_rhyme_book as script
import pytest


def test_the_206_rhymes_make_106_groups():
    groups = script.groups_of_rhymes()
    assert len(groups) == 206
    assert Counter(tone for tone, _ in groups) == {"平": 57, "上": 55, "去": 60, "入": 34}
    assert len(set(groups.values())) == 106
    assert {groups["平", rhyme] for rhyme in "支脂之"} == {"四支"}
    assert {groups["平", rhyme] for rhyme in "元魂痕"} == {"十三元"}
    assert (
        groups["平", "凡"] == "十五咸"
        and groups["去", "梵"] == "三十陷"
        and groups["入", "業"] == "十七洽"
    )
    assert (groups["上", "豏"], groups["去", "徑"]) == ("二十九豏", "二十五径")


HEAD = "資料名稱,小韻號,韻部原貌,最簡描述,反切覈校前,反切,字頭覈校前,字頭,釋義,釋義補充,圖片id\n"


@pytest.fixture
def small_table(tmp_path):
    rows = "廣韻,1,東,端一東平,德紅,,東,,春方也,,x\n廣韻,1,東,端一東平,德紅,,栜,棟,俗,,x\n王一,2,支,從開三支平,疾移,,疵,,,,3\n"
    path = tmp_path / "rhyme_book.csv"
    path.write_text(HEAD + rows, encoding="utf-8")
    return path


def test_reading_the_table(small_table, tmp_path):
    expected = {("平", "東"): {"東", "棟"}}  # corrected characters; other books left out
    assert script.read_guangyun(small_table) == expected
    with zipfile.ZipFile(tmp_path / "qieyun.whl", "w") as wheel:
        wheel.write(small_table, "Qieyun/rhyme_book.csv")
    assert script.read_guangyun(tmp_path / "qieyun.whl") == expected


def test_a_table_that_is_not_whole_is_refused(small_table):
    with pytest.raises(SystemExit, match="not merged into a group, or not in"):
        script.build(small_table)


def test_the_package_data_is_what_the_script_builds():
    pytest.importorskip("opencc")
    source = os.environ.get("GRPO_EXT_QIEYUN")  # a wheel or a csv
    try:
        texts = script.build(Path(source) if source else script.installed_csv())
    except SystemExit:
        pytest.skip(
            "the qieyun distribution is not at hand: install it, or name its wheel in "
            "GRPO_EXT_QIEYUN"
        )
    for name, text in texts.items():
        assert (script.DATA / name).read_text(encoding="utf-8") == text
