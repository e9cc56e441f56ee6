"""Modern Mandarin: the readings of a character by pypinyin, and the fourteen rhymes of 中华新韵 (2005)."""

from functools import lru_cache
from typing import NamedTuple

from grpo_ext.rewards.poem.writings import in_speech

XINYUN = {
    "一麻": "a ia ua",
    "二波": "o e uo",
    "三皆": "ê ie ve",
    "四开": "ai uai",
    "五微": "ei uei",
    "六豪": "ao iao",
    "七尤": "ou iou",
    "八寒": "an ian uan van",
    "九文": "en in uen vn",
    "十唐": "ang iang uang",
    "十一庚": "eng ing ueng ong iong",
    "十二齐": "i er v",
    "十三支": "-i",
    "十四姑": "u",
}
GROUP_OF_FINAL = {final: group for group, finals in XINYUN.items() for final in finals.split()}
APICAL = {"zh", "ch", "sh", "r", "z", "c", "s"}  # after these, the letter i stands for another vowel


class Syllable(NamedTuple):
    """One reading: its tone, 1 to 4 or 0 for the neutral one, and its rhyme in 中华新韵, None for the likes of 嗯."""

    tone: int
    group: str | None


@lru_cache(maxsize=1 << 16)
def syllables(character: str) -> tuple[Syllable, ...]:
    """Every reading of a character, simplified or traditional, the commonest first; none if pypinyin knows it not."""
    from pypinyin import Style, pinyin  # a third of a second: only when a poem is judged

    found: dict[Syllable, None] = {}
    for form in in_speech(character):
        for readings in pinyin(form, style=Style.TONE3, heteronym=True, errors="ignore"):
            found.update(dict.fromkeys(map(parse, readings)))
    return tuple(found)


def parse(reading: str) -> Syllable:
    """A syllable with its tone as a digit, such as shi2 or le."""
    from pypinyin.contrib.tone_convert import to_finals, to_initials

    plain = reading.rstrip("1234")
    final = to_finals(plain, strict=True, v_to_u=False)
    if final == "i" and to_initials(plain, strict=True) in APICAL:
        final = "-i"
    return Syllable(int(reading[len(plain) :] or 0), GROUP_OF_FINAL.get(final))
