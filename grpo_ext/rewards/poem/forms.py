"""The forms of regulated verse: 绝句 (4 lines) and 律诗 (8 lines) of 5 or 7 characters per line.

Each form has four patterns of level (平) and oblique (仄) tones. The pattern of a line is determined
by the tone of its second character (平起, 仄起) and that of its last character (平收 if the line
rhymes, 仄收 if it does not). The first line determines the others: the tones of the second
characters differ within a couplet (对) and agree between couplets (粘). Even lines rhyme, and odd
lines do not, except that the first line may rhyme.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

FIVE = {
    ("仄", "仄"): "仄仄平平仄",
    ("平", "平"): "平平仄仄平",
    ("平", "仄"): "平平平仄仄",
    ("仄", "平"): "仄仄仄平平",
}
OPPOSITE = {"平": "仄", "仄": "平"}
LENGTHS = {5: "五言", 7: "七言"}
COUNTS = {4: "绝句", 8: "律诗"}


@dataclass(frozen=True)
class Form:
    """One of the four tone patterns for a given number and length of lines."""

    name: str  # such as 七言绝句(仄起平收式)
    lines: tuple[str, ...]  # the tones of each line, such as 仄仄平平仄仄平

    @property
    def rhyming(self) -> tuple[int, ...]:
        """The indices of the rhyming lines, in the order in which they determine the rhyme group.

        The first line, if it rhymes, comes last.
        """
        even_lines = tuple(range(1, len(self.lines), 2))
        if self.lines[0].endswith("平"):
            return (*even_lines, 0)
        return even_lines


def line_pattern(second: str, last: str, length: int) -> str:
    """Return the tones of a line, given the tones of its second and last characters.

    Args:
        second: the tone of the second character, 平 or 仄.
        last: the tone of the last character, 平 or 仄.
        length: the number of characters, 5 or 7.
    """
    if length == 5:
        return FIVE[second, last]
    return second * 2 + FIVE[OPPOSITE[second], last]


@lru_cache(maxsize=4)
def forms(length: int, count: int) -> tuple[Form, ...]:
    """Return the four patterns for `count` lines (4 or 8) of `length` characters (5 or 7)."""
    patterns = []
    for begin, end in product("仄平", "平仄"):  # tones of the first line
        lines = [line_pattern(begin, end, length)]
        for index in range(1, count):
            second = begin
            if index % 4 in (1, 2):
                second = OPPOSITE[begin]
            last = "平" if index % 2 else "仄"
            lines.append(line_pattern(second, last, length))
        name = f"{LENGTHS[length]}{COUNTS[count]}({begin}起{end}收式)"
        patterns.append(Form(name, tuple(lines)))
    return tuple(patterns)


@lru_cache(maxsize=4)
def counted_places(length: int, strict: bool) -> tuple[int, ...]:
    """Return the positions in a line, counted from 0, at which the tones must fit.

    If `strict` is true, these are all positions. Otherwise, the rule 一三五不论 applies: characters 1
    and 3 are free, and so is character 5 in a line of seven.
    """
    if strict:
        return tuple(range(length))
    return (*range(1, length - 1, 2), length - 1)
