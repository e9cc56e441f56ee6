r"""Accuracy: whether the answer equals the gold answer, as a careful person would judge. docs/rewards.md has the rules.

`find_answer` finds the answer in a completion. This module compares numbers and texts exactly; the engine compares formulas.
"""

import re
from functools import lru_cache
from typing import Any

from grpo_ext.rewards.answers import last_answer, last_boxed, last_span, without_thoughts
from grpo_ext.rewards.engine import Unreadable, same_formula
from grpo_ext.rewards.explanation import Explanation, answer_marks
from grpo_ext.rewards.notation import plain, with_ascii_signs
from grpo_ext.rewards.quantity import DECIMAL, UNIT_NAMES, number, same_number, split_unit
from grpo_ext.rewards.registry import register
from grpo_ext.rewards.tame import is_tame

MAX_ANSWER = 300  # characters of an answer
MAX_TAIL = 5_000  # characters at the end of a completion that may have an answer without tag or box
WINDOW = 100  # characters before the last digit in which the last number begins

_ONE = (
    rf"(?:negative )?[-+]?\$?(?:[0-9]+ [0-9]+/[0-9]+|{DECIMAL}(?:[eE][-+]?[0-9]{{1,2}})?(?:\s?/\s?[0-9]+)?)"
    rf"(?:\s?\\?%|\s?(?:{UNIT_NAMES})(?![A-Za-z]))?"
)
_VALUES = re.compile(
    rf"(?<![0-9A-Za-z.,])({_ONE}(?:(?:,? (?:and|or) |, |(?<=[a-z]) ){_ONE})*)(?![0-9A-Za-z])"
)
_DENIED = re.compile(
    r"(?:\bnot|n't|\bnever|\b(?:any|no)thing but|\bthan|\binstead of|\bat (?:least|most))\s*$"
)
_STATED = re.compile(r"(?:####|\banswer\**\s*(?:is\b|:|=))[\s:*]*(.+)", re.IGNORECASE)
_SENTENCE = re.compile(r"[.!?](?:\s|$)|\b(?:because|since)\b|\n")
_DISPLAY = ((r"\[", r"\]"), (r"\(", r"\)"), ("$$", "$$"), ("$", "$"))
_NAMED = re.compile(r"\\[A-Za-z]+\{[A-Za-z ]*\}")  # \text{apples}, \begin{pmatrix}
_LONE_WORD = re.compile(r"[\s*().]*([A-Za-z]{1,30})[\s*().]*")
_WORD = re.compile(r"(?<![\\A-Za-z])(?!and\b)[A-Za-z]{3,}")
_SYMBOL = re.compile(r"(?<![\\A-Za-z])[A-Za-df-hj-z]")
_OPEN = re.compile(
    rf"{_SYMBOL.pattern}|[,<>=]|\\(?:cup|pm|mp|begin|emptyset|in|le|ge)(?![a-z])|\\\{{"
)  # no constant
_TEXT = re.compile(r"\(?(?:[A-Z]|(?=.*[A-Za-z]{3})[A-Za-z][A-Za-z '.-]*)\)?")


def explain_accuracy(completion: str, *, solution: str) -> Explanation:
    """Show the gold answer, and mark the answer that was read."""
    return Explanation(
        f"The solution was: {solution}",
        answer_marks(completion, last_span(without_thoughts(completion))),
    )


@register("accuracy", needs_cpu="formulas", explain=explain_accuracy)
def accuracy(completions: list[str], solution: list[str]) -> list[float | None]:
    """1 if the answer equals the gold answer mathematically, else 0; None if the gold answer cannot be read.

    The answer comes after the thoughts: in the last `<answer>` block, else in the last `\\boxed{}`, else after `####` or
    "answer is", else it is the last formula or number. docs/rewards.md says what is equal.

    Args:
        solution: the gold answer: after `####`, in `\\boxed{}`, or plain.
    """
    return [score(text, gold) for text, gold in zip(completions, solution, strict=True)]


def score(completion: str, solution: Any) -> float | None:
    """Return the score of one completion."""
    gold = gold_answer("" if solution is None else str(solution))
    if gold is None:
        return None
    answer = find_answer(completion)
    try:
        return float(answer is not None and equal(gold, plain(answer)))
    except Unreadable:
        return None


