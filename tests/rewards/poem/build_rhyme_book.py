"""Builds the package's rhyme book: 平水韵 with its 106 groups, out of the 206 rhymes of the 廣韻 (1008).

    pip install --no-deps qieyun opencc-python-reimplemented
    python tests/rewards/poem/build_rhyme_book.py

Sources: `Qieyun/rhyme_book.csv` of the `qieyun` distribution (CC0), and the character tables of
OpenCC (Apache-2.0). Written are, in `grpo_ext/rewards/poem/data`: `pingshui.txt`, the characters of
each group as the 廣韻 writes them; `variants.txt`, which leads from other writings (simplified,
modern, regional) to those; `simplified.txt`, from traditional to simplified. All are sorted, so
that a rebuild shows as a diff.
"""

import argparse
import csv
import importlib.util
import io
import textwrap
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import grpo_ext

DATA = Path(grpo_ext.__file__).parent / "rewards" / "poem" / "data"

# Tone, then its groups in order: the rhymes of the 廣韻 that a group merges, the first of which names
# it. Where the name is written otherwise today, it stands before a slash.
GROUPS = {
    "平": "东/東 冬鍾 江 支脂之 微 鱼/魚 虞模 齐/齊 佳皆 灰咍 真諄臻 文欣 元魂痕 寒桓 删/刪山 "
    "先仙 萧/蕭宵 肴 豪 歌戈 麻 阳/陽唐 庚耕清 青 蒸登 尤侯幽 侵 覃談 盐/鹽添嚴 咸銜凡",
    "上": "董 肿/腫 讲/講 纸/紙旨止 尾 语/語 麌姥 荠/薺 蟹駭 贿/賄海 轸/軫準 吻隱 阮混很 旱緩 潸產 铣/銑獮 "
    "筱/篠小 巧 皓/晧 哿果 马/馬 养/養蕩 梗耿靜 迥拯等 有厚黝 寝/寑 感敢 俭/琰忝儼 豏檻范",
    "去": "送 宋用 绛/絳 寘至志 未 御 遇暮 霁/霽祭 泰 卦怪夬 队/隊代廢 震稕 问/問焮 愿/願慁恨 翰換 谏/諫襇 "
    "霰線 啸/嘯笑 效 号 个/箇過 祃/禡 漾宕 敬/映諍勁 径/徑證嶝 宥候幼 沁 勘闞 艳/豔㮇釅 陷鑑梵",
    "入": "屋 沃燭 觉/覺 质/質術櫛 物迄 月沒 曷末 黠鎋 屑薛 药/藥鐸 陌麥昔 锡/錫 职/職德 缉/緝 合盍 叶/葉怗 洽狎業乏",
}
TENS = ["", *"一二三四五六七八九"]
NUMERALS = [*TENS[1:], *(f"十{unit}" for unit in TENS), *(f"二十{unit}" for unit in TENS), "三十"]

# Writings that neither the 廣韻 nor OpenCC knows as such, each followed by the 廣韻's.
OTHER_WRITINGS = """
窗窻 魂䰟 裙帬 鞍䩞 胸胷 劍劒 廻迴 鏁鎖 匝帀 趂趁 琉瑠 煮煑 栢柏 迤迆 臯皋 呌叫 秖祇 蕚萼 玳瑇 麄麤 幷并
穉稚 讐讎 皓晧 灧灔 縲纍 觧解 蟇蟆 飡湌 蘗糵 粃秕 拆坼 畧略 斾旆 扼搤 享亯 壟壠 冗宂 婿壻 廄廏 廐廏 殼㱿 奩匳
糕餻 徭傜 糯稬 祛袪 恍怳 嗅齅 耗秏 并并 隣鄰 峩峨 邉邊 寃冤 怱悤 碗椀 孽孼 覊羈 輙輒 餙飾 啣銜 隟隙 逈迥
尅剋 倂併 髭頿 樗摴 腮顋 烹亨 柿柹
"""
# Readings that 平水韵 has and the 廣韻 has not: tone, group, characters.
LATER_READINGS = "平麻涯 平寒漫 平萧瀟 平豪淘 平虞蝴 平灰玫 平阳忘嫦 上筱緲 上董懂 去漾樣 入曷潑"


def groups_of_rhymes() -> dict[tuple[str, str], str]:
    """(tone, rhyme of the 廣韻) -> group of 平水韵, such as ("平", "咍") -> "十灰".

    In the order of the book.
    """
    merged = {}
    for tone, names in GROUPS.items():
        for index, entry in enumerate(names.split()):
            name, slash, rhymes = entry.partition("/")
            number = NUMERALS[
                index % 15 if tone == "平" else index
            ]  # the level tone fills two volumes of 15
            for rhyme in rhymes if slash else name:
                merged[tone, rhyme] = number + name[0]
    return merged


