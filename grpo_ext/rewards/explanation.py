"""Explanations of scores (`register(..., explain=...)`): text, and marks on the completion."""

from typing import NamedTuple

Mark = tuple[int, int, str, str]  # (start, end, kind, remark); kinds: `answer`, `fault`


class Explanation(NamedTuple):
    """Text that explains a completion's score, and marks on the completion."""

    text: str  # lines for the report
    marks: tuple[Mark, ...] = ()  # parts of the completion that the report colors


def clip(text: str) -> str:
    """Shorten a string of more than 80 characters to its first 60 and a note of its length."""
    if len(text) <= 80:
        return text
    return f"{text[:60]}... ({len(text)} characters)"


def answer_marks(text: str, span: tuple[int, int] | None) -> tuple[Mark, ...]:
    """Return a tuple with one mark, which covers the answer at `span` without outer whitespace.

    The tuple is empty if `span` is `None` or the answer is blank.
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
