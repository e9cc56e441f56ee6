"""The explanation of a score (`register(..., explain=...)`): text, and marks on the completion."""

from typing import NamedTuple

Mark = tuple[int, int, str, str]  # first character, end, kind (`answer` or `fault`), remark


class Explanation(NamedTuple):
    """Why a completion got its reward."""

    text: str  # lines for the report
    marks: tuple[Mark, ...] = ()  # characters that the report colours


def clip(text: str) -> str:
    """Shorten a text that an explanation quotes."""
    if len(text) <= 80:
        return text
    return f"{text[:60]}... ({len(text)} characters)"


def answer_marks(text: str, span: tuple[int, int] | None) -> tuple[Mark, ...]:
    """Return the mark on the answer at `span`, without the blanks around it.

    There is none without a span, or if the answer is empty.
    """
    if span is None:
        return ()
    begin, end = span
    answer = text[begin:end]
    if not answer.strip():
        return ()
    begin += len(answer) - len(answer.lstrip())
    end = begin + len(answer.strip())
    return ((begin, end, "answer", "The answer that was read."),)
