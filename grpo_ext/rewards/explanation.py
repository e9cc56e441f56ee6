"""What a reward says about one completion (`register(..., explain=...)`): words, and marks on the completion's characters."""

from typing import NamedTuple

Mark = tuple[int, int, str, str]  # first character, end, kind (`answer`, `fault`), what is said of it


class Explanation(NamedTuple):
    """Why a completion got its reward."""

    words: str  # lines of text, as the report and `grpo-ext explain` show them
    marks: tuple[Mark, ...] = ()  # on the completion's characters, as the report colours them


def clip(text: str) -> str:
    """A text as an explanation quotes it."""
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def answer_marks(text: str, span: tuple[int, int] | None) -> tuple[Mark, ...]:
    """The mark on the answer that stands at `span`, without the blanks around it; none where there is no answer."""
    answer = text[slice(*span)] if span else ""
    if span is None or not answer.strip():
        return ()
    start = span[0] + len(answer) - len(answer.lstrip())
    return ((start, start + len(answer.strip()), "answer", "The answer that was read."),)
