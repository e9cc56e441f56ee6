"""Find verse in text: runs of Chinese characters, and the last line of a completion."""

import re
from collections.abc import Iterable, Sequence

from grpo_ext.rewards.answers import THINK, THINK_END, first_answer

# The unified ideographs with their extensions, the compatibility ideographs, and the zero 〇.
HAN = "〇\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
BETWEEN_LINES = re.compile(rf"[^{HAN} \t\u3000]+")
OTHER = re.compile(rf"[^{HAN}]+")

# Limits, in characters, that keep the time for any text short.
TAIL = 2000  # read from the end of an answer
LONGEST = 50  # read from the beginning of a line


def han(line: str) -> str:
    """Return at most `LONGEST` Chinese characters from a line's first `TAIL` characters."""
    return OTHER.sub("", line[:TAIL])[:LONGEST]


def verse_lines(text: str | Iterable) -> list[str]:
    """Return the Chinese characters of each list item, or the runs of such characters in a string.

    Single characters separated by spaces, such as `一 棹 烟`, form one run.
    """
    if not isinstance(text, str):
        return [han(str(line)) for line in text]
    lines: list[str] = []
    for stretch in BETWEEN_LINES.split(text):
        runs = stretch.split()
        if runs and all(len(run) == 1 for run in runs):  # 一 棹 烟 波 去 未 迷
            lines.append("".join(runs))
        else:
            lines += runs
    return lines


def last_line(completion: str, given: Sequence[str] = ()) -> str:
    """Return the line that a completion adds to a poem, or "" if there is none.

    This is the last run of Chinese characters in the first `<answer>` block or, if there is no such
    block, after the thoughts ("" if the thoughts never end). A copy of a `given` line counts as "".
    Only the last `TAIL` characters are searched, and the line is cut to `LONGEST` characters.
    """
    text = first_answer(completion)
    if text is None:
        _, end_tag, text = completion.rpartition(THINK_END)
        if not end_tag and THINK in text:
            return ""
    lines = verse_lines(text[-TAIL:])
    line = lines[-1][:LONGEST] if lines else ""
    return "" if line in given else line
