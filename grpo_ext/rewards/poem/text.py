"""Where the verse stands in a text: runs of Chinese characters, and the last line that a completion wrote."""

import re
from collections.abc import Sequence

from grpo_ext.rewards.answers import THINK, THINK_END, first_answer

# The unified ideographs with their extensions, the compatibility ideographs, and the zero.
HAN = "〇\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
BETWEEN_LINES = re.compile(rf"[^{HAN} \t\u3000]+")
OTHER = re.compile(rf"[^{HAN}]+")

# What is read, so that no text takes long: of an answer its end, of a line its beginning (the rest is too much).
TAIL = 2000
LONGEST = 50


def han(line: str) -> str:
    """The Chinese characters of a line, everything else left out."""
    return OTHER.sub("", line[:TAIL])[:LONGEST]


def verse_lines(text: str) -> list[str]:
    """Runs of Chinese characters: any other character ends one, except blanks between single characters."""
    lines = []
    for stretch in BETWEEN_LINES.split(text):
        parts = stretch.split()
        if parts and all(len(part) == 1 for part in parts):
            lines.append("".join(parts))  # spaced out: 一 棹 烟 波 去 未 迷
        else:
            lines.extend(parts)
    return lines


def last_line(completion: str, given: Sequence[str] = ()) -> str:
    """The line that a completion adds to a poem, "" where it adds none.

    It is the last run of Chinese characters in the first `<answer>` block; without such a block in what follows the
    thinking, and there is none if the thinking never ends. A line that copies one of the `given` ones is no new line.
    """
    text = first_answer(completion)
    if text is None:
        _, ended, text = completion.rpartition(THINK_END)
        if not ended and THINK in text:
            return ""
    lines = verse_lines(text[-TAIL:])
    line = lines[-1][:LONGEST] if lines else ""
    return "" if line in given else line
