"""Compare answers that are not formulas: words, choices, times of day, numerals in a base."""

import re

from grpo_ext.rewards.dates import MONTH, WEEKDAY
from grpo_ext.rewards.notation import typography

_TEXT = re.compile(
    r"\(?(?:[A-Z][a-z]?|no|NO|II|I?[VX]I?|(?=.*[A-Za-z]{3})[A-Za-z][A-Za-z '.-]*)\)?"
)
_CAPITALIZED = r"[A-Z][A-Za-z'.-]*"
_PROPER_NAME = re.compile(
    rf"{_CAPITALIZED}(?: (?:of|the|and|de|da|van|von|{_CAPITALIZED})){{0,3}} {_CAPITALIZED}"
)
_OPTION = re.compile(r"\(?([A-H])(?:\)| ?[.:])\s*(\S.*)")
_OPTION_BEHIND = re.compile(r"(\S.*\S) \(([A-H])\)")
_NUMBERED = re.compile(r"\([1-9]\) +([A-Za-z].*)")
_LETTER = re.compile(r"\(?([A-H])[).:]?\)?")
_CLOCK = re.compile(r"([0-9]{1,2})(?: ?: ?([0-9]{2}))? ?(?:([ap])\.? ?m\.?)?", re.IGNORECASE)
_BASE = re.compile(
    r"\(?([0-9A-F](?: ?[0-9A-F])*)\)?"
    r"(?:_(?:\{ ?([0-9]{1,2}|[a-z]+) ?\}|([0-9]{1,2}))| \(?(?:in )?base[ -]([0-9]{1,2}|[a-z]+)\)?)"
)
_NONE = re.compile(
    r"none(?: exists?)?|(?:there (?:is|are|exists?) )?(?:no(?= )|none)(?: such| real| integer| "
    r"positive)*"
    r"(?: (?:solutions?|integers?|numbers?|values?|functions?|roots?|pairs?|triples?|primes?"
    r"|points?))?"
    r"(?: exists?)?",
    re.IGNORECASE,
)
_VERDICT = re.compile(r"(yes|no|true|false)\b(?:[,.;:-].*)?$", re.IGNORECASE)
_COUNTED = re.compile(r"([0-9]+)(?:st|nd|rd|th)?")
_DATE_WORD = re.compile(rf"{WEEKDAY}\.?|{MONTH}", re.IGNORECASE)
_ORDINALS = [
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
]
_CARDINALS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]
_ROMAN = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"]
_FILLERS = re.compile(
    r"\b(?:the|an?|it|is|are|its|condition|function|number|series|option|choice|graph"
    r"|all|wins?|quadrant|triangle|angle|matrix|sequence|integers?|player|team|colou?r|ones?)\b",
    re.IGNORECASE,
)


def is_text(text: str) -> bool:
    """Return whether an answer is text, such as a name or the letter of a choice, not a formula."""
    return _TEXT.fullmatch(text) is not None


def is_proper_name(text: str) -> bool:
    """Return whether `text` is a proper name of two to five words, such as `Leonardo da Vinci`."""
    return _PROPER_NAME.fullmatch(text) is not None


def letter_of(text: str) -> str | None:
    """Return the letter if `text` is only the letter of a choice (`B`, `(B)` or `B.`).

    Return `None` for any other text.
    """
    match = _LETTER.fullmatch(text)
    return None if match is None else match[1]


def chosen_letter(text: str) -> str | None:
    """Return the letter of a choice such as `B` or `(B) 12`; `None` for any other text."""
    chosen = option(text)
    if chosen is None:
        return letter_of(text)
    return chosen[0]


def option(text: str) -> tuple[str, str] | None:
    """Split a choice such as `(B) 12` or `12 (B)` into (letter, content).

    Return `None` for any other text.
    """
    match = _OPTION.fullmatch(text)
    if match is not None:
        return match[1], match[2]
    match = _OPTION_BEHIND.fullmatch(text)
    if match is None:
        return None
    return match[2], match[1]


def numbered_content(text: str) -> str | None:
    """Return the content of a numbered choice (`Mars` for `(2) Mars`); `None` for other text."""
    match = _NUMBERED.fullmatch(text)
    return None if match is None else match[1]


def content_of(text: str) -> str:
    """Return the content of a choice with a letter or number; return other text unchanged."""
    chosen = option(text)
    if chosen is not None:
        return chosen[1]
    return numbered_content(text) or text


