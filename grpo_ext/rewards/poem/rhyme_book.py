"""The rhyme books: 平水韵 with its 106 groups, from the package data, and 中华新韵 by modern finals.

`tests/rewards/poem/build_rhyme_book.py` makes the data. Groups are named with their number within the tone, such as 八齐.
"""

from functools import lru_cache
from typing import Literal, NamedTuple

from grpo_ext.rewards.poem.mandarin import syllables
from grpo_ext.rewards.poem.writings import data_lines, in_book

RhymeBook = Literal["pingshui", "xinyun"]


class Entry(NamedTuple):
    """A reading in 平水韵: the tone (平, 上, 去 or 入), and the group."""

    tone: str
    group: str


@lru_cache(maxsize=1)
def pingshui() -> dict[str, tuple[Entry, ...]]:
    """Character as the 廣韻 writes it -> its readings, in the order of the groups."""
    book: dict[str, tuple[Entry, ...]] = {}
    for line in data_lines("pingshui.txt"):
        if " " in line:  # the head of a group: 平 八齐
            entry = Entry(*line.split())
        else:
            for character in line:
                book[character] = (*book.get(character, ()), entry)
    return book


@lru_cache(maxsize=1 << 16)
def entries(character: str) -> tuple[Entry, ...]:
    """Every reading of a character in 平水韵, simplified or traditional; none if the book does not know it."""
    book = pingshui()
    return tuple(dict.fromkeys(entry for form in in_book(character) for entry in book.get(form, ())))


@lru_cache(maxsize=1 << 16)
def level_groups(character: str, rhyme_book: RhymeBook = "pingshui") -> tuple[str, ...]:
    """The groups that a character rhymes in with a level tone; none for oblique and unknown characters.

    Raises:
        ValueError: if `rhyme_book` is neither "pingshui" nor "xinyun".
    """
    if rhyme_book == "pingshui":
        return tuple(entry.group for entry in entries(character) if entry.tone == "平")
    if rhyme_book == "xinyun":
        groups = [syllable.group for syllable in syllables(character) if syllable.tone in (1, 2)]
        return tuple(group for group in dict.fromkeys(groups) if group is not None)
    raise ValueError(f"rhyme_book = {rhyme_book!r}, but there are 'pingshui' (平水韵) and 'xinyun' (中华新韵).")