@lru_cache(maxsize=4096)
def gold_answer(solution: str) -> str | None:
    """Return the gold answer in plain notation, or None if the solution clearly has none."""
    _, sign, behind = solution.rpartition("####")
    marked = behind if sign else last_answer(solution) or boxed(solution)
    piece = plain(boxed(marked) or marked) if marked else plain(piece_of(solution) or "")
    if number(piece) or (
        _TEXT.fullmatch(piece) and (marked or r"\text" in solution or " " not in piece)
    ):
        return piece
    return (
        piece
        if re.search(r"[0-9A-Za-z]", piece) and not has_words(piece) and is_tame(piece)
        else None
    )


def find_answer(completion: str) -> str | None:
    """Return the text of the answer, at most `MAX_ANSWER` characters, or None."""
    text = without_thoughts(completion)
    answer = last_answer(text)
    if answer is not None:
        return None if len(answer) > MAX_TAIL else boxed(answer) or piece_of(answer)
    return (
        boxed(text)
        or stated(text[-MAX_TAIL:])
        or ((word := _LONE_WORD.fullmatch(text)) and word[1])
    )


def boxed(text: str) -> str | None:
    """Return the content of the last box, unless it is empty or too long."""
    content = (last_boxed(text) or "").strip()
    return content if 0 < len(content) <= MAX_ANSWER else None


def stated(text: str) -> str | None:
    """Return what follows the last `####` or "answer is", else the last formula or number."""
    found = _STATED.findall(text)
    return piece_of(_SENTENCE.split(found[-1])[0]) if found else last_expression(text)


def piece_of(text: str) -> str | None:
    """Return the formula or number in the text of an answer: the whole text, unless it is a sentence."""
    text = with_ascii_signs(text.strip(" \t\r\n*")).removesuffix(".")
    if found := _STATED.search(text):
        text = _SENTENCE.split(found[1])[0]
    delimited = any(opening in text for opening, _ in _DISPLAY)
    piece = last_expression(text) if delimited or has_words(text) else None
    return piece or (text if 0 < len(text) <= MAX_ANSWER else None)


def has_words(text: str) -> bool:
    """Whether `text` has words other than commands and their arguments."""
    return _WORD.search(_NAMED.sub("", text)) is not None


def last_expression(text: str) -> str | None:
    """Return the last formula between math delimiters or the last number in `text` that is not denied."""
    text = with_ascii_signs(text)
    end, found = -1, None
    for opening, closing in _DISPLAY:
        stop = text.rfind(closing)
        start = text.rfind(opening, 0, stop) if stop > 0 else -1
        content = text[start + len(opening) : stop].strip() if start >= 0 else ""
        if content and len(content) <= MAX_ANSWER and not has_words(content) and stop > end:
            end, found = stop, content
    last_digit = next((at for at in range(len(text) - 1, end, -1) if text[at] in "0123456789"), 0)
    values = [
        match
        for match in _VALUES.finditer(text, max(end, last_digit - WINDOW, 0))
        if len(match[1]) <= MAX_ANSWER
    ]
    return next(
        (
            m[1]
            for m in reversed(values)
            if not _DENIED.search(text, max(0, m.start() - 20), m.start())
        ),
        found,
    )


def equal(gold: str, answer: str) -> bool:
    """Whether two answers in plain notation are equal."""
    if gold == answer:
        return True
    expected = number(gold)
    constant = expected or not _OPEN.search(gold)
    if constant and "=" in answer:  # steps that lead to the last side
        return equal(gold, answer.rpartition("=")[2].strip())
    if expected and (found := number(answer)):
        return same_number(expected, found)
    if _TEXT.fullmatch(gold) or _TEXT.fullmatch(answer):
        return as_text(gold) == as_text(answer)
    if {gold[:2], answer[:1]} == {"\\{", "("} or {gold[:1], answer[:2]} == {
        "\\{",
        "(",
    }:  # a set is no tuple
        return False
    (gold, gold_unit), (answer, unit) = split_unit(gold), split_unit(answer)
    if constant and _SYMBOL.search(answer):
        return False
    return (gold_unit is None or unit is None or gold_unit == unit) and same_formula(gold, answer)


def as_text(piece: str) -> str:
    piece = piece.strip("() .")
    return piece if len(piece) == 1 else piece.casefold()