def same_special(gold: str, answer: str) -> bool | None:
    """Return whether two times of day, or two numerals in a base, are equal.

    Return `None` if neither answer is one of these. Answers such as `2:15` are compared as times
    only if at least one of them has a.m. or p.m. If only the gold answer names its base, the digits
    are compared. If only the answer names its base, the result is `False`, unless the base is 10.
    """
    expected_clock = _CLOCK.fullmatch(gold)
    actual_clock = _CLOCK.fullmatch(answer)
    clocks = [clock for clock in (expected_clock, actual_clock) if clock is not None]
    if any(clock[3] for clock in clocks):
        return len(clocks) == 2 and same_clock(*clocks)
    expected_base = _BASE.fullmatch(gold)
    actual_base = _BASE.fullmatch(answer)
    if expected_base is not None and actual_base is not None:
        is_same_base = base_of(expected_base) == base_of(actual_base)
        return is_same_base and digits_of(expected_base[1]) == digits_of(actual_base[1])
    for numeral, other in ((expected_base, answer), (actual_base, gold)):
        if numeral is not None and base_of(numeral) == "10":
            return digits_of(numeral[1]) == typography(other).replace(",", "")
    if expected_base is not None:  # the question names the base, so the answer need not
        return digits_of(typography(answer)) == digits_of(expected_base[1])
    if actual_base is not None:
        return False
    return None


def digits_of(numeral: str) -> str:
    """Return the digits of a numeral without the spaces that group them."""
    return numeral.replace(" ", "")


def base_of(numeral: re.Match[str]) -> str:
    """Return the base that a numeral names; words up to "twelve" are converted to digits."""
    base = numeral[2] or numeral[3] or numeral[4]
    if base in _CARDINALS:
        return str(_CARDINALS.index(base))
    return base


def same_clock(expected: re.Match[str], actual: re.Match[str]) -> bool:
    """Return whether two times can be the same; without a.m. or p.m., 2:15 may mean 14:15."""
    return not minutes_of(expected).isdisjoint(minutes_of(actual))


def minutes_of(clock: re.Match[str]) -> set[int]:
    """Return the times of day, in minutes after midnight, that a clock time can mean.

    A time such as 2:15, without a.m. or p.m., can mean two times, but 02:15 and 14:15 only one. The
    set is empty for an invalid time, or for a bare number such as 19 or 07; a bare 7 can mean 7:00
    or 19:00.
    """
    hour = int(clock[1])
    minute = int(clock[2] or 0)
    if hour > 23 or minute > 59:
        return set()
    morning = hour % 12 * 60 + minute
    afternoon = morning + 12 * 60
    if clock[3] and not 1 <= hour <= 12:
        return set()
    if clock[3]:
        return {afternoon} if clock[3].lower() == "p" else {morning}
    has_24_hours = hour > 12 or clock[1].startswith("0")
    if has_24_hours and not clock[2]:  # a bare 19 is not a time
        return set()
    if has_24_hours:
        return {hour * 60 + minute}
    return {morning, afternoon}


def same_texts(gold: str, answer: str) -> bool | None:
    """Return whether two answers are the same text (see `as_text`); `None` if neither is text."""
    if _TEXT.fullmatch(gold) or _TEXT.fullmatch(answer):
        return as_text(gold) == as_text(answer)
    return None


def says_none(text: str) -> bool:
    """Return whether an answer says that there is nothing, such as `no solution` or `none`."""
    return _NONE.fullmatch(text) is not None


def is_verdict(text: str) -> bool:
    """Return whether an answer is yes, no, true or false, alone or before a punctuation mark."""
    return _VERDICT.match(text) is not None


def as_text(text: str) -> str:
    """Normalize text for comparison: drop filler words and ignore case.

    Ordinals, Roman numerals and integers become numbers such as `2nd`, so that `second quadrant`
    equals `Quadrant II`. Names of days and months are cut to three letters, `Yes, it is.` becomes
    `yes`, and `no solution` becomes `none`. A single letter keeps its case.
    """
    text = text.strip("() .")
    if len(text) == 1 or text.isdecimal():
        return text
    verdict = _VERDICT.match(text)
    if verdict is not None:
        return verdict[1].casefold()
    if says_none(text):
        return "none"
    words = _FILLERS.sub(" ", text).split()
    if len(words) == 1 and len(words[0]) == 1 and words[0] not in _ROMAN:
        return words[0]
    return (" ".join(map(in_short, words)) or text).casefold()


def in_short(word: str) -> str:
    """Normalize an ordinal, Roman numeral or integer to its number followed by `nd`, as in `3nd`.

    Ordinals in words and Roman numerals are recognized up to twelve. Names of days and months are
    cut to three letters. Any other word is returned unchanged.
    """
    if word.lower() in _ORDINALS:
        return f"{_ORDINALS.index(word.lower()) + 1}nd"
    if word in _ROMAN:
        return f"{_ROMAN.index(word) + 1}nd"
    counted = _COUNTED.fullmatch(word)
    if counted is not None:
        return f"{counted[1]}nd"
    if _DATE_WORD.fullmatch(word):
        return word[:3]
    return word
