"""What a reward says about one completion (`register(..., explain=...)`): words, and marks on the completion's characters."""

from typing import NamedTuple

from grpo_ext.rewards.answers import ANSWER, first_answer

Mark = tuple[int, int, str, str]  # first character, end, kind (`answer`, `fault`), what is said of it


class Explanation(NamedTuple):
    """Why a completion got its reward.

    Args:
        words: lines of text, as the report and `grpo-ext explain` show them.
        marks: on the completion's characters, as the report colours them.
    """

    words: str
    marks: tuple[Mark, ...] = ()


def answer_marks(text: str) -> tuple[Mark, ...]:
    """The mark on the answer that was read, without the blanks around it; none where no answer was read."""
    span = answer_span(text)
    answer = text[slice(*span)] if span else ""
    if span is None or not answer.strip():
        return ()
    start = span[0] + len(answer) - len(answer.lstrip())
    return ((start, start + len(answer.strip()), "answer", "The answer that was read."),)


def answer_span(text: str) -> tuple[int, int] | None:
    """Where the first `<answer>` block's inside stands."""
    answer = first_answer(text)
    if answer is None:
        return None
    start = text.find(ANSWER) + len(ANSWER)
    return start, start + len(answer)