def read_guangyun(path: Path) -> dict[tuple[str, str], set[str]]:
    """(tone, rhyme) -> its characters, from the csv or from a wheel that holds it."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            text = wheel.read("Qieyun/rhyme_book.csv").decode()
    else:
        text = path.read_text(encoding="utf-8")
    rhymes = defaultdict(set)
    for row in csv.DictReader(io.StringIO(text)):
        if row["資料名稱"] == "廣韻":
            character = row["字頭"] or row["字頭覈校前"]  # corrected where the editors did so
            rhymes[row["最簡描述"][-1], row["韻部原貌"]].add(character)
    return rhymes


def read_opencc(name: str) -> dict[str, set[str]]:
    """One character table of OpenCC: character -> the characters it converts to."""
    spec = importlib.util.find_spec("opencc")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("OpenCC's tables are missing: pip install opencc-python-reimplemented")
    table = {}
    path = Path(spec.submodule_search_locations[0]) / "dictionary" / f"{name}.txt"
    for line in path.read_text(encoding="utf-8").splitlines():
        key, _, values = line.partition("\t")
        if len(key) == 1:
            table[key] = {value for value in values.split() if len(value) == 1}
    return table


def both_ways(*tables: dict[str, set[str]]) -> dict[str, set[str]]:
    """Tables of equal characters, readable in either direction."""
    out = defaultdict(set)
    for table in tables:
        for key, values in table.items():
            for value in values:
                out[key].add(value)
                out[value].add(key)
    return out


def variants_of(known: set[str]) -> dict[str, set[str]]:
    """Character -> the characters of the book (`known`) whose readings it has, where these are not
    just itself.

    A simplified character has those of every traditional one that it stands for, and its own only
    where it is one of them (后 is, 听 is not). Looser ways are gone only for characters that would
    else be unknown: Japanese forms, and writings that share their simplified character (閑, 閒).
    """
    to_traditional = read_opencc("STCharacters")
    to_simplified = read_opencc("TSCharacters")
    traditional = defaultdict(set, {key: set(values) for key, values in to_traditional.items()})
    for key, values in to_simplified.items():
        for value in values:
            traditional[value] |= {key} if value in to_traditional else {key, value}
    regional = both_ways(
        *map(read_opencc, ("HKVariants", "TWVariants", "HKVariantsRev", "TWVariantsRev"))
    )
    japanese = both_ways(read_opencc("JPVariants"))
    other = {pair[0]: set(pair[1:]) for pair in OTHER_WRITINGS.split()}

    def strictly(character: str) -> set[str]:
        forms = traditional[character] or {character}
        forms = forms.union(*(regional[form] for form in forms))
        return forms.union(*(other.get(form, ()) for form in {character, *forms})) & known

    def loosely(character: str) -> set[str]:
        siblings = (traditional[simplified] for simplified in to_simplified.get(character, ()))
        return set().union(japanese[character], *siblings) & known

    def forms_of(character: str) -> set[str]:
        near = strictly(character) or loosely(character)
        return near or set().union(*map(loosely, traditional[character])) or {character}

    everything = {*traditional, *to_simplified, *regional, *japanese, *other}
    table = {character: forms_of(character) for character in sorted(everything)}
    return {character: forms for character, forms in table.items() if forms != {character}}


def pairs() -> dict[str, str]:
    """Traditional character -> the simplified one that stands for it alone (歸: 归, but not 髮: 发 is 發
    too).
    """
    several = {key for key, values in read_opencc("STCharacters").items() if len(values) > 1}
    table = {
        key: min(values) for key, values in read_opencc("TSCharacters").items() if len(values) == 1
    }
    return {
        key: value for key, value in sorted(table.items()) if value != key and value not in several
    }


def rhyme_book_text(rhymes: dict[tuple[str, str], set[str]]) -> str:
    """The groups in order: a line `tone name`, then its characters, wrapped."""
    groups: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for (tone, rhyme), group in groups_of_rhymes().items():
        groups[tone, group] |= rhymes[tone, rhyme]
    lines = [
        "# 平水韵, built by build_rhyme_book.py from the 廣韻 rows of the qieyun distribution (CC0)"
    ]
    for (tone, group), characters in groups.items():
        lines += [f"{tone} {group}", *textwrap.wrap("".join(sorted(characters)), 50)]
    return "\n".join(lines) + "\n"


def table_text(head: str, table: Mapping[str, Iterable[str]]) -> str:
    """A line a character: itself, then what the table has for it."""
    lines = [f"# {head}; built by build_rhyme_book.py from OpenCC's tables (Apache-2.0)"]
    return (
        "\n".join([*lines, *(key + "".join(sorted(forms)) for key, forms in sorted(table.items()))])
        + "\n"
    )


def installed_csv() -> Path:
    """Where pip put the csv of `qieyun` (it is not imported: its own dependencies are old)."""
    try:
        files = metadata.files("qieyun") or []
    except metadata.PackageNotFoundError:
        raise SystemExit(
            "The 廣韻 is missing: pip install --no-deps qieyun, or name its csv or wheel."
        ) from None
    return next(Path(file.locate()) for file in files if file.name == "rhyme_book.csv")


def build(source: Path) -> dict[str, str]:
    """File name -> text of the package data."""
    rhymes = read_guangyun(source)
    groups = groups_of_rhymes()
    if rhymes.keys() != groups.keys():
        odd = sorted(rhymes.keys() ^ groups.keys())
        raise SystemExit(f"These rhymes are not merged into a group, or not in {source}: {odd}")
    for entry in LATER_READINGS.split():
        tone = entry[0]
        group = entry[1]
        characters = entry[2:]
        rhyme = next(key for key, name in groups.items() if key[0] == tone and name[-1] == group)
        rhymes[rhyme].update(characters)
    known = set().union(*rhymes.values())
    return {
        "pingshui.txt": rhyme_book_text(rhymes),
        "variants.txt": table_text(
            "A character, then the book's characters for it", variants_of(known)
        ),
        "simplified.txt": table_text(
            "A character, then the simplified one that stands for it alone", pairs()
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Build the rhyme book of 106 groups from the 廣韻."
    )
    parser.add_argument(
        "source",
        nargs="?",
        type=Path,
        help="rhyme_book.csv or the qieyun wheel (default: installed)",
    )
    for name, text in build(parser.parse_args().source or installed_csv()).items():
        (DATA / name).write_text(text, encoding="utf-8")
        print(f"{DATA / name}: {len(text.splitlines())} lines, {len(text.encode()) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
