"""The explanation of a score (`register(..., explain=...)`): words, and marks on the completion's characters."""

from typing import NamedTuple

Mark = tuple[int, int, str, str]  # first character, end, kind (`answer` or `fault`), remark


class Explanation(NamedTuple):
    """Why a completion got its reward."""

    words: str  # lines of text for the report
    marks: tuple[Mark, ...] = ()  # characters that the report colours


def clip(text: str) -> str:
    """Shorten a text that an explanation quotes."""
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def answer_marks(text: str, span: tuple[int, int] | None) -> tuple[Mark, ...]:
    """Return the mark on the answer at `span`, without the blanks around it; none if the answer is empty."""
    answer = text[slice(*span)] if span else ""
    if span is None or not answer.strip():
        return ()
    start = span[0] + len(answer) - len(answer.lstrip())
    return ((start, start + len(answer.strip()), "answer", "The answer that was read."),)
