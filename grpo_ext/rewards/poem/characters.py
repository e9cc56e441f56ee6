"""Look up a character's variants, readings (in Mandarin and in 平水韵), tones and rhymes.

The Mandarin readings come from pypinyin. The package data contains the classical rhyme book 平水韵
with its 106 groups, built by `tests/rewards/poem/build_rhyme_book.py`, and 中华新韵 (2005), which
divides the finals of modern Mandarin into 14 rhymes. The name of a group, such as 八齐, begins with
the group's number within its tone.
"""

from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from grpo_ext.common.files import data_lines

Tones = Literal["modern", "pingshui"]
RhymeBook = Literal["pingshui", "xinyun"]

LEVEL = "平"
OBLIQUE = "仄"
EITHER = LEVEL + OBLIQUE
XINYUN: dict[str, str] = {}  # final of a syllable -> its rhyme
for line in data_lines(__package__, "xinyun.txt"):
    rhyme, *finals = line.split()
    XINYUN |= dict.fromkeys(finals, rhyme)
APICAL = {"zh", "ch", "sh", "r", "z", "c", "s"}  # after these, the letter i is a different vowel


class Syllable(NamedTuple):
    """A Mandarin reading of a character."""

    tone: int  # 1 to 4, or 0 for the neutral tone
    group: str | None  # the rhyme in 中华新韵; None for syllables such as 嗯


class Entry(NamedTuple):
    """A reading of a character in the rhyme book 平水韵."""

    tone: str  # 平, 上, 去 or 入
    group: str  # the rhyme group, such as 八齐


@lru_cache(maxsize=1)
def variants() -> dict[str, str]:
    """Return a map from characters to their counterparts in 平水韵, such as from 发 to 發髮.

    A character that stands only for itself is not included.
    """
    return {line[0]: line[1:] for line in data_lines(__package__, "variants.txt")}


@lru_cache(maxsize=1)
def simplified() -> dict[str, str]:
    """Return a map from traditional and simplified characters to their simplified forms.

    Characters whose simplified form has several traditional forms are not included.
    """
    pairs = {line[0]: line[1] for line in data_lines(__package__, "simplified.txt")}
    return pairs | {character: character for character in pairs.values()}


@lru_cache(maxsize=1)
def pingshui() -> dict[str, tuple[Entry, ...]]:
    """Return a map from each character, as written in the 廣韻, to its readings, ordered by group."""
    book: dict[str, tuple[Entry, ...]] = {}
    for line in data_lines(__package__, "pingshui.txt"):
        if " " in line:  # the head of a group: 平 八齐
            entry = Entry(*line.split())
        else:
            for character in line:
                book[character] = (*book.get(character, ()), entry)
    return book


def entries(character: str) -> tuple[Entry, ...]:
    """Return every reading in 平水韵 of a simplified or traditional character.

    Return `()` if the book lacks the character.
    """
    readings: dict[Entry, None] = {}
    for form in variants().get(character, character):
        readings |= dict.fromkeys(pingshui().get(form, ()))
    return tuple(readings)


@lru_cache(maxsize=1 << 16)
def syllables(character: str) -> tuple[Syllable, ...]:
    """Return every Mandarin reading of a character, most common first; `()` if pypinyin lacks it.

    A character that stands for several characters of 平水韵 also has their readings. Dictionaries
    list more old readings for a traditional character than for its simplified form. If the two
    stand only for each other, both are read as the simplified form, so that a poem gets the same
    verdict in either script.
    """
    from pypinyin import Style, pinyin  # the import takes a third of a second

    distinct: dict[Syllable, None] = {}
    for form in simplified().get(character) or character + variants().get(character, ""):
        for readings in pinyin(form, style=Style.TONE3, heteronym=True, errors="ignore"):
            distinct |= dict.fromkeys(map(parse, readings))
    return tuple(distinct)


def parse(reading: str) -> Syllable:
    """Parse a reading with a tone number, such as `shi2`, or with a neutral tone, such as `le`."""
    from pypinyin.contrib.tone_convert import to_finals, to_initials

    letters = reading.rstrip("1234")
    tone = int(reading[len(letters) :] or 0)
    final = to_finals(letters, strict=True, v_to_u=False)
    if final == "i" and to_initials(letters, strict=True) in APICAL:
        final = "-i"
    return Syllable(tone, XINYUN.get(final))


@lru_cache(maxsize=1 << 16)
def tones_of(character: str, tones: Tones = "modern") -> str:
    """Return the tones of a character: "平" (level), "仄" (oblique), "平仄", or "" if none is known.

    Args:
        character: a simplified or traditional character.
        tones: "modern" is Mandarin: tones 1 and 2 are level, 3 and 4 oblique, and the neutral tone
            is neither. "pingshui" is the rhyme book, whose entering tone is oblique; characters
            that it lacks have their modern tones.

    Raises:
        ValueError: if `tones` has another value.
    """
    if tones not in get_args(Tones):
        raise ValueError(
            f"unknown tones {tones!r}. Use 'modern' (Mandarin) or 'pingshui' (the rhyme book 平水韵)."
        )
    is_level: set[bool] = set()
    if tones == "pingshui":
        is_level = {entry.tone == "平" for entry in entries(character)}
    if not is_level:
        is_level = {tone <= 2 for tone, _ in syllables(character) if tone != 0}
    return (LEVEL if True in is_level else "") + (OBLIQUE if False in is_level else "")


@lru_cache(maxsize=1 << 16)
def level_groups(character: str, rhyme_book: RhymeBook = "pingshui") -> tuple[str, ...]:
    """Return the rhyme groups of a character's level-tone readings.

    Return `()` if no such reading has a group, or the character is unknown.

    Args:
        character: a simplified or traditional character.
        rhyme_book: "pingshui" (平水韵, 106 groups) or "xinyun" (中华新韵, 14 groups).

    Raises:
        ValueError: if `rhyme_book` has another value.
    """
    if rhyme_book == "pingshui":
        return tuple(entry.group for entry in entries(character) if entry.tone == "平")
    if rhyme_book == "xinyun":
        groups = [syllable.group for syllable in syllables(character) if syllable.tone in (1, 2)]
        return tuple(group for group in dict.fromkeys(groups) if group is not None)
    raise ValueError(
        f"unknown rhyme_book {rhyme_book!r}. Use 'pingshui' (平水韵) or 'xinyun' (中华新韵)."
    )
