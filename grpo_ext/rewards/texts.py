"""Compares answers that are no mathematics: texts, letters of choices, times of day, numerals in a
base.
"""

import re

from grpo_ext.rewards.notation import typography

_TEXT = re.compile(r"\(?(?:[A-Z]|(?=.*[A-Za-z]{3})[A-Za-z][A-Za-z '.-]*)\)?")
_OPTION = re.compile(r"\(?([A-H])(?:\)| ?[.:])\s*(\S.*)")
_CLOCK = re.compile(r"([0-9]{1,2})(?: ?: ?([0-9]{2}))? ?(?:([ap])\.? ?m\.?)?", re.IGNORECASE)
_BASE = re.compile(r"([0-9A-F]+)_(?:\{([0-9]{1,2})\}|([0-9]{1,2}))")
_FILLERS = re.compile(
    r"\b(?:the|an?|it|is|are|its|condition|function|number|series|option|choice|graph)\b",
    re.IGNORECASE,
)


def is_text(text: str) -> bool:
    """Whether an answer is one text, such as a name or the letter of a choice."""
    return _TEXT.fullmatch(text) is not None


def option(text: str) -> tuple[str, str] | None:
    """Split an option with its content, such as `(B) 12`, into letter and content; None for any
    other text.
    """
    match = _OPTION.fullmatch(text)
    return None if match is None else (match[1], match[2])


def same_special(gold: str, answer: str) -> bool | None:
    """Compare times of day and numerals in a base; None if neither is one of these."""
    expected_clock = _CLOCK.fullmatch(gold)
    actual_clock = _CLOCK.fullmatch(answer)
    if any(clock is not None and clock[3] for clock in (expected_clock, actual_clock)):
        if expected_clock is None or actual_clock is None:
            return False
        return same_clock(expected_clock, actual_clock)
    if _BASE.fullmatch(gold) or _BASE.fullmatch(answer):
        expected = _BASE.fullmatch(gold)
        return expected is not None and typography(answer) == expected[1]  # the question names it
    return None


def same_clock(expected: re.Match[str], actual: re.Match[str]) -> bool:
    """Whether two times of day are equal; a.m. or p.m. may be on one side only."""
    if int(expected[1]) != int(actual[1]) or int(expected[2] or 0) != int(actual[2] or 0):
        return False
    halves = {(half[3] or "").lower() for half in (expected, actual)} - {""}
    return len(halves) == 1


def same_texts(gold: str, answer: str) -> bool | None:
    if _TEXT.fullmatch(gold) or _TEXT.fullmatch(answer):
        return as_text(gold) == as_text(answer)
    return None


def as_text(text: str) -> str:
    """Return the words that count; a single letter keeps its case."""
    text = text.strip("() .")
    counted = " ".join(_FILLERS.sub(" ", text).split()) if len(text) > 1 else text
    return counted if len(counted) == 1 else (counted or text).casefold()
